"""`@tc.tune`: what a template's calls take, what there is to choose from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, f32, repeat, spatial
from taskc.tune.database import Database
from taskc.tune.template import Choices, Template

LANES = tc.machine().lanes


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database(tmp_path / "rows")
    monkeypatch.setattr("taskc.tune.choose.database", lambda: made)
    return made


def scaled(n: int, factor: float, *, width: int = 2, unroll: int = 1) -> tc.KernelDefinition:
    own = repeat(unroll, width) * spatial(1, LANES)
    rows, columns = own.shape

    @tc.kernel(workers=own.workers)
    def scaled(x: f32[n, n], y: tc.out[f32[n, n]]):
        for row, column in tc.tiles((n, n), by=(rows, columns)):
            for i, j in own:
                if row + i < n and column + j < n:
                    y[row + i, column + j] = x[row + i, column + j] * factor

    return scaled


def template(**options: Any) -> Template:
    return tc.tune(width=[1, 2, 4], unroll=[1, 2], **options)(scaled)


def plans(made: Template, *args: Any) -> set[tuple[int, int]]:
    found = [dict(plan.values) for plan in made.space(*args).plans]
    assert len(found) == len({tuple(one.items()) for one in found})
    return {(one["width"], one["unroll"]) for one in found}


def test_a_plain_call_takes_the_defaults(database: Database) -> None:
    made = template()
    assert made.__name__ == "scaled"
    assert str(made(37, 2.0).ir) == str(scaled(37, 2.0).ir)
    assert str(made(n=37, factor=2.0, width=4).ir) == str(scaled(37, 2.0, width=4).ir)
    assert made.space(37, 2.0).default == Choices((("width", 2), ("unroll", 1)))


def test_without_defaults_it_is_the_first(database: Database) -> None:
    @tc.tune(width=[4, 2])
    def made(n, *, width):  # type: ignore[no-untyped-def]
        return scaled(n, 1.0, width=width)

    assert dict(made.space(37).default.values) == {"width": 4}


def test_what_a_call_leaves_out_is_as_by_default(database: Database) -> None:
    @tc.tune(width=[4, 2], unroll=[2, 1])
    def made(n, *, width, unroll):  # type: ignore[no-untyped-def]
        return scaled(n, 1.0, width=width, unroll=unroll)

    assert str(made(37, unroll=1).ir) == str(scaled(37, 1.0, width=4, unroll=1).ir)


def test_of_another_text_nothing_is_known() -> None:
    def one(n, *, width=1):  # type: ignore[no-untyped-def]
        return scaled(n, 1.0, width=width)

    def other(n, *, width=1):  # type: ignore[no-untyped-def]
        return scaled(n, 2.0, width=width)

    texts = [
        tc.tune(width=[1, 2])(function).space(37).problem_text for function in (one, one, other)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_what_goes_together() -> None:
    assert plans(template(), 37, 2.0) == {(a, b) for a in (1, 2, 4) for b in (1, 2)}
    few = template(where=lambda width, unroll: width * unroll <= 4)
    assert plans(few, 37, 2.0) == {(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)}
    assert plans(template(where=lambda width: width < 4), 37, 2.0) == {
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    }


def test_costs_of_the_author_order_them() -> None:
    made = template(cost=lambda n, factor, width, unroll: n * abs(width - 4) + unroll)
    assert made.operator.is_counted
    assert [dict(plan.values)["width"] for plan in made.space(37, 2.0).ranked] == [4, 4, 2, 2, 1, 1]
    assert not template().operator.is_counted


def test_tuning_is_remembered_for_these_arguments_and_this_text(database: Database) -> None:
    made = template(reference=lambda x: 2.0 * x.astype(np.float64))
    found = made.tune(37, 2.0, database=database, strategy="exhaustive")
    assert len(found.trials) == 6
    assert all(trial.result.is_measured for trial in found.trials), found.trials
    again = made.tune(37, 2.0, database=database, strategy="exhaustive")
    assert again.winner == found.winner
    assert not any(trial.is_new for trial in again.trials)
    chosen = dict(found.winner.values)
    assert str(made(37, 2.0).ir) == str(scaled(37, 2.0, **chosen).ir)
    other = made.space(37, 3.0)
    assert database.best(other.operator.name, other.problem_text, "any") is None


def test_a_wrong_result_never_wins(database: Database) -> None:
    @tc.tune(width=[1, 2])
    def made(n, *, width=1):  # type: ignore[no-untyped-def]
        return scaled(n, 2.0 if width == 1 else 2.5)

    found = made.tune(37, database=database)
    outcomes = {dict(trial.plan.values)["width"]: trial.result.outcome for trial in found.trials}
    assert outcomes == {1: "measured", 2: "wrong"}
    assert dict(found.winner.values) == {"width": 1}


def test_what_is_refused() -> None:
    with pytest.raises(CompileError, match="no parameter 'depth'"):
        tc.tune(depth=[1])(scaled)
    with pytest.raises(CompileError, match="'width' has no values"):
        tc.tune(width=[])
    with pytest.raises(TypeError, match="width is what tuning chooses"):
        template().space(37, 2.0, width=4)
    with pytest.raises(TypeError, match="missing a required argument: 'factor'"):
        template().space(37)
    with pytest.raises(TypeError, match="missing"):
        template()(37)
