"""What the workers of a block touch, and whether two such accesses can conflict.

An access is a tensor with index expressions, seen by every worker for every one of its tasks. An index is
split into a uniform part, kept symbolic, and a part that depends on the worker and the task, enumerated as
an array over all (worker, task) pairs. Two accesses conflict when different workers can touch one element:
uniform parts that differ by a known amount shift the enumeration, slots k and k + d of a ring of more than
d stages are distinct, and whatever can't be enumerated is assumed to meet.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping as Dictionary, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from taskc.analysis.collisions import element_numbers, extremes
from taskc.analysis.sums import addends
from taskc.errors import Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.affine import difference
from taskc.ir.arithmetic import binary, unary
from taskc.ir.build import multiply, total
from taskc.ir.extents import size_in_bytes
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import operands_first, substitute, walk
from taskc.ir.rounding import convert

Array = NDArray[np.int64]

# What is in a sum more often, an index computed from itself again and again, may wrap around.
_MOST_TIMES = 1 << 31


def _content(array: Array) -> Hashable:
    return array.shape, array.tobytes()


@dataclass(eq=False, frozen=True, slots=True)
class Index:
    """uniform + spread[worker, task]; `uniform` is None where the two don't separate."""

    uniform: Expression | None
    spread: Array | None

    @property
    def key(self) -> Hashable:
        uniform: Hashable = id(self.uniform)
        if isinstance(self.uniform, (ir.Constant, Variable)):
            uniform = self.uniform
        return uniform, None if self.spread is None else _content(self.spread)

    def moved(self, values: Dictionary[Variable, Expression]) -> Index:
        uniform = None if self.uniform is None else substitute(self.uniform, values)
        return self if uniform is self.uniform else replace(self, uniform=uniform)


@dataclass(eq=False, frozen=True, slots=True)
class Access:
    """`workers` and the spreads of `indices` are arrays of one shape, in ascending order of workers."""

    tensor: Tensor
    writes: bool
    atomic: bool
    indices: tuple[Index, ...]
    workers: Array
    loc: Location

    def moved(self, values: Dictionary[Variable, Expression]) -> Access:
        """The same access in another iteration of the loops around it; itself, where it is no other."""
        indices = tuple([index.moved(values) for index in self.indices])
        unchanged = all(new is old for new, old in zip(indices, self.indices, strict=True))
        return self if unchanged else replace(self, indices=indices)

    @property
    def key(self) -> Hashable:
        """The same for accesses of the same workers to the same elements."""
        indices = tuple([index.key for index in self.indices])
        return self.tensor, self.writes, self.atomic, indices, _content(self.workers)

    def describe(self) -> str:
        verb = "atomic" if self.atomic else "write" if self.writes else "read"
        return f"{verb} of {self.tensor.name}" + (
            f" in line {self.loc.line}" if self.loc.line else ""
        )


@dataclass(frozen=True, slots=True)
class Crew:
    """Who executes a phase: for every (worker, task), the worker's number and the bound variables.

    `active` masks the pairs whose task does not exist.
    """

    workers: Array
    values: dict[Variable, Array]
    active: NDArray[np.bool_] | None

    @staticmethod
    def everyone(count: int, first: int = 0) -> Crew:
        return Crew(np.arange(first, first + count), {}, None)

    def enter(self, loop: ir.Each, worker: Variable) -> Crew | None:
        """The crew of a mapping loop's body; None where who runs it depends on run-time values."""
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
        """The same of a loop for fewer workers: the first ones of as many groups of these, equally large."""
        count = loop.mapping.workers
        numbers = replace(self, workers=np.arange(count)).enter(loop, worker)
        if numbers is None:
            return None
        first, size = int(self.workers.min()), len(self.workers) // count
        return replace(numbers, workers=first + size * numbers.workers)

    def repeat(self, variable: Variable, trips: Array) -> Crew:
        """Every pair once for each trip of a loop."""
        values = {v: array[..., None] for v, array in self.values.items()}
        shape = (*self.workers.shape, len(trips))
        active = None if self.active is None else np.broadcast_to(self.active[..., None], shape)
        return Crew(
            np.broadcast_to(self.workers[..., None], shape), {**values, variable: trips}, active
        )

    def first_owners(self, loop: ir.Each) -> Crew:
        """Of the workers that have one task, the first alone: it does the stores to memory."""
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
        """Only the pairs for which a condition holds, as far as that is known."""
        known = evaluate(condition, self.values)
        if known is None or not known.ndim:
            return self
        holds = np.broadcast_to(np.not_equal(known, 0), self.workers.shape)
        if self.active is not None:
            holds = np.logical_and(holds, self.active)
        return Crew(self.workers, self.values, holds)


def make_access(
    tensor: Tensor,
    indices: Sequence[Expression],
    crew: Crew,
    wild: frozenset[Variable],
    *,
    writes: bool,
    atomic: bool = False,
    loc: Location,
) -> Access:
    split = tuple(_split(index, crew.values, wild) for index in indices)
    workers = crew.workers
    if crew.active is not None:
        active = crew.active
        workers = np.broadcast_to(workers, active.shape)[active]
        split = tuple(
            index
            if index.spread is None
            else replace(index, spread=np.broadcast_to(index.spread, active.shape)[active])
            for index in split
        )
    return Access(tensor, writes, atomic, split, workers, loc)


