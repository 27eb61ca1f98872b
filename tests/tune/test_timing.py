"""Interleaved samples: their order, which of them count, and what pairs say."""

from __future__ import annotations

import time

import numpy as np
import pytest

from taskc.tune import timing
from taskc.tune.timing import Probe, Round, Rounds, interleaved, pairs


class Clock:
    """Time that passes when it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(timing, "time", self)

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_calls_take_turns_and_each_is_first_in_some_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = Clock(monkeypatch), list[str]()

    def named(name: str) -> None:
        order.append(name)
        clock.sleep(ord(name))

    calls = [lambda name=name: named(name) for name in "abc"]
    found = interleaved(calls, lambda: named("."), least=3)
    assert "".join(order[6:]) == ".abc..bca..cab."
    assert found == Rounds((Round(46, (97, 98, 99)),) * 3, (1, 1, 1))


def test_a_sample_is_the_mean_of_many_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls = [lambda: clock.sleep(1 / 1024), lambda: clock.sleep(1 / 4096)]
    found = interleaved(calls, lambda: None, least=2, each=1 / 64)
    assert found == Rounds((Round(0, (1 / 1024, 1 / 4096)),) * 2, (16, 64))


def test_more_rounds_fill_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = interleaved([lambda: clock.sleep(1)], lambda: None, least=2, budget=8, calm=1)
    assert len(found.rounds) == 3  # each waits, wakes threads, and takes a sample


def test_samples_beside_a_slow_clock_do_not_count() -> None:
    slow = [Round(1.07, (9.0,)), Round(2.0, (9.0,))]
    calm = [Round(1.0 + 0.01 * i, (float(i),)) for i in range(5)]
    found = Rounds((*slow, *calm), (1,))
    assert found.calm(3) == tuple(calm)
    assert found.calm(6) == (*calm, slow[0])


def test_what_is_profiled_has_its_own_times() -> None:
    """A pair's calls are one that wakes threads and, of what takes a millisecond, one that is timed."""

    class Peer:
        calls = 0

        def __call__(self) -> None:
            self.calls += 1
            time.sleep(2e-3)

        def seconds(self) -> list[float]:
            rounds = range((self.calls - 2) // 2)
            return [5.0, 5.0, *[own for i in rounds for own in (7.0, 3.0 + i % 2)]]

    found = pairs(lambda: None, Peer(), lambda: time.sleep(1e-4), budget=0)
    assert found.theirs in (3000, 3500, 4000)


def test_the_probe_takes_as_long_as_its_operations() -> None:
    probe = Probe(2)
    assert probe.gflops() > 0.1
    assert np.isfinite(probe.y).all()
    assert probe.y.any()
