"""Sum, mean, maximum, minimum and product along any axes.

A reduction sees its arrays with neighbouring axes joined, as `[outer, apart, middle, along, inner]`: it
folds `apart` and `along`, and keeps the others. `views(shape, axes)` gives these shapes; a contiguous
array is reshaped for nothing. Where the innermost axis is kept, neighbouring workers have neighbouring
columns; where it is folded, they walk along it, and fold what each has found at the end. What is folded
into few numbers is cut into parts, whose results are folded by a second kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    ProgramDefinition,
    bf16,
    boolean,
    f16,
    f32,
    repeat,
    spatial,
)

OPERATORS = {"sum": "+", "mean": "+", "prod": "*", "max": "max", "min": "min"}

# Elements that a part has, and the number of results above which there are no parts. They don't depend
# on the number of threads, and so neither does the result.
_PART = 1 << 16
_FEW = 64

View = tuple[Any, Any, Any, Any, Any]


def views(shape: Sequence[Any], axes: Iterable[int]) -> tuple[View, View]:
    """How a reduction sees its input and its output. Symbolic extents can't be joined to others."""
    rank = len(shape)
    folded = set()
    for axis in axes:
        if not -rank <= axis < rank:
            raise CompileError(f"axis {axis} is not one of {rank}", hint=f"the shape is {shape}")
        folded.add(axis % rank)
    runs: list[tuple[bool, list[Any]]] = []
    for axis, extent in enumerate(shape):
        if isinstance(extent, int) and extent == 1:
            continue
        if not runs or runs[-1][0] is not (axis in folded):
            runs.append((axis in folded, []))
        runs[-1][1].append(extent)
    joined = [(is_folded, _joined(extents)) for is_folded, extents in runs]
    if joined and not joined[-1][0]:
        inner = joined.pop()[1]
    else:
        inner = 1
    # From the back: along, middle, apart, outer.
    parts = [1, 1, 1, 1]
    for place, want in enumerate((True, False, True, False)):
        if joined and joined[-1][0] is want:
            parts[place] = joined.pop()[1]
    if joined:
        raise CompileError(
            f"axes {sorted(folded)} of {len(shape)} lie in more than two groups",
            hint="reduce some of them first",
        )
    along, middle, apart, outer = parts
    return (outer, apart, middle, along, inner), (outer, 1, middle, 1, inner)


def _joined(extents: list[Any]) -> Any:
    if len(extents) == 1:
        return extents[0]
    if not all(isinstance(extent, int) for extent in extents):
        raise CompileError(f"the axes {tuple(extents)} can't be joined: a size is symbolic")
    return prod(extents)


