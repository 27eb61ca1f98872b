"""Where temporaries lie: none that are needed at one time overlap, and hardly anything is left unused."""

from __future__ import annotations

import random

from taskc.programs.arena import ALIGNMENT, most_alive, placed


def test_what_is_needed_at_one_time_does_not_overlap() -> None:
    choose = random.Random(1)
    for _ in range(300):
        count = choose.randrange(1, 30)
        sizes = [choose.choice([0, 1, 64, 100, 4096, 5000]) for _ in range(count)]
        firsts = [choose.randrange(20) for _ in range(count)]
        spans = [(first, first + choose.randrange(6)) for first in firsts]
        offsets, total = placed(sizes, spans)
        pieces = [*zip(offsets, sizes, spans, strict=True)]
        for number, (a, a_size, (a_first, a_last)) in enumerate(pieces):
            assert a % ALIGNMENT == 0
            assert a + a_size <= total
            for b, b_size, (b_first, b_last) in pieces[:number]:
                if a_first <= b_last and b_first <= a_last:
                    assert a + a_size <= b or b + b_size <= a
        assert most_alive(sizes, spans) <= total


def test_the_smallest_gap_that_is_large_enough_is_taken() -> None:
    """Between those that last, two pieces end, of 128 bytes and of 64: the last one fits into the second."""
    sizes = [640, 128, 512, 100, 256, 64]
    spans = [(0, 9), (0, 1), (0, 9), (0, 1), (0, 9), (2, 3)]
    offsets, total = placed(sizes, spans)
    assert total == 640 + 128 + 512 + 128 + 256
    assert offsets[5] in (offsets[1], offsets[3])


def test_a_chain_takes_what_two_neighbours_take() -> None:
    sizes = [1024 * (1 + number % 3) for number in range(50)]
    spans = [(number, number + 1) for number in range(50)]
    assert placed(sizes, spans)[1] == most_alive(sizes, spans) == 1024 * 5


def test_nothing_takes_nothing() -> None:
    assert placed([], []) == ([], 0)
    assert most_alive([], []) == 0
