"""The accesses of a block's workers, and whether two of them can conflict.

An access is a tensor with indices, for every worker and every one of its tasks: the parts that depend on these
are arrays over all (worker, task) pairs. Two accesses conflict if different workers can touch one element:
a known difference of the uniform parts shifts the enumeration, slots k and k + d of a ring
of more than d stages are distinct, and indices that can't be enumerated are assumed to meet.

Agents collide if their indices meet at one element. `prove` looks for an example, among a phase's workers or among
blocks; `synchronize` asks for the distance of workers that meet between two barriers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping as Dictionary, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskc.analysis.indices import Array, Evaluator, Index, content
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.extents import size_in_bytes
from taskc.ir.nodes import Expression, Tensor, Variable

_MOST_NUMBERS = 1 << 23  # most numbers that are used without compressing them to those that occur


def element_numbers(own: Sequence[Any], other: Sequence[Any]) -> tuple[Array, Array, int]:
    """A number for each element of two accesses, and the count of numbers; one array for each dimension."""
    first, second = np.zeros((), np.int64), np.zeros((), np.int64)
    for a, b in zip(own, other, strict=True):
        low = min(int(np.min(a)), int(np.min(b)))
        size = max(int(np.max(a)), int(np.max(b))) - low + 1
        first, second = first * size + (a - low), second * size + (b - low)
    count = max(int(first.max()), int(second.max())) + 1
    if count > _MOST_NUMBERS:
        both = np.concatenate((first.ravel(), second.ravel()))
        values, both = np.unique(both, return_inverse=True)
        first = both[: first.size].reshape(first.shape)
        second, count = both[first.size :].reshape(second.shape), values.size
    return first, second, count


def extremes(keys: Array, agents: Array, count: int) -> tuple[Array, Array]:
    """For every element's number the lowest and the highest agent; -1 if there is none."""
    keys, numbers = (array.ravel() for array in np.broadcast_arrays(keys, agents))
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        keys, numbers = keys[order], numbers[order]
    lowest, highest = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    highest[keys] = numbers  # they ascend, and the last assignment stays
    lowest[keys[::-1]] = numbers[::-1]
    return lowest, highest


def example(
    keys: Array, agents: Array, keys_too: Array, agents_too: Array, count: int
) -> tuple[int, int] | None:
    """Places in the first and the second access where different agents touch one element, or None."""
    # If neither the lowest nor the highest agent differs, none does.
    for other in extremes(keys, agents, count):
        met = other[keys_too]
        different = (met >= 0) & (met != agents_too)
        if different.any():
            there = int(np.argmax(different))
            here = (keys == keys_too[there]) & (agents != agents_too[there])
            return int(np.argmax(here)), there
    return None


# A larger coefficient, of an index computed from itself again and again, may wrap around.
_MOST_TIMES = 1 << 31


@dataclass(eq=False, frozen=True, slots=True)
class Access:
    """An access; `workers` and the arrays of `indices` have one shape, in ascending order of workers. An unknown index
    is None."""

    tensor: Tensor
    writes: bool
    atomic: bool
    indices: tuple[Index | None, ...]
    workers: Array
    loc: Location

    def substituted(self, values: Dictionary[Variable, Expression]) -> Access:
        """The access in another iteration of the enclosing loops; the same object if it doesn't change."""
        indices = tuple([index and index.substituted(values) for index in self.indices])
        unchanged = all(new is old for new, old in zip(indices, self.indices, strict=True))
        return self if unchanged else replace(self, indices=indices)

    @property
    def key(self) -> Hashable:
        """A key that is equal for accesses of the same workers to the same elements."""
        indices = tuple([index and index.key for index in self.indices])
        return self.tensor, self.writes, self.atomic, indices, content(self.workers)

    def describe(self) -> str:
        verb = "atomic" if self.atomic else "write" if self.writes else "read"
        return f"{verb} of {self.tensor.name}" + (
            f" in line {self.loc.line}" if self.loc.line else ""
        )


