"""Everything a launch needs: machine code, and a description of its arguments and resources.

A launch of a kernel

  - runs `count(compiled.blocks, dimensions, scalars)` blocks, none at all where that is 0, in one dimension;
    each of `threads` threads, with `shared` bytes of dynamic shared memory (above 48 KB the function's attribute
    has to be set first). The cluster's size is in the code, so a launch needs no attribute for it;
  - passes `arguments`, in order. GLOBAL memory begins at a multiple of 16 bytes, as all code assumes;
  - encodes each of `maps` from the tensor that is passed;
  - if an argument is "arrivals", is cooperative: all its blocks run at the same time, so it is refused if the
    device can't hold them. The word counts the blocks that arrived at a barrier. It is 0 before its first
    launch, and each launch leaves it ready for the next;
  - if there are `waits`, passes the address of `watchdog.WORDS` zeroed words in the CPU's memory;
  - if there are `asserts`, passes a zeroed word of 4 bytes. Afterwards it holds the number, from 1 on, of a
    failed assertion.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

from taskc.backend.cuda.watchdog import WatchedWait
from taskc.dataclass import dataclass
from taskc.errors import InternalError, Location
from taskc.ir import nodes as ir

LaunchExtent: TypeAlias = "int | tuple[Any, ...]"
"""A number that a launch computes: an int; ("dimension", n) or ("scalar", n), the n-th of the kernel's dimensions or
parameters, where the device's number of processors follows the dimensions; or an operator of `_OPERATORS` and
two forms."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel.

    kind    "tensor": the address of a parameter's memory; "scalar": a parameter's value, of `dtype`;
            "dimension": the value of a dimension, i64; "map": 128 bytes, a tensor map;
            "arrivals": the address of a word for barriers of the grid; "status": of one for assertions;
            "hang": of words for the watchdog
    number  index of the parameter, the dimension or the map, from 0 on
    """

    kind: Literal["tensor", "scalar", "dimension", "map", "arrivals", "status", "hang"]
    number: int = 0
    dtype: str = "i64"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map for bulk copies of boxes of a row-major tensor, which has the extents of the passed array.

    It copies bits: elements of 1, 2, 4 or 8 bytes, without interleaving, with element strides of 1, and with
    zeros for elements outside. Extents and boxes are listed here outermost dimension first; the driver wants
    them innermost first.

    parameter  index of the tensor among the kernel's parameters
    dtype      element type
    box        the extents of a copy
    swizzle    bytes of a line within which units of 16 bytes are permuted: 32, 64 or 128; 0 for none
    pixels     for a copy of pixels, with a box (pixels, channels): the numbers that follow in `tma.load.pixels`
    """

    parameter: int
    dtype: str
    box: tuple[int, ...]
    swizzle: int = 0
    pixels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a thread or block of a kernel, as the assembler reports them.

    registers     registers of a thread at its start
    stack         bytes of a thread's local memory
    spill_stores  and spill_loads: bytes stored there for want of registers, and loaded again
    shared        bytes of static shared memory, without the dynamic ones of a launch
    barriers      numbered barriers
    remarks       other remarks, for example that setmaxnreg was ignored (C7508)
    """

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0
    barriers: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def ignores_setmaxnreg(self) -> bool:
        return any("setmaxnreg" in remark for remark in self.remarks)

    @property
    def serializes_products(self) -> bool:
        """Whether each wgmma is waited for at once, since the assembler can't tell which code touches its registers."""
        return any("serialized" in remark for remark in self.remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDescription:
    """The description of a kernel's launches, which the head of this file explains.

    name     name of the function in the cubin
    arch     "sm_80", "sm_90a", …
    asserts  text and location of each assertion
    prints   whether it prints; the text appears when the device is synchronized
    waits    each wait of a kernel that is watched
    """

    name: str
    arch: str
    arguments: tuple[Argument, ...]
    threads: int
    shared: int
    blocks: LaunchExtent
    cluster: int = 1
    maps: tuple[TensorMap, ...] = ()
    asserts: tuple[tuple[str, Location], ...] = ()
    prints: bool = False
    waits: tuple[WatchedWait, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCubin(LaunchDescription):
    """A kernel's machine code."""

    cubin: bytes
    resources: Resources = Resources()

    @property
    def is_cooperative(self) -> bool:
        return any(argument.kind == "arrivals" for argument in self.arguments)

    def to_bytes(self) -> bytes:
        description = asdict(self)
        del description["cubin"]
        return json.dumps(description).encode() + b"\n" + self.cubin

    @staticmethod
    def from_bytes(content: bytes) -> CompiledCubin:
        text, _, cubin = content.partition(b"\n")
        read = json.loads(text)
        read["arguments"] = tuple([Argument(**one) for one in read["arguments"]])
        read["blocks"] = _tuples(read["blocks"])
        read["maps"] = tuple(
            [TensorMap(**{name: _tuples(value) for name, value in m.items()}) for m in read["maps"]]
        )
        read["asserts"] = tuple([(said, Location(**loc)) for said, loc in read["asserts"]])
        read["waits"] = tuple([WatchedWait(**one) for one in read["waits"]])
        resources = read["resources"]
        read["resources"] = Resources(**{**resources, "remarks": tuple(resources["remarks"])})
        return CompiledCubin(cubin=cubin, **read)


def _tuples(value: Any) -> Any:
    return tuple([_tuples(item) for item in value]) if isinstance(value, list) else value


# --- launch extents --------------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}


def count(form: LaunchExtent, dimensions: Sequence[int], scalars: Sequence[Any] = ()) -> int:
    """The value of a form; `scalars` are all arguments of the kernel, of which tensors are not read."""
    match form:
        case int():
            return form
        case ("dimension", int(number)):
            return int(dimensions[number])
        case ("scalar", int(number)):
            return int(scalars[number])
        case (str(operator), left, right):
            return int(
                _OPERATORS[operator](
                    count(left, dimensions, scalars), count(right, dimensions, scalars)
                )
            )
    raise InternalError(f"a launch can't compute {form}")


def is_decided_by_scalars(form: LaunchExtent) -> bool:
    """Whether a form's value depends on scalars, and not only on dimensions."""
    match form:
        case int() | ("dimension", _):
            return False
        case ("scalar", _):
            return True
        case (_, left, right):
            return is_decided_by_scalars(left) or is_decided_by_scalars(right)
    raise InternalError(f"a launch can't compute {form}")


def form_of(expression: ir.Expression, kernel: ir.Kernel) -> LaunchExtent:
    """A form for an expression of a kernel's sizes."""
    match expression:
        case ir.Constant(value=value):
            return int(value)
        case ir.Variable() if expression is kernel.processors:
            return "dimension", len(kernel.dimensions)
        case ir.Variable() if expression in kernel.dimensions:
            return "dimension", kernel.dimensions.index(expression)
        case ir.Variable() if expression in kernel.parameters:
            return "scalar", kernel.parameters.index(expression)
        case ir.Cast(operand=operand, dtype=dtype) if dtype.is_integer:
            return form_of(operand, kernel)
        case ir.Binary(operator=operator, left=left, right=right) if operator in _OPERATORS:
            return operator, form_of(left, kernel), form_of(right, kernel)
    raise InternalError(f"a launch can't compute {expression}")
