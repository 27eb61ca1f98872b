"""A kernel as native code: from stage lean to an object file, and from there to a function that runs."""

from __future__ import annotations

import ctypes
import json
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from typing import Any

import numpy as np

from taskc.arrays.packed import packed
from taskc.backend.cache import Cache
from taskc.backend.cpu import jit, processes, tiers
from taskc.backend.cpu.block_count import count_text
from taskc.backend.cpu.emit import PRINT, PRINTER, Emitter, emitted
from taskc.backend.cpu.entry import Called, python_function
from taskc.backend.cpu.math import math_function
from taskc.backend.cpu.module import DUE, GO_ON, LOOK, module_text, optimized
from taskc.backend.cpu.operations import writer
from taskc.backend.cpu.pool import pool
from taskc.backend.cpu.processor import Processor, host
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.code_size import deeply
from taskc.ir.extents import size_in_bytes
from taskc.ir.nodes import Tensor
from taskc.ir.printer import to_text
from taskc.ir.rewrite import map_children, substitute, walk, walk_statements
from taskc.ir.spans import span

_GIVEN_UP = 3  # status of `run`: a signal handler raised an exception

_MOST = 1 << 28  # bytes of one array of a block or of a worker: a vector of 16 then has 4 GiB


@dataclass(frozen=True, slots=True)
class CompiledObject:
    """code     an object file for one kind of processor
    scratch  bytes of memory that a block needs: shared tensors, and private ones that don't fit on the stack
    spilled  bytes that a worker keeps in memory across barriers
    asserts  text and location of each assertion
    prints   text of each `tc.print`, and the types of its values
    text     of quick code (tiers.py) the kernel at stage lean, which full code is made from
    lean     that kernel itself, in the process that compiled it
    """

    code: bytes
    scratch: int
    spilled: int
    asserts: tuple[tuple[str, Location], ...] = ()
    prints: tuple[tuple[str, tuple[str, ...]], ...] = ()
    text: str = ""
    lean: ir.Kernel | None = field(default=None, compare=False, repr=False)

    def to_bytes(self) -> bytes:
        changed = {"code": len(self.code), "text": bool(self.text)}
        description = asdict(replace(self, lean=None)) | changed
        text = zlib.compress(self.text.encode(), 1) if self.text else b""
        return json.dumps(description).encode() + b"\n" + self.code + text

    @staticmethod
    def from_bytes(content: bytes) -> CompiledObject:
        head, _, rest = content.partition(b"\n")
        description = json.loads(head)
        size, has_text = description.pop("code"), description.pop("text")
        text = zlib.decompress(rest[size:]).decode() if has_text else ""
        asserts = tuple([(said, Location(**loc)) for said, loc in description.pop("asserts")])
        prints = tuple([(said, tuple(types)) for said, types in description.pop("prints")])
        return CompiledObject(
            code=rest[:size], asserts=asserts, prints=prints, text=text, **description
        )


def _with_full_code(quick: CompiledObject) -> CompiledObject:
    lean = quick.lean
    if lean is None:  # the process that made the quick code ended before its full code was made
        from taskc.ir.parser import parse  # slow: the grammar

        lean = parse(quick.text)
    return replace(compile_kernel(lean, host()), asserts=quick.asserts)  # a text has no locations


def _full_code(text: str, processor: Processor, *, unrolls: bool) -> bytes:
    module = optimized(text, processor, unrolls=unrolls)
    with span("LLVM/generate code"):
        code: bytes = processor.machine.emit_object(module)
    return code


def compile_kernel(
    lean: ir.Kernel, processor: Processor, *, is_quick: bool = False
) -> CompiledObject:
    """Compile a kernel.

    is_quick  to quick code, where there is such
    """
    is_quick = is_quick and tiers.has_quick(lean)
    text, emitter = llvm_text(lean, processor, is_quick=is_quick)
    code = (
        tiers.quick_code(text, processor)
        if is_quick
        else _full_code(text, processor, unrolls=emitter.unrolls)
    )
    asserts = tuple([(node.text, node.loc) for node in emitter.asserts])
    prints = tuple([(p.text, tuple([v.dtype.name for v in p.values])) for p in emitter.prints])
    scratch, spilled = emitter.privates.scratch, emitter.spilled
    source = (to_text(lean), lean) if is_quick else ("", None)
    return CompiledObject(code, scratch, spilled, asserts, prints, *source)


@span("emission")
@deeply
def llvm_text(
    lean: ir.Kernel, processor: Processor, *, is_quick: bool = False
) -> tuple[str, Emitter]:
    """The module's text, and the emitter of its block."""
    lean = in_plain_words(lean)
    block, emitter = emitted(lean, processor, math_function, is_quick=is_quick)
    parts = [block]
    parts.append(count_text(lean, emitter.values.vectors))
    return module_text(lean, processor, parts), emitter


def words_of(
    called: Called, values: Sequence[Any], dimensions: dict[ir.Variable, int]
) -> np.ndarray[Any, Any]:
    """The words compiled code receives: eight bytes for each parameter and dimension, and one for its status."""
    words = np.zeros(len(values) + len(dimensions) + 1, np.int64)
    for number, (parameter, value) in enumerate(zip(called.parameters, values, strict=True)):
        if isinstance(parameter, Tensor):
            words[number] = value.ctypes.data
        else:
            scalar = np.asarray(value, parameter.dtype.numpy)
            if not parameter.dtype.is_float:  # fill the whole word, since plans are looked up by it
                scalar = scalar.astype(np.int64)
            words[number : number + 1].view(np.uint8)[: scalar.nbytes] = np.frombuffer(
                scalar.tobytes(), np.uint8
            )
    for number, dimension in enumerate(called.dimensions, start=len(values)):
        words[number] = dimensions[dimension]
    return words


