"""Numbers as people read them."""

from __future__ import annotations

import pytest

from taskc.format import bytes_text, factor_text, share_text, time_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ns"),
        (3.2e-10, "0.32 ns"),
        (9.996e-7, "1 µs"),
        (1.234e-5, "12.3 µs"),
        (0.9994e-3, "999 µs"),
        (0.0456, "45.6 ms"),
        (1.5, "1.5 s"),
        (4321.0, "4321 s"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1 KiB"),
        (1010 << 10, "1010 KiB"),
        (3 << 29, "1.5 GiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_shares_and_factors() -> None:
    assert [share_text(x) for x in (0.0, 0.0123, 0.5, 1.2)] == ["0.0%", "1.2%", "50%", "120%"]
    assert [factor_text(3, 2), factor_text(1, 0), factor_text(1000, 1)] == ["1.5 x", "", "1000 x"]
