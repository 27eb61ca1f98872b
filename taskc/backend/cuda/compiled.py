"""What the compiler hands to whoever launches: machine code, and all that a launch has to know of it.

A launch of a kernel

  - runs `count(compiled.blocks, dimensions, scalars)` blocks, none at all where that is 0, in one dimension;
    each of `threads` threads, with `shared` bytes of dynamic shared memory (above 48 KB the function has to
    be told so first). The cluster's size is in the code: a launch needs no attribute for it;
  - passes `arguments`, in order. GLOBAL memory begins at a multiple of 16 bytes, as all code assumes;
  - makes each of `maps` of the tensor that was passed;
  - where an argument is "arrivals", is cooperative: all its blocks run at one time, so it is refused if the
    device can't hold them. The word counts who has come to a barrier; it is 0 before the first launch that is
    given it, and a launch leaves it ready for the next;
  - where there are `waits`, passes the address of `watchdog.WORDS` words of the CPU's memory that are 0;
  - where there are `asserts`, passes a word of 4 bytes that is 0. What is there afterwards is the number,
    from 1 on, of an assertion that didn't hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from taskc.backend.cuda.watchdog import Wait
from taskc.errors import InternalError, Location
from taskc.ir import nodes as ir

LaunchExtent: TypeAlias = "int | tuple[Any, ...]"
"""A number that a launch computes: an int; ("dimension", n) or ("scalar", n), the n-th of the kernel's dimensions or
parameters, where behind the dimensions stands the device's number of processors; or an operator of `_OPERATORS` and
two forms."""


@dataclass(frozen=True, slots=True)
class Argument:
    """What a kernel takes at one place.

    kind    "tensor": the address of a parameter's memory; "scalar": a parameter's value, of `dtype`;
            "dimension": the value of a dimension, i64; "map": 128 bytes, a tensor map;
            "arrivals": the address of a word for barriers of the grid; "status": of one for assertions;
            "hang": of words for the watchdog
    number  of the parameter, the dimension or the map, from 0 on
    """

    kind: Literal["tensor", "scalar", "dimension", "map", "arrivals", "status", "hang"]
    number: int = 0
    dtype: str = "i64"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A map of a row-major tensor, of the extents that it is passed with, for bulk copies of boxes.

    It copies bits: elements of 1, 2, 4 or 8 bytes, without interleaving, every one (element strides of 1),
    and zeros for what lies outside. Extents and boxes are listed here from the outermost dimension on; the
    driver wants them the other way round.

    parameter  the number of the tensor among the kernel's parameters
    dtype      of its elements
    box        the extents of a copy
    swizzle    the bytes of a line within which units of 16 bytes are exchanged: 32, 64 or 128; 0: none
    pixels     of a copy of pixels, whose box is (pixels, channels): the numbers of `tma.load.pixels` behind these
    """

    parameter: int
    dtype: str
    box: tuple[int, ...]
    swizzle: int = 0
    pixels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread, or block, of a kernel takes, as the assembler says.

    registers     of a thread, at its start
    stack         bytes of a thread's local memory
    spill_stores  and spill_loads: bytes that are stored there for want of registers, and loaded again
    shared        bytes of static shared memory; what a launch passes comes on top
    barriers      numbered ones
    remarks       what the assembler says besides: that setmaxnreg was ignored (C7508), for example
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
        """Each wgmma is waited for where it stands: the assembler saw no end to what touches its registers."""
        return any("serialized" in remark for remark in self.remarks)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel's machine code; the head of this file says what a launch does with the rest.

    name     of the function in the cubin
    arch     "sm_80", "sm_90a", …
    asserts  what each of the program's assertions says, and where it stands
    prints   whether it prints: what it says appears when the device is synchronized
    waits    each wait of a kernel that is watched
    """

    name: str
    arch: str
    cubin: bytes
    arguments: tuple[Argument, ...]
    threads: int
    shared: int
    blocks: LaunchExtent
    cluster: int = 1
    maps: tuple[TensorMap, ...] = ()
    asserts: tuple[tuple[str, Location], ...] = ()
    prints: bool = False
    resources: Resources = Resources()
    waits: tuple[Wait, ...] = ()

    @property
    def is_cooperative(self) -> bool:
        return any(argument.kind == "arrivals" for argument in self.arguments)

    def to_bytes(self) -> bytes:
        description = asdict(self)
        del description["cubin"]
        return json.dumps(description).encode() + b"\n" + self.cubin

    @staticmethod
    def from_bytes(content: bytes) -> Compiled:
        text, _, cubin = content.partition(b"\n")
        read = json.loads(text)
        read["arguments"] = tuple([Argument(**one) for one in read["arguments"]])
        read["blocks"] = _tuples(read["blocks"])
        read["maps"] = tuple(
            [TensorMap(**{name: _tuples(value) for name, value in m.items()}) for m in read["maps"]]
        )
        read["asserts"] = tuple([(said, Location(**loc)) for said, loc in read["asserts"]])
        read["waits"] = tuple([Wait(**one) for one in read["waits"]])
        resources = read["resources"]
        read["resources"] = Resources(**{**resources, "remarks": tuple(resources["remarks"])})
        return Compiled(cubin=cubin, **read)


def _tuples(value: Any) -> Any:
    return tuple([_tuples(item) for item in value]) if isinstance(value, list) else value


# --- numbers that a launch computes ----------------------------------------------------------

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
    """The value of a form; `scalars` are all of the kernel's arguments, and tensors among them don't matter."""
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
    """Whether a form's value depends on more than the dimensions."""
    match form:
        case int() | ("dimension", _):
            return False
        case ("scalar", _):
            return True
        case (_, left, right):
            return is_decided_by_scalars(left) or is_decided_by_scalars(right)
    raise InternalError(f"a launch can't compute {form}")


def form_of(expression: ir.Expression, kernel: ir.Kernel) -> LaunchExtent:
    """An expression of a kernel's sizes as a form."""
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
