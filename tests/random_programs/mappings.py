"""Random mappings with a given number of workers, for a given shape or of a shape of their own."""

from __future__ import annotations

import random
from math import prod

from tests.random_programs.description import Factor, MappingOf, Shape


class Mappings:
    def __init__(self, pick: random.Random, workers: int) -> None:
        self.pick = pick
        self.workers = workers
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"map{self.count}"

    def over(self, shape: Shape, *, replicated: bool = True) -> MappingOf:
        """A mapping whose tasks are those of the shape."""
        if prod(shape) * self.workers <= 512 and self.pick.random() < 0.12:
            return self.enumerated(shape, replicated)
        return self.composed(shape, replicated)

    def of_two(self) -> MappingOf:
        """For loops within mapping loops: two workers over four tasks."""
        factors = (_along("spatial", 0, 2, 1), _along("repeat", 0, 2, 1))
        ordered = factors if self.pick.random() < 0.5 else factors[::-1]
        return MappingOf(self.name(), (4,), 2, ordered)

    def composed(self, shape: Shape, replicated: bool = True) -> MappingOf:
        pick, rank = self.pick, len(shape)
        spread = [1] * rank
        pieces: list[Factor] = []
        for prime in _primes(self.workers):
            room = [d for d in range(rank) if spread[d] < shape[d]]
            if replicated and (pick.random() < 0.12 or not room):
                pieces.append(Factor("replicate", (prime,)))
                continue
            dimension = pick.choice(room or range(rank))
            spread[dimension] *= prime
            pieces.append(_along("spatial", dimension, prime, rank))
        for dimension in range(rank):
            steps = -(-shape[dimension] // spread[dimension])
            split = _primes(steps)
            if pick.random() < 0.5:
                split = [steps] if steps > 1 else []
            pieces += [_along("repeat", dimension, size, rank) for size in split]
        pick.shuffle(pieces)
        factors = self.joined(pieces, rank)
        full = _shape_of(factors, rank)
        limit = None if full == shape else shape
        return MappingOf(self.name(), full, self.workers, factors, limit=limit)

    def unmasked(self, rank: int, slots: int, *, replicated: bool = True) -> MappingOf:
        """A composed mapping without a limit, of whatever shape comes of it."""
        pick = self.pick
        pieces = []
        for prime in _primes(self.workers):
            if replicated and pick.random() < 0.15:
                pieces.append(Factor("replicate", (prime,)))
            else:
                pieces.append(_along("spatial", pick.randrange(rank), prime, rank))
        for prime in _primes(pick.randint(1, slots)):
            pieces.append(_along("repeat", pick.randrange(rank), prime, rank))
        pick.shuffle(pieces)
        factors = self.joined(pieces, rank)
        return MappingOf(self.name(), _shape_of(factors, rank), self.workers, factors)

    def joined(self, pieces: list[Factor], rank: int) -> tuple[Factor, ...]:
        """Neighbours of one kind made one factor, with an order, where they are of different dimensions."""
        pick = self.pick
        factors: list[Factor] = []
        for piece in pieces:
            last = factors[-1] if factors else None
            dimension = _dimension(piece)
            if (
                last is not None
                and piece.kind == last.kind != "replicate"
                and last.sizes[dimension] == 1
                and pick.random() < 0.7
            ):
                sizes = tuple(a * b for a, b in zip(last.sizes, piece.sizes, strict=True))
                order = last.order or tuple(range(rank))
                order = (*(d for d in order if d != dimension), dimension)
                factors[-1] = Factor(
                    piece.kind, sizes, None if order == tuple(range(rank)) else order
                )
            else:
                factors.append(piece)
        if not any(factor.kind != "replicate" for factor in factors):
            factors.append(Factor("repeat", (1,) * rank))
        return tuple(factors)

    def enumerated(self, shape: Shape, replicated: bool = True) -> MappingOf:
        pick = self.pick
        tasks = _all_tasks(shape)
        pick.shuffle(tasks)
        lists: list[list[Shape | None]] = [[] for _ in range(self.workers)]
        for number, task in enumerate(tasks):
            lists[
                number % self.workers if pick.random() < 0.8 else pick.randrange(self.workers)
            ].append(task)
        if replicated and pick.random() < 0.3:
            lists[-1] = list(lists[0])
            if not any(lists):
                lists[0] = [tasks[0]]
            missing = set(tasks) - {task for row in lists for task in row}
            lists[0].extend(sorted(missing))
        if pick.random() < 0.3:
            pick.choice(lists).insert(0, None)
        if not any(lists):
            lists[0].append(tasks[0])
        rows = tuple(tuple(row) for row in lists)
        return MappingOf(self.name(), shape, self.workers, tasks=rows)


def is_replicated(mapping: MappingOf) -> bool:
    if mapping.tasks is not None:
        found = [task for row in mapping.tasks for task in row if task is not None]
        return len(set(found)) < len(found)
    return any(f.kind == "replicate" and f.sizes[0] > 1 for f in mapping.factors)


def is_unmasked(mapping: MappingOf) -> bool:
    return mapping.tasks is None and mapping.limit is None


def _primes(number: int) -> list[int]:
    found = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


def _along(kind: str, dimension: int, size: int, rank: int) -> Factor:
    return Factor(kind, tuple(size if d == dimension else 1 for d in range(rank)))


def _dimension(factor: Factor) -> int:
    return next((d for d, size in enumerate(factor.sizes) if size > 1), 0)


def _shape_of(factors: tuple[Factor, ...], rank: int) -> Shape:
    sizes = [1] * rank
    for factor in factors:
        if factor.kind != "replicate":
            sizes = [a * b for a, b in zip(sizes, factor.sizes, strict=True)]
    return tuple(sizes)


def _all_tasks(shape: Shape) -> list[Shape]:
    tasks: list[Shape] = [()]
    for extent in shape:
        tasks = [(*task, i) for task in tasks for i in range(extent)]
    return tasks
