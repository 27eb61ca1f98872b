"""Which calls run beside each other: none that has to wait for another, and as many as there are idle threads."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from taskc.programs.hazards import hazards, list_schedule
from tests.programs.test_hazards import conflict, random_calls


def chains(count: int, length: int) -> list[set[int]]:
    """Chains one after another: what each of their calls waits for."""
    return [set() if n % length == 0 else {n - 1} for n in range(count * length)]


def test_two_chains_are_beside_each_other() -> None:
    one_after_another = chains(2, 4)
    assert list_schedule(one_after_another, [1] * 8, 2) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    in_turn = [set(), set(), {0}, {1}, {2}, {3}]
    assert list_schedule(in_turn, [1] * 6, 2) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(("count", "threads"), [(3, 2), (4, 2), (5, 4), (2, 8)])
def test_no_thread_is_idle_while_chains_are_left(count: int, threads: int) -> None:
    """Of more chains than threads the longest rests are taken first: else one of them is alone at the end."""
    length = 12
    groups = list_schedule(chains(count, length), [1] * count * length, threads)
    assert len(groups) == max(length, -(-count * length // threads))


def test_what_fills_the_threads_stays_alone() -> None:
    assert list_schedule([set()] * 5, [1, 4, 1, 9, 1], 4) == [[0, 2, 4], [1], [3]]
    assert list_schedule([set()] * 4, [4] * 4, 4) == [[0], [1], [2], [3]]
    assert list_schedule([set()] * 3, [3] * 3, 4) == [[0, 1], [2]]


def test_little_calls_come_along() -> None:
    """The second chain's calls with much work (1) are found behind those with little (0), and these are done first."""
    waits = chains(2, 4)
    assert list_schedule(waits, [1, 0, 1, 0] * 2, 2) == [[0, 4], [1], [5], [2, 6], [3], [7]]


def test_where_nothing_is_to_be_had_the_order_stays() -> None:
    in_order = [[n] for n in range(6)]
    waits = chains(2, 3)
    for blocks in ([0] * 6, [2] * 6, [1, 0, 0, 0, 0, 0]):
        assert list_schedule(waits, blocks, 2) == in_order
    assert list_schedule([set(range(n)) for n in range(6)], [1] * 6, 2) == in_order
    assert list_schedule([], [], 2) == []


def check(seed: int) -> int:
    """How many of random calls run beside another one."""
    choose = random.Random(seed)
    calls, threads = random_calls(choose), choose.randint(2, 6)
    blocks = [choose.choice([0, 1, 1, 2, 3, 9]) for _ in calls]
    groups = list_schedule(hazards(calls), blocks, threads)
    assert sorted(chain(*groups)) == list(range(len(calls))), seed
    time = {number: when for when, group in enumerate(groups) for number in group}
    for later, call in enumerate(calls):
        for before in range(later):
            assert not conflict(calls[before], call) or time[before] < time[later], seed
    for group in groups:
        shares = sorted(blocks[number] for number in group)
        assert len(group) == 1 or (shares[0] > 0 and sum(shares[:-1]) < threads), seed
    return sum(len(group) for group in groups if len(group) > 1)


def test_random_calls_keep_every_hazard() -> None:
    assert sum(check(seed) for seed in range(500)) > 500


@pytest.mark.sweep
def test_many_random_calls_keep_every_hazard() -> None:
    assert sum(check(seed) for seed in range(500, 20_500)) > 20_000
