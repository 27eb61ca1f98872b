"""10,000 random mappings against a reference that knows nothing but tuples and lists."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
import pytest

from taskc.ir.mapping import Mapping, MappingError, mapping, repeat, replicate, spatial

Task = tuple[int, ...]


class Reference(NamedTuple):
    """The definition: a shape, and for each worker a list of slots; None is an empty one."""

    shape: tuple[int, ...]
    lists: tuple[tuple[Task | None, ...], ...]
    limit: tuple[int, ...]


def all_tasks(dims: Task, order: Task) -> list[Task]:
    tasks = []
    for digits in product(*(range(dims[i]) for i in order)):
        coordinate = dict(zip(order, digits, strict=True))
        tasks.append(tuple(coordinate[i] for i in range(len(dims))))
    return tasks


def compose(f: Reference, g: Reference) -> Reference:
    def combine(outer: Task | None, inner: Task | None) -> Task | None:
        if outer is None or inner is None:
            return None
        return tuple(a * b + c for a, b, c in zip(outer, g.shape, inner, strict=True))

    count = len(g.lists)
    lists = tuple(
        tuple(combine(tf, tg) for tf in f.lists[w // count] for tg in g.lists[w % count])
        for w in range(len(f.lists) * count)
    )
    limit = tuple(
        inner if outer == 1 else outer_limit * size
        for outer, outer_limit, size, inner in zip(f.shape, f.limit, g.shape, g.limit, strict=True)
    )
    return Reference(tuple(a * b for a, b in zip(f.shape, g.shape, strict=True)), lists, limit)


def within(f: Reference, limit: Task) -> Reference:
    def kept(task: Task | None) -> bool:
        return task is not None and all(i < n for i, n in zip(task, limit, strict=True))

    lists = tuple(tuple(task if kept(task) else None for task in row) for row in f.lists)
    return Reference(f.shape, lists, tuple(map(min, limit, f.limit)))


def project(f: Reference, kept: Task) -> list[list[Task]]:
    return [
        list(dict.fromkeys(tuple(task[i] for i in kept) for task in row if task is not None))
        for row in f.lists
    ]


class Generator:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high))

    def order(self, rank: int) -> Task:
        return tuple(int(i) for i in self.random.permutation(rank))

    def factor(self, rank: int) -> tuple[Mapping, Reference]:
        kind = self.integer(0, 12)
        dims = tuple(max(1, self.integer(-1, 4)) for _ in range(rank))
        if kind < 5:
            order = self.order(rank) if kind < 2 else tuple(range(rank))
            lists = tuple((task,) for task in all_tasks(dims, order))
            return spatial(*dims, order=order), Reference(dims, lists, dims)
        if kind < 10:
            order = self.order(rank) if kind < 7 else tuple(range(rank))
            return repeat(*dims, order=order), Reference(
                dims, (tuple(all_tasks(dims, order)),), dims
            )
        if kind == 10:
            count = self.integer(1, 4)
            unit = (1,) * rank
            return replicate(count, rank), Reference(unit, (((0,) * rank,),) * count, unit)
        return self.listed(dims)

    def listed(self, dims: Task) -> tuple[Mapping, Reference]:
        workers = self.integer(1, 4)
        slots = self.integer(1, 4)
        lists = tuple(
            tuple(
                None if self.integer(0, 5) == 0 else tuple(self.integer(0, n) for n in dims)
                for _ in range(slots)
            )
            for _ in range(workers)
        )
        return mapping(dims, workers, lists.__getitem__), Reference(dims, lists, dims)

    def mapping(self, rank: int) -> tuple[Mapping, Reference]:
        m, reference = self.factor(rank)
        for _ in range(self.integer(0, 3)):
            g, inner = self.factor(rank)
            if m.workers * m.slots * g.workers * g.slots <= 64:
                m, reference = m * g, compose(reference, inner)
        if self.integer(0, 6) == 0:
            limit = tuple(self.integer(1, n + 1) for n in m.shape)
            m, reference = m.within(limit), within(reference, limit)
        return m, reference


def enumeration(m: Mapping) -> Reference:
    return Reference(
        m.shape,
        tuple(
            tuple(tuple(task) if held else None for task, held in zip(tasks, valid, strict=True))
            for tasks, valid in zip(m.tasks.tolist(), m.valid.tolist(), strict=True)
        ),
        m.iterated,
    )


def twin(m: Mapping, reference: Reference) -> Mapping:
    """The same function by enumeration."""
    return mapping(m.shape, m.workers, reference.lists.__getitem__).within(m.iterated)


def agrees(m: Mapping, reference: Reference) -> None:
    assert enumeration(m) == reference
    assert (m.workers, m.slots) == (len(reference.lists), len(reference.lists[0]))
    assert m(m.workers - 1) == [task for task in reference.lists[-1] if task is not None]

    first: dict[Task, tuple[int, int]] = {}
    slots: dict[tuple[int, Task], int] = {}
    count: Counter[Task] = Counter()
    for worker, row in enumerate(reference.lists):
        for slot, task in enumerate(row):
            if task is not None:
                first.setdefault(task, (worker, slot))
                slots.setdefault((worker, task), slot)
                count[task] += 1
    tasks = all_tasks(m.shape, tuple(range(m.rank)))
    workers, places = m.owner_table()
    multiplicity = m.multiplicity()
    assert (workers.shape, multiplicity.shape) == (m.shape, m.shape)
    assert [*zip(workers.flat, places.flat, strict=True)] == [first.get(t, (-1, -1)) for t in tasks]
    assert multiplicity.ravel().tolist() == [count[task] for task in tasks]

    everyone = np.arange(-1, m.workers + 1)
    array = np.array([*tasks, m.shape, (-1,) * m.rank])
    assert m.find(everyone[:, None], array).tolist() == [
        [slots.get((worker, tuple(task)), -1) for task in array.tolist()]
        for worker in everyone.tolist()
    ]

    assert m.is_replicated == any(copies > 1 for copies in count.values())
    assert m.covers(m.iterated) == (set(count) >= set(all_tasks(m.iterated, range(m.rank))))
    assert m.is_bijection(m.iterated) == (
        sorted(count.elements()) == all_tasks(m.iterated, range(m.rank))
    )
    task = tasks[len(tasks) // 2]
    if task in first:
        assert m.owner(task) == first[task]
        assert m.tasks[m.owner(task)].tolist() == list(task)
    else:
        with pytest.raises(MappingError, match="no worker has task"):
            m.owner(task)


@pytest.mark.parametrize("seed", range(10))
def test_mappings_are_what_the_table_says(seed: int) -> None:
    generate = Generator(seed)
    for _ in range(1000):
        m, reference = generate.mapping(generate.integer(1, 4))
        agrees(m, reference)
        assert Mapping.parse(str(m)) == m
        same = twin(m, reference)
        assert same == m
        assert hash(same) == hash(m)
        assert same.same_owners(m)


@pytest.mark.parametrize("seed", range(4))
def test_composition_is_associative_and_divides(seed: int) -> None:
    generate = Generator(100 + seed)
    for _ in range(500):
        rank = generate.integer(1, 4)
        (f, _), (g, inner), (h, _) = (generate.mapping(rank) for _ in range(3))
        if prod(m.workers * m.slots for m in (f, g, h)) > 4096:
            continue
        assert (f * g) * h == f * (g * h)
        product = f * g
        if any(task is not None for row in inner.lists for task in row):
            quotient = product / g
            assert quotient * g == product
            if f.limit is None and g.limit is None:
                assert quotient == f
            assert Mapping.parse(str(quotient)) == quotient


@pytest.mark.parametrize("seed", range(2))
def test_a_quotient_is_found_wherever_there_is_one(seed: int) -> None:
    """By composing all pairs of small factors: m / g is an error exactly if no f gives m."""
    generate = Generator(200 + seed)
    composed = [generate.mapping(2)[0] for _ in range(60)]
    composed = [m for m in composed if m.is_composed and m.limit is None]
    products = {}
    for f in composed:
        for g in composed:
            products[f * g, g] = f
    for m in {m for m, _ in products}:
        for g in composed:
            try:
                quotient = m / g
            except MappingError:
                assert (m, g) not in products
            else:
                assert quotient * g == m
                assert products.get((m, g), quotient) == quotient


@pytest.mark.parametrize("seed", range(2))
def test_equality_is_that_of_the_enumerations(seed: int) -> None:
    generate = Generator(300 + seed)
    pool = [generate.mapping(2) for _ in range(120)]
    for m, reference in pool:
        for other, other_reference in pool:
            assert (m == other) == (reference == other_reference)
            owners, other_owners = (
                (r.shape, r.limit, [Counter(task for task in row if task) for row in r.lists])
                for r in (reference, other_reference)
            )
            assert m.same_owners(other) == (owners == other_owners)


@pytest.mark.parametrize("seed", range(2))
def test_projection(seed: int) -> None:
    generate = Generator(400 + seed)
    for _ in range(500):
        m, reference = generate.mapping(3)
        kept = generate.order(3)[: generate.integer(0, 4)]
        projection = m.project(kept)
        assert Mapping.parse(str(projection)) == projection
        if m.limit is None:
            assert [projection(w) for w in range(m.workers)] == project(reference, kept)
