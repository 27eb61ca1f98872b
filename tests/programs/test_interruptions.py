"""Calls that interrupt the body of a program while it is traced."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import taskc as tc
from taskc import f32, spatial

X = np.arange(16, dtype=np.float32)


@tc.kernel(workers=16)
def added(x: f32[16], y: tc.out[f32[16]]) -> None:
    for i in spatial(16):
        y[i] = x[i] + 1


def traced(interrupt: Callable[[], None]) -> tc.ProgramDefinition:
    @tc.program
    def twice(x: f32[16], y: tc.out[f32[16]]) -> None:
        h = added(x)
        interrupt()
        added(h, out=y)

    return twice


def by_a_signal(results: list[np.ndarray]) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *given: results.append(added(X)))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


class _Ends:
    def __init__(self, results: list[np.ndarray]) -> None:
        self.results = results


class _EndsByItself(_Ends):
    def __del__(self) -> None:
        self.results.append(added(X))


def by_a_finalizer(results: list[np.ndarray]) -> None:
    one = _Ends(results)
    weakref.finalize(one, lambda: results.append(added(X)))
    del one


def by_a_callback(results: list[np.ndarray]) -> None:
    one = _Ends(results)
    kept = weakref.ref(one, lambda gone: results.append(added(X)))
    del one
    assert kept() is None


def by_del(results: list[np.ndarray]) -> None:
    _EndsByItself(results)


@pytest.mark.parametrize("way", [by_a_signal, by_a_finalizer, by_a_callback, by_del])
def test_what_interrupts_is_no_call_of_the_program(
    way: Callable[[list[np.ndarray]], None],
) -> None:
    results: list[np.ndarray] = []
    program = traced(lambda: way(results))
    assert [list(result) for result in results] == [list(X + 1)]
    assert len(program.ir.calls) == 2
    np.testing.assert_array_equal(program(X), X + 2)


def test_what_a_body_calls_without_handles_is_its_own() -> None:
    def call() -> None:
        added(X)

    program = traced(call)
    assert len(program.ir.calls) == 3
