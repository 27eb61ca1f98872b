"""Extents that are known only at a call: which templates refuse them, and what plans assume of them."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from taskc import CompileError

Extent = Any  # an int, or a tc.dim

# An assumption orders the plans of a problem, and changes no result.
ASSUMED_EXTENT = 1 << 10  # of any axis: with others it makes an array that no cache keeps
ASSUMED_MANY = 1 << 20  # rows, queries, numbers to fold: work for all threads, however it is cut
ASSUMED_GPU_EXTENT = 1 << 13  # of a product: a last, partial wave of blocks costs little
ASSUMED_PIXELS = 1 << 17  # of a convolution's results: some 40 images of the height and width below
ASSUMED_SIDE = 56  # height and width, as in the middle of a network for images
ASSUMED_IMAGES = 64  # a batch
ASSUMED_KEYS = 1 << 12  # of attention: a long context, whose keys are worth sharing out


def known(extent: Any, assumed: int = ASSUMED_EXTENT) -> int:
    """The extent, if it is a number; else what plans assume."""
    return extent if isinstance(extent, int) else assumed


def require_numbers(template: str, **extents: Any) -> None:
    """Raise an error if one of them is known only at a call."""
    for name, extent in extents.items():
        if not isinstance(extent, Integral):
            raise CompileError(
                f"{name} of {template} is known when a kernel is made, and {extent} only at a call",
                hint="its layouts and registers are chosen by it: give it as a number",
            )
