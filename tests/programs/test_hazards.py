"""For which calls a call waits: against a list of all pairs, byte by byte."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from taskc.programs.hazards import ByteRange, hazards


def random_calls(choose: random.Random) -> list[list[ByteRange]]:
    """Calls with up to four arguments each, parts of a few memories."""
    size, memories = choose.randint(1, 12), range(choose.randint(1, 4))
    calls = []
    for _ in range(choose.randint(0, 14)):
        calls.append([])
        for _ in range(choose.randint(0, 4)):
            ends = sorted(choose.choices(range(size + 1), k=2))
            calls[-1].append(ByteRange(choose.choice(memories), *ends, choose.random() < 0.4))
    return calls


def bytes_of(call: list[ByteRange], *, written: bool) -> set[tuple[object, int]]:
    return {
        (access.memory, byte)
        for access in call
        for byte in range(access.start, access.end)
        if access.writes or not written
    }


def conflict(one: list[ByteRange], other: list[ByteRange]) -> bool:
    """Whether one of two calls writes a byte that the other one touches."""
    return bool(
        bytes_of(one, written=True) & bytes_of(other, written=False)
        or bytes_of(other, written=True) & bytes_of(one, written=False)
    )


def all_before(waits: list[set[int]]) -> list[set[int]]:
    """What each waits for, and what that waits for."""
    found: list[set[int]] = []
    for others in waits:
        found.append(others.union(*[found[other] for other in others]))
    return found


def check(seed: int) -> None:
    calls = random_calls(random.Random(seed))
    waits = hazards(calls)
    pairs = [{k for k in range(n) if conflict(calls[k], calls[n])} for n in range(len(calls))]
    assert all(some <= those for some, those in zip(waits, pairs, strict=True)), seed
    assert all_before(waits) == all_before(pairs), seed


def test_all_pairs_are_ordered_and_no_others() -> None:
    for seed in range(500):
        check(seed)


@pytest.mark.sweep
def test_all_pairs_of_many() -> None:
    for seed in range(500, 20_000):
        check(seed)


def test_what_is_replaced_is_not_waited_for() -> None:
    """A call waits for the last one that wrote all of what it reads, and no more for those before."""
    whole, first, second = (
        ByteRange("t", 0, 8, True),
        ByteRange("t", 0, 4, True),
        ByteRange("t", 4, 8, True),
    )
    read = ByteRange("t", 2, 6, False)
    assert hazards([[first], [second], [read], [whole], [read], [first]]) == [
        set(), set(), {0, 1}, {0, 1, 2}, {3}, {3, 4},
    ]  # fmt: skip
    assert hazards([[read]] * 3) == [set()] * 3


def test_a_loop_s_parts_are_found_without_looking_at_all_of_them() -> None:
    """Each step writes its part, and reads the one before: of 20,000 none takes longer than the first."""
    part = [ByteRange("y", 4 * step, 4 * step + 4, True) for step in range(20_000)]
    calls = [[part[0]]]
    for before, after in pairwise(part):
        calls.append([ByteRange("y", before.start, before.end, False), after])
    assert hazards(calls) == [set(), *[{step} for step in range(19_999)]]
