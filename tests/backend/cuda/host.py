"""Runs emitted CUDA C++ on this machine's processor: the one execution that needs no GPU.

The kernel's text is compiled as it stands, by the system's C++ compiler; what only a GPU can execute (the
instructions of the prelude) comes from `host_instructions.hpp` instead. Threads are fibers that take turns.
Overflows, and other things that C++ leaves undefined, are caught.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from taskc.backend.cuda.compiled import TensorMap, count
from taskc.backend.cuda.emit import emit
from taskc.backend.cuda.prelude import Entry, library, prelude_text
from taskc.backend.cuda.source import Source
from taskc.backend.cuda.types import STRUCTURES
from taskc.backend.packing import packed
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import map_children, substitute, walk
from taskc.ir.target import MATRIX_INSTRUCTIONS, MATRIX_MOVES, MatrixInstruction
from taskc.ir.types import DTYPES

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
_OPTIONS = (
    *("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-ffp-contract=off", "-fno-strict-aliasing"),
    "-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero,bounds",
    "-fsanitize-undefined-trap-on-error",
)
_FAILURES = {1: "all threads wait", 2: "undefined behaviour"}


@cache
def host_entries() -> dict[str, Entry]:
    found = {}
    text = (HERE / "host_instructions.hpp").read_text(encoding="utf-8")
    for part in text.split("//: ")[1:]:
        head, _, body = part.partition("\n")
        name, *needs = head.split()
        found[name] = Entry(name, tuple(needs), body.strip(), False)
    return found


def on_host(entry: Entry) -> Iterator[Entry]:
    """What stands for an entry of the prelude, after what that needs."""
    if not entry.is_instruction:
        for needed in entry.needs:
            yield from on_host(host_entries().get(needed) or library()[needed])
        yield entry
        return
    known = host_entries()
    row = _ROWS.get(
        "_".join(entry.name.split("_")[:3]) if entry.name.startswith("wgmma_m") else entry.name
    )
    if row is not None and row.asynchronous:
        for needed in (*_widening(row), "wgmma_element"):
            yield from on_host(known.get(needed) or library()[needed])
        yield _asynchronous(row, entry.name)
    elif row is not None:
        for needed in _widening(row):
            yield from on_host(library()[needed])
        yield _matrix(row)
    elif entry.name.startswith(("ldmatrix_", "stmatrix_")):
        yield _matrix_move(entry)
    elif entry.name.startswith(("tma_load_", "tma_store_")):
        yield known["tma_copy"]
        yield _copy(entry.name)
    elif (name := entry.name) in known or (name := entry.name.partition(".")[0]) in known:
        for needed in known[name].needs:
            yield from on_host(known.get(needed) or library()[needed])
        yield known[name]
    elif "asm" not in entry.text:
        yield entry
    else:
        raise NotImplementedError(f"{entry.name} has no counterpart on the host")


_ROWS = {row.name.replace(".", "_"): row for row in MATRIX_INSTRUCTIONS.values()}


def _widening(row: MatrixInstruction) -> tuple[str, ...]:
    return (f"to_f32.{row.operand}",) if row.operand in STRUCTURES else ()


def _wide(row: MatrixInstruction) -> str:
    return "tc::to_f32" if row.operand in STRUCTURES else f"({row.accumulator})"


def _table(name: str, fragment: Mapping) -> str:
    places = fragment.tasks[..., 0] * fragment.shape[1] + fragment.tasks[..., 1]
    rows = ", ".join("{" + ", ".join(map(str, one)) + "}" for one in places.tolist())
    return f"    static const int of_{name}[{len(places)}][{fragment.slots}] = {{{rows}}};"


def _asynchronous(row: MatrixInstruction, name: str) -> Entry:
    """As `_matrix`, by a warpgroup; when it has been issued it is done."""
    _, n, k = row.shape
    in_registers = "registers" in name
    ways = ["true" if f"transposed_{side}" in name else "false" for side in ("left", "right")]
    slots, left_slots = row.accumulator_fragment.slots, row.left_fragment.slots
    left = f"const {row.operand}* left" if in_registers else "u64 left"
    wide, step = _wide(row), "fmaf(a, b, sum)" if row.accumulator.is_float else "a * b + sum"
    element = f"wgmma_element<{row.operand}>"
    of_a = f"wide[1][r * {k} + q]" if in_registers else f"{wide}({element}(left, {ways[0]}, r, q))"
    lines = [
        f"static void {name}({row.accumulator}* d, {left}, u64 right, bool accumulate) {{",
        f"    static {row.accumulator} of_groups[8][2][{64 * max(n, k)}];",
        "    auto& wide = of_groups[host::current / 128];",
        "    const int lane = host::current % 128;",
        _table("d", row.accumulator_fragment),
        _table("left", row.left_fragment),
        f"    for (int i = 0; i < {slots}; ++i) wide[0][of_d[lane][i]] = d[i];",
    ]
    if in_registers:
        lines.append(
            f"    for (int i = 0; i < {left_slots}; ++i) wide[1][of_left[lane][i]] = {wide}(left[i]);"
        )
    lines += [
        "    host::meet_warpgroup();",
        f"    {row.accumulator} made[{slots}];",
        f"    for (int i = 0; i < {slots}; ++i) {{",
        f"        int at = of_d[lane][i], r = at / {n}, c = at % {n};",
        f"        {row.accumulator} sum = accumulate ? wide[0][at] : 0;",
        f"        for (int q = 0; q < {k}; ++q) {{",
        f"            {row.accumulator} a = {of_a}, b = {wide}({element}(right, {ways[1]}, c, q));",
        f"            sum = {step};",
        "        }",
        "        made[i] = sum;",
        "    }",
        "    host::meet_warpgroup();",
        f"    for (int i = 0; i < {slots}; ++i) d[i] = made[i];",
        "}",
    ]
    return Entry(name, (), "\n".join(lines), False)


def _matrix(row: MatrixInstruction) -> Entry:
    """Each thread shows its fragments, then computes its own elements, ascending in k."""
    assert row.right_fragment is not None
    m, n, k = row.shape
    fragments = {
        "d": row.accumulator_fragment,
        "left": row.left_fragment,
        "right": row.right_fragment,
    }
    lines = [
        f"static void {row.name.replace('.', '_')}({row.accumulator}* d, const {row.operand}* left,"
        f" const {row.types[1]}* right) {{",
        f"    static {row.accumulator} of_warps[32][3][{max(m * k, k * n, m * n)}];",
        "    auto& wide = of_warps[host::current / 32];",
        "    const int lane = host::lane();",
    ]
    for number, (name, fragment) in enumerate(fragments.items()):
        lines.append(_table(name, fragment))
        value = f"{name}[i]" if name == "d" else f"{_wide(row)}({name}[i])"
        lines.append(
            f"    for (int i = 0; i < {fragment.slots}; ++i) wide[{number}][of_{name}[lane][i]] = {value};"
        )
    step = "fmaf(a, b, sum)" if row.accumulator.is_float else "a * b + sum"
    lines += [
        "    host::meet_warp();",
        f"    {row.accumulator} made[{row.accumulator_fragment.slots}];",
        f"    for (int i = 0; i < {row.accumulator_fragment.slots}; ++i) {{",
        f"        int at = of_d[lane][i], r = at / {n}, c = at % {n};",
        f"        {row.accumulator} sum = wide[0][at];",
        f"        for (int q = 0; q < {k}; ++q) {{",
        f"            {row.accumulator} a = wide[1][r * {k} + q], b = wide[2][q * {n} + c];",
        f"            sum = {step};",
        "        }",
        "        made[i] = sum;",
        "    }",
        "    host::meet_warp();",
        f"    for (int i = 0; i < {row.accumulator_fragment.slots}; ++i) d[i] = made[i];",
        "}",
    ]
    return Entry(row.name.replace(".", "_"), (), "\n".join(lines), False)


def _matrix_move(entry: Entry) -> Entry:
    """Each thread names its line, then takes, or puts, its own elements."""
    call, _, dtype = entry.name.rpartition("_")
    row = next(row for row in MATRIX_MOVES.values() if row.name.replace(".", "_") == call)
    fragment = row.fragment(DTYPES[dtype])
    rows = ", ".join(
        "{" + ", ".join(f"{{{r}, {c}}}" for r, c in one) + "}" for one in fragment.tasks
    )
    pointers = f"{dtype}* to, {dtype}* line" if row.is_load else f"{dtype}* line, {dtype}* from"
    element = f"lines[8 * (i / {fragment.slots}) + at[0]][at[1]]"
    lines = [
        f"static void {entry.name}({pointers}) {{",
        f"    static {dtype}* of_warps[32][32];",
        f"    static const int of_lanes[32][{fragment.slots}][2] = {{{rows}}};",
        "    auto& lines = of_warps[host::current / 32];",
        "    lines[host::lane()] = line;",
        "    host::meet_warp();",
        f"    for (int i = 0; i < {fragment.slots * row.count}; ++i) {{",
        f"        const int* at = of_lanes[host::lane()][i % {fragment.slots}];",
        f"        {f'to[i] = {element}' if row.is_load else f'{element} = from[i]'};",
        "    }",
        "    host::meet_warp();",
        "}",
    ]
    return Entry(entry.name, (), "\n".join(lines), False)


def _copy(name: str) -> Entry:
    rank = int(name.rpartition("_")[2][0])
    numbers = range(rank)
    coordinates = ", ".join(f"i32 x{i}" for i in numbers)
    listed = ", ".join(f"x{i}" for i in numbers)
    at = f"    const i32 at[] = {{{listed}}};\n"
    if name.startswith("tma_store"):
        text = (
            f"static void {name}(const void* from, const TensorMap* map, {coordinates}) {{\n{at}"
            "    each_of_box((u8*)from, map, at,"
            " [=](u8* near, u8* far) { if (far) memcpy(far, near, map->size); });\n}"
        )
    else:
        text = (
            f"static void {name}(void* to, const TensorMap* map, {coordinates}, u64* barrier) {{\n{at}"
            "    i64 bytes = 0;\n"
            "    each_of_box((u8*)to, map, at, [&](u8* near, u8* far) {\n"
            "        if (far) memcpy(near, far, map->size);\n"
            "        else memset(near, 0, map->size);\n"
            "        bytes += map->size;\n"
            "    });\n"
            "    Mbarrier* one = (Mbarrier*)barrier;\n"
            "    one->bytes -= bytes;\n"
            "    advance(one);\n}"
        )
    return Entry(name, (), text, False)


@dataclass(frozen=True)
class Runnable:
    kernel: ir.Kernel
    source: Source
    function: Any

    def run(self, values: Sequence[Any], seed: int = 0) -> int:
        """Runs it on arrays and scalars: 0, or the number of an assertion that failed."""
        with packed(self.kernel.parameters, values) as passed:
            return self._run(values, passed, seed)

    def _run(self, given: Sequence[Any], values: Sequence[Any], seed: int) -> int:
        source = self.source
        sizes = dimensions_of(self.kernel, given)
        kept: list[Any] = []
        status = np.zeros(1, np.uint32)
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
                    kept.append(_map(source.maps[argument.number], values))
                case "status":
                    kept.append(np.array(status.ctypes.data, np.uint64))
        pointers = (ctypes.c_void_p * max(len(kept), 1))(*(one.ctypes.data for one in kept))
        blocks = count(source.blocks, sizes, values)
        code = self.function(pointers, ctypes.c_longlong(blocks), source.threads, seed)
        if code:
            raise AssertionError(f"{source.name}: {_FAILURES[code]}")
        return int(status[0])


def dimensions_of(kernel: ir.Kernel, values: Sequence[Any]) -> list[int]:
    found: dict[ir.Variable, int] = {}
    for parameter, value in zip(kernel.parameters, values, strict=True):
        if isinstance(parameter, ir.Tensor):
            for extent, n in zip(parameter.shape, value.shape, strict=False):
                if isinstance(extent, ir.Variable):
                    found[extent] = n
        else:
            found[parameter] = value
    return [int(found[dimension]) for dimension in kernel.dimensions]


def _map(asked: TensorMap, values: Sequence[Any]) -> np.ndarray:
    """As `TensorMap` of host_instructions.hpp has it."""
    array = values[asked.parameter]
    made = np.zeros(16, np.int64)
    made[0] = array.ctypes.data
    rank = len(asked.box)
    made[1 : 1 + rank] = array.shape[::-1]
    words = made.view(np.int32)
    words[12 : 12 + rank] = asked.box[::-1]
    words[17:20] = rank, array.itemsize, asked.swizzle
    return made


def build(kernels: Sequence[ir.Kernel]) -> list[Runnable]:
    """Kernels at stage lean, compiled together."""
    assert COMPILER is not None
    kernels = [in_plain_words(kernel) for kernel in kernels]
    sources = [emit(kernel) for kernel in kernels]
    entries: dict[str, Entry] = {}
    for source in sources:
        for entry in source.entries:
            for one in on_host(entry):
                entries.setdefault(one.name, one)
    parts = ['#include "host.hpp"\n', prelude_text(entries.values())]
    for number, source in enumerate(sources):
        lines = [
            line.text.replace('extern "C" ', "")
            for line in source.lines
            if not line.text.startswith("extern __shared__")
        ]
        types = [_argument_type(kernels[number], source, one) for one in source.arguments]
        passed = ", ".join(f"*({t}*)given[{i}]" for i, t in enumerate(types))
        parts += [
            f"namespace kernel_{number} {{\n",
            "\n".join(lines),
            f"\nstatic void with(void** given) {{ {source.name}({passed}); }}\n}}\n",
            f'extern "C" int launch_{number}(void** given, long long blocks, int threads, unsigned seed) {{\n'
            f"    return host::run(kernel_{number}::with, given, blocks, threads, seed);\n}}\n",
        ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cpp"
        file.write_text("".join(parts), encoding="utf-8")
        library = file.with_suffix(".so")
        command = [COMPILER, *_OPTIONS, f"-I{HERE}", str(file), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr[:4000]
        loaded = ctypes.CDLL(str(library))
    return [
        Runnable(kernel, source, loaded[f"launch_{number}"])
        for number, (kernel, source) in enumerate(zip(kernels, sources, strict=True))
    ]


def _argument_type(kernel: ir.Kernel, source: Source, argument: Any) -> str:
    match argument.kind:
        case "tensor":
            parameter = kernel.parameters[argument.number]
            constant = "const " if parameter.role == "in" else ""
            return f"{constant}{parameter.dtype}*"
        case "map":
            return "tc::TensorMap"
        case "status":
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
