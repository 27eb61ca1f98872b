"""Formatted numbers: `12.3 µs`, `4.00 MiB`, `83%`, `1.50 x`."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds * 1e9)} ns"


def bytes_text(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= 0.9995 * size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f} B"


def share_text(share: float) -> str:
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def factor_text(one: float, other: float) -> str:
    """The factor of one over the other; empty if the other is 0."""
    return f"{_three(one / other)} x" if other else ""


def _three(value: float) -> str:
    """The value with three digits or more, without an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