def _split(
    index: Expression, values: Dictionary[Variable, Array], wild: frozenset[Variable]
) -> Index:
    uniform: list[Expression] = []
    spread: Array | None = None
    for term, times in addends(index):
        below = list(walk(term))
        names = {v for v in below if isinstance(v, Variable)}
        if not names.isdisjoint(wild) or any(isinstance(node, ir.Read) for node in below):
            return Index(None, None)
        if abs(times) > _MOST_TIMES:
            return Index(None, None)
        if names.isdisjoint(values):
            uniform.append(multiply(term, times))
        elif names <= values.keys():
            array = evaluate(term, values)
            if array is None:
                return Index(None, None)
            spread = times * array if spread is None else spread + times * array
        else:
            return Index(None, None)
    return Index(total(uniform), spread)


def evaluate(expression: Expression, values: Dictionary[Variable, Array]) -> Array | None:
    """The value for every (worker, task), or None where it reads memory or a variable without a value.

    Fused products and PTX have none either: no index is made of them.
    """
    if isinstance(expression, Variable):
        return values.get(expression)
    known: dict[int, Array] = {}
    for node in operands_first(expression):
        array = values.get(node) if isinstance(node, Variable) else _operation(node, known)
        if array is None:
            return None
        known[id(node)] = array
    return known[id(expression)]


def _operation(node: Expression, known: dict[int, Array]) -> Array | None:
    match node:
        case ir.Constant():
            return np.asarray(node.value, node.dtype.numpy)
        case ir.Binary():
            left, right = known[id(node.left)], known[id(node.right)]
            return binary(node.operator, left, right, node.left.dtype)
        case ir.Unary():
            return unary(node.operator, known[id(node.operand)], node.operand.dtype)
        case ir.Select():
            sides = known[id(node.then)], known[id(node.otherwise)]
            return np.where(known[id(node.condition)], *sides)
        case ir.Lookup():
            return np.asarray(node.table.values)[known[id(node.index)]]
        case ir.Cast():
            return convert(known[id(node.operand)], node.operand.dtype, node.dtype)
        case Variable() | ir.Read() | ir.Address() | ir.Fused() | ir.Inline():
            return None
        case _:
            return assert_never(node)


def conflict_scope(a: Access, b: Access, groups: Dictionary[str, int]) -> str | None:
    """Who has to wait between two accesses: the workers of one of `groups`, of so many each and the smallest first;
    "block", or None where no two workers meet."""
    if not (a.writes or b.writes) or (a.atomic and b.atomic):
        return None
    if a.writes and b.writes and a.tensor.role == "out":
        return None  # every element is stored exactly once
    if a.tensor is not b.tensor:
        return _meeting_in_bytes(a, b, groups) if share_bytes(a.tensor, b.tensor) else None
    first: list[Array] = []
    second: list[Array] = []
    for one, two in zip(a.indices, b.indices, strict=True):
        if one.uniform is None or two.uniform is None:
            continue
        shift = _known_difference(one.uniform, two.uniform)
        if shift is None:
            continue
        if isinstance(shift, str):
            return None
        left = np.asarray(shift if one.spread is None else one.spread + shift)
        right = np.asarray(0 if two.spread is None else two.spread)
        first.append(left)
        second.append(right)
    return _meeting(a, b, first, second, groups)


def _known_difference(one: Expression, two: Expression) -> int | str | None:
    """one - two; "distinct" for two slots of a ring; None where it is unknown."""
    match one, two:
        case (
            ir.Binary(operator="%", left=left, right=ir.Constant(value=size)),
            ir.Binary(operator="%", left=right, right=ir.Constant(value=other)),
        ) if size == other:
            steps = difference(left, right)
            if steps is not None:
                return 0 if steps % int(size) == 0 else "distinct"
    return difference(one, two)


def share_bytes(a: Tensor, b: Tensor) -> bool:
    """Their places in shared memory overlap."""
    if a.scope != ir.SHARED or b.scope != ir.SHARED or a.offset is None or b.offset is None:
        return False
    return a.offset < b.offset + size_in_bytes(b) and b.offset < a.offset + size_in_bytes(a)


def _meeting_in_bytes(a: Access, b: Access, groups: Dictionary[str, int]) -> str | None:
    """The same of tensors that lie in the same bytes; where one access may be anywhere, all its workers meet."""
    unit = gcd(a.tensor.dtype.nbytes, b.tensor.dtype.nbytes)  # offsets are multiples of more
    first, second = _places(a, unit), _places(b, unit)
    if first is None or second is None:
        return _meeting(a, b, [], [], groups)
    return _meeting(first[0], second[0], [first[1]], [second[1]], groups)


def _places(access: Access, unit: int) -> tuple[Access, Array] | None:
    """The units of a block's shared memory that each (worker, task) touches; None where that is unknown.

    A task that lies outside the tensor doesn't exist. What has a layout or a swizzle counts as
    unknown: until offsets are flat the simulator keeps its elements in row-major order, and so
    couldn't confirm what is said of its bytes.
    """
    tensor = access.tensor
    if tensor.layout is not None or tensor.swizzle is not None:
        return None
    parts: list[Array] = [access.workers]
    for index in access.indices:
        start = None if index.uniform is None else difference(index.uniform, ir.Constant(0))
        if start is None:
            return None
        parts.append(np.asarray(start if index.spread is None else index.spread + start))
    workers, *parts = np.broadcast_arrays(*parts)
    inside = np.ones(workers.shape, bool)
    for part, extent in zip(parts, tensor.shape, strict=True):
        inside &= (part >= 0) & (part < extent)  # type: ignore[operator]
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
