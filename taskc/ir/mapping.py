"""Task mappings: the assignment of tasks to workers, in order.

A mapping is a pure value: a number of workers, a task shape, and for each worker an ordered list
of tasks.

    spatial(d0, …)               worker w has the one task whose row-major number is w
    repeat(d0, …)                one worker has all tasks, row-major
    replicate(n)                 n workers each have the single task (0, …)
    f * g                        worker w has tf * g.shape + tg, elementwise, for tf in
                                 f(w // g.workers) for tg in g(w % g.workers)
    mapping(shape, workers, fn)  worker w has what fn(w) lists

Composition is associative and not commutative. A mapping of shape (1,), such as replicate(n),
takes its partner's rank.

A slot is a place in a worker's list, and the number of a register where a tile is laid out by the
mapping. `within` empties slots and never renumbers them. So two mappings are equal when every slot
of every worker holds the same task, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskc.dataclass import dataclass
from taskc.errors import rendered
from taskc.ir.mapping_forms import (
    Booleans,
    Composed,
    Enumerated,
    Factor,
    Integers,
    MappingError,
    Mode,
    Modes,
    Shape,
    checked_integer,
    checked_order,
    checked_sizes,
    checked_task,
    coalesced_split,
    fits,
    is_inside,
    joined,
    merged,
    read_only,
    rounded_quotient,
    table_form,
)
from taskc.ir.mapping_text import Owners, mapping_text, read_mapping, table
from taskc.ir.reentry import cached_property

__all__ = [
    "Mapping",
    "MappingError",
    "Mode",
    "auto_map",
    "mapping",
    "repeat",
    "replicate",
    "spatial",
]

_MOST = 1 << 62  # most tasks, so that each has a number
_MOST_LISTED = 1 << 28  # most tasks that are listed one by one
_MOST_RANK = 32


@dataclass(frozen=True, eq=False, repr=False)
class Mapping:
    """An immutable mapping of workers to ordered tasks; see the head of this file."""

    form: Composed | Enumerated
    limit: Shape | None = None  # tasks outside are masked; never equal to the shape
    factors: tuple[Factor, ...] = ()  # for printing only; empty for a derived mapping

    def __post_init__(self) -> None:
        pairs, tasks = self.form.workers * self.form.slots, prod(self.shape)
        if max(pairs, tasks) > (_MOST if self.is_composed else _MOST_LISTED):
            raise MappingError(f"a mapping of {max(pairs, tasks)} tasks is too large")

    # Owners and tasks.

    @property
    def shape(self) -> Shape:
        return self.form.shape

    @property
    def iterated(self) -> Shape:
        """The shape of the unmasked tasks: the limit if there is one."""
        return self.limit or self.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def workers(self) -> int:
        return self.form.workers

    @cached_property
    def slots(self) -> int:
        """The length of the longest worker's list, with empty slots."""
        return self.form.slots

    @property
    def is_composed(self) -> bool:
        return isinstance(self.form, Composed)

    @property
    def worker_modes(self) -> Modes | None:
        """The digits of a worker's number, slowest first; None if enumerated."""
        return self.form.worker_modes if isinstance(self.form, Composed) else None

    @property
    def slot_modes(self) -> Modes | None:
        """The digits of a slot's number, slowest first; None if enumerated."""
        return self.form.slot_modes if isinstance(self.form, Composed) else None

    @cached_property
    def tasks(self) -> Integers:
        """All tasks, [worker, slot, rank]; zeros in empty slots."""
        self._check_listed(self.workers * self.slots)
        tasks = self.form.tasks(np.arange(self.workers))
        return read_only(tasks if self.valid.all() else tasks * self.valid[..., None])

    @cached_property
    def valid(self) -> Booleans:
        """Mask of slots that hold a task, [worker, slot]."""
        self._check_listed(self.workers * self.slots)
        return read_only(self._valid_of(np.arange(self.workers)))

    def _check_listed(self, count: int) -> None:
        if count > _MOST_LISTED:
            raise MappingError(f"{self.name} has {count} tasks, which are too many to be listed")

    def _valid_of(self, workers: Integers) -> Booleans:
        valid = self.form.valid(workers)
        if self.limit is not None:
            valid = valid & (self.form.tasks(workers) < self.limit).all(axis=-1)
        return valid

    @cached_property
    def _enumerated(self) -> Enumerated:
        return Enumerated(self.shape, self.tasks, self.valid)

    @property
    def _key(self) -> tuple[Shape, Shape, int, int]:
        return self.shape, self.iterated, self.workers, self.slots

    @property
    def name(self) -> str:
        """The mapping for messages, where an enumeration would be too long."""
        return str(self) if self.is_composed else f"mapping({self.shape}, {self.workers}, …)"

    # Queries.

    def __call__(self, worker: int) -> list[Shape]:
        """A worker's tasks in order, without empty slots."""
        worker = checked_integer(worker, "a worker")
        if not 0 <= worker < self.workers:
            raise MappingError(f"worker {worker} is outside 0..{self.workers - 1} of {self.name}")
        self._check_listed(self.slots)
        which = np.array([worker])
        return [tuple(task) for task in self.form.tasks(which)[self._valid_of(which)].tolist()]

    def owner(self, task: Sequence[int]) -> tuple[int, int]:
        """The worker and the slot that hold a task; the first ones if it is replicated."""
        task = checked_task(task, self.shape, "task ")
        worker, slot = self.form.owner(task)
        if worker < 0 or not is_inside(task, self.iterated):
            raise MappingError(f"no worker has task {task} in {self.name}")
        return int(worker), int(slot)

    def owner_table(self) -> tuple[Integers, Integers]:
        """The workers and slots that own each task first, over the full shape; -1 for unowned tasks."""
        return self._owners

    @cached_property
    def _owners(self) -> tuple[Integers, Integers]:
        self._check_listed(prod(self.shape))
        coordinates = np.indices(self.shape, sparse=True)
        inside = self._inside_limit(coordinates)
        worker, slot = (
            np.broadcast_to(np.where(inside, number, -1), self.shape)
            for number in self.form.owner(coordinates)
        )
        return read_only(worker), read_only(slot)

    def _inside_limit(self, coordinates: Sequence[Any]) -> Any:
        inside: Any = np.True_
        for coordinate, extent in zip(coordinates, self.iterated, strict=True):
            inside = inside & (coordinate >= 0) & (coordinate < extent)
        return inside

    def find(self, workers: ArrayLike, tasks: ArrayLike) -> Integers:
        """The slot in which workers[...] hold tasks[..., rank], broadcast; -1 where they don't."""
        workers, tasks = np.asarray(workers, np.int64), np.asarray(tasks, np.int64)
        if not tasks.ndim or tasks.shape[-1] != self.rank:
            raise MappingError(
                f"tasks of {self.name} have {self.rank} coordinates; "
                f"got an array of shape {tasks.shape}"
            )
        known = (workers >= 0) & (workers < self.workers)
        inside = self._inside_limit([tasks[..., i] for i in range(self.rank)])
        safe = tasks * inside[..., None]
        slot = self.form.find(workers * known, [safe[..., i] for i in range(self.rank)])
        if not (known.all() and inside.all()):  # slots may be numerous
            slot = np.where(known & inside, slot, -1)
        return np.broadcast_to(slot, np.broadcast_shapes(workers.shape, tasks.shape[:-1]))

    def multiplicity(self) -> Integers:
        """The number of (worker, slot) pairs that hold each task, over the full shape."""
        self._check_listed(prod(self.shape))
        inside = self._inside_limit(np.indices(self.shape, sparse=True))
        return np.asarray(np.where(inside, self.form.multiplicity(), 0))

    def covers(self, shape: Sequence[int]) -> bool:
        """Whether every task of the shape has an owner."""
        shape = self._same_rank(shape, "covers")
        if self.is_composed or not fits(shape, self.shape):
            return fits(shape, self.iterated)
        return bool(self.multiplicity()[tuple(map(slice, shape))].all())

    @cached_property
    def is_replicated(self) -> bool:
        """Whether some task has two owners."""
        if self.is_composed:
            return self.workers * self.slots > prod(self.shape)
        return bool((self.multiplicity() > 1).any())

    def is_bijection(self, shape: Sequence[int]) -> bool:
        """Whether every task of the shape has exactly one owner, and no other task has any."""
        if not self.covers(shape):
            return False
        if self.is_composed:
            return self.iterated == tuple(shape) and not self.is_replicated
        return int(np.count_nonzero(self.valid)) == prod(shape)

    def same_owners(self, other: Mapping) -> bool:
        """Whether each worker has the same tasks in both, in any order of slots."""
        if self._key[:3] != other._key[:3]:
            return False
        f, g = self.form, other.form
        if isinstance(f, Composed) and isinstance(g, Composed):
            if f.same_owners(g):
                return True
            if self.limit is None:  # a limit can mask the difference
                return False
        return self._enumerated.same_owners(other._enumerated)

    def _same_rank(self, shape: Sequence[int], asker: str) -> Shape:
        sizes = checked_sizes(asker, shape)
        if len(sizes) != self.rank:
            raise MappingError(
                f"{asker}({joined(sizes)}) has rank {len(sizes)}, but {self.name} has {self.rank}"
            )
        return sizes

    @staticmethod
    def from_modes(shape: Sequence[int], workers: Iterable[Mode], slots: Iterable[Mode]) -> Mapping:
        """The composed mapping with these digits of the worker's and the slot's number, slowest first."""
        return Mapping(Composed(tuple(shape), merged(workers), merged(slots)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if self._key != other._key:
            return False
        if self.is_composed and other.is_composed:
            if self.form == other.form:
                return True
            if self.limit is None:  # a limit can mask the difference
                return False
        return np.array_equal(self.valid, other.valid) and np.array_equal(self.tasks, other.tasks)

    def __hash__(self) -> int:
        return hash(self._key)

    # Derived mappings.

    def __mul__(self, inner: Mapping) -> Mapping:
        if not isinstance(inner, Mapping):
            return NotImplemented
        f, g = _same_ranks(self, inner)
        extents = list(zip(f.shape, f.iterated, g.shape, g.iterated, strict=True))
        # If f has several tasks in a dimension, the mask of g repeats for each, which no single limit expresses.
        is_mask_kept = all(a == 1 or b == limit for a, _, b, limit in extents)
        limit = tuple(d if a == 1 else b * c for a, b, c, d in extents)
        if isinstance(f.form, Composed) and isinstance(g.form, Composed) and is_mask_kept:
            factors = f.factors + g.factors if f.factors and g.factors else ()
            return _limited(f.form.times(g.form), limit, factors)
        return _limited(f._enumerated.times(g._enumerated), limit)

    def __truediv__(self, inner: Mapping) -> Mapping:
        """The one f with f * inner == self."""
        if not isinstance(inner, Mapping):
            return NotImplemented
        m, g = _same_ranks(self, inner)
        form: Composed | Enumerated | None = None
        if any(a % b for a, b in zip(m.shape, g.shape, strict=True)):
            why = f"the shape {m.shape} is not a multiple of {g.shape}"
        elif m.workers % g.workers:
            why = f"{m.workers} workers are not a multiple of {g.workers}"
        else:
            why = "its fastest workers and slots are not those"
            if isinstance(m.form, Composed) and isinstance(g.form, Composed):
                form = m.form.over(g.form)
            else:
                form = m._enumerated.over(g._enumerated)
        if form is not None:
            f = _limited(form, rounded_quotient(m.iterated, g.shape))
            if f * g == m:
                return f
        raise MappingError(f"{m.name} is not a multiple of {g.name}: {why}")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "the tasks of a mapping are gone through in a kernel; m(w) lists those of worker w"
        )

    def on(self, worker: Any) -> Mapping:
        """Only for the head of a kernel's loop, where a worker executes this mapping's tasks."""
        raise TypeError("mapping.on(...) is a part of the language: use it in a kernel's loop")

    def spatial(self, *dims: int, order: Sequence[int] | None = None) -> Mapping:
        return self * spatial(*dims, order=order)

    def repeat(self, *dims: int, order: Sequence[int] | None = None) -> Mapping:
        return self * repeat(*dims, order=order)

    def replicate(self, n: int, rank: int | None = None) -> Mapping:
        return self * replicate(n, rank)

    def within(self, *shape: Any) -> Mapping:
        """The same mapping with the tasks outside a smaller shape masked.

        The shape is a tuple or separate sizes.
        """
        if len(shape) == 1 and isinstance(shape[0], Sequence):
            (shape,) = shape
        limit = self._same_rank(shape, "within")
        if not fits(limit, self.shape):
            raise MappingError(
                f"within({joined(limit)}) exceeds the shape {self.shape} of {self.name}"
            )
        smaller = tuple(min(pair) for pair in zip(limit, self.iterated, strict=True))
        return _limited(self.form, smaller, self.factors)

    def project(self, dimensions: Sequence[int]) -> Mapping:
        """Keep only these dimensions, in this order.

        A dropped dimension's worker modes become replication and its slot modes vanish. Where
        enumerated, each worker keeps the first of the tasks that become equal.
        """
        dimensions_kept = tuple(checked_integer(i, "a dimension") for i in dimensions)
        if len(set(dimensions_kept)) != len(dimensions_kept) or not all(
            0 <= i < self.rank for i in dimensions_kept
        ):
            raise MappingError(
                f"project(({joined(dimensions_kept)})) needs distinct dimensions in 0..{self.rank - 1} "
                f"of {self.name}"
            )
        limit = tuple(self.iterated[i] for i in dimensions_kept)
        if isinstance(self.form, Composed):
            return _limited(self.form.project(dimensions_kept), limit)
        lists = [
            list(dict.fromkeys(tuple(task[i] for i in dimensions_kept) for task in self(worker)))
            for worker in range(self.workers)
        ]
        shape = tuple(self.shape[i] for i in dimensions_kept)
        return _limited(mapping(shape, self.workers, lists.__getitem__).form, limit)

    # Text and pictures.

    def __str__(self) -> str:
        return mapping_text(self.form, self.limit, self.factors)

    __repr__ = __str__

    @staticmethod
    def parse(text: str) -> Mapping:
        """Parse the text of str(m); factors may also be joined by `*`."""
        makers = (spatial, repeat, replicate, auto_map, mapping)
        parsed: Mapping = read_mapping(text, {maker.__name__: maker for maker in makers})
        return parsed

    def table(self) -> str:
        """The owner of each task as text; see `taskc.ir.mapping_text`."""
        return table(self.pictured)

    def svg(self, most: int = 64) -> str:
        """The owner of each task as a standalone SVG, with at most so many rows and columns."""
        return rendered(self, "svg", most)

    def _repr_html_(self) -> str:
        return rendered(self, "html")

    @property
    def pictured(self) -> Owners:
        """The owners, for drawing."""
        return Owners(self.iterated, self._owners_of, self.slots > 1)

    def _owners_of(self, tasks: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The first worker and slot that own each task, and the number of owners."""
        worker, slot = self.form.owner(tasks)
        if self.is_composed:
            return worker, slot, self.workers * self.slots // prod(self.shape)
        return worker, slot, self.multiplicity()[tuple(tasks)]


def spatial(*dims: int, order: Sequence[int] | None = None) -> Mapping:
    """One worker for each task; `order` lists the dimensions from slowest to fastest."""
    factor = _factor("spatial", dims, order)
    return Mapping(Composed(factor.sizes, _modes(factor), ()), factors=(factor,))


def repeat(*dims: int, order: Sequence[int] | None = None) -> Mapping:
    """One worker for all tasks; `order` lists the dimensions from slowest to fastest."""
    factor = _factor("repeat", dims, order)
    return Mapping(Composed(factor.sizes, (), _modes(factor)), factors=(factor,))


def replicate(n: int, rank: int | None = None) -> Mapping:
    """n workers that each have the single task (0, …); without a rank, it takes its partner's."""
    sizes = checked_sizes("replicate", (n,))
    rank = 1 if rank is None else checked_integer(rank, "a rank")
    if not 0 <= rank <= _MOST_RANK:
        raise MappingError(f"replicate({n}, rank={rank}) needs a rank of 0 to {_MOST_RANK}")
    form = Composed((1,) * rank, merged([Mode(None, sizes[0], 0)]), ())
    return Mapping(form, factors=(Factor("replicate", sizes),))


def mapping(
    shape: Sequence[int], workers: int, fn: Callable[[int], Iterable[Sequence[int] | None]]
) -> Mapping:
    """Worker w has the tasks that fn(w) lists; None is an empty slot."""
    shape = checked_sizes("mapping", shape)
    (workers,) = checked_sizes("mapping", (workers,))
    lists = [list(fn(worker)) for worker in range(workers)]
    pairs = workers, max(map(len, lists))
    tasks = np.zeros((*pairs, len(shape)), dtype=np.int64)
    valid = np.zeros(pairs, dtype=np.bool_)
    for worker, row in enumerate(lists):
        for slot, task in enumerate(row):
            if task is None:
                continue
            tasks[worker, slot] = checked_task(task, shape, f"worker {worker}'s task ")
            valid[worker, slot] = True
    return Mapping(table_form(shape, tasks, valid))


def auto_map(shape: Sequence[int], *, workers: int, vector: int = 1) -> Mapping:
    """A coalesced cover by exactly this many workers: `repeat(…).spatial(…).repeat(1, …, vector)`.

    A worker owns `vector` elements of the innermost dimension, along which neighbouring workers follow each other.
    Later slots are whole tiles further on. Tasks outside the shape are masked.
    `mapping_split` has the rule for the extents of `spatial`.
    """
    shape = checked_sizes("auto_map", shape)
    workers, vector = checked_sizes("auto_map", (workers, vector))
    if not shape:
        raise MappingError("auto_map needs a shape of rank at least 1; got ()")
    vectors = (1,) * (len(shape) - 1) + (vector,)
    units = rounded_quotient(shape, vectors)
    tile = coalesced_split(units, workers)
    steps = rounded_quotient(units, tile)
    result = spatial(*tile)
    if prod(steps) > 1:
        result = repeat(*steps) * result
    if vector > 1:
        result = result * repeat(*vectors)
    return result.within(shape)


def _modes(factor: Factor) -> Modes:
    order = range(len(factor.sizes)) if factor.order is None else factor.order
    return merged(Mode(i, factor.sizes[i], 1) for i in order)


def _factor(kind: str, dims: Sequence[int], order: Sequence[int] | None) -> Factor:
    sizes = checked_sizes(kind, dims)
    ascending = tuple(range(len(sizes)))
    dimensions = ascending if order is None else checked_order(kind, sizes, order)
    return Factor(kind, sizes, None if dimensions == ascending else dimensions)


def _limited(
    form: Composed | Enumerated, limit: Shape, factors: tuple[Factor, ...] = ()
) -> Mapping:
    return Mapping(form, None if limit == form.shape else limit, factors)


def _same_ranks(f: Mapping, g: Mapping) -> tuple[Mapping, Mapping]:
    """Both at one rank: a mapping of shape (1,) takes the rank of the other."""
    if f.rank == g.rank:
        return f, g
    if f.shape == (1,):
        return _at_rank(f, g.rank), g
    if g.shape == (1,):
        return f, _at_rank(g, f.rank)
    raise MappingError(
        f"{f.name} has rank {f.rank} and {g.name} has rank {g.rank}; they must be equal"
    )


def _at_rank(unit: Mapping, rank: int) -> Mapping:
    shape = (1,) * rank
    if isinstance(unit.form, Composed):
        factors = tuple(
            factor if factor.kind == "replicate" else Factor(factor.kind, shape)
            for factor in unit.factors
        )
        return Mapping(Composed(shape, unit.form.worker_modes, ()), factors=factors)
    return Mapping(
        table_form(shape, np.zeros((*unit.valid.shape, rank), dtype=np.int64), unit.valid)
    )
