"""Resize a plan to smaller sizes: its order and its arena stay, and only words that depend on sizes are computed.

    sizes     roomy sizes     a call of the plan
    n = 128   n = 128         scaled(arena + 0, arena + 512, n = 128)
    n = 121   n = 128         scaled(arena + 0, arena + 512, n = 121)

To make a plan takes 40 µs for each call, and to resize one takes a tenth of a millisecond. So a program whose sizes
differ from call to call has plans for roomy sizes, which are rounded up.

Memory for larger sizes is large enough if no extent falls as sizes grow. Calls that may run at the same time at larger
sizes may do so at smaller ones if what they access ends earlier, and begins where it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from taskc.ir.nodes import Binary, Cast, Constant, Expression, Tensor, Variable
from taskc.ir.types import i64
from taskc.programs.ir import Call, Program
from taskc.programs.plan import Plan


class SizeWord(NamedTuple):
    """A word that depends on sizes: it grows by `scale` with each step of `size`.

    call, word  the number of the call in the program, and of the word in the call
    """

    call: int
    word: int
    size: Expression
    scale: int


def size_words(program: Program) -> list[SizeWord] | None:
    """The words that depend on sizes; None if the program's plans can't be resized."""
    parameters = [item for item in program.parameters if isinstance(item, Tensor)]
    tensors = [*parameters, *program.temporaries, *[view.tensor for view in program.views]]
    if not all(_grows(extent) for tensor in tensors for extent in tensor.argument_shape):
        return None
    offsets = {view.tensor: view.offset for view in program.views}
    words: list[SizeWord] = []
    for number, call in enumerate(program.calls):
        if not isinstance(call, Call):
            return None
        for word in _words(program, call, offsets):
            if word is None:
                return None
            place, size, scale = word
            if not isinstance(size, int | Constant):
                words.append(SizeWord(number, place, size, scale))
    return words


def _words(
    program: Program, call: Call, offsets: Mapping[Tensor, int | Expression]
) -> Iterator[tuple[int, int | Expression, int] | None]:
    """The words of a call that may depend on sizes, with their sizes and scales; None where plans can't be resized."""
    parameters = call.callee.parameters
    for place, (parameter, argument) in enumerate(zip(parameters, call.arguments, strict=True)):
        if isinstance(argument, Tensor):
            if not argument.dtype.is_sub_byte:
                yield place, offsets.get(argument, 0), argument.dtype.nbytes
            elif argument in offsets:  # it begins within a byte
                yield None
        elif argument not in program.parameters and not isinstance(argument, Constant):
            yield (place, argument, 1) if parameter.dtype is i64 else None
    for place, dimension in enumerate(call.callee.dimensions, start=len(parameters)):
        size = dimension if dimension in program.dimensions else _size_of(call, dimension)
        yield None if size is None else (place, size, 1)


def _size_of(call: Call, dimension: Variable) -> int | Expression | None:
    """The size of a callee's dimension, which is an extent of an argument."""
    for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
        if isinstance(parameter, Tensor) and isinstance(argument, Tensor):
            pairs = zip(parameter.argument_shape, argument.argument_shape, strict=True)
            for extent, size in pairs:
                if extent is dimension:
                    return size
    return None


def _grows(size: int | Expression) -> bool:
    """Whether an extent, which is computed from dimensions, is 0 or more and never falls as they grow."""
    match size:
        case int():
            return True
        case Constant():
            return size.value >= 0
        case Variable():
            return True
        case Cast():
            return _grows(size.operand)
        case Binary(operator="+" | "*"):
            return _grows(size.left) and _grows(size.right)
        case Binary(operator="//", right=Constant(value=divisor)):
            return _grows(size.left) and divisor > 0
    return False


def roomy(size: int, dimension: Variable) -> int:
    """A dimension's size rounded up: to the most that is expected, or else by less than a quarter of it."""
    if dimension.most is not None and size <= dimension.most:
        return dimension.most
    count = size // dimension.multiple
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step * dimension.multiple


def is_resizable(program: Program, plan: Plan) -> bool:
    """Whether calls of a plan that may run at the same time may do so at smaller sizes, too."""
    begins_differ = any(not isinstance(view.offset, int | Constant) for view in program.views)
    return not (begins_differ and any(call.beside for call in plan.calls))