def reduction(
    operator: str, shape: Sequence[Any], axes: Iterable[int], *, dtype: DType = f32
) -> KernelDefinition | ProgramDefinition:
    """Folds the axes with "sum", "mean", "prod", "max" or "min".

    Numbers of 16 bits are folded in f32, and the result is rounded once; integers wrap.
    """
    if operator not in OPERATORS:
        raise CompileError(
            f"there is no reduction {operator!r}", hint=f"there is {list(OPERATORS)}"
        )
    if dtype is boolean or (operator == "mean" and not dtype.is_float):
        raise CompileError(f"there is no {operator} of {dtype}")
    view, result = views(shape, axes)
    outer, apart, middle, along, inner = view
    if operator in ("max", "min") and 0 in (apart, along):
        raise CompileError(f"the {operator} of no elements has no value", hint=f"{tuple(shape)}")
    wide = f32 if dtype in (f16, bf16) else dtype
    size = max(1, _PART // inner) if isinstance(inner, int) else 0
    kept = (outer, middle, inner)
    is_few = all(isinstance(n, int) for n in (*kept, apart)) and apart * prod(kept) <= _FEW
    if not is_few or (isinstance(along, int) and along <= 2 * size):
        return _fold(operator, view, result, None, (dtype, wide, dtype))
    return _in_two(operator, view, result, size, (dtype, wide))


def _in_two(
    operator: str, view: View, result: View, size: int, types: tuple[DType, DType]
) -> ProgramDefinition:
    dtype, wide = types
    outer, _, middle, along, inner = view
    parts = tc.dim("parts")
    between = (outer, 1, middle, parts, inner)
    partial = _fold(operator, view, between, size, (dtype, wide, wide))
    # A mean is the sum of its parts' shares.
    combine = _fold(
        "sum" if operator == "mean" else operator, between, result, None, (wide, wide, dtype)
    )

    @tc.program
    def reduction(x: dtype[view], y: tc.out[dtype[result]]):
        between = tc.empty(wide[outer, 1, middle, tc.cdiv(along, size), inner])
        partial(x, out=between)
        combine(between, out=y)

    return reduction


def _fold(
    operator: str,
    view: View,
    result: View,
    size: int | None,
    types: tuple[DType, DType, DType],
) -> KernelDefinition:
    """`size` elements of the axis `along` go into each part; all of them into one if it is None.

    types  of the input, of the arithmetic and of the result
    """
    by_columns = not (isinstance(view[4], int) and view[4] == 1)
    make = _fold_columns if by_columns else _fold_rows
    return make(operator, view, result, size, types)


def _start(operator: str, dtype: DType) -> Any:
    """What leaves everything as it is."""
    if operator not in ("max", "min"):
        return 1 if operator == "prod" else 0
    if dtype.is_float:
        return -tc.inf if operator == "max" else tc.inf
    return dtype.minimum if operator == "max" else dtype.maximum


@tc.function
def _folded(operator, a, b):
    if operator == "max":
        result = max(a, b)
    elif operator == "min":
        result = min(a, b)
    elif operator == "prod":
        result = a * b
    else:
        result = a + b
    return result


def _fold_columns(
    operator: str, view: View, result: View, size: int | None, types: Any
) -> KernelDefinition:
    dtype, wide, final = types
    outer, apart, middle, along, inner = view
    parts = result[3]
    lanes = tc.machine().lanes
    unroll = tc.machine().registers // 2
    while isinstance(inner, int) and unroll > 1 and (unroll // 2) * lanes >= inner:
        unroll //= 2
    own = repeat(unroll) * spatial(lanes)
    by = (1, 1, 1, unroll * lanes)

    @tc.kernel(workers=own.workers)
    def fold(x: dtype[view], y: tc.out[final[result]]):
        for a, b, part, col in tc.tiles((outer, middle, parts, inner), by=by):
            total = tc.tile(wide, own, _start(operator, wide))
            first = 0 if size is None else part * size
            last = along if size is None else min(first + size, along)
            for p in range(apart):
                for q in range(first, last):
                    for j in own:
                        if col + j < inner:
                            value = x[a, p, b, q, col + j].to(wide)
                            total[j] = _folded(operator, total[j], value)
            for j in own:
                if col + j < inner:
                    value = total[j]
                    if operator == "mean":
                        value /= wide(apart * along)
                    y[a, 0, b, part, col + j] = value.to(final)

    return fold


def _fold_rows(
    operator: str, view: View, result: View, size: int | None, types: Any
) -> KernelDefinition:
    dtype, wide, final = types
    outer, apart, middle, along, _ = view
    parts = result[3]
    lanes = tc.machine().lanes
    unroll = 8
    while isinstance(along, int) and unroll > 1 and unroll * lanes * 17 > along:
        unroll //= 2
    own = repeat(unroll) * spatial(lanes)
    (step,) = own.shape

    @tc.kernel(workers=own.workers)
    def fold(x: dtype[view], y: tc.out[final[result]]):
        for a, b, part in tc.tiles((outer, middle, parts), by=(1, 1, 1)):
            totals = tc.tile(wide, own, _start(operator, wide))
            first = 0 if size is None else part * size
            last = along if size is None else min(first + size, along)
            for p in range(apart):
                for col in range(first, last, step):
                    for j in own:
                        if col + j < last:
                            value = x[a, p, b, col + j, 0].to(wide)
                            totals[j] = _folded(operator, totals[j], value)
            total = tc.reduce(totals, 0, OPERATORS[operator])
            for i in total.mapping:
                value = total[i]
                if operator == "mean":
                    value /= wide(apart * along)
                y[a, 0, b, part, i] = value.to(final)

    return fold
