"""Products of parameters: the default run takes each value, and `pytest -m sweep` takes the other combinations.

A test under several `parametrize` runs for each combination of their cases. `@pytest.mark.each_value` says that what
goes wrong goes wrong for a value, whatever the others are: of its combinations so many are taken that each case of
each decorator is in one of them, and in `times` of them with `each_value(times)`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest


def mark_others(items: Sequence[pytest.Item]) -> None:
    """Marks those items of marked tests as sweep that the default run leaves out."""
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        marked = item.get_closest_marker("each_value") and not item.get_closest_marker("sweep")
        if marked and hasattr(item, "callspec"):
            families[item.nodeid.partition("[")[0]].append(item)
    for family in families.values():
        marker = family[0].get_closest_marker("each_value")
        times = marker.args[0] if marker is not None and marker.args else 1
        # One name for each decorator: its case.
        chosen = covering([tuple(item.callspec._idlist) for item in family], times)  # type: ignore[attr-defined]
        for number, item in enumerate(family):
            if number not in chosen:
                item.add_marker(pytest.mark.sweep)


def covering(rows: Sequence[tuple[str, ...]], times: int = 1) -> set[int]:
    """The numbers of few rows in which each value of each column stands so many times, or as often as in all rows.

    Among rows that are as good, one is taken whose pairs of values are new.
    """
    there = Counter(value for row in rows for value in enumerate(row))
    missing = {value: min(times, count) for value, count in there.items()}
    pairs: set[object] = set()
    chosen: set[int] = set()
    while any(missing.values()):

        def gain(number: int) -> tuple[int, int, int]:
            values = list(enumerate(rows[number]))
            new = sum(pair not in pairs for pair in combinations(values, 2))
            return sum(missing[value] > 0 for value in values), new, -number

        best = max((n for n in range(len(rows)) if n not in chosen), key=gain)
        chosen.add(best)
        values = list(enumerate(rows[best]))
        pairs.update(combinations(values, 2))
        for value in values:
            missing[value] = max(0, missing[value] - 1)
    return chosen


def few(cases: Iterable[Any], count: int) -> list[Any]:
    """The cases, of which the default run takes the first so many, and the sweep the rest."""
    return [
        case if number < count else pytest.param(case, marks=pytest.mark.sweep)
        for number, case in enumerate(cases)
    ]
