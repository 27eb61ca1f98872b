"""Compiled code as a Python function, and the number of blocks of a call.

`python_function` makes the function of an entry (entry.py). Entries read PyTorch tensors (c/torch_tensors.c) and JAX's
arrays once a call has had one, when `admit_tensors` and `admit_arrays` set up what that takes.

    i64 count(ptr arguments)

`count_text` writes this function, which returns the number of blocks of a call. It is negated where one thread is
enough: where all blocks take less than, roughly, ten microseconds of operations. IN_ORDER is added where threads have
to take blocks in order, since a block may wait for an earlier one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from taskc.arrays.dlpack import DTYPES, type_code
from taskc.arrays.packed import packed_class
from taskc.arrays.torch import Door, door
from taskc.backend.cpu.entry import (
    BITS,
    GIVEN_UP,
    Called,
    context_size,
    packed_of,
    packed_type,
    viewed_of,
)
from taskc.backend.cpu.instructions import Builder, LaneValue, constant
from taskc.backend.cpu.jit import LinkedLibrary
from taskc.backend.cpu.native import Elementwise
from taskc.backend.cpu.pool import pool
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.code_size import trip_count
from taskc.ir.nodes import Expression, Kernel, Statement, Variable
from taskc.ir.rewrite import expressions, statements, walk
from taskc.ir.signature import outputs_of
from taskc.ir.types import i64

# read_tensor, new_tensor, and the class of arrays with buffers: null until they are set up.
_table = (ctypes.c_void_p * 3)()
TABLE = ctypes.addressof(_table)
# Objects whose addresses compiled code has, kept alive for the life of the process.
_kept: list[object] = []


class _Sample(ctypes.Structure):
    """A row of `samples`."""

    _fields_ = (("type", ctypes.c_int32), ("tensor", ctypes.c_void_p))


def admit_tensors() -> None:
    """Let compiled code accept tensors directly, where this PyTorch supports it."""
    if _table[0]:
        return
    torch_door = door(DTYPES)
    if torch_door is None:
        return
    library = pool().library
    _fill(library, torch_door)
    _kept.append(torch_door)
    _table[1] = library["new_tensor"]
    _table[0] = library["read_tensor"]


def admit_arrays(kind: type) -> None:
    """Let compiled code accept arrays of a class through their buffers, where they are only read."""
    if _table[2] != id(kind):
        _kept.append(kind)
        _table[2] = id(kind)


def _fill(library: LinkedLibrary, found: Door) -> None:
    """Fill in `torch` and `samples`."""
    words = (found.read, *map(id, found.objects))
    (ctypes.c_void_p * len(words)).from_address(library["torch"])[:] = [*words]
    rows = (_Sample * len(found.samples)).from_address(library["samples"])
    for row, (dtype, tensor) in zip(rows, found.samples.items(), strict=True):
        row.type, row.tensor = type_code(dtype), id(tensor)


def python_function(
    called: Called,
    library: LinkedLibrary,
    addresses: Sequence[int],
    slow: Callable[..., Any],
    failed: Callable[[int], Any],
    needs: object = None,
) -> Callable[..., Any] | None:
    """The `entry` of a library; None where Python objects don't have the layout compiled code expects.

    addresses  the last words of the context: what runs, as c/calls.c has it
    slow       takes a call that compiled code doesn't
    failed     raises what an assertion says
    needs      what that code needs to be there
    """
    if not _objects_are_plain():
        return None

    def ended(number: int) -> None:
        if number == GIVEN_UP:
            pool().raise_again()
        failed(number)

    outputs = outputs_of(called.parameters)
    classes = [packed_class(packed_type(item)) for item in packed_of(called)]
    types = [tensor.dtype.numpy for tensor in outputs]
    viewed = [
        np.dtype(dtype.numpy)
        for tensor in viewed_of(called)
        for dtype in (tensor.dtype, BITS[tensor.dtype.name])
    ]
    names = sys.intern("out"), sys.intern("dtype")
    objects = (np.ndarray, np.empty, names[0], ended, names[1], np.ndarray.view)
    described = (*types, *classes, *viewed)
    call = "call_kernel" if isinstance(called, Kernel) else "call_program"
    functions = [pool().library[name] for name in (call, "read_argument", "ask_slow")]
    words = (*functions, *map(id, objects), TABLE, *map(id, described), *addresses)
    assert len(words) == context_size(called) + len(addresses)
    context = (ctypes.c_void_p * len(words)).from_address(library["context"])
    for number, word in enumerate(words):
        context[number] = word
    return _builtin(
        called.name, library["entry"], _Slow(slow, (library, objects, described, needs))
    )


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
    """The fallback for calls that compiled code doesn't accept. It also keeps that code's data alive."""

    __slots__ = ("definition", "needs", "slow")

    def __init__(self, slow: Callable[..., Any], needs: object) -> None:
        self.slow = slow
        self.needs = needs
        self.definition: _MethodDefinition | None = None

    def __call__(self, values: tuple[Any, ...], names: tuple[str, ...] | None) -> Any:
        """Called by compiled code with all arguments, and the names of the last of them."""
        count = len(values) - len(names or ())
        keywords = dict(zip(names or (), values[count:], strict=True))
        return self.slow(*values[:count], **keywords)


def _objects_are_plain() -> bool:
    """Whether objects have the layout that compiled code expects: a reference count, then the type.

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
    slow.definition = definition  # Python keeps a pointer to it
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function: Callable[..., Any] = make(ctypes.addressof(definition), slow, None)
    return function


