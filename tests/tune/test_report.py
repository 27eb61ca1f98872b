"""The page of what tuning found: what it says, and that it is whole and needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

import taskc as tc
from taskc import Mapping, f16, f32, repeat, spatial
from taskc.kernels.matmul import MATMUL
from taskc.kernels.matmul.plan import Panels
from taskc.kernels.matmul.problem import problem_of
from taskc.tune.report import mappings_of, report
from taskc.tune.rows import parts, said
from taskc.tune.space import Space
from taskc.tune.tuner import Final, Outcome, Trial, Tuned
from tests.pages import NAMESPACE, Page

HERE = tc.Machine(lanes=16, registers=32, threads=2, fast_memory=1 << 20, name="a machine")


def tuned(
    space: Space[Any, Any], times: dict[Any, float | Outcome], finals: Iterable[Final] = ()
) -> Tuned:
    """What it would have found, the first plan being the winner."""
    trials = tuple(
        Trial(
            plan, space.predicted(plan),
            took if isinstance(took, Outcome) else Outcome("measured", took, 0.02, 9), is_new=True,
        )
        for plan, took in times.items()
    )  # fmt: skip
    return Tuned(
        space, next(iter(times)), trials, tuple(finals), {"build": 7, "compile": 6}, 12.5, ()
    )


@pytest.fixture(scope="module")
def space() -> Space[Any, Any]:
    return Space(MATMUL, problem_of(64, 64, 64, f32), HERE)


@pytest.fixture(scope="module")
def found(space: Space[Any, Any]) -> Tuned:
    """Nine plans: the winner takes 10 µs, the default 15, and two failed."""
    plans = [plan for plan in space.ranked if plan != space.default][::40][:8]
    times: dict[Any, float | Outcome] = {plans[0]: 10e-6, space.default: 15e-6}
    times |= {plan: (20 + place) * 1e-6 for place, plan in enumerate(plans[1:6])}
    times |= dict.fromkeys(plans[6:], Outcome("wrong", note="c[3, 5] is <nan> & not 1"))
    finals = (
        Final(plans[0], 11e-6, 0.03, 1.0, (1.0, 1.0)),
        Final(space.default, 16e-6, 0.04, 1.5, (1.4375, 1.5625)),
    )
    return tuned(space, times, finals)


@pytest.fixture(scope="module")
def page(found: Tuned) -> Page:
    return Page(report(found, "a product"))


def test_the_result_is_said_first(page: Page, space: Space[Any, Any]) -> None:
    assert page.texts("h1") == ["a product"]
    assert space.work is not None
    assert page.facts == {
        "best time": "11 µs",
        "speed": f"{2 * 64**3 / 11e-6 / 1e9:.3g} GFLOP/s",
        "of the roofline": f"{100 * space.work.seconds / 11e-6:.0f}%",
        "against the default": "1.50 × as fast",
        "tried": f"9 of {len(space.plans)} plans",
        "failed": "2",
        "tuning took": "12.5 s",
        "machine": "a machine",
        "threads": "2",
        "taskc": tc.__version__,
    }


def test_it_is_one_file_that_fetches_nothing(found: Tuned) -> None:
    text = report(found, "a product")
    assert NAMESPACE in text
    assert "http" not in text.replace(NAMESPACE, "").lower()
    assert not re.search(r"url\(|@import|\bsrc=|\bhref=", text)
    assert {name for name, _, _ in Page(text).elements}.isdisjoint({"link", "img", "iframe"})


def test_all_trials_are_listed_the_fastest_first(page: Page, found: Tuned) -> None:
    rows = page.section("All trials")
    for trial in found.trials:
        assert said(found.space.text(trial.plan)) in rows
    keys = [str(item["data-key"]) for _, item, _ in page.found("td", class_="number")]
    times = keys[2 * 3 :][1::6]  # three numbers of each finalist, then six of each trial
    assert [float(key or "inf") for key in times] == sorted(
        trial.result.seconds for trial in found.trials
    )


def test_finals_have_ratios_with_quartiles(page: Page) -> None:
    rows = page.section("Finals")
    assert re.search(r"11 µs± 1\.5%1\.0001\.000 to 1\.000.*winner", rows)
    assert re.search(r"16 µs± 2\.0%1\.5001\.438 to 1\.562.*default", rows)


def test_failures_are_grouped_by_reason(page: Page, found: Tuned) -> None:
    text = page.section("Failures")
    assert text.count("wrong: c[3, 5] is <nan> & not 1") == 1
    for trial in found.trials:
        plan = said(found.space.text(trial.plan))
        assert (plan in text) == (trial.result.outcome == "wrong")


def test_a_dot_is_on_the_diagonal_where_the_prediction_is_right(space: Space[Any, Any]) -> None:
    exact, slow, fast = space.ranked[0], space.ranked[40], space.ranked[80]
    predicted = space.predicted
    times = {exact: predicted(exact), slow: 4 * predicted(slow), fast: predicted(fast) / 4}
    whole = report(tuned(space, times), "")
    plot = whole[whole.index("<figure>") : whole.index("</figure>")]
    line = re.search(r'd="M(.*?)"', plot)
    assert line is not None
    x0, y0, x1, y1 = (float(part) for part in re.findall(r"[\d.]+", line[1]))

    def above(plan: Any) -> float:
        """How far a plan's dot is above the diagonal."""
        escaped = re.escape(said(space.text(plan)))
        shape = re.search(rf"<(?:circle|rect)(?:(?!<title).)*<title>{escaped}:", plot)
        assert shape is not None
        place = re.search(r'cx="(.*?)" cy="(.*?)"|translate\((\S+) (\S+)\)', shape[0])
        assert place is not None
        x, y = (float(part) for part in place.groups() if part is not None)
        return y0 + (x - x0) / (x1 - x0) * (y1 - y0) - y

    assert above(exact) == pytest.approx(0, abs=0.2)
    assert above(slow) == pytest.approx(-above(fast), abs=0.3)
    assert above(slow) > 10


