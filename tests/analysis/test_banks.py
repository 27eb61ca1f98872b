"""Cycles of the banks, held to a plain count."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from taskc.analysis.coalescing import bank_cycles, swizzled
from taskc.ir.nodes import Swizzle

BANKS = 32


def counted(addresses: list[int | None], width: int) -> list[int]:
    """By sets: the lanes that are served at a time, and the words of each bank that they want."""
    words = max(width // 4, 1)
    served = max(BANKS // words, 1)
    cycles = []
    for start in range(0, len(addresses), served):
        wanted: dict[int, set[int]] = {}
        for address in addresses[start : start + served]:
            for word in range(words) if address is not None else ():
                number = (address or 0) // 4 + word
                wanted.setdefault(number % BANKS, set()).add(number)
        cycles.append(max(map(len, wanted.values()), default=0))
    return cycles


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("lanes", [4, 24, 32])
def test_random_accesses(width: int, lanes: int) -> None:
    random = Random(width * 100 + lanes)
    for _ in range(40):
        columns = [[random.randrange(-64, 256) * width for _ in range(lanes)] for _ in range(3)]
        active = np.array([random.random() < 0.8 for _ in range(lanes)])
        addresses = np.array(columns).T
        masked = [[n if on else None for n, on in zip(c, active, strict=True)] for c in columns]
        assert bank_cycles(addresses, width, BANKS).T.tolist() == [
            counted(c, width) for c in columns
        ]
        some = bank_cycles(addresses, width, BANKS, active)
        assert some.T.tolist() == [counted(column, width) for column in masked]


@pytest.mark.parametrize(
    ("step", "width", "cycles"),
    [(4, 4, [1]), (128, 4, [32]), (132, 4, [1]), (0, 4, [1]), (16, 16, [1, 1, 1, 1])],
)
def test_steps(step: int, width: int, cycles: list[int]) -> None:
    addresses = np.arange(32)[:, None] * step
    assert bank_cycles(addresses, width, BANKS)[:, 0].tolist() == cycles


def test_a_swizzle_takes_columns_apart() -> None:
    column = np.arange(32)[:, None] * 32  # of f32[32, 32]
    moved = swizzled(Swizzle(5, 0, 5), column)
    assert bank_cycles(column * 4, 4, BANKS).tolist() == [[32]]
    assert bank_cycles(moved * 4, 4, BANKS).tolist() == [[1]]
    assert swizzled(None, column) is column
