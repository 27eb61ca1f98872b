"""Boxes: the corners that tell all the parts in which they cut a tensor."""

from __future__ import annotations

import random
from itertools import product

from taskc.passes.proofs.boxes import Box, contains, corners


def boxes(pick: random.Random, rank: int, extent: int) -> list[Box]:
    made = []
    for _ in range(pick.randint(1, 4)):
        box = []
        for _ in range(rank):
            low = pick.randrange(extent)
            box.append((low, pick.choice([None, pick.randint(low, extent)])))
        made.append(tuple(box))
    return made


def test_each_place_lies_in_the_boxes_of_some_corner() -> None:
    pick, extent = random.Random(1), 5
    for _ in range(300):
        rank = pick.choice([1, 2, 3])
        made = boxes(pick, rank, extent)
        told = {tuple(contains(box, corner) for box in made) for corner in corners(made, rank)}
        for place in product(range(extent + 1), repeat=rank):
            assert tuple(contains(box, place) for box in made) in told, (made, place)


def test_the_first_place_is_always_a_corner() -> None:
    assert list(corners([], 2)) == [(0, 0)]
    assert list(corners([((3, None),)], 1)) == [(0,), (3,)]
    assert contains(((0, 4), (2, None)), (3, 9))
    assert not contains(((0, 4), (2, None)), (4, 9))
