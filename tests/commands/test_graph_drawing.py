"""Drawings of graphs: layers, lines, and texts that are escaped and cut."""

from __future__ import annotations

import re

from taskc.commands.explain import Box, drawn


def corners(text: str) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in re.findall(r'<rect x="(\d+)" y="(\d+)"', text)]


def box(title: str, *behind: int) -> Box:
    return Box(title, "", title, behind)


def test_a_box_lies_below_all_that_it_reads() -> None:
    text = drawn([box("a"), box("b", 0), box("c", 0), box("d", 1, 2), box("e", 0, 3)])
    (_, a), (left, b), (right, c), (_, d), (_, e) = corners(text)
    assert a < b == c < d < e
    assert left != right
    assert text.count("<path") == 6


def test_boxes_of_a_layer_are_in_the_order_of_what_they_read() -> None:
    text = drawn([box("a"), box("b"), box("c", 1), box("d", 0)])
    (a, _), (b, _), (c, _), (d, _) = corners(text)
    assert a == d < b == c


def test_texts_are_escaped_and_cut() -> None:
    text = drawn([Box("<Cast>", "n" * 100, "a & b", ())])
    assert "&lt;Cast&gt;" in text
    assert "a &amp; b" in text
    assert "n" * 20 in text
    assert "n" * 30 not in text


def test_of_no_boxes() -> None:
    assert drawn([]).startswith("<svg")
