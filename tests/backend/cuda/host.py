"""Runs emitted CUDA C++ on this machine's processor: the one execution that needs no GPU.

The kernel's text is compiled as it stands, by the system's C++ compiler, with the functions that it takes from
the prelude; inline PTX becomes calls (host_asm.py) of what host_ptx.hpp and host_matrices.hpp have for each
instruction. They follow the manual of PTX, and know nothing of this project's tables: what is packed, placed or
awaited wrongly gives wrong results. Threads are fibers that take turns (host.hpp). Overflows, and other things
that C++ leaves undefined, are caught.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from taskc.arrays.packed import packed
from taskc.backend.cuda import watchdog
from taskc.backend.cuda.compiled import TensorMap, count
from taskc.backend.cuda.emit import emit
from taskc.backend.cuda.expressions import KernelSource
from taskc.backend.cuda.prelude import prelude_text
from taskc.ir import nodes as ir
from taskc.ir.extents import extent_value
from taskc.ir.rewrite import map_children, substitute, walk
from taskc.ir.target import TARGETS
from taskc.ir.types import DTYPES
from tests.backend.cuda.host_asm import executable

HERE = Path(__file__).parent
HEADERS = "HOST_HEADERS"  # in the environment: the folder of compiled headers, of whoever has started this process
COMPILER = shutil.which("g++")
# Without -frounding-math g++ 12 makes 0.0 - (condition ? 1.0 : 0.0) a negation: its zero is negative.
_OPTIONS = (
    *("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing"),
    *("-ffp-contract=off", "-frounding-math"),
    "-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero,bounds",
    "-fsanitize-undefined-trap-on-error",
    # Calls of `stored` in host.hpp before each store to memory, and nothing else.
    *("-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0"),
    *("--param=asan-instrument-reads=0", "--param=asan-stack=0", "--param=asan-globals=0"),
)
_lock = Lock()
_FAILURES = {1: "all threads wait", 2: "undefined behaviour"}


@dataclass(frozen=True)
class Runnable:
    kernel: ir.Kernel
    source: KernelSource
    function: Any
    wrong: Any
    # Zeroed once: each launch finds it as the one before has left it.
    arrivals: Any = field(default_factory=lambda: np.zeros(1, np.uint32))

    def run(self, values: Sequence[Any], number: int = 0) -> int:
        """Runs it on arrays and scalars: 0, or the number of an assertion that failed.

        number  0: what runs beside threads takes effect as late as it may; 1: at once; else by chance
        """
        with packed(self.kernel.parameters, values) as passed:
            return self._run(values, passed, number)

    def _run(self, given: Sequence[Any], values: Sequence[Any], number: int) -> int:
        source = self.source
        sizes = dimensions_of(self.kernel, given)
        kept: list[Any] = []
        status, hang = np.zeros(1, np.uint32), np.zeros(watchdog.WORDS, np.uint32)
        for argument in source.arguments:
            value = values[argument.number] if argument.kind in ("tensor", "scalar") else None
            match argument.kind:
                case "tensor":
                    kept.append(np.array(value.ctypes.data, np.uint64))
                case "scalar":
                    kept.append(np.array(value, DTYPES[argument.dtype].numpy))
                case "dimension":
                    kept.append(np.array(sizes[argument.number], np.int64))
                case "map":
                    asked = source.maps[argument.number]
                    tensor = self.kernel.parameters[asked.parameter]
                    named = dict(zip(self.kernel.dimensions, sizes, strict=True))
                    shape = [extent_value(extent, named) for extent in tensor.shape]
                    kept.append(_map(asked, values[asked.parameter], shape))
                case "arrivals":
                    kept.append(np.array(self.arrivals.ctypes.data, np.uint64))
                case "status":
                    kept.append(np.array(status.ctypes.data, np.uint64))
                case "hang":
                    kept.append(np.array(hang.ctypes.data, np.uint64))
        pointers = (ctypes.c_void_p * max(len(kept), 1))(*(one.ctypes.data for one in kept))
        blocks = count(source.blocks, [*sizes, TARGETS[self.kernel.target].processors], values)
        code = self.function(pointers, ctypes.c_longlong(blocks), source.threads, number)
        if code:
            said = _FAILURES.get(code) or self.wrong().decode()
            hung = watchdog.said_at(hang.ctypes.data, source.name, source.waits)
            raise AssertionError(f"{source.name}: {'; '.join(filter(None, (said, hung)))}")
        return int(status[0])


def dimensions_of(kernel: ir.Kernel, values: Sequence[Any]) -> list[int]:
    found: dict[ir.Variable, int] = {}
    for parameter, value in zip(kernel.parameters, values, strict=True):
        if isinstance(parameter, ir.Tensor):
            for extent, n in zip(parameter.argument_shape, value.shape, strict=False):
                if isinstance(extent, ir.Variable):
                    found[extent] = n
        else:
            found[parameter] = value
    return [int(found[dimension]) for dimension in kernel.dimensions]


def _map(asked: TensorMap, array: Any, shape: Sequence[int]) -> np.ndarray:
    """As `TensorMap` of host_ptx.hpp has it, at a multiple of 64 bytes."""
    room = np.zeros(24, np.int64)
    begin = -room.ctypes.data % 64 // 8
    made = room[begin : begin + 16]
    made[0] = array.ctypes.data
    rank = len(shape)
    made[1 : 1 + rank] = shape[::-1]
    words = made.view(np.int32)
    words[12 : 12 + len(asked.box)] = asked.box[::-1]
    words[17:20] = rank, array.itemsize, asked.swizzle
    words[20 : 20 + len(asked.pixels)] = asked.pixels
    return made


def build(kernels: Sequence[ir.Kernel]) -> list[Runnable]:
    """Kernels at stage lean, compiled together."""
    kernels = [in_plain_words(kernel) for kernel in kernels]
    sources = [emit(kernel) for kernel in kernels]
    parts = ['#include "host.hpp"\n', 'extern "C" const char* wrong() { return host::wrong; }\n']
    for number, source in enumerate(sources):
        entries = [replace(entry, text=executable(entry.text)) for entry in source.entries]
        lines = [
            line.text.replace('extern "C" ', "")
            for line in source.lines
            if not line.text.startswith("extern __shared__")
        ]
        # Blocks that wait for each other run together.
        is_cooperative = any(one.kind == "arrivals" for one in source.arguments)
        together = "(int)blocks" if is_cooperative else str(source.cluster)
        types = [_argument_type(kernels[number], source, one) for one in source.arguments]
        passed = ", ".join(f"*({t}*)given[{i}]" for i, t in enumerate(types))
        macros = "\n".join(one for one in source.macros if "WATCHED" in one)
        parts += [
            "#undef WATCHED_UNITS\n#undef WATCHED_RECORDS\n",
            f"{macros}\nnamespace kernel_{number} {{\n{prelude_text(entries)}",
            "\n".join(lines),
            f"\nstatic void with(void** given) {{ {source.name}({passed}); }}\n}}\n",
            f'extern "C" int launch_{number}(void** given, i64 blocks, int threads, u32 number) {{\n'
            f"    return host::run(kernel_{number}::with, given, blocks, threads, {together},"
            f" {source.shared}, number);\n}}\n",
        ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cpp"
        file.write_text("".join(parts), encoding="utf-8")
        library = file.with_suffix(".so")
        _compile(file, library, f"-I{headers()}", f"-I{HERE}")
        loaded = ctypes.CDLL(str(library))
    loaded.wrong.restype = ctypes.c_char_p
    return [
        Runnable(kernel, source, loaded[f"launch_{number}"], loaded.wrong)
        for number, (kernel, source) in enumerate(zip(kernels, sources, strict=True))
    ]


def headers() -> str:
    """A folder with the headers, compiled once: they take longer than a small kernel."""
    with _lock:  # a program's kernels are compiled at the same time
        return os.environ.get(HEADERS) or _compiled_headers().name


@cache
def _compiled_headers() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    _compile(HERE / "host.hpp", Path(folder.name) / "host.hpp.gch", "-x", "c++-header")
    return folder


def _compile(file: Path, made: Path, *options: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, *_OPTIONS, *options, str(file), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[:4000]


def _argument_type(kernel: ir.Kernel, source: KernelSource, argument: Any) -> str:
    match argument.kind:
        case "tensor":
            parameter = kernel.parameters[argument.number]
            constant = "const " if parameter.role == "in" else ""
            return f"{constant}{parameter.dtype}*"
        case "map":
            return "tc::TensorMap"
        case "arrivals" | "status" | "hang":
            return "u32*"
    return str(argument.dtype)


def in_plain_words(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with the meaning of each snippet of PTX in its place."""
    if not any(isinstance(node, ir.Inline) for node in walk(kernel.body)):
        return kernel

    def visit(node: Any) -> Any:
        node = map_children(node, visit)
        if not isinstance(node, ir.Inline):
            return node
        return substitute(
            node.snippet.meaning, dict(zip(node.snippet.parameters, node.operands, strict=True))
        )

    return replace(kernel, body=visit(kernel.body))
