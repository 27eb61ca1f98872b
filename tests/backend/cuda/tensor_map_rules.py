"""What the driver takes for a tensor map, by its reference's list of requirements.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html, without interleaved layouts and
packed types, which aren't used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}  # by rank: from -n to n - 1


def broken_rules(described: dict[str, Any]) -> list[str]:
    """Of a map as `FakeDriver.maps` has it."""
    return [name for name, holds in _rules(described) if not holds]


def _rules(described: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    extents, box, steps = described["extents"], described["box"], described["steps"]
    rank, size = len(extents), int(described["type"].rpartition("UINT")[2]) // 8
    yield "a map has an address of 64 bytes", described["aligned"]
    yield "a tensor has one of 16 bytes", described["pointer"] % 16 == 0
    yield "extents", all(1 <= n <= 1 << 32 for n in extents)
    yield "strides", all(n % 16 == 0 and n < 1 << 40 for n in described["strides"])
    yield "steps", all(1 <= n <= 8 for n in steps)
    line = described["swizzle"].rpartition("_")[2].rstrip("B")
    if line.isdigit():
        yield "a box's rows are as long as the swizzle", box[0] * size <= int(line)
    if "lower" not in described:
        yield "rank", 1 <= rank <= 5
        yield "a box", all(1 <= n <= 256 for n in box)
        yield "a box's rows in steps of 16 bytes", box[0] * size % 16 == 0
        return
    lower, upper = described["lower"], described["upper"]
    yield "rank", rank in _CORNERS
    yield "channels and pixels", box[0] <= 256 and box[1] <= 1024
    yield "corners", all(-_CORNERS[rank] <= n < _CORNERS[rank] for n in (*lower, *upper))
    # A box goes from the first pixel, or from before it, to the last one, or to before it.
    whole = zip(extents[1:-1], lower, upper, strict=True)
    yield "what is copied from", all(n + last > first for n, first, last in whole)
