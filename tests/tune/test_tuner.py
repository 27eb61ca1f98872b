"""The tuner's loop on made-up times: what is run once, what is remembered, and who wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taskc.tune.database import Database
from taskc.tune.space import STRATEGIES, Strategy
from taskc.tune.tuner import Outcome, Trial, Tuned, Tuner
from taskc.tune.worker import Parcel
from tests.tune.synthetic import FakeBench, Step, space


def truth(plan: Step) -> float:
    """What the cost doesn't know: 4 is the best width."""
    return 1e-3 * (1 + 0.2 * abs(plan.width - 4) + 0.05 * abs(plan.unroll - 3))


BEST = (4, 3)


def tune(
    folder: Path,
    strategy: str | Strategy = "exhaustive",
    *,
    bench: FakeBench | None = None,
    **how: Any,
) -> tuple[Tuned, FakeBench]:
    here = space()
    bench = bench or FakeBench(here, truth)
    chosen = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
    return Tuner(here, bench, Database(folder / "rows"), chosen, **how).run(), bench


def test_the_fastest_plan_wins(tmp_path: Path) -> None:
    found, _ = tune(tmp_path)
    assert (found.winner.width, found.winner.unroll) == BEST
    assert found.finals[0].plan == found.winner
    assert found.default is not None
    assert found.default.ratio == pytest.approx(
        truth(found.default.plan) / truth(found.winner), rel=0.01
    )
    assert len(found.trials) == len(found.space.plans)


def test_each_stage_runs_once_for_each_text(tmp_path: Path) -> None:
    found, bench = tune(tmp_path)
    texts = 20  # 5 widths that can be built, 4 unrolls; the order is in no text
    compiled = [plan for what, plan in bench.asked if what == "compile"]
    checked = [plan for what, plan in bench.asked if what == "check"]
    assert len(compiled) == len(set(compiled)) == len(checked) == texts
    assert found.stages["build"] == len(found.space.plans)
    assert found.stages["compile"] == found.stages["check"] == texts
    refused = [trial for trial in found.trials if trial.result.outcome == "refused"]
    assert {trial.plan.width for trial in refused} == {32}
    assert all("too wide" in trial.result.note for trial in refused)


def test_nothing_is_measured_twice(tmp_path: Path) -> None:
    first, _ = tune(tmp_path)
    second, bench = tune(tmp_path)
    assert bench.asked == []
    assert second.winner == first.winner
    assert not any(trial.is_new for trial in second.trials if trial.result.is_measured)
    again, bench = tune(tmp_path, afresh=True)
    assert len([1 for what, _ in bench.asked if what == "compile"]) == 20
    assert again.winner == first.winner


def test_more_plans_are_measured_and_the_known_ones_are_not(tmp_path: Path) -> None:
    first, _ = tune(tmp_path, "model", most=6)
    _, bench = tune(tmp_path)
    compiled = {plan for what, plan in bench.asked if what == "compile"}
    measured = [trial.plan for trial in first.trials if trial.result.is_measured]
    known = {(plan.width, plan.unroll) for plan in measured}
    assert len(compiled) == 20 - len(known)


@pytest.mark.parametrize("outcome", ["wrong", "crashed", "timed out", "refused"])
def test_what_fails_is_recorded_and_the_run_goes_on(tmp_path: Path, outcome: str) -> None:
    here = space()
    planted = Step(*BEST)
    found, _ = tune(tmp_path, bench=FakeBench(here, truth, {planted: outcome}))
    assert (found.winner.width, found.winner.unroll) != BEST
    (trial,) = [trial for trial in found.trials if trial.plan == planted]
    assert trial.result.outcome == outcome
    assert trial.result.seconds == float("inf")
    (row,) = [
        row
        for row in Database(tmp_path / "rows").rows(operator="step")
        if row.plan == here.text(planted)
    ]
    assert row.outcome == outcome
    assert row.seconds is None


