"""Which loads are pixels that a filter's tap meets, and what bulk copies of them are told."""

from __future__ import annotations

from typing import Any

import pytest

from taskc.analysis.coalescing import facts_of_names
from taskc.ir import nodes as ir
from taskc.ir.printer import expression_text
from taskc.ir.rewrite import walk
from taskc.ir.target import TARGETS
from taskc.passes.simplify import simplify
from taskc.passes.transports import pixels_of, plain_read, refusal_of
from tests.passes.kernels import kernel

OF_14 = (
    "(row + i) // 196",
    "(row + i) // 14 % 14 * 2 + p // 192 - 1",
    "(row + i) % 14 * 2 + p // 64 % 3 - 1",
)


def load(
    *place: str,
    images: Any = 3,
    size: int = 28,
    columns: int = 28,
    steps: int = 576,
    also: str = "",
) -> ir.Kernel:
    """A load that fills with zeros what isn't in the images."""
    image, row, column = place
    inside = f"0 <= {row} and {row} < {size} and 0 <= {column} and {column} < {columns} and {image} < {images} {also}"
    return simplify(
        kernel(
            f"""
            grid row in 6400 by 64:
                pipeline p in {steps} by 64 stages=2:
                    constant shared s: f16[64, 64]
                    move s[i, q] = select({inside}, x[{image}, {row}, {column}, q], 0.0) for (i, q) in (64, 64)
                    each (i, q) in spatial(32, 1).repeat(2, 64):
                        c[row + i, q] = c[row + i, q] + s[i, q]
            """,
            f"x: f16[{images}, {size}, {columns}, 64], c: inout f16[6400, 64]",
            target="sm_90a",
        )
    )  # fmt: skip


def move_of(start: ir.Kernel) -> ir.Move:
    return next(node for node in walk(start.body) if isinstance(node, ir.Move))


def found(start: ir.Kernel) -> Any:
    move = move_of(start)
    read = plain_read(move)
    assert read is not None
    return pixels_of(move, read[0], facts_of_names(start.body))


def refusal(start: ir.Kernel) -> str | None:
    return refusal_of("tma", [move_of(start)], TARGETS["sm_90a"], start)


def test_what_a_copy_is_told() -> None:
    start = load(*OF_14)
    pixels = found(start)
    assert pixels.numbers == (14, 14, 2, 2, 1, 1)
    texts = [expression_text(one) for one in (*pixels.first, *pixels.offsets)]
    assert texts == [
        "(row + 0) // 196", "(row + 0) // 14 % 14 * 2 - 1", "(row + 0) % 14 * 2 - 1", "0",
        "p // 192 + -1 + 1", "p // 64 % 3 + -1 + 1",
    ]  # fmt: skip
    assert refusal(start) is None


@pytest.mark.parametrize(
    ("place", "sizes", "numbers"),
    [
        # A tile of results lies in one image: 64 divides 32 * 32.
        (("(row + i) // 1024", "(row + i) // 32 % 32 + 2", "(row + i) % 32"), {"size": 40, "columns": 32},
         (32, 32, 1, 1, 0, 0)),
        # The only image has no number; what comes behind its last row is outside.
        (("0", "(row + i) // 28 - 1", "(row + i) % 28"), {"images": 1}, (156, 28, 1, 1, 1, 0)),
        (("(row + i) // 28", "p // 64", "(row + i) % 28"), {}, (1, 28, 1, 1, 0, 0)),
    ],
)  # fmt: skip
def test_places(place: tuple[str, ...], sizes: dict[str, int], numbers: tuple[int, ...]) -> None:
    start = load(*place, **sizes)
    assert found(start).numbers == numbers
    assert refusal(start) is None


@pytest.mark.parametrize(
    "place",
    [
        ("(row + i) // 196", "(row + i) // 13 % 14", "(row + i) % 14"),
        ("(row + i) // 195", "(row + i) // 14 % 14", "(row + i) % 14"),
        ("(row + i) // 196", "(row + i + 1) // 14 % 14", "(row + i) % 14"),
        ("(row + 2 * i) // 196", "(row + 2 * i) // 14 % 14", "(row + 2 * i) % 14"),
        ("1", "(row + i) // 14 % 14", "(row + i) % 14"),
        ("1", "(row + i) // 28", "(row + i) % 28"),
        ("row // 6400", "(row + i) // 14 % 14", "(row + i) % 14"),
        ("(row + i) // 196", "(row + i) // 14 % 14 * i", "(row + i) % 14"),
    ],
)
def test_no_pixels_in_a_row(place: tuple[str, ...]) -> None:
    start = load(*place)
    assert found(start) is None
    assert refusal(start) == "the load of `s` is not a box of its tensor"


@pytest.mark.parametrize(
    ("place", "sizes", "text"),
    [
        (
            ("(row + i) // 196", "(row + i) // 14 % 14 + p", "(row + i) % 14"),
            {"steps": 640},
            "may have taps more than 255 pixels behind its filter's first",
        ),
        (
            ("(row + i) // 196", "(row + i) // 14 % 14 * 20 - 1", "(row + i) % 14"),
            {},
            "begins or ends more than 128 pixels beyond its images",
        ),
        (
            ("(row + i) // 9", "(row + i) // 3 % 3 * 9", "(row + i) % 3 * 8"),
            {},
            "has filters more than 8 pixels apart",
        ),
        (
            ("(row + i) // 196", "(row + i) // 14 % 14", "(row + i) % 14 + (64 - p)"),
            {},
            "may have taps in front of its filter",
        ),
    ],
)
def test_what_is_too_far(place: tuple[str, ...], sizes: dict[str, int], text: str) -> None:
    assert refusal(load(*place, **sizes)) == f"the load of `s` {text}"


def test_what_is_filled_has_to_be_outside() -> None:
    start = load(*OF_14, also="and i < 60")
    assert found(start) is not None
    assert refusal(start) == "the load of `s` fills more than what lies outside its tensor"
