"""Compiled code as a Python function: `entry` of c/calls.c, with a table that tells which arguments fit.

It accepts contiguous NumPy arrays and PyTorch tensors that fit the parameters, and Python's own numbers:

| argument | how it is read |
| --- | --- |
| NumPy's array | its fields tell its address, and whether type, shape and order are the parameter's |
| JAX's array | its buffer tells them, where it is only read |
| PyTorch tensor | described like a buffer (c/torch_tensors.c); new outputs are then tensors, too |
| number | read if it has one of Python's types and fits |

Every other call goes to `slow`, which copies, packs or reports the error. PyTorch's tensors and JAX's arrays are read
once a call has had one, when `admit_tensors` and `admit_arrays` set up what that takes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.dlpack import DTYPES, type_code
from taskc.arrays.packed import memory_of, packed_class
from taskc.arrays.torch import door
from taskc.backend.cpu.pool import pool
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.bits import has_whole_rows
from taskc.ir.nodes import Expression, Kernel, Tensor, Variable
from taskc.ir.signature import inputs_of, outputs_of
from taskc.ir.types import TensorType, boolean, f32, f64
from taskc.programs.ir import Program

# A function with parameters, and dimensions that they determine.
Called: TypeAlias = "Kernel | Program"

GIVEN_UP = (1 << 31) - 1  # no assertion's number: a signal handler raised an exception

# As c/calls.c names them.
_TRUTH, _INTEGER, _SINGLE, _DOUBLE, _ARRAY = range(5)
_NEW, _CONSTANT, _WORD = range(3)
_KINDS = {boolean: _TRUTH, f32: _SINGLE, f64: _DOUBLE}
_OPERATORS = {"+": 3, "-": 4, "*": 5, "//": 6, "%": 7}
_BUFFERS_NAMES = "?bhilqBHILQefd"

# Objects whose addresses compiled code has, kept alive for the life of the process.
_kept: list[object] = []


class _Sample(ctypes.Structure):
    """A row of `samples`."""

    _fields_ = (("type", ctypes.c_int32), ("tensor", ctypes.c_void_p))


def admit_tensors() -> None:
    """Let compiled code accept tensors directly, where this PyTorch supports it."""
    library = pool().library
    if ctypes.c_void_p.from_address(library["torch"]).value:
        return
    torch_door = door(DTYPES)
    if torch_door is None:
        return
    _kept.append(torch_door)
    rows = (_Sample * len(torch_door.samples)).from_address(library["samples"])
    for row, (dtype, tensor) in zip(rows, torch_door.samples.items(), strict=True):
        row.type, row.tensor = type_code(dtype), id(tensor)
    words = (torch_door.read, *map(id, torch_door.objects))
    (ctypes.c_void_p * len(words)).from_address(library["torch"])[:] = [*words]


def admit_arrays(kind: type) -> None:
    """Let compiled code accept arrays of a class through their buffers, where they are only read."""
    place = ctypes.c_void_p.from_address(pool().library["buffers_class"])
    if place.value != id(kind):
        _kept.append(kind)
        place.value = id(kind)


def _is_packed(item: Tensor) -> bool:
    """Whether the argument is a packed array: one with a layout, or with rows that don't fill whole bytes."""
    declared = item.argument
    is_ragged = declared.dtype.is_sub_byte and not has_whole_rows(declared)
    return declared.layout is not None or is_ragged


