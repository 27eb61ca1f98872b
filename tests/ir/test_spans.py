"""Times of nested spans add up, in each thread by itself; nothing is recorded outside of `recorded`."""

from __future__ import annotations

import threading
import time

import pytest

from taskc.ir.spans import Total, grouped, recorded, span


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_span_is_without_those_inside_it() -> None:
    start = time.thread_time()
    with recorded() as spans, span("outer"):
        work(0.005)
        for _ in range(2):
            with span("inner"):
                work(0.01)
    whole = time.thread_time() - start
    assert {name: total.count for name, total in spans.items()} == {"outer": 1, "inner": 2}
    assert spans["inner"].seconds >= 0.02
    assert 0.005 <= spans["outer"].seconds < 0.02
    assert spans["inner"].seconds + spans["outer"].seconds <= whole


def test_a_thread_has_spans_of_its_own() -> None:
    with recorded() as spans, span("here"):
        thread = threading.Thread(target=span("there")(work), args=[0.02])
        thread.start()
        thread.join()
    assert spans["there"].seconds >= 0.02
    assert spans["here"].seconds < 0.02


def test_what_raises_is_recorded_too() -> None:
    with recorded() as spans, pytest.raises(ZeroDivisionError), span("outer"), span("inner"):
        work(1 / 0)
    assert [*spans] == ["inner", "outer"]


def test_nothing_is_recorded_unless_asked() -> None:
    with span("before"):
        pass
    with recorded() as spans, span("asked"):
        pass
    with span("after"):
        pass
    assert [*spans] == ["asked"]


def test_groups_and_the_remainder() -> None:
    spans = {"a": Total(1.0, 1), "b/short": Total(0.5, 4), "b/long": Total(2.0, 3)}
    assert grouped(spans, 5.0) == [
        ("b", Total(2.5, 4)),
        ("  long", Total(2.0, 3)),
        ("  short", Total(0.5, 4)),
        ("a", Total(1.0, 1)),
        ("other", Total(1.5, 1)),
    ]
