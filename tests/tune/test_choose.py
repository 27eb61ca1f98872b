"""What a call takes without measuring: what was tuned, what was tuned nearby, or the plan of least cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from taskc import f16, f32
from taskc.kernels.matmul import MATMUL, matmul
from taskc.tune.choose import choose, distance, fingerprint, recorded, version
from taskc.tune.database import Database
from taskc.tune.rows import Row, now, text_of
from taskc.tune.space import Space
from tests.kernels.problems import gemm
from tests.tune.synthetic import HERE, OPERATOR, Problem, Step, space


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database(tmp_path / "rows")
    monkeypatch.setattr("taskc.tune.choose.database", lambda: made)
    return made


def keep(database: Database, of: Space[Any, Any], chosen: Any, **other: Any) -> None:
    row = Row(
        operator=of.operator.name, problem=of.problem_text, plan=of.text(chosen),
        machine=fingerprint(of.machine), version=version(), outcome="chosen", seconds=1.0,
        spread=0.0, samples=3, predicted=1.0, date=now(),
    )  # fmt: skip
    database.add(replace(row, **other))


def test_without_a_row_it_is_the_least_cost(database: Database) -> None:
    assert choose(OPERATOR, Problem(40), HERE) == space().default == Step(8, 1)


def test_what_was_chosen_comes_first(database: Database) -> None:
    keep(database, space(), Step(2, 3))
    assert choose(OPERATOR, Problem(40), HERE) == Step(2, 3)
    keep(database, space(), Step(4, 4), outcome="measured", seconds=0.5)
    assert choose(OPERATOR, Problem(40), HERE) == Step(2, 3), "a final decides, not a single time"


def test_a_row_of_another_machine_is_nothing(database: Database) -> None:
    keep(database, space(), Step(2, 3), machine="another one")
    assert choose(OPERATOR, Problem(40), HERE) == space().default


def test_a_row_that_is_no_plan_of_this_space_is_passed_over(database: Database) -> None:
    keep(database, space(), Step(7, 7))
    assert choose(OPERATOR, Problem(40), HERE) == space().default
    keep(database, space(), Step(7, 7), plan='{"is":"Other"}', seconds=0.1)
    assert choose(OPERATOR, Problem(40), HERE) == space().default


def test_the_nearest_problem_lends_its_plan_where_that_costs_little(database: Database) -> None:
    keep(database, space(44), Step(8, 2))
    assert choose(OPERATOR, Problem(40), HERE) == Step(8, 2)
    assert choose(OPERATOR, Problem(400), HERE) == Step(8, 1), "it is too far"
    assert choose(OPERATOR, Problem(40, f16), HERE) == Step(8, 1), "types differ"
    keep(database, space(41), Step(2, 1))
    assert choose(OPERATOR, Problem(40), HERE) == Step(8, 1), "the cost says that it is far worse"


def test_distance() -> None:
    def apart(one: Any, other: Any) -> float:
        return distance(text_of(one), text_of(other))

    here = gemm(1024, 1024, 1024, (f32, f32, f32))
    assert apart(here, here) == 0
    assert 0 < apart(here, gemm(1000, 1024, 1024, (f32, f32, f32))) < 0.1
    assert apart(here, gemm(2048, 1024, 1024, (f32, f32, f32))) == pytest.approx(1, abs=0.01)
    assert 0 < apart(here, gemm(1024, 1024, 1024, (f32, f32, f32), bias=True)) < 0.5
    assert apart(here, gemm(1024, 1024, 1024, (f16, f16, f32))) == float("inf")
    assert apart(here, gemm(tc.dim("m"), 1024, 1024, (f32, f32, f32))) == float("inf")


def test_a_template_of_the_library_takes_it(database: Database) -> None:
    of = Space(MATMUL, gemm(65, 130, 70, (f32, f32, f32)), tc.machine())
    other = next(plan for plan in reversed(of.ranked) if plan != of.default)
    before = matmul(65, 130, 70).ir
    keep(database, of, other)
    made = matmul(65, 130, 70).ir
    assert str(made) == str(of.definition(other).ir) != str(before)


def test_what_is_chosen_from_is_recorded(database: Database) -> None:
    with recorded() as spaces:
        matmul(33, 70, 50)
        matmul(33, 70, 50)
        choose(OPERATOR, Problem(40), HERE)
    matmul(34, 70, 50)
    assert [space.operator.name for space in spaces.values()] == ["matmul", "step"]
