"""Bugs planted in each pass are found by the random programs, and the pass is named.

Which program finds which bug is recorded in `caught_by.txt`, so that nothing is searched here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from taskc.passes.pipeline import PASSES
from tests.random_programs.mutations import MUTATIONS, NOT_SHOWN, Mutation
from tests.random_programs.mutations.mutation import edited
from tests.random_programs.search import RECORD, REFRESH, SEED, example, recorded

_RECORD = recorded()
_SHOWN = [mutation for mutation in MUTATIONS if str(mutation) not in NOT_SHOWN]


@pytest.mark.parametrize("mutation", sorted(_SHOWN, key=lambda m: _RECORD.get(str(m), 0)), ids=str)
def test_a_wrong_pass_is_found_and_named(mutation: Mutation) -> None:
    remedy = f"; if a change of the generator or of a pass explains it, run: {REFRESH}"
    number = _RECORD.get(str(mutation))
    assert number is not None, f"{RECORD.name} has no program for {mutation}{remedy}"
    shown = example(number)
    assert shown.wrong(mutation.stage) is None
    assert shown.symptom(mutation) is not None, (
        f"program {number} of seed {SEED} doesn't show {mutation!s}{remedy}"
    )


def test_the_record_has_no_other_line() -> None:
    assert sorted(_RECORD) == sorted(map(str, _SHOWN))


# Random programs have no products of warpgroups and no sub-byte types, and few strided loops that start at a
# worker's number: their bugs are planted in tests/passes/test_select_products.py, test_unpack.py,
# test_gather_words.py and test_common_strides.py.
_ELSEWHERE = {"await_products", "common_strides", "gather_words", "unpack"}


def test_every_pass_has_three_mutations() -> None:
    count = Counter(mutation.stage for mutation in _SHOWN)
    few = {one.name: count[one.name] for one in PASSES if count[one.name] < 3}
    assert few == dict.fromkeys(_ELSEWHERE, 0)


def test_each_planted_bug_finds_its_place() -> None:
    """A function of its name is there, with what is changed in it."""
    lost = []
    for mutation in MUTATIONS:
        try:
            with mutation.planted():
                pass
        except (AttributeError, LookupError) as error:
            lost.append(f"{mutation}: {error}")
    assert lost == []


def test_a_planted_bug_is_found_however_its_lines_are_broken() -> None:
    wrong = edited('one(first, "a b")+2', "0")(_broken)
    assert wrong(lambda first, second: 5, 1) == 0
    with pytest.raises(LookupError, match=r"'one\(second' does not stand in _broken"):
        edited("one(second", "0")(_broken)


def _broken(one: Any, first: int) -> int:
    return (
        one(
            first,  # a comment
            "a b",
        )
        + 2
    )
