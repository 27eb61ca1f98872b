"""Task mappings: which worker does which tasks, in which order.

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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from taskc.ir.mapping_checks import (
    MappingError,
    checked_integer,
    checked_order,
    checked_sizes,
    checked_task,
    fits,
    joined,
)
from taskc.ir.mapping_forms import (
    Composed,
    Enumerated,
    Mode,
    Modes,
    Shape,
    merged,
    table_form,
)
from taskc.ir.mapping_owners import Owners
from taskc.ir.mapping_split import coalesced_split, rounded_quotient

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


class Factor(NamedTuple):
    """One constructor of a composition, as it was written."""

    kind: str
    sizes: Shape
    order: Shape | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Mapping(Owners):
    """An immutable mapping of workers to ordered tasks; see the module's text."""

    factors: tuple[Factor, ...] = ()  # only how to print it; empty for a mapping that was derived

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

    # What it makes.

    def __mul__(self, inner: Mapping) -> Mapping:
        if not isinstance(inner, Mapping):
            return NotImplemented
        f, g = _same_ranks(self, inner)
        extents = list(zip(f.shape, f.iterated, g.shape, g.iterated, strict=True))
        # Where f has several tasks in a dimension, each of them brings the mask of g again, and no
        # single limit says so.
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
        kept = tuple(checked_integer(i, "a dimension") for i in dimensions)
        if len(set(kept)) != len(kept) or not all(0 <= i < self.rank for i in kept):
            raise MappingError(
                f"project(({joined(kept)})) needs distinct dimensions in 0..{self.rank - 1} "
                f"of {self.name}"
            )
        limit = tuple(self.iterated[i] for i in kept)
        if isinstance(self.form, Composed):
            return _limited(self.form.project(kept), limit)
        lists = [
            list(dict.fromkeys(tuple(task[i] for i in kept) for task in self(worker)))
            for worker in range(self.workers)
        ]
        shape = tuple(self.shape[i] for i in kept)
        return _limited(mapping(shape, self.workers, lists.__getitem__).form, limit)

    # How it is written and drawn.

    def __str__(self) -> str:
        from taskc.ir.mapping_text import print_mapping

        return print_mapping(self)

    __repr__ = __str__

    @staticmethod
    def parse(text: str) -> Mapping:
        """Read what str(m) writes; factors may also be joined by `*`."""
        from taskc.ir.mapping_text import parse_mapping

        return parse_mapping(text)

    def table(self) -> str:
        """The owner of each task as text; see `taskc.ir.mapping_picture`."""
        from taskc.ir.mapping_picture import table

        return table(self)

    def svg(self) -> str:
        """The owner of each task as a standalone SVG; see `taskc.ir.mapping_picture`."""
        from taskc.ir.mapping_picture import svg

        return svg(self)

    def _repr_html_(self) -> str:
        from taskc.ir.mapping_picture import html

        return html(self)


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
    if rank < 0:
        raise MappingError(f"replicate({n}, rank={rank}) needs a rank of at least 0")
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

    The innermost `vector` elements are one worker's, neighbouring workers are neighbours in the
    innermost dimension, and later slots are whole tiles further on. What the tiles exceed the shape
    by is masked. `mapping_split` has the rule for the extents of `spatial`.
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