def in_plain_words(kernel: ir.Kernel) -> ir.Kernel:
    """Replace each snippet of PTX by its meaning."""
    if not any(type(node) is ir.Inline for node in walk(kernel.body)):
        return kernel

    def visit(node: Any) -> Any:
        node = map_children(node, visit)
        if not isinstance(node, ir.Inline):
            return node
        values = dict(zip(node.snippet.parameters, node.operands, strict=True))
        return substitute(node.snippet.meaning, values)

    return replace(kernel, body=visit(kernel.body))


def assembly_of(lean: ir.Kernel, processor: Processor) -> str:
    text, emitter = llvm_text(lean, processor)
    module = optimized(text, processor, unrolls=emitter.unrolls)
    assembly: str = processor.machine.emit_assembly(module)
    return assembly


class LoadedKernel:
    """A compiled kernel in this process. Quick code is replaced by full code, once there is such.

    key, cache  the entry of the cache that holds its code; None where there is none
    stays_quick  quick code isn't replaced
    """

    def __init__(
        self,
        kernel: ir.Kernel,
        compiled: CompiledObject,
        key: str = "",
        cache: Cache | None = None,
        *,
        stays_quick: bool = False,
    ) -> None:
        self.kernel = kernel
        self.compiled = compiled
        self.key = key
        self._cache = cache
        names = {DUE: "due", LOOK: "look", GO_ON: "go_on"}
        self._imported = {name: pool().library[it] for name, it in names.items()}
        if compiled.prints:
            self._writer = writer(compiled.prints)  # called by compiled code
            self._imported |= {PRINT: pool().library["print"], PRINTER: id(self._writer)}
        exported = ["job", "count", *([tiers.NOW] if compiled.text else [])]
        self.library = self._linked(compiled, exported)
        if compiled.text and not stays_quick:
            tiers.later(partial(_complete, weakref.ref(self)))
        self._count = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.library["count"])
        # Threads start with the first run.
        self._run: Callable[..., int] | None = None

    def _linked(self, compiled: CompiledObject, exported: Sequence[str]) -> jit.LinkedLibrary:
        return jit.load_object(compiled.code, self.kernel.name, exported, self._imported)

    def complete(self) -> None:
        """Replace quick code by full code, in the cache, too."""
        full = processes.call(_with_full_code, self.compiled)
        if self._cache is not None:
            self._cache.put(self.key, full.to_bytes())
        if full.scratch > self.compiled.scratch:
            return  # callers pass what quick code needs: the next process has full code
        self._full = self._linked(full, ["job"])  # as long as the quick code that jumps there
        ctypes.c_void_p.from_address(self.library[tiers.NOW]).value = self._full["job"]
        self.compiled = full

    def count(self, words: np.ndarray[Any, Any]) -> int:
        """The number of blocks of a call with these words, negative where one thread is enough for them."""
        return int(self._count(words.ctypes.data))

    def run(self, values: Sequence[Any], dimensions: dict[ir.Variable, int]) -> int:
        """Run the kernel on arguments that fit its parameters. Returns 0, or the failed assertion's number."""
        with packed(self.kernel.parameters, values) as passed:
            return self._run_on(passed, dimensions)

    def _run_on(self, values: Sequence[Any], dimensions: dict[ir.Variable, int]) -> int:
        words = words_of(self.kernel, values, dimensions)
        signed = self.count(words)
        if self._run is None:
            self._run = ctypes.CFUNCTYPE(
                ctypes.c_int32,
                *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool),
            )(pool().run)
        arguments = (self.library["job"], abs(signed), words.ctypes.data)
        while (status := self._run(*arguments, self.compiled.scratch, signed > 0)) == 1:
            pool().prepare(self.compiled.scratch)
        if status == _GIVEN_UP:
            pool().raise_again()
        if status:
            raise MemoryError(f"no {self.compiled.scratch} bytes of scratch memory")
        return int(words[-1])

    def entry(
        self, slow: Callable[..., Any], failed: Callable[[int], Any]
    ) -> Callable[..., Any] | None:
        """The kernel as a compiled Python function, or None where its parameters don't allow one.

        Calls it doesn't accept go to `slow`; `failed` raises the error of an assertion.
        """
        library, scratch = self.library, self.compiled.scratch
        code = [pool().run, library["job"], library["count"], scratch]
        return python_function(self.kernel, code, slow, failed, needs=self)


def _complete(reference: weakref.ref[LoadedKernel]) -> None:
    kernel = reference()
    if kernel is not None:
        kernel.complete()


def refuse(kernel: ir.Kernel) -> None:
    """Raise an error for operations that only CUDA has, and for arrays too large for any memory."""
    for node in walk_statements(kernel.body):
        waits_for_grid = isinstance(node, ir.Barrier) and node.scope == "grid"
        if waits_for_grid or isinstance(node, ir.Do | ir.Roles):
            raise CompileError(
                f"'{kernel.name}' uses tc.cuda, which the CPU doesn't have",
                node.loc,
                hint="run it in the simulator: TASKC_TARGET=sim",
            )
        if isinstance(node, ir.Allocate) and size_in_bytes(node.tensor) > _MOST:
            raise CompileError(
                f"{node.tensor.name!r} takes {size_in_bytes(node.tensor):,} bytes, and a block or a worker"
                f" has {_MOST:,} at most",
                node.loc,
                hint="what is so large is an argument of the kernel",
            )
