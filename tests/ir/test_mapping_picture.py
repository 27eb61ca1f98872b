"""Mappings as tables and pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np

from taskc.ir.mapping import Mapping, mapping, repeat, replicate, spatial
from tests.ir.test_mapping import MATMUL
from tests.pages import Page


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


def test_a_long_dimension_shows_its_ends() -> None:
    def texts(m: Mapping, most: int) -> list[str]:
        return re.findall("<text[^>]*>([^<]*)<", m.svg(most))

    assert texts(spatial(4), 4) == [*"0123"]
    assert texts(spatial(5), 4) == ["0", "1", "…", "4", "5 tasks, the ends shown"]
    assert texts(spatial(2, 5), 3)[4:] == ["…", "9", "2 × 5 tasks, the corners shown"]


def test_the_picture_of_a_huge_mapping_asks_for_its_cells_alone() -> None:
    huge = repeat(1 << 20, 1 << 20)
    assert f">0:{(1 << 40) - 1}<" in huge.svg()
    assert huge.table().split()[-1] == f"0:{(1 << 40) - 1}"


def test_the_cells_are_those_of_the_mapping() -> None:
    for m in (
        spatial(2, 3).repeat(2, 2),
        repeat(2, 3, 4).spatial(1, 2, 2).within(2, 5, 7),
        replicate(3) * spatial(2, 2) * repeat(5, 1),
        mapping((3, 4), 5, lambda w: [(w % 3, 1), None, (w % 2, w % 4)]),
    ):
        texts = re.findall("<text[^>]*>([^<]*)<", m.svg())
        workers, slots = m.owner_table()
        copies = m.multiplicity()
        plane = (0,) * (m.rank - 2)
        expected = [
            f"{workers[task]}:{slots[task]}{'+' if copies[task] > 1 else ''}"
            if workers[task] >= 0
            else "·"
            for task in (plane + pair for pair in np.ndindex(m.iterated[-2:]))
        ]
        assert texts[: len(expected)] == expected


def test_neighbours_have_colours_apart() -> None:
    fills = re.findall(r'fill="hsl\(([\d.]+), 65%, (\d+)%\)"', spatial(16, 16).svg())
    hues = np.array([float(hue) for hue, _ in fills])
    for difference in (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128):
        apart = np.abs(hues[difference:] - hues[:-difference])
        assert min(apart.min(), (360 - apart).min()) > 50
    assert all(one != other for one, other in zip(fills, fills[7:], strict=False))


def test_a_notebook_shows_the_picture_in_the_ink_around_it() -> None:
    page = Page(repeat(2, 2, 2).within(1, 2, 2)._repr_html_())
    assert page.texts("figcaption") == ["repeat(2, 2, 2).within(1, 2, 2)"]
    assert {item.get("fill") for _, item, _ in page.found("g")} == {None, "currentColor"}
    long = mapping((64, 64), 64, lambda w: [(w, (w + j) % 64) for j in range(64)])
    assert Page(long._repr_html_()).texts("code") == ["mapping((64, 64), 64, …)"]
    assert len(long._repr_html_()) < 50_000
