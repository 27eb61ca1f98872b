"""Sum, mean, maximum, minimum and product along any axes.

A reduction sees its arrays with neighbouring axes joined, as `[outer, apart, middle, along, inner]`: it
folds `apart` and `along`, and keeps the others. `views(shape, axes)` gives these shapes; a contiguous
array is reshaped for nothing. Where the innermost axis is kept, neighbouring workers have neighbouring
columns; where it is folded, they walk along it, and fold what each has found at the end. On GPUs a block
has several rows, or its workers several elements of each column. What is folded into few numbers is cut into
parts, whose results are folded by a second kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, gcd, prod
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    Machine,
    Mapping,
    ProgramDefinition,
    bf16,
    boolean,
    f16,
    f32,
    repeat,
    spatial,
)
from taskc.kernels.owners import WORKERS, along as walkers, power, width

OPERATORS = {"sum": "+", "mean": "+", "prod": "*", "max": "max", "min": "min"}

# Elements that a part has, and the number of results above which there are no parts. They don't depend
# on the number of threads, and so neither does the result.
_PART = 1 << 16
_FEW = 64

# On GPUs: the steps of a block that are worth a part of its own, and blocks to a multiprocessor.
_STEPS, _BLOCKS = 4, 4

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
    operator: str,
    shape: Sequence[Any],
    axes: Iterable[int],
    *,
    dtype: DType = f32,
    machine: Machine | None = None,
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
    if operator in ("max", "min") and 0 in (view[1], view[3]):
        raise CompileError(f"the {operator} of no elements has no value", hint=f"{tuple(shape)}")
    wide = f32 if dtype in (f16, bf16) else dtype
    machine = machine or tc.machine()
    size = _part(view, dtype, machine)
    if size is None:
        return _fold(operator, view, result, None, (dtype, wide, dtype), machine)
    return _in_two(operator, view, result, size, (dtype, wide), machine)


def _part(view: View, dtype: DType, machine: Machine) -> int | None:
    """How many elements along an axis are a part; None where there is but one."""
    outer, apart, middle, along, inner = view
    kept = (outer, middle, inner)
    if not all(isinstance(n, int) for n in (*kept, apart)):
        return None
    if machine.is_processor:
        size = max(1, _PART // max(1, inner))
        is_few = apart * prod(kept) <= _FEW
        return size if is_few and not (isinstance(along, int) and along <= 2 * size) else None
    rows, columns = _owners(view, None, dtype, machine).shape
    step = columns if inner == 1 else rows
    across = outer * (ceil(middle / rows) if inner == 1 else middle * ceil(inner / columns))
    parts = _BLOCKS * machine.threads // max(1, across)
    if not isinstance(along, int):
        return 4 * _STEPS * step if parts > 1 else None
    parts = min(parts, along // (_STEPS * step))
    return ceil(along / (parts * step)) * step if parts > 1 else None


def _in_two(
    operator: str,
    view: View,
    result: View,
    size: int,
    types: tuple[DType, DType],
    machine: Machine,
) -> ProgramDefinition:
    dtype, wide = types
    outer, _, middle, along, inner = view
    parts = tc.dim("parts")
    between = (outer, 1, middle, parts, inner)
    partial = _fold(operator, view, between, size, (dtype, wide, wide), machine)
    # A mean is the sum of its parts' shares.
    combine = _fold(
        "sum" if operator == "mean" else operator,
        between,
        result,
        None,
        (wide, wide, dtype),
        machine,
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
    machine: Machine,
) -> KernelDefinition:
    """`size` elements of the axis `along` go into each part; all of them into one if it is None.

    types  of the input, of the arithmetic and of the result
    """
    own = _owners(view, size, types[0], machine)
    make = _fold_rows if _has_rows(view) else _fold_columns
    return make(operator, view, result, size, types, own)


def _has_rows(view: View) -> bool:
    return isinstance(view[4], int) and view[4] == 1


def _owners(view: View, size: int | None, dtype: DType, machine: Machine) -> Mapping:
    """Who has which part of what a block folds at a time: of [middle, along], or of [along, inner]."""
    _, _, middle, along, inner = view
    if machine.is_processor:
        unroll = 8 if _has_rows(view) else machine.registers // 2
        steps, extent = (17, along) if _has_rows(view) else (1, inner)
        while isinstance(extent, int) and unroll > 1 and _is_short(extent, unroll, steps, machine):
            unroll //= 2
        return repeat(1, unroll) * spatial(1, machine.lanes)
    if not _has_rows(view):
        wide = width(inner, dtype)
        across = min(
            machine.lanes, power(ceil(inner / wide)) if isinstance(inner, int) else WORKERS
        )
        return repeat(4, 1) * spatial(WORKERS // across, across) * repeat(1, wide)
    wide = gcd(width(along, dtype), size or 0)
    workers, accesses = WORKERS, 4
    if isinstance(along, int):
        workers = min(WORKERS, power(ceil(along / (wide * accesses))))
        accesses = max(1, min(accesses, along // (workers * wide)))
    rows = 1
    if workers < WORKERS:
        rows = WORKERS // workers
        if isinstance(middle, int):
            rows = min(rows, max(machine.lanes // workers, power(middle // machine.threads), 1))
    return spatial(rows, 1) * walkers(workers, accesses, wide)


def _is_short(extent: int, unroll: int, steps: int, machine: Machine) -> bool:
    """Whether half as many vectors would do."""
    if steps > 1:
        return unroll * machine.lanes * steps > extent
    return (unroll // 2) * machine.lanes >= extent


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
    operator: str, view: View, result: View, size: int | None, types: Any, own: Mapping
) -> KernelDefinition:
    dtype, wide, final = types
    outer, apart, middle, along, inner = view
    parts = result[3]
    rows, columns = own.shape
    finished = _finisher(operator, view, wide, final)

    @tc.kernel(workers=own.workers)
    def fold(x: dtype[view], y: tc.out[final[result]]):
        for a, b, part, col in tc.tiles((outer, middle, parts, inner), by=(1, 1, 1, columns)):
            totals = tc.tile(wide, own, _start(operator, wide))
            first = 0 if size is None else part * size
            last = along if size is None else min(first + size, along)
            for p in range(apart):
                for q in range(first, last, rows):
                    for i, j in own:
                        if q + i < last and col + j < inner:
                            value = x[a, p, b, q + i, col + j].to(wide)
                            totals[i, j] = _folded(operator, totals[i, j], value)
            if rows == 1:
                for i, j in own:
                    if col + j < inner:
                        y[a, i, b, part, col + j] = finished(totals[i, j])
            else:
                total = tc.reduce(totals, 0, OPERATORS[operator])
                for j in total.mapping:
                    if col + j < inner:
                        y[a, 0, b, part, col + j] = finished(total[j])

    return fold


def _fold_rows(
    operator: str, view: View, result: View, size: int | None, types: Any, own: Mapping
) -> KernelDefinition:
    dtype, wide, final = types
    outer, apart, middle, along, _ = view
    parts = result[3]
    rows, step = own.shape
    finished = _finisher(operator, view, wide, final)

    @tc.kernel(workers=own.workers)
    def fold(x: dtype[view], y: tc.out[final[result]]):
        for a, b, part in tc.tiles((outer, middle, parts), by=(1, rows, 1)):
            totals = tc.tile(wide, own, _start(operator, wide))
            first = 0 if size is None else part * size
            last = along if size is None else min(first + size, along)
            for p in range(apart):
                for col in range(first, last, step):
                    for i, j in own:
                        if b + i < middle and col + j < last:
                            value = x[a, p, b + i, col + j, 0].to(wide)
                            totals[i, j] = _folded(operator, totals[i, j], value)
            total = tc.reduce(totals, 1, OPERATORS[operator])
            for i in total.mapping:
                if b + i < middle:
                    y[a, 0, b + i, part, 0] = finished(total[i])

    return fold


def _finisher(operator: str, view: View, wide: DType, final: DType) -> Any:
    count = view[1], view[3]

    @tc.function
    def finished(value):
        if operator == "mean":
            value /= wide(count[0] * count[1])
        return value.to(final)

    return finished
