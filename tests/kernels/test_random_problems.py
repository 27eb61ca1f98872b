"""Random problems of the whole library: on this processor, and in the simulator for each kind of GPU."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from tests.each_value import few
from tests.kernels.random_problems import Problem, problem
from tests.kernels.simulated import simulated

GPUS = ("sm_80", "sm_89", "sm_90a")


def check(one: Problem, made: np.ndarray) -> None:
    made = made.astype(np.float64).reshape(one.expected.shape)
    with np.errstate(invalid="ignore"):  # a maximum of padding alone is -inf, on both sides
        wrong = ~((made == one.expected) | (np.abs(made - one.expected) <= one.bound))
    assert not wrong.any(), (
        f"{one.text}: wrong are {wrong.sum()} of {wrong.size} elements, {made[wrong][0]} is to be"
        f" {one.expected[wrong][0]}"
    )


def on_this_processor(number: int) -> None:
    one = problem(number, tc.machine())
    made = one.definition(*one.arguments)
    assert made.shape == one.expected.shape, one.text
    check(one, made)


def on_a_gpu(number: int) -> None:
    target = GPUS[number % len(GPUS)]
    one = problem(number, tc.machine(target))
    try:
        made, _ = simulated(one.definition, one.arguments, target, stages=("lean",))
    except AssertionError as error:
        raise AssertionError(f"{one.text} for {target}: {error}") from error
    check(one, made)


@pytest.mark.parametrize("number", few(range(360), 40))
def test_on_this_processor(number: int) -> None:
    on_this_processor(number)


@pytest.mark.parametrize("number", few(range(236), 20))
def test_on_a_gpu(number: int) -> None:
    on_a_gpu(number)