def test_a_tie_goes_to_the_default(tmp_path: Path) -> None:
    """All others are a little faster, by less than the noise."""
    here = space()

    def nearly(plan: Step) -> float:
        return 1e-3 if (plan.width, plan.unroll) == (8, 1) else 0.998e-3

    found, _ = tune(tmp_path, bench=FakeBench(here, nearly, noise=0.02))
    assert found.winner == here.default
    assert min(final.seconds for final in found.finals[1:]) < found.finals[0].seconds


def test_plans_of_one_code_are_one_candidate(tmp_path: Path) -> None:
    class SameCode(FakeBench):
        def compile(self, parcels: Sequence[Parcel]) -> list[Outcome]:
            made = super().compile(parcels)
            return [replace(outcome, digest="the same") for outcome in made]

    found, bench = tune(tmp_path, bench=SameCode(space(), truth))
    assert len([what for what, _ in bench.asked if what == "check"]) == 1
    assert len({trial.result.seconds for trial in found.trials if trial.result.is_measured}) == 1


def test_slow_plans_are_timed_less(tmp_path: Path) -> None:
    _, bench = tune(tmp_path)
    samples = dict.fromkeys(bench.plans.values(), 0)
    for what, plan in bench.asked:
        samples[plan] += what == "time"
    best = next(plan for plan in samples if (plan.width, plan.unroll) == BEST)
    assert samples[best] == 3 + 6 + 12
    assert samples[max(samples, key=truth)] == 3


def test_a_limit_and_a_budget(tmp_path: Path) -> None:
    found, _ = tune(tmp_path / "a", "random", most=7)
    assert len(found.trials) == 7
    assert found.trials[0].plan == found.space.default
    found, _ = tune(tmp_path / "b", "random", budget=0.0)
    assert [trial.plan for trial in found.trials] == [found.space.default]


def test_interruption_keeps_the_best_so_far(tmp_path: Path) -> None:
    def stop(trial: Trial) -> None:
        if (trial.plan.width, trial.plan.unroll) == (4, 2):
            raise KeyboardInterrupt

    found, _ = tune(tmp_path, progress=stop)
    assert found.was_interrupted
    measured = [trial for trial in found.trials if trial.result.is_measured]
    assert found.winner == min(measured, key=lambda trial: trial.result.seconds).plan
    rows = Database(tmp_path / "rows").rows(operator="step")
    assert len([row for row in rows if row.seconds is not None]) == len(measured)


def test_default_alone_fails(tmp_path: Path) -> None:
    here = space()
    found, _ = tune(tmp_path, bench=FakeBench(here, truth, {here.default: "crashed"}))
    assert (found.winner.width, found.winner.unroll) == BEST


@pytest.mark.parametrize("seed", range(3))  # none of which finds it by chance
def test_what_was_chosen_before_is_among_a_few_trials(seed: int, tmp_path: Path) -> None:
    first, _ = tune(tmp_path)
    found, _ = tune(tmp_path, "random", most=2, seed=seed)
    assert found.winner == first.winner
    assert len(found.trials) == 2


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_strategies_find_good_plans(name: str, tmp_path: Path) -> None:
    found, _ = tune(tmp_path, name, most=30, seed=5)
    assert len({trial.plan for trial in found.trials}) == len(found.trials) <= 30
    assert truth(found.winner) <= 1.15 * truth(Step(*BEST))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_strategies_end_when_there_is_nothing_left(name: str, tmp_path: Path) -> None:
    found, _ = tune(tmp_path, name)
    assert {trial.plan for trial in found.trials} == set(found.space.plans)


def test_a_strategy_is_the_same_in_each_run() -> None:
    def order(name: str) -> list[Step]:
        here, measured = space(), {}
        proposals = STRATEGIES[name](here, measured, Random(3))
        for batch in proposals:
            measured |= {plan: truth(plan) for plan in batch}
            if len(measured) > 40:
                break
        return list(measured)

    for name in STRATEGIES:
        assert order(name) == order(name)
