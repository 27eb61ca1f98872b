"""10,000 random mappings against a reference that knows nothing but arrays of tasks.

Each of them is built beside its enumeration from random factors, asked everything, printed and parsed,
and takes part in three laws: composition is associative, a product divides by its inner factor, and a
quotient exists exactly where the enumerations have one.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from taskc.ir.mapping import Mapping, mapping, repeat, replicate, spatial
from taskc.ir.mapping_forms import MappingError
from tests.each_value import few

Task = tuple[int, ...]
SEEDS, EACH = 10, 1000
PAIRS = 64  # of a worker and a slot, in a random mapping
PARTNER = 8  # in what it is composed with
PRINTED = 10  # one in so many products is printed and parsed, too: reading their tables takes longer than all else


class Reference(NamedTuple):
    """The definition: the task in each slot of each worker, zeros where it is empty."""

    shape: Task
    tasks: np.ndarray  # [worker, slot, dimension]
    valid: np.ndarray  # [worker, slot]
    limit: Task

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Reference)
            and (self.shape, self.limit) == (other.shape, other.limit)
            and np.array_equal(self.valid, other.valid)
            and np.array_equal(self.tasks, other.tasks)
        )

    def __ne__(self, other: object) -> bool:  # a tuple has its own
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def made(shape: Task, tasks: np.ndarray, valid: np.ndarray, limit: Task) -> Reference:
    return Reference(shape, tasks * valid[..., None], valid, limit)


def all_tasks(dims: Task, order: Task) -> np.ndarray:
    """Row-major in the dimensions as ordered, slowest first."""
    digits = np.indices([dims[i] for i in order]).reshape(len(dims), -1)
    tasks = np.empty_like(digits)
    tasks[list(order)] = digits
    return tasks.T


def compose(f: Reference, g: Reference) -> Reference:
    """Worker w has tf * shape of g + tg, for tf in f(w // wg) for tg in g(w % wg)."""
    outer, inner = f.tasks[:, None, :, None], g.tasks[None, :, None, :]
    both = f.valid[:, None, :, None] & g.valid[None, :, None, :]
    workers, slots = len(f.valid) * len(g.valid), f.valid.shape[1] * g.valid.shape[1]
    tasks = (outer * np.array(g.shape, dtype=int) + inner).reshape(workers, slots, len(f.shape))
    limit = tuple(
        inner if outer == 1 else outer_limit * size
        for outer, outer_limit, size, inner in zip(f.shape, f.limit, g.shape, g.limit, strict=True)
    )
    shape = tuple(a * b for a, b in zip(f.shape, g.shape, strict=True))
    return made(shape, tasks, both.reshape(workers, slots), limit)


def within(f: Reference, limit: Task) -> Reference:
    valid = f.valid & (f.tasks < limit).all(axis=-1)
    return made(f.shape, f.tasks, valid, tuple(map(min, limit, f.limit)))


def divide(m: Reference, g: Reference) -> Reference | None:
    """The f with f * g == m, found block by block; None where there is none. g has a task."""
    (workers, slots), (count, places) = m.valid.shape, g.valid.shape
    if workers % count or slots % places or any(map(int.__mod__, m.shape, g.shape)):
        return None
    shape = tuple(map(int.__floordiv__, m.shape, g.shape))
    blocks = workers // count, count, slots // places, places
    valid = m.valid.reshape(blocks)
    held = valid.any(axis=(1, 3))
    if not np.array_equal(valid, held[:, None, :, None] & g.valid[None, :, None, :]):
        return None
    rest = m.tasks.reshape(*blocks, -1) - g.tasks[None, :, None, :]
    worker, slot = np.argwhere(g.valid)[0]
    tasks = rest[:, worker, :, slot] // np.array(g.shape, dtype=int)
    if (
        (tasks[:, None, :, None] * np.array(g.shape, dtype=int) != rest).any(axis=-1) & valid
    ).any():
        return None
    limits = zip(shape, m.limit, g.shape, g.limit, strict=True)
    if any(a != d if n == 1 else a % b for n, a, b, d in limits):
        return None
    limit = tuple(-(-a // b) for a, b in zip(m.limit, g.shape, strict=True))
    return made(shape, tasks, held, limit)


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
        order = self.order(rank) if kind < 2 or 5 <= kind < 7 else tuple(range(rank))
        if kind < 5:
            tasks = all_tasks(dims, order)[:, None]
            return spatial(*dims, order=order), filled(dims, tasks)
        if kind < 10:
            return repeat(*dims, order=order), filled(dims, all_tasks(dims, order)[None])
        if kind == 10:
            count = self.integer(1, 4)
            unit = (1,) * rank
            return replicate(count, rank), filled(unit, np.zeros((count, 1, rank), int))
        return self.listed(dims)

    def listed(self, dims: Task) -> tuple[Mapping, Reference]:
        pairs = self.integer(1, 4), self.integer(1, 4)
        tasks = self.random.integers(0, dims, (*pairs, len(dims)))
        reference = made(dims, tasks, self.random.random(pairs) > 0.2, dims)
        return twin(reference), reference

    def mapping(self, rank: int, most: int = PAIRS) -> tuple[Mapping, Reference]:
        m, reference = self.factor(rank)
        while m.workers * m.slots > most:
            m, reference = self.factor(rank)
        for _ in range(self.integer(0, 3)):
            g, inner = self.factor(rank)
            if m.workers * m.slots * g.workers * g.slots <= most:
                m, reference = m * g, compose(reference, inner)
        if self.integer(0, 6) == 0:
            limit = tuple(self.integer(1, n + 1) for n in m.shape)
            m, reference = m.within(limit), within(reference, limit)
        return m, reference


def filled(shape: Task, tasks: np.ndarray) -> Reference:
    return Reference(shape, tasks, np.ones(tasks.shape[:2], bool), shape)


def twin(reference: Reference) -> Mapping:
    """The same function by enumeration."""
    lists = [
        [tuple(task) if held else None for task, held in zip(tasks, valid, strict=True)]
        for tasks, valid in zip(reference.tasks.tolist(), reference.valid.tolist(), strict=True)
    ]
    return mapping(reference.shape, len(lists), lists.__getitem__).within(reference.limit)


def enumeration(m: Mapping) -> Reference:
    return Reference(m.shape, m.tasks, m.valid, m.iterated)


def agrees(m: Mapping, reference: Reference) -> None:
    """All that a mapping answers."""
    assert enumeration(m) == reference
    assert (m.workers, m.slots) == reference.valid.shape
    assert m(m.workers - 1) == [*map(tuple, reference.tasks[-1][reference.valid[-1]].tolist())]

    tasks = all_tasks(m.shape, tuple(range(m.rank)))
    held = (reference.tasks[..., None, :] == tasks).all(axis=-1) & reference.valid[..., None]
    flat = held.reshape(-1, len(tasks))  # [pair of worker and slot, task]
    first = np.where(flat.any(axis=0), flat.argmax(axis=0), -1)
    workers, places = m.owner_table()
    multiplicity = m.multiplicity()
    assert (workers.shape, multiplicity.shape) == (m.shape, m.shape)
    owners = np.where(first < 0, -1, (first // m.slots, first % m.slots))
    assert np.array_equal((workers.ravel(), places.ravel()), owners)
    assert np.array_equal(multiplicity.ravel(), flat.sum(axis=0))

    everyone = np.arange(-1, m.workers + 1)
    asked = np.array([*tasks, m.shape, (-1,) * m.rank])
    slots = np.full((len(everyone), len(asked)), -1)
    slots[1:-1, :-2] = np.where(held.any(axis=1), held.argmax(axis=1), -1)
    assert np.array_equal(m.find(everyone[:, None], asked), slots)
    assert np.array_equal(m.find(everyone[1:2, None], tasks), slots[1:2, :-2])

    iterated = (tasks < m.iterated).all(axis=-1)
    assert m.is_replicated == (flat.sum(axis=0) > 1).any()
    assert m.covers(m.iterated) == flat.any(axis=0)[iterated].all()
    assert m.is_bijection(m.iterated) == np.array_equal(flat.sum(axis=0), iterated)
    task = tuple(tasks[len(tasks) // 2].tolist())
    if first[len(tasks) // 2] >= 0:
        assert m.owner(task) == divmod(int(first[len(tasks) // 2]), m.slots)
    else:
        with pytest.raises(MappingError, match="no worker has task"):
            m.owner(task)


def divides(m: Mapping, reference: Reference, g: Mapping, inner: Reference) -> bool:
    """m / g is what the enumerations say, or an error where they say that there is none."""
    expected = divide(reference, inner)
    if expected is None:
        with pytest.raises(MappingError, match="is not a multiple of"):
            m / g
        return False
    quotient = m / g
    assert enumeration(quotient) == expected
    assert quotient * g == m
    return True


@pytest.mark.parametrize("seed", few(range(SEEDS), 4))
def test_mappings_are_what_the_table_says(seed: int) -> None:
    generate = Generator(seed)
    for _ in range(EACH):
        m, reference = generate.mapping(generate.integer(1, 4))
        agrees(m, reference)
        assert Mapping.parse(str(m)) == m
        listed = twin(reference)
        assert listed == m
        assert hash(listed) == hash(m)
        assert listed.same_owners(m)


@pytest.mark.parametrize("seed", few(range(SEEDS), 4))
def test_composition_is_associative(seed: int) -> None:
    """The same mappings, each with two partners, at a random place among the three."""
    generate, partners = Generator(seed), Generator(100 + seed)
    for number in range(EACH):
        rank = generate.integer(1, 4)
        three = [partners.mapping(rank, PARTNER), partners.mapping(rank, PARTNER)]
        three.insert(partners.integer(0, 3), generate.mapping(rank))
        (f, outer), (g, middle), (h, inner) = three
        product = (f * g) * h
        assert product == f * (g * h)
        expected = compose(compose(outer, middle), inner)
        assert expected == compose(outer, compose(middle, inner))
        assert enumeration(product) == expected
        if number % PRINTED == 0:
            assert Mapping.parse(str(product)) == product


@pytest.mark.parametrize("seed", few(range(SEEDS), 4))
def test_products_divide(seed: int) -> None:
    """The same mappings, once as the outer and once as the inner factor, and by a stranger."""
    generate, partners = Generator(seed), Generator(200 + seed)
    found = Counter[str]()
    for _ in range(EACH):
        rank = generate.integer(1, 4)
        one = generate.mapping(rank)
        other, stranger = partners.mapping(rank, PARTNER), partners.mapping(rank, PARTNER)
        for (f, outer), (g, inner) in ((one, other), (other, one)):
            if not inner.valid.any():
                continue  # any f would do
            product, enumerated = f * g, compose(outer, inner)
            assert divides(product, enumerated, g, inner)
            if outer.limit == outer.shape and inner.limit == inner.shape:
                assert product / g == f
            found["product"] += 1
        for m, reference in (one, (one[0] * other[0], compose(one[1], other[1]))):
            if stranger[1].valid.any():
                is_divided = divides(m, reference, *stranger)
                found["divided" if is_divided else "refused"] += 1
    assert found["product"] > 1.9 * EACH
    assert min(found["divided"], found["refused"]) > EACH // 5


@pytest.mark.parametrize("seed", range(2))
def test_a_quotient_is_found_wherever_there_is_one(seed: int) -> None:
    """By composing all pairs of small factors: m / g is an error exactly if no f gives m."""
    generate = Generator(300 + seed)
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
    generate = Generator(400 + seed)
    pool = [generate.mapping(2) for _ in range(120)]
    owners = [
        (
            reference.shape,
            reference.limit,
            [
                Counter(map(tuple, tasks[valid].tolist()))
                for tasks, valid in zip(reference.tasks, reference.valid, strict=True)
            ],
        )
        for _, reference in pool
    ]
    for (m, reference), own in zip(pool, owners, strict=True):
        for (other, other_reference), others in zip(pool, owners, strict=True):
            assert (m == other) == (reference == other_reference)
            assert m.same_owners(other) == (own == others)


@pytest.mark.parametrize("seed", range(2))
def test_projection(seed: int) -> None:
    generate = Generator(500 + seed)
    for _ in range(500):
        m, reference = generate.mapping(3)
        kept = generate.order(3)[: generate.integer(0, 4)]
        projection = m.project(kept)
        assert Mapping.parse(str(projection)) == projection
        if m.limit is None:
            lists = [
                [*dict.fromkeys(map(tuple, tasks[valid][:, kept].tolist()))]
                for tasks, valid in zip(reference.tasks, reference.valid, strict=True)
            ]
            assert [projection(w) for w in range(m.workers)] == lists
