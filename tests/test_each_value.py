"""Of a product of parameters the default run takes each value."""

from __future__ import annotations

from collections import Counter
from itertools import product
from types import SimpleNamespace

import pytest

from tests.each_value import covering, mark_others

ROWS = list(product("abcde", "xyz", "12"))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_each_value_is_taken_so_many_times(times: int) -> None:
    chosen = [ROWS[number] for number in covering(ROWS, times)]
    for column in range(3):
        counts = Counter(row[column] for row in chosen)
        assert set(counts) == {row[column] for row in ROWS}
        assert min(counts.values()) >= times
    assert len(chosen) == 5 * times  # no more than the longest column needs


def test_what_there_is_seldom_is_taken_as_often() -> None:
    rows = [("a", "x"), ("a", "y"), ("b", "x")]
    assert covering(rows, 2) == {0, 1, 2}
    assert covering(rows, 1) in ({1, 2}, {0, 1, 2})


def test_pairs_differ() -> None:
    """The second time a value is taken it is with others."""
    chosen = [ROWS[number] for number in covering(ROWS, 2)]
    assert len({row[:2] for row in chosen}) == len(chosen)


class Item:
    """As pytest's, as far as it is asked here."""

    def __init__(self, name: str, *marks: pytest.MarkDecorator, cases: tuple[str, ...]) -> None:
        self.nodeid = f"test_file.py::{name}[{'-'.join(cases)}]"
        self.callspec = SimpleNamespace(_idlist=cases)
        self.marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


def test_what_is_left_out_is_in_the_sweep() -> None:
    mark = pytest.mark
    marked = [Item("marked", mark.each_value, cases=row) for row in ROWS]
    twice = [Item("twice", mark.each_value(2), cases=row) for row in ROWS]
    plain = [Item("plain", cases=row) for row in ROWS]
    large = [Item("large", mark.each_value, mark.sweep, cases=row) for row in ROWS[:3]]
    mark_others([*marked, *twice, *plain, *large])  # type: ignore[list-item]
    left = [sum("sweep" not in item.marks for item in items) for items in (marked, twice, plain)]
    assert left == [5, 10, len(ROWS)]
    assert all("sweep" in item.marks for item in large)
