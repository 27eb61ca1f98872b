"""The oracle's memory: mappings as lists of tasks, tensors as dictionaries of elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.random_programs import description as d

Environment = dict[str, Any]
Evaluate = Callable[[Environment], Any]
Run = Callable[[Environment], None]


class OracleError(Exception):
    """The program is not valid: the generator made a mistake."""


# --- mappings --------------------------------------------------------------------------------


def tasks_of(mapping: d.MappingOf) -> list[list[tuple[int, ...] | None]]:
    """The tasks of each worker by slot; None where a slot is empty."""
    if mapping.tasks is not None:
        lists = [list(tasks) for tasks in mapping.tasks]
        slots = max(map(len, lists))
        lists = [tasks + [None] * (slots - len(tasks)) for tasks in lists]
    else:
        rank = len(mapping.shape)
        lists = [[(0,) * rank]]
        for factor in mapping.factors:
            inner = _factor_tasks(factor, rank)
            sizes = (1,) * rank if factor.kind == "replicate" else factor.sizes
            lists = [
                [
                    tuple(a * n + b for a, n, b in zip(outside, sizes, inside, strict=True))
                    for outside in outer
                    for inside in own
                ]
                for outer in lists
                for own in inner
            ]
    if mapping.limit is None:
        return lists
    limit = mapping.limit
    return [
        [
            task
            if task is not None and all(t < n for t, n in zip(task, limit, strict=True))
            else None
            for task in tasks
        ]
        for tasks in lists
    ]


def _factor_tasks(factor: d.Factor, rank: int) -> list[list[tuple[int, ...]]]:
    if factor.kind == "replicate":
        return [[(0,) * rank] for _ in range(factor.sizes[0])]
    order = factor.order or tuple(range(len(factor.sizes)))
    tasks = []
    for digits in itertools.product(*(range(factor.sizes[dimension]) for dimension in order)):
        task = [0] * len(order)
        for dimension, digit in zip(order, digits, strict=True):
            task[dimension] = digit
        tasks.append(tuple(task))
    return [[task] for task in tasks] if factor.kind == "spatial" else [tasks]


class Layout:
    """A mapping as tables: each worker's tasks, and who owns a task first."""

    def __init__(self, mapping: d.MappingOf) -> None:
        self.mapping = mapping
        self.slots = tasks_of(mapping)
        self.tasks = [[t for t in tasks if t is not None] for tasks in self.slots]
        self.held = [set(tasks) for tasks in self.tasks]
        self.first: dict[tuple[int, ...], int] = {}
        for worker, tasks in enumerate(self.tasks):
            for task in tasks:
                self.first.setdefault(task, worker)


# --- memory ----------------------------------------------------------------------------------


class Memory:
    """A tensor in memory: global, shared, or private to a worker or task."""

    def __init__(
        self, shape: tuple[int, ...], values: dict[tuple[int, ...], Any], private: bool = False
    ) -> None:
        self.shape = shape
        self.values = values
        self.private = private


class TileMemory:
    """Registers: for each worker the elements that it holds."""

    def __init__(self, layout: Layout, fill: Any) -> None:
        self.layout = layout
        self.shape = layout.mapping.iterated
        self.values: list[dict[tuple[int, ...], Any]] = [
            {} if fill is None else dict.fromkeys(tasks, fill) for tasks in layout.tasks
        ]
