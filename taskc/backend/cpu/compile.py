"""A kernel as native code: from stage lean to an object, and from an object to something that runs."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from taskc.backend.cpu import jit
from taskc.backend.cpu.cost import count_text
from taskc.backend.cpu.emit import Emitter, emitted
from taskc.backend.cpu.entry import context_size, entry_text
from taskc.backend.cpu.math import math_function
from taskc.backend.cpu.module import module_text, optimized
from taskc.backend.cpu.pool import pool
from taskc.backend.cpu.processor import Processor
from taskc.backend.cpu.unpacking import BITS, has_entry, packed_of, viewed_of
from taskc.backend.packing import packed
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.depth import deeply
from taskc.ir.extents import size_in_bytes
from taskc.ir.nodes import Tensor
from taskc.ir.rewrite import map_children, substitute, walk
from taskc.ir.signature import outputs_of
from taskc.ir.types import TensorType
from taskc.packed import packed_class

_MOST = 1 << 28  # bytes of one array of a block or of a worker: a vector of 16 has 4 GiB


@dataclass(frozen=True, slots=True)
class Compiled:
    """code     an object file for one kind of processor
    scratch  bytes of memory that a block needs: what is shared, and what is private and has no room on the stack
    spilled  bytes that a worker keeps in memory across barriers
    asserts  what each of the program's assertions says, and where it stands
    """

    code: bytes
    scratch: int
    spilled: int
    has_entry: bool
    asserts: tuple[tuple[str, Location], ...] = ()

    def to_bytes(self) -> bytes:
        description = asdict(self)
        del description["code"]
        return json.dumps(description).encode() + b"\n" + self.code

    @staticmethod
    def from_bytes(content: bytes) -> Compiled:
        text, _, code = content.partition(b"\n")
        description = json.loads(text)
        asserts = tuple([(said, Location(**loc)) for said, loc in description.pop("asserts")])
        return Compiled(code=code, asserts=asserts, **description)


def compile_kernel(lean: ir.Kernel, processor: Processor) -> Compiled:
    text, emitter = llvm_text(lean, processor)
    code = processor.machine.emit_object(optimized(text, processor))
    asserts = tuple([(node.text, node.loc) for node in emitter.asserts])
    return Compiled(code, emitter.privates.scratch, emitter.spilled, has_entry(lean), asserts)


@deeply
def llvm_text(lean: ir.Kernel, processor: Processor) -> tuple[str, Emitter]:
    """The module, and what its block's emitter has learnt."""
    lean = in_plain_words(lean)
    block, emitter = emitted(lean, processor, math_function)
    parts = [block]
    parts.append(count_text(lean, emitter.values.vectors))
    if has_entry(lean):
        parts.append(entry_text(lean, emitter.privates.scratch))
    return module_text(lean, processor, parts), emitter