@dataclass(frozen=True, slots=True)
class Crew:
    """The executors of a phase: for every (worker, task), the worker's number and the bound variables.

    `active` masks the pairs whose task does not exist.
    """

    workers: Array
    values: dict[Variable, Array]
    active: NDArray[np.bool_] | None

    @staticmethod
    def everyone(count: int, first: int = 0) -> Crew:
        return Crew(np.arange(first, first + count), {}, None)

    def enter(self, loop: ir.Each, worker: Variable) -> Crew | None:
        """The crew of a mapping loop's body; None if the workers depend on run-time values."""
        number: Array | None = self.workers - self.workers.min()
        if loop.worker is not None:
            number = evaluate(loop.worker, {**self.values, worker: self.workers})
        if number is None:
            return None
        mapping = loop.mapping
        number = np.broadcast_to(number, self.workers.shape)
        tasks, active = mapping.tasks[number], mapping.valid[number]
        if self.active is not None:
            active = active & self.active[..., None]
        outer = {v: array[..., None] for v, array in self.values.items()}
        inner = {v: tasks[..., d] for d, v in enumerate(loop.variables)}
        workers = np.broadcast_to(self.workers[..., None], active.shape)
        return Crew(workers, {**outer, **inner}, None if active.all() else active)

    def issue(self, loop: ir.Each, worker: Variable) -> Crew | None:
        """The crew of a loop for fewer workers: the first ones of as many groups of these, equally large."""
        count = loop.mapping.workers
        numbers = replace(self, workers=np.arange(count)).enter(loop, worker)
        if numbers is None:
            return None
        first, size = int(self.workers.min()), len(self.workers) // count
        return replace(numbers, workers=first + size * numbers.workers)

    def repeat(self, variable: Variable, trips: Array) -> Crew:
        """The crew with every pair repeated for each trip of a loop."""
        values = {v: array[..., None] for v, array in self.values.items()}
        shape = (*self.workers.shape, len(trips))
        active = None if self.active is None else np.broadcast_to(self.active[..., None], shape)
        return Crew(
            np.broadcast_to(self.workers[..., None], shape), {**values, variable: trips}, active
        )

    def first_owners(self, loop: ir.Each) -> Crew:
        """The crew restricted to the first of the workers that share a task, which does the stores to memory."""
        mapping = loop.mapping
        if not mapping.is_replicated or loop.worker is not None:
            return self
        owner, _ = mapping.owner_table()
        place = tuple(self.values[v] for v in loop.variables)
        is_first: NDArray[np.bool_] = np.equal(owner[place], self.workers - self.workers.min())
        if self.active is not None:
            is_first = np.logical_and(is_first, self.active)
        return Crew(self.workers, self.values, is_first)

    def where(self, condition: Expression) -> Crew:
        """Only the pairs for which a condition holds; all pairs if it isn't known for each."""
        truth = Evaluator(Values(self.values)).truth(condition)
        if truth.must is not truth.may or not np.ndim(truth.may):
            return self
        holds = np.broadcast_to(truth.may, self.workers.shape)
        if self.active is not None:
            holds = np.logical_and(holds, self.active)
        return Crew(self.workers, self.values, holds)


def make_access(
    tensor: Tensor,
    indices: Sequence[Expression | None],
    crew: Crew,
    divergent: frozenset[Variable],
    *,
    writes: bool,
    atomic: bool = False,
    loc: Location,
) -> Access:
    evaluator = Evaluator(Values(crew.values, divergent))
    known = [None if index is None else evaluator.index(index) for index in indices]
    workers, active = crew.workers, crew.active
    if active is not None:
        workers = np.broadcast_to(workers, active.shape)[active]
        known = [index and _where(index, active) for index in known]
    return Access(tensor, writes, atomic, tuple(known), workers, loc)


def _where(index: Index, active: Array) -> Index:
    if index.is_uniform:
        return index
    return Index(index.terms, np.broadcast_to(index.base, active.shape)[active])


@dataclass(frozen=True, slots=True)
class Values:
    """Variables with arrays over (worker, task), and unknown `divergent` ones; all others are uniform. Memory is
    unknown.
    """

    arrays: Dictionary[Variable, Array]
    divergent: frozenset[Variable] = frozenset()

    def variable(self, variable: Variable) -> Index | None:
        if variable in self.divergent:
            return None
        array = self.arrays.get(variable)
        return Index({variable: 1}, 0) if array is None else Index({}, array)

    def read(self, read: ir.Read) -> Index | None:
        return None

    def named(self, condition: Variable) -> Expression | None:
        return None

    def divisor(self, atom: Expression) -> int:
        return 1


def evaluate(expression: Expression, values: Dictionary[Variable, Array]) -> Array | None:
    """The value for every (worker, task), or None if it depends on more than these variables."""
    index = Evaluator(Values(values)).index(expression)
    return None if index is None or index.terms else np.asarray(index.base)


