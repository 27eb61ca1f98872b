"""How `auto_map` divides its workers among the dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt, prod

from taskc.ir.mapping_forms import Shape


def coalesced_split(shape: Shape, workers: int) -> Shape:
    """The extents of the tile of workers, whose product is `workers`, that steps over a shape.

    A masked task costs an issue slot and a broken row costs bandwidth. So a tile may take up to a
    quarter more steps than the best one if that makes its rows longer. Of these tiles the longest
    row within the shape wins, then the fewest steps. Workers that are left over come last in the
    numbering: they exceed the shape in the outermost dimension, so whole warps of them idle. Then
    the most workers in the innermost dimension win, then in the one before it.
    """
    steps = {tile: prod(rounded_quotient(shape, tile)) for tile in _tiles(workers, len(shape))}
    fewest = min(steps.values())
    return min(
        (tile for tile in steps if 4 * steps[tile] <= 5 * fewest),
        key=lambda tile: (
            -min(tile[-1], shape[-1]),
            steps[tile],
            [max(0, extent - size) for extent, size in zip(tile[::-1], shape[::-1], strict=True)],
            [-extent for extent in reversed(tile)],
        ),
    )


def rounded_quotient(shape: Shape, tile: Shape) -> Shape:
    """How many tiles cover the shape, by dimension."""
    return tuple(-(-a // b) for a, b in zip(shape, tile, strict=True))


def _tiles(workers: int, rank: int) -> Iterator[Shape]:
    """All ways to write a number as an ordered product."""
    if rank == 1:
        yield (workers,)
        return
    for extent in _divisors(workers):
        for rest in _tiles(workers // extent, rank - 1):
            yield (extent, *rest)


def _divisors(number: int) -> list[int]:
    small = [i for i in range(1, isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})
