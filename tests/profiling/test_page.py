"""The page of a profile: whole, escaped, and with a bar for each call."""

from __future__ import annotations

import pytest

from taskc.profiling.page import page_of
from taskc.profiling.profile import Memory, Profile, ProfiledCall, Room, Work
from tests.pages import Page


def made(count: int, rooms: tuple[Room, ...] = (), seconds: float = 1e-3) -> Profile:
    calls = tuple(
        ProfiledCall(
            f"kernel_{number % 12}",
            (f"MatMul node '<b>{number}</b>'",),
            1,
            Work(seconds=seconds, predicted=seconds / 2, bytes=1000, moved=2500, operations=10),
        )
        for number in range(count)
    )
    memory = Memory(4, 1000, 800, 64, 16, 16, rooms)
    sequence = tuple((number, seconds) for number in range(count))
    return Profile("<model>", 2, 5, 1e-2, calls, sequence, memory)


def test_the_page_is_whole_and_escaped() -> None:
    room = Room(("a", "<i>b", "a"), 200, 800, 0.0, 2e-3)
    text = page_of(made(3, (room,)), "<b>model.onnx", ["rates are <usual>"])
    page = Page(text)
    assert page.texts("h1") == ["<model>"]
    assert page.facts["of the roofline"] == "50%"
    assert page.facts["call by call"] == "3 ms"
    assert page.facts["calls"] == "3"
    assert page.texts("p", class_="warning") == ["Note: rates are <usual>."]
    assert "<b>" not in text
    assert "<i>" not in text
    for word in ("http:", "https:", "src=", "@import", "url("):
        assert word not in text
    lanes = page.found("svg", class_="lane")
    assert len(lanes) == 3
    (arena,) = page.found("svg", class_="arena")
    assert "a, <i>b: 800 bytes from 200 on" in arena[2]
    titles = page.texts("title")
    assert "kernel_0: 1 ms, MatMul node '<b>0</b>'" in titles


def test_boxes_are_where_they_belong() -> None:
    rooms = (Room(("a",), 0, 500, 0.0, 1e-3), Room(("b",), 500, 500, 1e-3, 2e-3))
    page = Page(page_of(made(2, rooms), "m"))
    boxes = [
        tuple(float(found[key] or "") for key in ("x", "y", "width", "height"))
        for _, found, _ in page.found("rect")
    ]
    assert boxes[:2] == [(0, 0, 500, 300), (500, 0, 500, 300)]  # each in a lane of its own
    assert boxes[2:] == [(0, 150, 500, 150), (500, 0, 500, 150)]  # the first byte is below
    (line,) = page.found("line")
    assert float(line[1]["y1"] or "") == pytest.approx(300 * 0.2)


def test_many_kernels_and_calls_stay_readable() -> None:
    page = Page(page_of(made(6_000), "m"))
    lanes = page.found("svg", class_="lane")
    assert len(lanes) == 10
    assert "3 more kernels" in page.texts("span", class_="name")
    assert len(page.found("rect")) <= 10 * 1300
    assert any("more calls" in title for title in page.texts("title"))
    assert not page.found("svg", class_="arena")


def test_nothing_that_takes_time() -> None:
    for found in (made(0), made(3, seconds=0.0)):
        page = Page(page_of(found, "m"))
        assert "There are none that take any." in page.section("Calls over time")