def conflict_scope(a: Access, b: Access, groups: Dictionary[str, int]) -> str | None:
    """The scope that needs a barrier between two accesses: the name of one of `groups` (sizes, smallest first),
    "block", or None if no two workers meet.
    """
    if not (a.writes or b.writes) or (a.atomic and b.atomic):
        return None
    if a.writes and b.writes and a.tensor.role == "out":
        return None  # every element is stored exactly once
    if a.tensor is not b.tensor:
        return _meeting_in_bytes(a, b, groups) if share_bytes(a.tensor, b.tensor) else None
    first: list[Array] = []
    second: list[Array] = []
    for one, two in zip(a.indices, b.indices, strict=True):
        if one is None or two is None:
            continue
        shift = _known_difference(one, two)
        if shift is None:
            continue
        if isinstance(shift, str):
            return None
        if one.is_uniform and two.is_uniform:
            if one.base + shift != two.base:
                return None
            continue
        first.append(np.asarray(one.base + shift))
        second.append(np.asarray(two.base))
    return _meeting(a, b, first, second, groups)


def _known_difference(one: Index, two: Index) -> int | str | None:
    """The uniform part of one index minus the other's; "distinct" for two slots of a ring; None if unknown."""
    if any(f * f > _MOST_TIMES**2 for index in (one, two) for f in index.terms.values()):
        return None
    if one.terms == two.terms:
        return 0
    match one.origin, two.origin:
        case (
            ir.Binary(operator="%", left=left, right=ir.Constant(value=size)),
            ir.Binary(operator="%", left=right, right=ir.Constant(value=other)),
        ) if size == other:
            steps = constant_difference(left, right)
            if steps is not None:
                return 0 if steps % int(size) == 0 else "distinct"
    return constant_difference(one.origin, two.origin)


def share_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether their places in shared memory overlap."""
    if a.scope != ir.SHARED or b.scope != ir.SHARED or a.offset is None or b.offset is None:
        return False
    return a.offset < b.offset + size_in_bytes(b) and b.offset < a.offset + size_in_bytes(a)


def _meeting_in_bytes(a: Access, b: Access, groups: Dictionary[str, int]) -> str | None:
    """The scope for tensors that share bytes; if one access may be anywhere, all its workers meet."""
    unit = gcd(
        a.tensor.dtype.nbytes, b.tensor.dtype.nbytes
    )  # offsets are multiples of larger units
    first, second = _places(a, unit), _places(b, unit)
    if first is None or second is None:
        return _meeting(a, b, [], [], groups)
    return _meeting(first[0], second[0], [first[1]], [second[1]], groups)


def _places(access: Access, unit: int) -> tuple[Access, Array] | None:
    """The units of a block's shared memory that each (worker, task) touches; None if unknown.

    A task that lies outside the tensor doesn't exist. What has a layout or a swizzle counts as
    unknown: until offsets are flat the simulator keeps its elements in row-major order, and so
    couldn't confirm what is said of its bytes.
    """
    tensor = access.tensor
    if tensor.layout is not None or tensor.swizzle is not None:
        return None
    parts: list[Array] = [access.workers]
    for index in access.indices:
        start = index and constant_difference(index.origin, ir.Constant(0))
        if index is None or start is None:
            return None
        parts.append(np.asarray(index.base + start))
    workers, *parts = np.broadcast_arrays(*parts)
    inside = np.ones(workers.shape, bool)
    for part, extent in zip(parts, tensor.shape, strict=True):
        inside &= (part >= 0) & (part < extent)
    element = np.zeros((), np.int64)
    for part, extent in zip(parts, tensor.shape, strict=True):
        element = element * extent + part[inside]  # type: ignore[operator]
    size = tensor.dtype.nbytes
    place = (element * size + (tensor.offset or 0)) // unit
    units = place[..., None] + np.arange(size // unit)
    who = np.broadcast_to(workers[inside][..., None], units.shape)
    return replace(access, workers=who.ravel()), units.ravel()


def _meeting(
    a: Access, b: Access, first: list[Array], second: list[Array], groups: Dictionary[str, int]
) -> str | None:
    """The narrowest group that holds all pairs of different workers with equal indices."""
    if not a.workers.size or not b.workers.size:
        return None
    key_a, key_b, count = element_numbers(first, second)
    lowest_a, highest_a = extremes(key_a, a.workers, count)
    lowest_b, highest_b = extremes(key_b, b.workers, count)
    both = (highest_a >= 0) & (highest_b >= 0)
    lowest = np.minimum(lowest_a, lowest_b)[both]
    highest = np.maximum(highest_a, highest_b)[both]
    if not (lowest != highest).any():
        return None
    fitting = (s for s, size in groups.items() if not (lowest // size != highest // size).any())
    return next(fitting, "block")
