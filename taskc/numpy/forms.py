"""Forms: noted operations without their sizes, and the programs that were traced for them.

    x[n] -> add(x, 1) -> sum        the form; sizes (1000,) on one call and (1010,) on the next

The first program of a form has its sizes as constants. If they vary, the next one has dimensions: sizes that always differ
by the same number share one. Assumptions of the trace decide which other sizes it serves. A dimension is the extent of an
input without contents, so that sizes that are no array's extent can vary, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import taskc as tc
from taskc import ProgramDefinition, TensorType, u8
from taskc.dataclass import dataclass
from taskc.ir.types import from_numpy
from taskc.lang.sizes import Dimension
from taskc.lang.source import called_from
from taskc.operators.tensors import Extent
from taskc.programs.sizes import Assumptions
from taskc.programs.tracing import TensorHandle

if TYPE_CHECKING:
    from taskc.numpy.segment import Operation, Segment

Array: TypeAlias = "np.ndarray[Any, Any]"
Sizes: TypeAlias = tuple[int, ...]

_MOST_FORMS = 1 << 12
_MOST_CALLS = 1 << 14
counts: Counter[str] = Counter()  # compilations, hits


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A program for some sizes of a form.

    fixed       the sizes that it has as constants, by position
    dimensions  positions of sizes that vary: each is a dimension plus an offset
    """

    program: ProgramDefinition
    fixed: dict[int, int]
    varying: dict[int, tuple[Dimension, int]]
    order: tuple[Dimension, ...]
    assumptions: Assumptions

    def values(self, sizes: Sizes) -> dict[Dimension, int] | None:
        """The dimensions' sizes, or None if it doesn't serve these."""
        if any(sizes[position] != size for position, size in self.fixed.items()):
            return None
        values: dict[Dimension, int] = {}
        for position, (dimension, offset) in self.varying.items():
            if values.setdefault(dimension, sizes[position] - offset) != sizes[position] - offset:
                return None
        if any(value < 0 for value in values.values()) or not self.assumptions.serve(values):
            return None
        return values


class Form:
    """The programs of one form, and the sizes for which one was traced."""

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []
        self.seen: list[Sizes] = []


_forms: dict[object, Form] = {}
_calls: dict[object, Callable[..., Any]] = {}  # by all that decides them


def run(segment: Segment, count: int, wanted: tuple[int, ...]) -> list[Array]:
    """The values of the wanted operations, among the first `count` ones of a segment."""
    leaves = segment.leaves[:]
    key = (
        tuple(segment.operations[:count]), wanted, tuple(segment.numbers),
        tuple([(leaf.dtype, leaf.shape) for leaf in leaves]),
    )  # fmt: skip
    call = _calls.get(key)
    if call is None:
        call = _call_for(segment, key[0], leaves, wanted)
        if len(_calls) >= _MOST_CALLS:
            _calls.clear()
        _calls[key] = call
    else:
        counts["hits"] += 1
    results = call(*leaves)
    return [results] if len(wanted) == 1 else [*results]


def _call_for(
    segment: Segment, operations: Sequence[Operation], leaves: Sequence[Array], wanted: tuple[int, ...]
) -> Callable[..., Any]:
    """The call of a program that serves these sizes, with its dimensions set."""
    types = tuple([(leaf.dtype, tuple([n == 1 for n in leaf.shape])) for leaf in leaves])
    if len(_forms) >= _MOST_FORMS:
        _forms.clear()
    form = _forms.setdefault((operations, types, wanted), Form())
    sizes = (*segment.numbers, *[n for leaf in leaves for n in leaf.shape])
    for compiled in form.compiled:
        values = compiled.values(sizes)
        if values is not None:
            counts["served"] += 1
            return _bound(compiled, values)
    counts["compiled"] += 1
    form.seen.append(sizes)
    symbolic, values = _symbolic(form.seen)
    assumptions = Assumptions(values)
    program = _traced(segment, symbolic, operations, leaves, wanted, tuple(values), assumptions)
    fixed = {position: n for position, n in enumerate(symbolic) if isinstance(n, int)}
    varying = _offsets(form.seen)
    compiled = Compiled(
        program, fixed, {p: varying[p] for p in varying}, tuple(values), assumptions
    )
    form.compiled.append(compiled)
    return _bound(compiled, values)


def _offsets(seen: Sequence[Sizes]) -> dict[int, tuple[Dimension, int]]:
    """The sizes that vary, each as a dimension and an offset: those with constant differences share a dimension."""
    groups: dict[Sizes, list[int]] = {}
    latest = seen[-1]
    for position, size in enumerate(latest):
        differences = tuple([before[position] - size for before in seen])
        if any(differences):
            groups.setdefault(differences, []).append(position)
    offsets = {}
    for number, positions in enumerate(groups.values()):
        least = min(latest[position] for position in positions)
        dimension = _dimension(number)
        for position in positions:
            offsets[position] = dimension, latest[position] - least
    return offsets


_dimensions: list[Dimension] = []


def _dimension(number: int) -> Dimension:
    while len(_dimensions) <= number:
        _dimensions.append(tc.dim(f"n{len(_dimensions)}"))
    return _dimensions[number]


def _symbolic(seen: Sequence[Sizes]) -> tuple[list[Extent], dict[Dimension, int]]:
    """The latest sizes, those that vary as dimensions, and the dimensions' values."""
    sizes: list[Extent] = [*seen[-1]]
    values: dict[Dimension, int] = {}
    for position, (dimension, offset) in _offsets(seen).items():
        values[dimension] = seen[-1][position] - offset
        sizes[position] = dimension + offset if offset else dimension
    return sizes, values


def _traced(
    segment: Segment, sizes: Sequence[Extent], operations: Sequence[Operation],
    leaves: Sequence[Array], wanted: tuple[int, ...], dimensions: tuple[Dimension, ...],
    assumptions: Assumptions,
) -> ProgramDefinition:  # fmt: skip
    from taskc.numpy.segment import located

    rest = iter(sizes[len(sizes) - sum(leaf.ndim for leaf in leaves) :])
    inputs = {
        f"x{n}": TensorType(from_numpy(leaf.dtype), tuple([next(rest) for _ in leaf.shape]))
        for n, leaf in enumerate(leaves)
    }
    inputs |= {f"size{n}": u8[dimension] for n, dimension in enumerate(dimensions)}

    def body(*handles: TensorHandle) -> dict[str, TensorHandle]:
        results: list[TensorHandle] = []
        numbers = iter(sizes)
        for place, (row, operands, count) in enumerate(operations):
            given = [results[n] if n >= 0 else handles[~n] for n in operands]
            with called_from(located(segment.sites[place])):
                results.append(row.build(given, [next(numbers) for _ in range(count)]))
        return {f"y{n}": results[n] for n in wanted}

    return tc.trace("arrays", inputs, body, assumptions=assumptions)


def _bound(compiled: Compiled, values: dict[Dimension, int]) -> Callable[..., Any]:
    """The program's call, with an input of each dimension's size."""
    program = compiled.program
    if not compiled.order:
        return program
    extents = [_nothing(values[dimension]) for dimension in compiled.order]
    return lambda *leaves: program(*leaves, *extents)


def _nothing(size: int) -> Array:
    """An array of this size that nobody reads."""
    global _unread
    if len(_unread) < size:
        _unread = np.empty(size, np.uint8)
    return _unread[:size]


_unread: Array = np.empty(1 << 16, np.uint8)
