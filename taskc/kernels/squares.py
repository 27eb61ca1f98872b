"""A square of as many rows as there are lanes, turned in registers in two rounds of four vectors each:

    square[4 * r1 + r0, 4 * c1 + c0]  ->  part[c0, r1, c1, r0]  ->  [4 * c1 + c0, 4 * r1 + r0]

Both rounds write whole vectors, and read from windows of four. `quarters` is the first; the second is
the caller's, who knows where the square goes:

    part = quarters(square)
    for c1, c0, r1, r0 in columns(lanes):
        turned[4 * c1 + c0, 4 * r1 + r0] = part[c0, r1, c1, r0]
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import Mapping, repeat, spatial


def lines(lanes: int) -> Mapping:
    """The rows of a square, one after the other, with the columns along the lanes."""
    return repeat(lanes, 1) * spatial(1, lanes)


def columns(lanes: int) -> Mapping:
    """The columns of a square, one after the other: (c1, c0, r1, r0), with the rows along the lanes."""
    quarter = lanes // 4
    return repeat(quarter, 4, 1, 1) * spatial(1, 1, quarter, 4)


@tc.function
def quarters(square: Any) -> Any:
    """The square's parts, with four rows of every fourth column in each line."""
    lanes = square.shape[0]
    part = tc.shared(square.dtype[4, lanes // 4, lanes // 4, 4])
    for r1, c0, c1, r0 in columns(lanes):
        part[c0, r1, c1, r0] = square[4 * r1 + r0, 4 * c1 + c0]
    return part