def python_function(
    called: Called,
    code: Sequence[int],
    slow: Callable[..., Any],
    failed: Callable[[int], Any],
    needs: object,
) -> Callable[..., Any] | None:
    """The compiled function that Python calls; None where compiled code can't take its arguments.

    code    the last words of the table: what runs, as c/calls.c has it
    slow    takes a call that compiled code doesn't
    failed  raises what an assertion says
    needs   what that code needs to be there
    """
    if not _objects_are_plain():
        return None

    def ended(number: int) -> None:
        if number == GIVEN_UP:
            pool().raise_again()
        failed(number)

    writer = _TableWriter(called)
    try:
        rows = np.array(writer.rows(), np.int64).reshape(len(called.parameters), -1)
    except _UnfitError:
        return None
    terms = np.array(writer.terms, np.int64)
    rows[:, -1] = terms.ctypes.data + terms.itemsize * rows[:, -1]
    library = pool().library
    call = library["call_kernel" if isinstance(called, Kernel) else "call_program"]
    out = sys.intern("out")
    outputs = len(outputs_of(called.parameters))
    objects = (id(out) if writer.takes_out else 0, id(ended), id(np.empty), id(np.ndarray))
    counts = (len(writer.words), len(called.parameters) - outputs, outputs)
    table = np.array([call, *objects, *counts, rows.ctypes.data, *code], np.int64)
    function = table.view(_Slow)
    function.slow = slow
    function.needs = (ended, out, rows, terms, writer.objects, needs)
    return _builtin(called.name, library["entry"], function)


class _UnfitError(Exception):
    """Compiled code can't take the arguments."""


class _TableWriter:
    """The rows of parameters.

    words      the number of each parameter's and dimension's word
    takes_out  whether there is one output, which `out=` can name because no input has that name
    objects    those that rows have addresses of
    """

    def __init__(self, called: Called) -> None:
        items = [*called.parameters, *called.dimensions]
        self.words = {item: number for number, item in enumerate(items)}
        inputs, self._outputs = inputs_of(called.parameters), outputs_of(called.parameters)
        is_free = all(parameter.name != "out" for parameter in inputs)
        self.takes_out = is_free and len(self._outputs) == 1
        self.terms: list[int] = []
        self.objects: list[object] = []
        self._called = called
        self._known: set[Variable] = set()  # dimensions

    def rows(self) -> list[list[int]]:
        """`parameter` for each, in the order in which arguments are unpacked."""
        inputs = [item for item in self._called.parameters if item not in self._outputs]
        rows = [self._row(item) for item in (*inputs, *self._outputs)]
        if not self._known.issuperset(self._called.dimensions):
            raise _UnfitError  # only a program calls this kernel, since no argument tells the dimension
        return rows

    def _row(self, item: Tensor | Variable) -> list[int]:
        """`parameter`: the kind of an item, its place among the words, and what fits it."""
        place = self.words[item]
        if isinstance(item, Tensor):
            return [_ARRAY, place, 0, 0, *self._array(item)]
        dtype = item.dtype
        if dtype.is_integer:
            least, most = max(dtype.minimum, -(2**63)), min(dtype.maximum, 2**63 - 1)
            kind, bounds = _INTEGER, [int(least), int(most)]
        else:
            kind, bounds = _KINDS.get(dtype, -1), [0, 0]
            if kind < 0:
                raise _UnfitError
        return [kind, place, *bounds, *[0] * 13]

    def _array(self, item: Tensor) -> list[int]:
        declared = item.argument
        is_sub_byte = declared.dtype.is_sub_byte
        element = np.dtype(np.uint8) if is_sub_byte else declared.dtype.numpy
        # C's `long` has another number and name than the type that is as wide.
        names = [name for name in _BUFFERS_NAMES if np.dtype(name) == element]
        numbers = [np.dtype(name).num for name in names] or [element.num]
        codes = [ord(name) for name in names] or [0]
        kind: type = np.ndarray
        extents, bits = item.argument_shape, declared.dtype.bits if is_sub_byte else 0
        if _is_packed(item):
            # A slice of a packed array, or a result that NumPy computes from it, has its class, too: check the shape.
            is_fixed = all(isinstance(extent, int) for extent in extents)
            if not is_fixed or (item.role == "out" and not self.takes_out):
                raise _UnfitError  # an output with a layout is accepted only as `out=`
            packed = TensorType(declared.dtype, declared.argument_shape, declared.layout)
            kind, extents, bits = packed_class(packed), memory_of(packed)[:1], 0
        made = item.dtype.numpy
        self.objects += kind, made
        start = len(self.terms)
        for extent in extents:
            self.terms += self._extent(extent)
        return [
            *(id(kind), numbers[0], numbers[-1], codes[0], codes[-1], element.itemsize, type_code(element)),
            *(item.role != "in", item.layout is not None, bits, id(made), len(extents), start),
        ]  # fmt: skip

    def _extent(self, extent: int | Expression) -> list[int]:
        """The terms of an extent; that of a dimension which isn't known yet tells it."""
        if isinstance(extent, Variable) and extent not in self._known:
            self._known.add(extent)
            return [_NEW, self.words[extent], extent.multiple]
        return self._value(extent)

    def _value(self, extent: int | Expression) -> list[int]:
        match extent:
            case int():
                return [_CONSTANT, extent]
            case ir.Constant(value=value):
                return [_CONSTANT, int(value)]
            case Variable():
                if extent not in self._known:  # an argument tells it later
                    raise _UnfitError
                return [_WORD, self.words[extent]]
            case ir.Cast():
                return self._value(extent.operand)
            case (
                ir.Binary(operator="+" | "-" | "*", left=left, right=right)
                | ir.Binary(operator="//" | "%", left=left, right=ir.Constant() as right)
            ):
                return [_OPERATORS[extent.operator], *self._value(left), *self._value(right)]
        raise InternalError(f"an extent can't be {type(extent).__name__}")