def in_plain_words(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with the meaning of each snippet of PTX in its place."""

    def visit(node: Any) -> Any:
        node = map_children(node, visit)
        if not isinstance(node, ir.Inline):
            return node
        values = dict(zip(node.snippet.parameters, node.operands, strict=True))
        return substitute(node.snippet.meaning, values)

    return replace(kernel, body=visit(kernel.body))


def assembly_of(lean: ir.Kernel, processor: Processor) -> str:
    text: str = processor.machine.emit_assembly(optimized(llvm_text(lean, processor)[0], processor))
    return text


class Loaded:
    """A compiled kernel in this process."""

    def __init__(self, kernel: ir.Kernel, compiled: Compiled) -> None:
        self.kernel = kernel
        self.compiled = compiled
        exported = ["job", "count", *(["entry", "context"] if compiled.has_entry else [])]
        self.library = jit.load_object(compiled.code, kernel.name, exported)
        self._count = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.library["count"])
        # The threads are made when there is something to run.
        self._run: Callable[..., int] | None = None

    def run(self, values: Sequence[Any], dimensions: dict[ir.Variable, int]) -> int:
        """Runs it on arrays and scalars that fit its parameters: 0, or the assertion that failed."""
        with packed(self.kernel.parameters, values) as passed:
            return self._run_on(passed, dimensions)

    def _run_on(self, values: Sequence[Any], dimensions: dict[ir.Variable, int]) -> int:
        words = np.zeros(len(values) + len(dimensions) + 1, np.int64)
        for number, (parameter, value) in enumerate(
            zip(self.kernel.parameters, values, strict=True)
        ):
            if isinstance(parameter, Tensor):
                words[number] = value.ctypes.data
            else:
                scalar = np.asarray(value, parameter.dtype.numpy)
                words[number : number + 1].view(np.uint8)[: scalar.nbytes] = np.frombuffer(
                    scalar.tobytes(), np.uint8
                )
        for number, dimension in enumerate(self.kernel.dimensions, start=len(values)):
            words[number] = dimensions[dimension]
        signed = self._count(words.ctypes.data)
        if self._run is None:
            self._run = ctypes.CFUNCTYPE(
                ctypes.c_int32,
                *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool),
            )(pool().run)
        arguments = (self.library["job"], abs(signed), words.ctypes.data)
        while (status := self._run(*arguments, self.compiled.scratch, signed > 0)) == 1:
            pool().prepare(self.compiled.scratch)
        if status:
            raise MemoryError(f"no {self.compiled.scratch} bytes of scratch memory")
        return int(words[-1])

    def entry(
        self, slow: Callable[..., Any], failed: Callable[[int], Any]
    ) -> Callable[..., Any] | None:
        """A function of Python in compiled code.

        What it doesn't take it hands to `slow`; `failed` raises what an assertion says.
        """
        if not self.compiled.has_entry or not _objects_are_plain():
            return None
        outputs = outputs_of(self.kernel.parameters)
        classes = [
            packed_class(TensorType(t.dtype, t.shape, t.layout)) for t in packed_of(self.kernel)
        ]
        types = [tensor.dtype.numpy for tensor in outputs]
        viewed = [
            np.dtype(dtype.numpy)
            for tensor in viewed_of(self.kernel)
            for dtype in (tensor.dtype, BITS[tensor.dtype.name])
        ]
        names = sys.intern("out"), sys.intern("dtype")
        objects = (
            *(np.ndarray, np.empty, names[0], failed, names[1], np.ndarray.view),
            *(*types, *classes, *viewed),
        )
        context = (ctypes.c_void_p * context_size(self.kernel)).from_address(
            self.library["context"]
        )
        context[0] = pool().run
        for number, item in enumerate(objects, start=1):
            context[number] = id(item)
        needs = self.library, objects
        return _builtin(self.kernel.name, self.library["entry"], _Slow(slow, needs))


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


_FASTCALL, _KEYWORDS = 0x80, 0x02


class _Slow:
    """What compiled code hands a call to. It also holds what that code needs, for as long."""

    __slots__ = ("definition", "needs", "slow")

    def __init__(self, slow: Callable[..., Any], needs: object) -> None:
        self.slow = slow
        self.needs = needs
        self.definition: _MethodDefinition | None = None

    def __call__(self, values: tuple[Any, ...], names: tuple[str, ...] | None) -> Any:
        """Compiled code calls it with all arguments, and the names of the last of them."""
        count = len(values) - len(names or ())
        keywords = dict(zip(names or (), values[count:], strict=True))
        return self.slow(*values[:count], **keywords)


def _objects_are_plain() -> bool:
    """Whether an object is what compiled code takes it for: a count of references, then its type.

    So it is in CPython, but not where threads run without its lock, nor where it traces references.
    """
    if sys.implementation.name != "cpython" or sys.maxsize < 1 << 62:
        return False
    if object.__basicsize__ != 16:
        return False
    probe = object()
    return ctypes.c_void_p.from_address(id(probe) + 8).value == id(object)


def _builtin(name: str, address: int, slow: _Slow) -> Callable[..., Any]:
    """The C function at an address as a Python function, with `slow` as its self."""
    definition = _MethodDefinition(name.encode(), address, _FASTCALL | _KEYWORDS, None)
    slow.definition = definition  # to which Python keeps a pointer
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function: Callable[..., Any] = make(ctypes.addressof(definition), slow, None)
    return function


def refuse(kernel: ir.Kernel) -> None:
    """What only CUDA has is an error here, and what fits into no memory."""
    for node in walk(kernel.body):
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
