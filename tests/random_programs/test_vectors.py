"""Vector loops that no hardware could do are told apart, so that random programs can find them."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.backend.sim import run
from taskc.ir.parser import parse
from tests.random_programs.vectors import as_hardware_does

TEXT = """
kernel k(x: f32[24], y: inout f32[24]) workers=1 blocks=1 stage=lean:
    for e: i32 in vector({width}):
        y[{store}] = x[{read}] + y[{own}]
"""


def findings(width: int, store: str, read: str, own: str = "e") -> list[str]:
    kernel = parse(TEXT.format(width=width, store=store, read=read, own=own))
    written_out = as_hardware_does(kernel)
    assert written_out is not kernel
    arrays = [np.arange(24, dtype=np.float32), np.zeros(24, np.float32)]
    return [str(finding).splitlines()[0] for finding in run(written_out, arrays).findings]


@pytest.mark.parametrize(
    ("store", "read"), [("e", "e"), ("e + 4", "e + 16"), ("e", "3"), ("e", "e // 2 + 6")]
)
def test_whole_vectors(store: str, read: str) -> None:
    assert findings(4, store, read) == []


@pytest.mark.parametrize(
    ("width", "store", "read", "complaint"),
    [
        (4, "e", "e + 2", "a vector of x is aligned"),
        (4, "e + 1", "e", "a vector of y is aligned"),
        (4, "e", "e * 2", "a vector of x is consecutive"),
        (4, "e", "4 - e", "a vector of x is consecutive"),
        (4, "e", "(e + 8) // 4", "a vector of x is consecutive"),
        (4, "e", "e // 2 + 5", "a vector of x is aligned"),
        (8, "e", "e", "a vector of x has at most 16 bytes"),
    ],
)
def test_what_is_none(width: int, store: str, read: str, complaint: str) -> None:
    assert any(complaint in found for found in findings(width, store, read))


def test_all_lanes_read_before_one_stores() -> None:
    kernel = parse(TEXT.format(width=4, store="e + 4", read="e", own="e + 4"))
    arrays = [np.arange(24, dtype=np.float32), np.ones(24, np.float32)]
    assert run(as_hardware_does(kernel), arrays).ok
    assert arrays[1][3:9].tolist() == [1, 1, 2, 3, 4, 1]
