"""Sum, mean, maximum, minimum and product along any axes.

A kernel sees its arrays with neighbouring axes joined, as `[outer, apart, middle, along, inner]`: it folds
`apart` and `along`, and keeps the others. Where the innermost axis is kept, neighbouring workers have neighbouring
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
    TensorType,
    bf16,
    boolean,
    f16,
    f32,
    repeat,
    spatial,
)
from taskc.kernels.machine_facts import GPU
from taskc.kernels.owners import along as walkers, power, width

OPERATORS = {"sum": "+", "mean": "+", "prod": "*", "max": "max", "min": "min"}

# Elements that a part has, and the number of results above which there are no parts. They don't depend
# on the number of threads, and so neither does the result.
_PART = 1 << 16
_FEW = 64

View = tuple[Any, Any, Any, Any, Any]


def _folded_axes(rank: int, axes: Iterable[int]) -> set[int]:
    folded = set()
    for axis in axes:
        if not -rank <= axis < rank:
            raise CompileError(f"axis {axis} is not one of {rank}")
        folded.add(axis % rank)
    return folded


def _views(shape: Sequence[Any], folded: set[int]) -> tuple[View, View]:
    """How a kernel sees its input and its output."""
    runs: list[tuple[bool, list[Any]]] = []
    for axis, extent in enumerate(shape):
        if isinstance(extent, int) and extent == 1:
            continue
        if not runs or runs[-1][0] is not (axis in folded):
            runs.append((axis in folded, []))
        runs[-1][1].append(extent)
    joined = [(is_folded, prod(extents)) for is_folded, extents in runs]
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


def reduction(
    operator: str,
    shape: Sequence[Any],
    axes: Iterable[int],
    *,
    dtype: DType = f32,
    keepdims: bool = False,
    machine: Machine | None = None,
) -> KernelDefinition | ProgramDefinition:
    """Folds the axes with "sum", "mean", "prod", "max" or "min".

    Numbers of 16 bits are folded in f32, and the result is rounded once; integers wrap.

    keepdims  the result has the extent 1 for each axis, where it else has none
    """
    if operator not in OPERATORS:
        raise CompileError(
            f"there is no reduction {operator!r}", hint=f"there is {list(OPERATORS)}"
        )
    if dtype is boolean or (operator == "mean" and not dtype.is_float):
        raise CompileError(f"there is no {operator} of {dtype}")
    folded = _folded_axes(len(shape), axes)
    kept = [1 if axis in folded else extent for axis, extent in enumerate(shape)]
    if not keepdims:
        kept = [extent for axis, extent in enumerate(shape) if axis not in folded]
    view, result = _views(shape, folded)
    if operator in ("max", "min") and 0 in (view[1], view[3]):
        raise CompileError(f"the {operator} of no elements has no value", hint=f"{tuple(shape)}")
    wide = f32 if dtype in (f16, bf16) else dtype
    machine = machine or tc.machine()
    size = _part(view, dtype, machine)
    given, made = dtype[tuple(shape)].reshape(*view), dtype[tuple(kept)].reshape(*result)
    if size is None:
        return _fold(operator, given, made, None, wide, machine)
    return _in_two(operator, given, made, size, wide, machine)


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
    parts = GPU.streaming_blocks * machine.threads // max(1, across)
    if not isinstance(along, int):
        return 4 * GPU.least_part_accesses * step if parts > 1 else None
    parts = min(parts, along // (GPU.least_part_accesses * step))
    return ceil(along / (parts * step)) * step if parts > 1 else None


def _in_two(
    operator: str,
    given: TensorType,
    made: TensorType,
    size: int,
    wide: DType,
    machine: Machine,
) -> ProgramDefinition:
    outer, _, middle, along, inner = given.shape
    between = wide[outer, 1, middle, tc.dim("parts"), inner]
    partial = _fold(operator, given, between, size, wide, machine)
    # A mean is the sum of its parts' shares.
    rest = "sum" if operator == "mean" else operator
    combine = _fold(rest, between, made, None, wide, machine)
    source, result = given.as_given, made.as_given

    @tc.program
    def reduction(x: source, y: tc.out[result]):
        between = tc.empty(wide[outer, 1, middle, tc.cdiv(along, size), inner])
        partial(x, out=between)
        combine(between, out=y)

    return reduction


def _fold(
    operator: str,
    given: TensorType,
    made: TensorType,
    size: int | None,
    wide: DType,
    machine: Machine,
) -> KernelDefinition:
    """`size` elements of the axis `along` go into each part; all of them into one if it is None.

    wide  the type of the arithmetic
    """
    own = _owners(given.shape, size, given.dtype, machine)
    make = _fold_rows if _has_rows(given.shape) else _fold_columns
    return make(operator, given, made, size, wide, own)


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
            machine.lanes,
            power(ceil(inner / wide)) if isinstance(inner, int) else GPU.block_workers,
        )
        return repeat(4, 1) * spatial(GPU.block_workers // across, across) * repeat(1, wide)
    wide = gcd(width(along, dtype), size or 0)
    workers, accesses = GPU.block_workers, 4
    if isinstance(along, int):
        workers = min(GPU.block_workers, power(ceil(along / (wide * accesses))))
        accesses = max(1, min(accesses, along // (workers * wide)))
    rows = 1
    if workers < GPU.block_workers:
        rows = GPU.block_workers // workers
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
    operator: str,
    given: TensorType,
    made: TensorType,
    size: int | None,
    wide: DType,
    own: Mapping,
) -> KernelDefinition:
    outer, apart, middle, along, inner = given.shape
    parts = made.shape[3]
    rows, columns = own.shape
    finished = _finisher(operator, given.shape, wide, made.dtype)

    @tc.kernel(workers=own.workers)
    def fold(x: given, y: tc.out[made]):
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
    operator: str,
    given: TensorType,
    made: TensorType,
    size: int | None,
    wide: DType,
    own: Mapping,
) -> KernelDefinition:
    outer, apart, middle, along, _ = given.shape
    parts = made.shape[3]
    rows, step = own.shape
    finished = _finisher(operator, given.shape, wide, made.dtype)

    @tc.kernel(workers=own.workers)
    def fold(x: given, y: tc.out[made]):
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
