"""Who meets whom, held to all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.analysis import accesses
from taskc.analysis.accesses import element_numbers, example, extremes


@pytest.mark.parametrize("most", [1 << 23, 3], ids=["few numbers", "many numbers"])
@pytest.mark.parametrize("seed", range(30))
def test_all_pairs(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesses, "_MOST_NUMBERS", most)
    random = np.random.default_rng(seed)
    rank, count, other_count = random.integers(0, 4), *random.integers(1, 12, 2)
    own = [random.integers(-3, 4, count) for _ in range(rank)]
    other = [random.integers(-3, 4, other_count) for _ in range(rank)]
    agents, agents_too = random.integers(0, 6, count), random.integers(0, 6, other_count)
    numbers, numbers_too, size = element_numbers(own, other)
    keys, keys_too = np.broadcast_to(numbers, count), np.broadcast_to(numbers_too, other_count)
    places, places_too = list(zip(*own, strict=True)), list(zip(*other, strict=True))
    pairs = {
        (i, j)
        for i in range(count)
        for j in range(other_count)
        if (not rank or places[i] == places_too[j]) and agents[i] != agents_too[j]
    }
    found = example(keys, agents, keys_too, agents_too, size)
    assert found in pairs if pairs else found is None
    lowest, highest = extremes(keys, agents, size)
    for key in range(size):
        here = agents[keys == key]
        assert lowest[key] == (here.min() if here.size else -1)
        assert highest[key] == (here.max() if here.size else -1)


def test_indices_that_all_share() -> None:
    workers = np.arange(4)
    first, second, count = element_numbers([workers, 0], [workers + 1, 0])
    assert example(first, workers, second, workers, count) == (1, 0)
    first, second, count = element_numbers([workers, 0], [workers, 1])
    assert example(first, workers, second, workers, count) is None
