"""Mappings as tables and pictures."""

from __future__ import annotations

from xml.etree import ElementTree

from taskc.ir.mapping import (
    mapping,
    repeat,
    spatial,
)
from tests.ir.test_mapping import MATMUL


# Pictures
def test_the_table_of_a_small_mapping() -> None:
    assert spatial(2, 2).repeat(1, 2).table() == "0:0  0:1  1:0  1:1\n2:0  2:1  3:0  3:1"


def test_the_table_marks_replicas_gaps_and_leading_dimensions() -> None:
    m = mapping((2, 2, 2), 11, lambda w: [(0, 0, w % 2)])
    assert m.table() == "[0, :, :]\n0+  1+\n ·   ·"


def test_a_large_table_keeps_its_corners() -> None:
    assert spatial(40).table() == "0  1  2  3  4  5  6  7  …  33  34  35  36  37  38  39"
    lines = MATMUL.table().splitlines()
    assert len(lines) == 16
    assert (lines[0].split()[0], lines[-1].split()[-1]) == ("0:0", "255:63")
    assert set(lines[8].split()) == {"…"}


def test_the_picture_is_xml() -> None:
    space = "{http://www.w3.org/2000/svg}"
    small = ElementTree.fromstring(spatial(2, 3).svg())
    assert [text.text for text in small.iter(f"{space}text")] == ["0", "1", "2", "3", "4", "5"]
    assert len({rectangle.get("fill") for rectangle in small.iter(f"{space}rect")}) == 6
    large = ElementTree.fromstring(MATMUL.svg())
    texts = [text.text for text in large.iter(f"{space}text")]
    assert len(texts) == 64 * 64 + 1
    assert texts[-1] == "128 × 128 tasks, the corners shown"
    ElementTree.fromstring(repeat(2, 2, 2).within(1, 2, 2)._repr_html_())
    assert "<code>spatial(2, 3)</code>" in spatial(2, 3)._repr_html_()
