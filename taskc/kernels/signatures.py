"""One signature for several templates: an option is spelled once.

The types that templates compute in, and those of their results, where a call doesn't say them.

    operands       sums   results
    f8, f16, bf16  f32    the operands' type, rounded once
    tf32           f32    f32
    f32, f64       the operands' type
    i8 ... u16     i32    i32
    i32 ... u64    the operands' type

A call that says `total` and no `result` gets what was summed.

Extents that are known only at a call: which templates refuse them, and what plans assume of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from numbers import Integral
from typing import Any, ParamSpec, TypeAlias, TypeVar

from taskc import CompileError, DType, KernelDefinition, ProgramDefinition, f32, i32, tf32
from taskc.programs.tracing import Element

Value: TypeAlias = Element  # a number, a tensor or a tile, as a kernel's functions are given it
Values: TypeAlias = tuple[Value, ...]

Function = Callable[..., Any]  # a tc.function, or a Python function that could be one

Made = TypeVar("Made", KernelDefinition, ProgramDefinition)
Decorator = Callable[[Function], Made]  # tc.kernel(…) or tc.program(…)

P = ParamSpec("P")
R = TypeVar("R")


def parameters_of(other: Callable[P, R]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the parameters of another one, for callers, `help`, editors and type checkers alike.

    The function itself is called with all of them by name, defaults included.
    """
    signature = inspect.signature(other)

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        @wraps(function)
        def same(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                bound = signature.bind(*arguments, **options)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            named: dict[str, Any] = bound.arguments
            return function(**named)

        same.__signature__ = signature  # type: ignore[attr-defined]
        return same

    return decorate


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function that have defaults, with these."""
    named = inspect.signature(function).parameters.values()
    return {item.name: item.default for item in named if item.default is not item.empty}


# Numbers that are summed one after the other, at most; of more there are partial sums, which are added up. A long sum
# grows until what is added to it is little more than its last place, and of that always the same side is lost.
LONG_SUM = 1 << 12


def is_long(count: Any) -> bool:
    """Whether so many numbers, an int or a tc.dim, may be more than are summed one after the other."""
    return not isinstance(count, int) or count > LONG_SUM


def wide(dtype: DType) -> DType:
    """The type that numbers are folded in: 16 bits would lose most of a long sum."""
    return f32 if dtype is tf32 or (dtype.is_float and dtype.bits < f32.bits) else dtype


def types_of_products(
    dtype: DType, total: DType | None = None, result: DType | None = None
) -> tuple[DType, DType]:
    """The types of sums of products of such operands, and of their results."""
    is_narrow = dtype.is_integer and dtype.bits < i32.bits
    summed = total or (i32 if is_narrow else wide(dtype))
    is_rounded = total is None and dtype.is_float and dtype is not tf32
    return summed, result or (dtype if is_rounded else summed)


def with_types(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a product, with the types that a call doesn't say: a `right` operand has the left one's."""
    dtype = options["dtype"]
    total, result = types_of_products(dtype, options.get("total"), options.get("result"))
    return {**options, "right": options.get("right") or dtype, "total": total, "result": result}


Extent = Any  # an int, or a tc.dim

# An assumption orders the plans of a problem, and changes no result.
ASSUMED_EXTENT = 1 << 10  # of any axis: with others it makes an array that no cache keeps
ASSUMED_MANY = 1 << 20  # rows, queries, numbers to fold: work for all threads, however it is cut
ASSUMED_GPU_EXTENT = 1 << 13  # of a product: a last, partial wave of blocks costs little
ASSUMED_PIXELS = 1 << 17  # of a convolution's results: some 40 images of the height and width below
ASSUMED_SIDE = 56  # height and width, as in the middle of a network for images
ASSUMED_IMAGES = 64  # a batch
ASSUMED_KEYS = 1 << 12  # of attention: a long context, whose keys are worth sharing out


def known(extent: Any, assumed: int = ASSUMED_EXTENT) -> int:
    """The extent, if it is a number; else what plans assume."""
    return extent if isinstance(extent, int) else assumed


def require_numbers(template: str, **extents: Any) -> None:
    """Raise an error if one of them is known only at a call."""
    for name, extent in extents.items():
        if not isinstance(extent, Integral):
            raise CompileError(
                f"{name} of {template} is known when a kernel is made, and {extent} only at a call",
                hint="its layouts and registers are chosen by it: give it as a number",
            )
