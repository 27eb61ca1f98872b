"""Kernels of the library are made once for what they were asked for, and anew where they may be others."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from taskc import kernels
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import MATMUL, batch_matmul, matmul, product
from taskc.kernels.matmul.problem import problem_of
from taskc.kernels.rows import layer_norm, softmax
from taskc.tune import choose as module
from taskc.tune.choose import fingerprint, recorded, version
from taskc.tune.database import Database
from taskc.tune.rows import Row, now
from taskc.tune.space import Space

HERE = tc.Machine(lanes=16, registers=32, threads=2, fast_memory=1 << 20, name="a machine")
n = tc.dim("n")


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Database]:
    """A database, and nothing remembered."""
    made = Database(tmp_path / "own.sqlite3")
    monkeypatch.setattr("taskc.tune.choose.database", lambda: made)
    monkeypatch.setattr(module, "_kernels", type(module._kernels)())
    yield made
    made.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: matmul(12, 34, 56, activation=tc.gelu, machine=HERE),
        lambda: matmul(n, 34, 56, machine=HERE),
        lambda: product(12, 34, 56, dtype=tc.u8, machine=HERE),
        lambda: batch_matmul(((3,), (3,)), 4, 5, 6, machine=HERE),
        lambda: convolution(1, 8, 8, 16, 16, size=3, packed=True, dtype=tc.f32, machine=HERE),
        lambda: softmax(7, 90, machine=HERE),
    ],
)
def test_the_same_is_the_same_kernel(make: Any) -> None:
    first = make()
    assert isinstance(first, tc.KernelDefinition)
    assert make() is first


def test_what_differs_is_another_kernel() -> None:
    made = [
        matmul(12, 34, 56, machine=HERE),
        matmul(12, 34, 57, machine=HERE),
        matmul(12, 34, 56, machine=replace(HERE, threads=1)),
        matmul(12, 34, 56, dtype=tc.f64, machine=HERE),
        matmul(tc.dim("n"), 34, 56, machine=HERE),
        matmul(tc.dim("n"), 34, 56, machine=HERE),
        matmul(12, 34, 56, activation=tc.gelu, machine=HERE),
        matmul(12, 34, 56, activation=tc.exp, machine=HERE),
        layer_norm(4, 5, epsilon=0.0, machine=HERE),
        layer_norm(4, 5, epsilon=-0.0, machine=HERE),
    ]
    assert len({id(kernel) for kernel in made}) == len(made)


def test_functions_of_users_are_read_again() -> None:
    """What they close over may have changed."""
    factor = 2.0

    @tc.function
    def scaled(x):
        return x * factor

    first = matmul(4, 5, 6, activation=scaled, machine=HERE)
    factor = 3.0
    second = matmul(4, 5, 6, activation=scaled, machine=HERE)
    assert "2.0" in str(first.ir)
    assert "3.0" in str(second.ir)


def test_programs_are_made_anew() -> None:
    made = [
        convolution(1, 8, 8, 16, 16, size=3, dtype=tc.f32, packed=False, machine=HERE)
        for _ in range(2)
    ]
    assert all(isinstance(one, tc.ProgramDefinition) for one in made)
    assert made[0] is not made[1]


def test_tuning_is_noticed(own: Database) -> None:
    def make() -> Any:
        return matmul(64, 64, 64, machine=HERE)

    first = make()
    problem = problem_of(64, 64, 64, tc.f32)
    space = Space(MATMUL, problem, HERE)
    other = next(plan for plan in space.ranked if plan != space.default)
    row = Row(
        operator="matmul", problem=space.problem_text, plan=space.text(other),
        machine=fingerprint(HERE), version=version(), outcome="chosen", seconds=1.0,
        spread=0.0, samples=3, predicted=1.0, date=now(),
    )  # fmt: skip
    own.add(row)
    second = make()
    assert second is not first
    assert make() is second
    assert matmul(64, 64, 64, schedule=space.default, machine=HERE) is not second


def test_who_records_choices_gets_all() -> None:
    found = []
    for _ in range(2):
        with recorded() as spaces:
            matmul(12, 34, 56, machine=HERE)
        found.append(set(spaces))
    assert found[0] == found[1] != set()


def test_the_oldest_of_many_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KERNELS", 2)
    first, second = softmax(2, 3, machine=HERE), softmax(2, 4, machine=HERE)
    assert softmax(2, 3, machine=HERE) is first  # and so the latest
    softmax(2, 5, machine=HERE)
    assert softmax(2, 3, machine=HERE) is first
    assert softmax(2, 4, machine=HERE) is not second
    assert len(module._kernels) == 2


def test_all_operators_are_remembered() -> None:
    for found in pkgutil.iter_modules(kernels.__path__, "taskc.kernels."):
        build = getattr(importlib.import_module(found.name), "build", None)
        assert not found.ispkg or hasattr(build, "__wrapped__"), found.name