class _ArrayFields(ctypes.Structure):
    """`array`."""

    _fields_ = (
        ("count", ctypes.c_int64), ("type", ctypes.c_int64), ("data", ctypes.c_int64),
        ("rank", ctypes.c_int32), ("extents", ctypes.c_int64), ("strides", ctypes.c_int64),
        ("base", ctypes.c_int64), ("element", ctypes.c_int64), ("flags", ctypes.c_int32),
    )  # fmt: skip


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


_FASTCALL, _KEYWORDS = 0x80, 0x02


class _Slow(np.ndarray[Any, Any]):
    """The fallback for calls that compiled code doesn't accept. Its memory is that code's table."""

    slow: Callable[..., Any]
    needs: object
    definition: _MethodDefinition

    def __call__(self, values: tuple[Any, ...], names: tuple[str, ...] | None) -> Any:
        """Called by compiled code with all arguments, and the names of the last of them."""
        count = len(values) - len(names or ())
        keywords = dict(zip(names or (), values[count:], strict=True))
        return self.slow(*values[:count], **keywords)


def _objects_are_plain() -> bool:
    """Whether objects have the layout that compiled code expects: a reference count, the type, and NumPy's fields.

    So it is in CPython, but not where threads run without its lock, nor where it traces references.
    """
    if sys.implementation.name != "cpython" or sys.maxsize < 1 << 62:
        return False
    if object.__basicsize__ != 16:
        return False
    probe = np.zeros((2, 3), np.float32)
    fields = _ArrayFields.from_address(id(probe))
    element = id(probe.dtype)
    number = ctypes.c_int32.from_address(element + 28).value
    order = ctypes.c_char.from_address(element + 26).value
    seen = fields.type, fields.data, fields.rank, fields.element, fields.flags, number, order
    address, flags = probe.ctypes.data, probe.flags.num
    if seen != (id(np.ndarray), address, 2, element, flags, probe.dtype.num, b"="):
        return False
    return [*(ctypes.c_int64 * 2).from_address(fields.extents)] == [2, 3]


def _builtin(name: str, address: int, slow: _Slow) -> Callable[..., Any]:
    """The C function at an address as a Python function, with `slow` as its self."""
    definition = _MethodDefinition(name.encode(), address, _FASTCALL | _KEYWORDS, None)
    slow.definition = definition  # Python keeps a pointer to it
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function: Callable[..., Any] = make(ctypes.addressof(definition), slow, None)
    return function
