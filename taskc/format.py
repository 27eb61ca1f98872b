"""Formatted numbers: `12.3 µs`, `4 MiB`, `83%`, `1.5 x`. Nothing else formats times, sizes, rates and ratios."""

from __future__ import annotations

from collections.abc import Mapping

_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def time_text(seconds: float | None, unit: str = "", digits: str = "") -> str:
    """A time in the largest unit that it fills, or in the unit given; `-` for None."""
    return "-" if seconds is None else _in_unit(seconds, _SECONDS, unit, digits)


def bytes_text(count: float, unit: str = "", digits: str = "") -> str:
    """A size in the largest unit that it fills, or in the unit given."""
    return _in_unit(count, _BYTES, unit, digits or (".1f" if unit else ""))


def rate_text(per_second: float) -> str:
    """Operations per second, in GFLOP/s."""
    return f"{number_text(per_second / 1e9)} GFLOP/s"


def share_text(share: float) -> str:
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def spread_text(spread: float) -> str:
    """An interquartile range over the median, as the half to each side."""
    return f"± {50 * spread:.1f}%"


def factor_text(one: float, other: float) -> str:
    """The factor of one over the other; empty if the other is 0."""
    return f"{_three(one / other)} x" if other else ""


def ratio_text(ratio: float) -> str:
    """A peer's time over ours."""
    return f"{ratio:.2f}x"


def number_text(value: float) -> str:
    """A number with three digits or more, in groups of three."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def many(count: int, noun: str) -> str:
    """`1 block`, `2 blocks`"""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _in_unit(value: float, sizes: Mapping[str, float], unit: str, digits: str) -> str:
    if not unit:
        fitting = (unit for unit, size in sizes.items() if value >= 0.9995 * size)
        unit = next(fitting, [*sizes][-1])
    number = value / sizes[unit]
    return f"{format(number, digits) if digits else _three(number)} {unit}"


def _three(value: float) -> str:
    """The value with three digits or more, without an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
