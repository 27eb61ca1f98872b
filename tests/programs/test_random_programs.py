"""Random programs give the same bits fused and as they are written."""

from __future__ import annotations

import pytest

from tests.programs.random_programs import program
from tests.programs.running import check


@pytest.mark.parametrize("first", range(0, 50, 25))
def test_bits_stay(first: int) -> None:
    fewer = 0
    for seed in range(first, first + 25):
        definition = program(seed)
        fewer += len(check(definition).calls) < len(definition.ir.calls)
    assert fewer > 15  # or nothing was asked


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["parsed", "cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("first", range(0, 5000, 250))
def test_bits_stay_in_a_sweep(first: int, target: str) -> None:
    for seed in range(first, first + 250):
        check(program(seed), target, is_processor=target in ("parsed", "cpu"))