WORTH = 40_000  # operations, about ten microseconds: below that, other threads come too late
IN_ORDER = 1 << 62
_UNKNOWN_TRIPS = 64
_MATH = 20


def count_text(kernel: ir.Kernel, vectors: int) -> str:
    """The text of `count`; a block runs its body once for each of its vectors."""
    builder = Builder()
    elementwise = Elementwise(builder)
    known: dict[Variable, LaneValue] = {}
    for number, item in enumerate([*kernel.parameters, *kernel.dimensions]):
        if isinstance(item, Variable) and item.dtype.is_integer:
            place = builder.pure(f"getelementptr i64, ptr %arguments, i64 {number}")
            text = builder.pure(f"load i{item.dtype.bits}, ptr {place}")
            known[item] = LaneValue(text, item.dtype)

    def value(expression: Expression) -> LaneValue:
        match expression:
            case ir.Constant():
                return constant(expression.value, expression.dtype)
            case Variable():
                return known[expression]
            case ir.Binary():
                return elementwise.binary(
                    expression.operator, value(expression.left), value(expression.right)
                )
            case ir.Cast():
                return elementwise.convert(value(expression.operand), expression.dtype)
        raise InternalError(f"the number of blocks can't be {type(expression).__name__}")

    blocks = elementwise.convert(value(kernel.blocks or ir.constant(1)), i64)
    most = constant(WORTH // max(1, cost_of(kernel.body) * vectors), i64)
    few = elementwise.binary("<=", blocks, most)
    many = blocks
    if waits_for_blocks(kernel.body):
        many = elementwise.binary("|", blocks, IN_ORDER)
    signed = elementwise.select(few, elementwise.unary("-", blocks), many)
    lines = [*builder.declared.values(), "define i64 @count(ptr %arguments) {", *builder.lines]
    return "\n".join([*lines, f"  ret i64 {signed.text}", "}"])


def waits_for_blocks(body: Statement) -> bool:
    """Whether a loop may wait for another block's update."""
    return any(
        isinstance(node, ir.Atomic) and node.tensor.scope == ir.GLOBAL
        for loop in walk(body)
        if isinstance(loop, ir.While)
        for node in walk(loop.body)
    )


def cost_of(statement: Statement) -> int:
    """Operations of one vector of workers; a loop of unknown length counts as _UNKNOWN_TRIPS turns."""
    own_operations = own_cost(statement)
    nested = sum(cost_of(inner) for inner in statements(statement))
    match statement:
        case ir.For() if (trips := trip_count(statement)) is not None:
            return own_operations + trips * nested
        case ir.For() | ir.While():
            return own_operations + _UNKNOWN_TRIPS * (own_operations + nested)
    return own_operations + nested


def own_cost(statement: Statement) -> int:
    """Operations of the statement's own expressions, without nested statements."""
    return sum(_weight(node) for part in expressions(statement) for node in walk(part))


def _weight(node: object) -> int:
    if isinstance(node, ir.Unary | ir.Binary):
        return _MATH if node.operator in MATH_FUNCTIONS else 1
    return 1 if isinstance(node, ir.Read | ir.Fused | ir.Address) else 0
