"""Forms: noted operations without their sizes, and the programs that were traced for them.

    x[n] -> add(x, 1) -> sum        the form; sizes (1000,) on one call and (1010,) on the next

The first program of a form has its sizes as constants. If they vary, the next one has scalars for places (the first
element of a part) and dimensions for extents: extents that always differ by the same number share one. Assumptions of
the trace decide which other sizes it serves. A dimension is the extent of an input without contents, so that sizes that
are no array's extent can vary, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from sys import getrefcount
from typing import Any, TypeAlias

import numpy as np

import taskc as tc
from taskc import ProgramDefinition, TensorType, i64, u8
from taskc.errors import CompileError, InternalError
from taskc.ir.nodes import Tensor
from taskc.ir.types import from_numpy
from taskc.lang.sizes import Dimension
from taskc.lang.source import called_from
from taskc.numpy.segment import Operation, Segment, located
from taskc.operators.tensors import computed
from taskc.programs.sizes import Assumptions
from taskc.programs.tracing import TensorHandle

Memory: TypeAlias = "np.ndarray[Any, Any]"
Sizes: TypeAlias = tuple[int, ...]
Call: TypeAlias = "Callable[[list[Memory]], list[Memory]]"

_MOST_FORMS = 1 << 12
_MOST_SERVED = 1 << 10
counts: Counter[str] = Counter()  # compilations, and hits


class Compiled:
    """A program for some sizes of a form.

    outputs     for each wanted operation the place of its result: an output, or ~ a leaf that was written
    fixed       the sizes that it has as constants, by position
    varying     positions of extents that vary: each is a dimension plus an offset
    places      positions of places that vary: each is a scalar
    served      for extents that vary the arrays that give the dimensions, or None where it doesn't serve
    """

    def __init__(
        self, program: ProgramDefinition, outputs: tuple[int, ...], fixed: dict[int, int],
        varying: dict[int, tuple[Dimension, int]], places: tuple[int, ...], assumptions: Assumptions,
    ) -> None:  # fmt: skip
        self.program, self.outputs, self.assumptions = program, outputs, assumptions
        self.varying = varying
        self.fixed_sizes = tuple(fixed.values())
        self.take_fixed, self.take_places = _taking(tuple(fixed)), _taking(places)
        self.take_varying = _taking(tuple(varying))
        self.order = tuple(assumptions.sizes)
        self.count = sum(place >= 0 for place in outputs)
        self.served: dict[Sizes, tuple[Memory, ...] | None] = {}

    def call_for(self, sizes: Sizes) -> Call | None:
        """The program's call for sizes, as a function from leaves to results; None if it doesn't serve them."""
        if self.take_fixed(sizes) != self.fixed_sizes:
            return None
        extents = self.take_varying(sizes)
        if extents not in self.served:
            if len(self.served) >= _MOST_SERVED:
                self.served.clear()
            self.served[extents] = self._given(extents)
        given = self.served[extents]
        return None if given is None else partial(self.run, (*given, *self.take_places(sizes)))

    def _given(self, extents: Sizes) -> tuple[Memory, ...] | None:
        """The inputs without contents whose extents are the dimensions."""
        values: dict[Dimension, int] = {}
        for size, (dimension, offset) in zip(extents, self.varying.values(), strict=True):
            if values.setdefault(dimension, size - offset) != size - offset:
                return None
        if any(value < 0 for value in values.values()) or not self.assumptions.serve(values):
            return None
        return tuple([_nothing(values[dimension]) for dimension in self.order])

    def run(self, given: tuple[Any, ...], leaves: list[Memory]) -> list[Memory]:
        results = self.program(*leaves, *given)
        if self.count == 1:
            results = (results,)
        if self.count == len(self.outputs):
            return [*results]
        return [results[place] if place >= 0 else leaves[~place] for place in self.outputs]


def _taking(positions: tuple[int, ...]) -> Callable[[Sizes], Sizes]:
    """A function that takes the sizes at some positions."""
    if len(positions) < 2:
        return lambda sizes: tuple([sizes[position] for position in positions])
    return itemgetter(*positions)


def _nothing(size: int) -> Memory:
    """An array of this size that nobody reads."""
    global _unread
    if len(_unread) < size:
        _unread = np.empty(size, np.uint8)
    return _unread[:size]


_unread: Memory = np.empty(1 << 16, np.uint8)


# References to an array that only a segment has: its list's, and that of the call that counts.
_UNSHARED = 2


class Form:
    """The programs of one form, the latest first, and the sizes for which one was traced."""

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []
        self.seen: list[Sizes] = []


_forms: dict[object, Form] = {}


@lru_cache(1 << 12)
def _single(shape: Sizes) -> tuple[bool, ...]:
    """The extents of 1, which broadcast."""
    return tuple([n == 1 for n in shape])


def call_of(
    segment: Segment, count: int, wanted: tuple[int, ...]
) -> tuple[Call, list[Memory], tuple[int, ...]]:
    """The program of the first `count` operations of a segment: a function from leaves to the wanted values.

    Also its leaves, and which of them it may write to.
    """
    owned = tuple([n for n in segment.updated if getrefcount(segment.leaves[n]) <= _UNSHARED])
    leaves = segment.leaves[:]
    operations = tuple(segment.operations[:count])
    shapes = [leaf.shape for leaf in leaves]
    types = tuple(
        [(leaf.dtype, _single(shape)) for leaf, shape in zip(leaves, shapes, strict=True)]
    )
    key = operations, types, wanted, owned
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= _MOST_FORMS:
            _forms.clear()
        form = _forms[key] = Form()
    sizes = (*segment.numbers, *chain.from_iterable(shapes))
    for compiled in form.compiled:
        call = compiled.call_for(sizes)
        if call is not None:
            counts["hits"] += 1
            return call, leaves, owned
    compiled = _compiled(form, segment, sizes, operations, leaves, wanted, owned)
    call = compiled.call_for(sizes)
    if call is None:
        raise InternalError("a program doesn't serve the sizes for which it was traced")
    return call, leaves, owned


def _compiled(
    form: Form, segment: Segment, sizes: Sizes, operations: Sequence[Operation],
    leaves: Sequence[Memory], wanted: tuple[int, ...], owned: tuple[int, ...],
) -> Compiled:  # fmt: skip
    """A program for these sizes; those that have varied are its dimensions and scalars."""
    counts["compiled"] += 1
    form.seen.append(sizes)
    offsets, places = _varying(form.seen, _are_places(operations))
    while True:
        assumptions = Assumptions(
            {dimension: sizes[place] - offset for place, (dimension, offset) in offsets.items()}
        )
        try:
            program, outputs = _traced(
                segment, sizes, offsets, places, operations, leaves, wanted, owned, assumptions
            )
            break
        except CompileError:  # such as a reshape whose extents the dimensions don't relate
            if not offsets:
                raise
            offsets = {}
    fixed = {n: size for n, size in enumerate(sizes) if n not in offsets and n not in places}
    compiled = Compiled(program, outputs, fixed, offsets, places, assumptions)
    form.compiled.insert(0, compiled)
    return compiled


def _are_places(operations: Sequence[Operation]) -> list[bool]:
    """For each number of the operations, whether it is a place: a part has a place and an extent for each axis."""
    return [
        row.name in ("part", "update") and n % 2 == 0
        for row, _, count in operations
        for n in range(count)
    ]


def _varying(
    seen: Sequence[Sizes], are_places: Sequence[bool]
) -> tuple[dict[int, tuple[Dimension, int]], tuple[int, ...]]:
    """Extents that vary, each as a dimension and an offset, and positions of places that vary.

    Extents with constant differences share a dimension.
    """
    groups: dict[Sizes, list[int]] = {}
    places: list[int] = []
    latest = seen[-1]
    for position, size in enumerate(latest):
        differences = tuple([before[position] - size for before in seen])
        if any(differences):
            if position < len(are_places) and are_places[position]:
                places.append(position)
            else:
                groups.setdefault(differences, []).append(position)
    offsets = {}
    for number, positions in enumerate(groups.values()):
        least = min(latest[position] for position in positions)
        for position in positions:
            offsets[position] = _dimension(number), latest[position] - least
    return offsets, tuple(places)


_dimensions: list[Dimension] = []


def _dimension(number: int) -> Dimension:
    while len(_dimensions) <= number:
        _dimensions.append(tc.dim(f"n{len(_dimensions)}"))
    return _dimensions[number]


def _traced(
    segment: Segment, known: Sizes, offsets: dict[int, tuple[Dimension, int]],
    places: tuple[int, ...], operations: Sequence[Operation], leaves: Sequence[Memory],
    wanted: tuple[int, ...], owned: tuple[int, ...], assumptions: Assumptions,
) -> tuple[ProgramDefinition, tuple[int, ...]]:  # fmt: skip
    sizes: list[Any] = [*known]
    for position, (dimension, offset) in offsets.items():
        sizes[position] = dimension + offset if offset else dimension
    rest = iter(sizes[len(sizes) - sum(leaf.ndim for leaf in leaves) :])
    inputs: dict[str, Any] = {}
    for n, leaf in enumerate(leaves):
        kind = TensorType(from_numpy(leaf.dtype), tuple([next(rest) for _ in leaf.shape]))
        inputs[f"x{n}"] = tc.inout[kind] if n in owned else kind
    inputs |= {f"size{n}": u8[dimension] for n, dimension in enumerate(assumptions.sizes)}
    inputs |= {f"place{n}": i64 for n in range(len(places))}

    last = _last_uses(operations, wanted)
    outputs: list[int] = []

    def body(*handles: TensorHandle) -> dict[str, TensorHandle]:
        results: list[TensorHandle] = []
        for position, scalar in zip(places, handles[len(handles) - len(places) :], strict=True):
            sizes[position] = scalar
        numbers = iter(sizes)
        for place, (row, operands, count) in enumerate(operations):
            given = [results[n] if n >= 0 else handles[~n] for n in operands]
            with called_from(located(segment.sites[place])):
                if row.name == "update" and not _is_last_reader(given[0], results, last, place):
                    given[0] = _copied(given[0])
                results.append(row.build(given, [next(numbers) for _ in range(count)]))
        written = {handles[n].tensor: ~n for n in owned}
        returned: dict[str, TensorHandle] = {}
        for n in wanted:
            leaf = written.pop(results[n].tensor, 0)
            outputs.append(leaf or len(returned))
            if not leaf:
                returned[f"y{n}"] = results[n]
        return returned

    return tc.trace("arrays", inputs, body, assumptions=assumptions), tuple(outputs)


def _last_uses(operations: Sequence[Operation], wanted: Sequence[int]) -> list[int]:
    """For each operation, the last one that reads its result; a wanted result is read at the end."""
    last = [*range(len(operations))]
    for place, (_, operands, _) in enumerate(operations):
        for n in operands:
            if n >= 0:
                last[n] = place
    for n in wanted:
        last[n] = len(operations)
    return last


def _memory(x: TensorHandle) -> Tensor:
    view = x.trace.views.get(x.tensor)
    return x.tensor if view is None else view.of


def _is_last_reader(
    x: TensorHandle, results: Sequence[TensorHandle], last: Sequence[int], place: int
) -> bool:
    """Whether a tensor is the program's own, and nothing after an operation reads its value."""
    memory = _memory(x)
    is_own = memory in x.trace.temporaries or memory.role == "inout"
    return is_own and all(
        last[n] <= place for n, result in enumerate(results) if _memory(result) is memory
    )


def _copied(x: TensorHandle) -> TensorHandle:
    return computed(x.shape, lambda *at: x[at], "copy")
