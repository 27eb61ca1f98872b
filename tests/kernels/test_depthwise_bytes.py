"""Depthwise convolutions of bytes, which are widened once: exact, on awkward shapes, and chosen where they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import taskc as tc
from taskc import f32, i8, i32, u8
from taskc.kernels.convolution import Widened, convolution
from taskc.kernels.convolution.plan import candidates
from taskc.kernels.convolution.plan_widened import candidates_widened
from taskc.tune.space import least
from tests.backend.cpu.processors import NAMES
from tests.kernels.convolved import problem
from tests.kernels.test_direct import HERE, MACHINES, N, case, check

BLOCKED: dict[str, Any] = {"order": "NCHWc", "filters": "OIHW"}
SUMS: dict[str, Any] = {"dtype": u8, "right": i8, "total": f32, "result": f32}
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "3x3": ((1, 9, 14, 32, 32), {"padding": 1, **BLOCKED}),
    "5x5, strided, surrounded": (
        (2, 9, 11, 17, 17), {"size": 5, "stride": (2, 3), "padding": 2, "around": 200, **BLOCKED},
    ),
    "dilated": ((1, 9, 14, 20, 20), {"dilation": 2, "padding": (2, 0, 1, 3), "around": 3}),
    "signed": ((N, 5, 4, 3, 3), {"dtype": i8, "padding": 1, "around": -128, "bias": True}),
    "packed": ((1, 7, 7, 40, 40), {"padding": 1, "around": 9, "packed": True, **BLOCKED}),
    "in i32": ((1, 6, 6, 9, 9), {"padding": 1, "total": i32, "result": i32, "results": "NCHW"}),
    "padding beyond the image": ((1, 1, 2, 8, 8), {"padding": 4, "around": 5, **BLOCKED}),
    "one pixel": ((1, 1, 1, 2, 2), {"size": 1, **BLOCKED}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["host", "avx2", "sse2"])
@pytest.mark.parametrize("of", CASES)
def test_the_plan_does_not_change_the_result(of: str, name: str) -> None:
    if name != "host" and name not in NAMES:
        pytest.skip(f"this processor does not run {name}")
    sizes, options = CASES[of]
    machine = MACHINES[name]
    found = problem(sizes, SUMS | {"groups": sizes[-1]} | options, machine)
    check(case(found, 3), least(candidates_widened, found, machine), name)


@pytest.mark.sweep
@pytest.mark.parametrize("of", CASES)
def test_no_plan_changes_the_result(of: str) -> None:
    sizes, options = CASES[of]
    found = problem(sizes, SUMS | {"groups": sizes[-1]} | options, HERE)
    made = case(found, 4)
    for plan in candidates_widened(found, HERE):
        check(made, plan)


def test_they_are_chosen() -> None:
    sizes = 1, 28, 28, 96, 96
    found = problem(sizes, {**SUMS, **BLOCKED, "groups": 96, "padding": 1}, HERE)
    assert isinstance(least(candidates, found, HERE), Widened)
    others = (
        replace(found, groups=1),
        replace(found, dtype=f32, right=f32),
        replace(found, order="NCHW"),
    )
    assert not any(list(candidates_widened(other, HERE)) for other in others)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groups": 1}, "channels that have a filter each"),
        ({"groups": 32, "transposed": True}, "and not transposed"),
    ],
    ids=str,
)  # fmt: skip
def test_plans_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(tc.CompileError, match=text):
        convolution(1, 4, 4, 32, 32, **SUMS, schedule=Widened(4, 1, HERE.lanes), **options)


def test_only_whole_images_of_integers_are_surrounded() -> None:
    with pytest.raises(tc.CompileError, match="zeros lie around images of floats"):
        convolution(1, 4, 4, 8, 8, padding=1, dtype=f32, around=1)
    with pytest.raises(tc.CompileError, match="zeros lie around images on this machine"):
        convolution(1, 4, 4, 8, 8, padding=1, dtype=i8, around=1, machine=tc.machine("sm_80"))
