"""Random programs, compiled for processors that there are, give the bits of an independent oracle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend.cpu.processors import NAMES, loaded_for, sizes_of
from tests.random_programs.generator import program
from tests.random_programs.oracle import Oracle
from tests.random_programs.runner import differences, parsed

SEED = 11
BLOCK = 8
CASES = [
    pytest.param(name, block, marks=[] if block < usual else pytest.mark.sweep)
    for name in NAMES
    for usual, most in ((2, 15) if name == "host" else (1, 6),)
    for block in range(most)
]


@pytest.mark.parametrize(("processor", "block"), CASES)
def test_random_programs(processor: str, block: int) -> None:
    for number in range(block * BLOCK, block * BLOCK + BLOCK):
        made = program(SEED, number)
        expected = Oracle(made).results()
        kernel = parsed(made)
        arguments: dict[str, Any] = {
            p.name: p.data if p.shape is None or p.role == "in" else p.data.copy()
            for p in made.parameters
        }
        loaded = loaded_for(kernel, processor)
        loaded.run(list(arguments.values()), sizes_of(kernel, arguments))
        for name, wanted in expected.items():
            assert differences(name, arguments[name], wanted) is None, number
