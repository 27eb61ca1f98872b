"""The tasks of a worker as index arithmetic are those that the mapping lists."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from taskc.ir.mapping import Mapping, mapping, repeat, replicate, spatial
from taskc.ir.nodes import Variable
from taskc.passes.register_slots import composed_tasks, enumerated_tasks, first_owner, within_limit
from tests.evaluator import Machine

COMPOSED = [
    repeat(2, 3),
    spatial(4, 2),
    spatial(2, 3, order=(1, 0)) * repeat(2, 2),
    spatial(2, 1).repeat(2, 2).spatial(2, 4).repeat(1, 2),
    replicate(3) * spatial(4),
    spatial(2).replicate(2) * repeat(3),
    (spatial(2, 4) * repeat(3, 1)).within(5, 3),
]
ENUMERATED = [
    mapping((3,), 2, lambda w: [[(0,), (2,)], [(1,)]][w]),
    mapping((2, 2), 3, lambda w: [[(0, 1)], [(1, 0), (0, 1)], []][w]),
]
TASKS = Callable[..., Any]


@pytest.mark.parametrize(
    ("laid", "tasks"),
    [
        *((m, composed_tasks) for m in COMPOSED),
        *((m, enumerated_tasks) for m in (*COMPOSED, *ENUMERATED)),
    ],
    ids=lambda one: getattr(one, "__name__", None) or str(one),
)
def test_each_worker_has_its_tasks_in_order(laid: Mapping, tasks: TASKS) -> None:
    number, machine = Variable("w"), Machine()
    loops, coordinates, guard = tasks(laid, number)
    for worker in range(laid.workers):
        found = []
        for values in product(*(values for _, values in loops)):
            names = {number: worker, **dict(zip((v for v, _ in loops), values, strict=True))}
            task = tuple(machine.value(coordinate, names) for coordinate in coordinates)
            variables = [Variable(f"t{d}") for d in range(laid.rank)]
            limit = None if guard is not None else within_limit(laid, variables)
            at = dict(zip(variables, task, strict=True))
            if all(
                condition is None or machine.value(condition, {**names, **at})
                for condition in (guard, limit)
            ):
                found.append(task)
        assert found == laid(worker), worker


@pytest.mark.parametrize("laid", [*COMPOSED, *ENUMERATED], ids=str)
def test_the_first_owner_is_one_of_those_that_share(laid: Mapping) -> None:
    number, machine = Variable("w"), Machine()
    variables = [Variable(f"t{d}") for d in range(laid.rank)]
    condition = first_owner(laid, number, variables)
    if not laid.is_replicated:
        assert condition is None
        return
    assert condition is not None
    for worker in range(laid.workers):
        for task in laid(worker):
            names = {number: worker, **dict(zip(variables, task, strict=True))}
            owner, _ = laid.owner(task)
            assert machine.value(condition, names) == (worker == owner)
