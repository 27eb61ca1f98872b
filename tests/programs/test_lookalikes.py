"""What must not be fused isn't, and gives what it gives."""

from __future__ import annotations

import pytest

from tests.programs.lookalikes import LOOKALIKES, gathered_from_a_table
from tests.programs.running import check


@pytest.mark.parametrize("name", LOOKALIKES)
def test_it_stays_as_it_is(name: str) -> None:
    definition = LOOKALIKES[name]()
    assert len(check(definition).calls) == len(definition.ir.calls)


def test_a_table_is_computed_again_for_few_readers() -> None:
    """52 elements more take less time than a call: the ten times as many of the lookalike don't."""
    assert len(check(gathered_from_a_table(64)).calls) == 1


def test_there_are_twenty_of_them() -> None:
    assert len(LOOKALIKES) >= 20