def test_the_choice_that_matters_most_comes_first() -> None:
    space = Space(MATMUL, problem_of(64, 64, 64, f32), HERE)
    first = Panels(8, 3, 16, 16)
    times = {
        first: 10e-6,
        replace(first, panels=2): 11e-6,
        replace(first, depth=512): 30e-6,
        replace(first, depth=512, panels=2): 90e-6,
    }
    page = Page(report(tuned(space, times), ""))
    assert page.texts("h3") == ["depth up to 3 ×", "panels up to 1.1 ×"]
    text = page.section("What each choice was worth")
    assert (
        "0 best 10 µs, median 10.5 µs, plans 2" in text
    )  # a default, which the plan's text leaves out
    assert "512 best 30 µs, median 60 µs, plans 2" in text
    shares = [item["style"] for _, item, _ in page.found("span", class_="median")]
    assert shares[:2] == [f"width: {1000 / 10.5:.1f}%", f"width: {1000 / 60:.1f}%"]


def test_mappings_are_drawn_and_large_ones_cut(found: Tuned) -> None:
    whole = report(found, "")
    # Of a worker's numbers those are drawn that lie in columns that are shown: the first 16 and the last 16.
    own = found.winner.own
    drawn = own.slots if own.shape[1] <= 32 else own.slots // found.winner.vectors * 2
    assert len(Page(whole).found("rect", fill="hsl(102.9, 65%, 80%)")) == drawn
    assert f"own: {found.winner.own}" in Page(whole).section("The winner's mappings")
    gpu = Space(MATMUL, problem_of(1024, 1024, 1024, f16, total=f32), tc.machine("sm_90a"))
    page = Page(report(tuned(gpu, {gpu.default: 1e-5}), ""))
    assert "tasks, the corners shown" in page.section("The winner's mappings")
    assert page.facts["multiprocessors"] == "132"


def test_the_roofline_bends_where_operations_take_as_long_as_bytes(
    space: Space[Any, Any], page: Page
) -> None:
    work = space.work
    assert work is not None
    assert (work.operations, work.nbytes) == (2 * 64**3, 3 * 4 * 64**2)
    assert work.seconds == max(
        work.operations / work.operations_per_second, work.nbytes / work.bytes_per_second
    )
    text = page.section("Roofline")
    assert f"has {work.operations / work.nbytes:.3g} operations for each byte" in text
    assert f"{2 * 64**3 / 16e-6 / 1e9:.3g} GFLOP/s" in text


EVIL = "</script><script>alert(1)</script>"


OWN = spatial(4, 8)


@tc.tune(own=[repeat(2, 2) * OWN, OWN], name=[EVIL, "plain"])
def template(n: int, *, own: Mapping = OWN, name: str = EVIL) -> Any:
    raise NotImplementedError


def test_what_a_user_names_is_text() -> None:
    space = template.space(64)
    times: dict[Any, float | Outcome] = dict.fromkeys(space.plans, 1e-5)
    times[space.plans[-1]] = Outcome("crashed", note=EVIL)
    found = replace(tuned(space, times), warnings=(EVIL,))
    whole = report(found, EVIL)
    page = Page(whole)
    assert whole.count("<script>") == whole.count("</script>") == 1
    assert page.texts("title")[0] == page.texts("h1")[0] == EVIL
    assert page.texts("p", class_="warning") == [f"Warning: {EVIL}"]
    assert f"crashed: {EVIL}" in page.section("Failures")
    assert "There are no predictions" in page.section("Time against prediction")
    assert f"own: {OWN}" in page.section("The winner's mappings")


def test_a_templates_choices_have_their_names() -> None:
    space = template.space(64)
    text = space.text(space.default)
    assert parts(text) == {"is": "Choices", "values.own": str(OWN), "values.name": EVIL}
    assert said(text) == f"Choices own={OWN} name={EVIL}"
    assert dict(mappings_of(space.default)) == {"own": OWN}


def test_a_page_of_nothing_says_so(space: Space[Any, Any]) -> None:
    failed = tuned(space, {space.default: Outcome("hung", note="longer than 10 s")})
    page = Page(report(replace(failed, was_interrupted=True), ""))
    assert page.facts["against the default"] == "it is the default"
    assert "best time" not in page.facts
    assert "hung: longer than 10 s" in page.section("Failures")
    assert page.texts("p", class_="warning")[0].startswith("Interrupted")
