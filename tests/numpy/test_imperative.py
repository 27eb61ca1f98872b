"""Imperative programs, with NumPy and with taskc.numpy: values, and the order of effects, are the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import taskc.numpy as tnp

pytestmark = pytest.mark.usefixtures("either")
Show = Callable[..., None]


def prints_between(np: Any, show: Show) -> Any:
    x = np.arange(6.0)
    for step in range(3):
        x = x * 2 - 1
        show(step, x.round(), f"{x[1]:.2f}")
    return x


def newton_until_close(np: Any, show: Show) -> Any:
    a = np.arange(1.0, 6.0)
    x, steps = np.ones_like(a), 0
    while np.max(np.abs(x * x - a)) > 1e-9:
        x = (x + a / x) / 2
        steps += 1
    show(steps)
    return x


def dictionary_of_layers(np: Any, show: Show) -> Any:
    layers = {name: np.full((3, 3), float(number)) for number, name in enumerate("abc", 1)}
    layers["b"] += layers.pop("a") @ np.eye(3)
    for name in sorted(layers):
        show(name, layers[name].sum())
    return layers["b"] - layers["c"]


def catches_errors(np: Any, show: Show) -> Any:
    x = np.zeros(4)
    for key in (2, 7, -1, "n"):
        try:
            x[key] += 1
        except (IndexError, ValueError, TypeError) as error:
            show(isinstance(error, IndexError))
    try:
        x += np.ones(3)
    except ValueError:
        show("shapes")
    return x


def generator_of_rows(np: Any, show: Show) -> Any:
    x = np.arange(12.0).reshape(3, 4)

    def rows() -> Iterator[Any]:
        for row in x:
            row *= 2
            yield row[1:].sum()

    show([float(total) for total in rows()])
    return x


def closure_rebound(np: Any, show: Show) -> Any:
    factor = np.array(2.0)

    def scaled(x: Any) -> Any:
        return x * factor

    first = scaled(np.ones(3))
    factor = factor + first.sum()
    return np.stack([first, scaled(np.ones(3))])


def updates_through_views(np: Any, show: Show) -> Any:
    grid = np.zeros((5, 5))
    inner, turned = grid[1:-1, 1:-1], grid.T
    for step in range(4):
        inner += step
        turned[0] = grid[:, 2] * 0.5
        inner[::2, ::-1] -= inner[1:2]
    show(grid.max() > 3)
    return grid


def randomness(np: Any, show: Show) -> Any:
    random = np.random.default_rng(3)
    x, hits = np.zeros(3), 0
    for _ in range(20):
        step = np.asarray(random.standard_normal(3))
        if step.sum() > 0.5:
            x, hits = x + step, hits + 1
    show(hits)
    return x


def sorts_by_recursion(np: Any, show: Show) -> Any:
    def ordered(x: Any) -> Any:
        if len(x) < 2:
            return x
        pivot, rest = x[0], x[1:]
        show(pivot)
        return np.concatenate(
            [ordered(rest[rest < pivot]), pivot.reshape(1), ordered(rest[rest >= pivot])]
        )

    return ordered(np.array([3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0]))


def calls_another_library(np: Any, show: Show) -> Any:
    x = np.eye(3) * 2 + 1
    values = np.linalg.eigvalsh(x)
    show(sorted(float(value) for value in values.round(6)))
    other = sys.modules["numpy"].polyfit([0.0, 1.0, 2.0], x[0] - x[1] + 1, 1)
    return np.asarray(other) + x[0, :2]


PROGRAMS = [
    prints_between, newton_until_close, dictionary_of_layers, catches_errors, generator_of_rows,
    closure_rebound, updates_through_views, randomness, sorts_by_recursion, calls_another_library,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_effects_are_numpys(program: Callable[[Any, Show], Any]) -> None:
    shown: dict[str, list[str]] = {"numpy": [], "taskc": []}
    results = [
        program(module, lambda *values, name=name: shown[name].append(" ".join(map(str, values))))
        for name, module in (("numpy", np), ("taskc", tnp))
    ]
    assert shown["taskc"] == shown["numpy"]
    assert np.allclose(*results, 1e-12, 1e-12)
