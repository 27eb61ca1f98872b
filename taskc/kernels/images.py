"""Images, for all operators that take them: where their numbers lie, NHWC, NCHW or NCHWc, and the tiles of a line."""

from __future__ import annotations

from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, DType, Machine, TensorType, f32, repeat
from taskc.dataclass import dataclass
from taskc.kernels.signatures import Extent, Function, Value, known

ORDERS = ("NHWC", "NCHW", "NCHWc")
_MOST_EDGE_TILES = 8


def blocked(
    images: Extent,
    channels: int,
    height: int,
    width: int,
    dtype: DType = f32,
    machine: Machine | None = None,
) -> TensorType:
    """The type of images as NCHWc: channels in blocks of a vector's lanes, [images, blocks, height, width, lanes].

    There are whole blocks of channels; those beyond `channels` are zeros.
    """
    lanes = (machine or tc.machine()).lanes
    return images_type(dtype, images, (height, width), channels, "NCHWc", lanes)


def images_type(
    dtype: DType,
    images: Extent,
    extents: tuple[Extent, Extent],
    channels: int,
    order: str,
    lanes: int,
) -> TensorType:
    """The type of images in an order; `lanes` are the channels of a block of NCHWc."""
    if order != "NCHWc":
        shape = (images, *extents, channels)
        return TensorType(dtype, tuple([shape[axis] for axis in places(order)]))
    blocks = ceil(channels / lanes)
    count = known(images, 1)
    layout = repeat(max(1, count), max(1, blocks), *extents) * repeat(1, lanes, 1, 1)
    return TensorType(dtype, (images, blocks * lanes, *extents)).laid(layout)


def channels_of(kind: TensorType, order: str) -> int:
    """The channels of a type of images, with those that fill up its last block."""
    return int(kind.shape[order.index("C")])


def places(order: str, axes: str = "NHWC") -> tuple[int, ...]:
    """Which of these axes comes first in an order, which second, and so on. NCHWc is NCHW, laid out in blocks."""
    return tuple([axes.index(letter) for letter in order.rstrip("c")])


def number_at(order: str) -> Function:
    """The indices of a number of images in an order."""

    @tc.function
    def number_at(image: Value, i: Value, j: Value, channel: Value) -> Any:
        return (image, i, j, channel) if order == "NHWC" else (image, channel, i, j)

    return number_at


def check_orders(*orders: str) -> None:
    for order in orders:
        if order not in ORDERS:
            raise CompileError(f"images are NHWC, NCHW or NCHWc, not {order}")


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of a line side by side that are alike.

    number     of tiles before them; `count`: how many they are
    first      their first result; `wide`: the results of each
    is_inside  whether all taps of their windows lie in the image
    """

    number: int
    count: int
    first: int
    wide: int
    is_inside: bool


def results_inside(width: int, stride: int, low: int, high: int) -> range:
    """The results whose taps all lie in a line of so many pixels: taps are `low` to `high` pixels from their place."""
    return range(-(low // stride), (width - 1 - high) // stride + 1)


def tiles_of_line(length: int, wide: int, inside: range) -> tuple[Tiles, ...]:
    """Tiles of `wide` results of a line; `inside` are the results whose taps all lie in the image.

    Tiles inside are one group, and so are many outside: a line may have more of them than can be listed.
    """
    count = ceil(length / wide)
    first = min(max(0, ceil(inside.start / wide)), count)
    last = count if inside.stop >= length else min(max(first, inside.stop // wide), count)
    groups = [
        *_outside(0, first), *([(first, last - first, True)] if first < last else []), *_outside(last, count)
    ]  # fmt: skip
    found: list[Tiles] = []
    for number, tiles, is_inside in groups:
        rest = length - (number + tiles - 1) * wide  # of the group's last tile, and what follows
        if rest < wide and tiles > 1:
            found.append(Tiles(number, tiles - 1, number * wide, wide, is_inside))
            number, tiles = number + tiles - 1, 1
        found.append(Tiles(number, tiles, number * wide, min(rest, wide), is_inside))
    return tuple(found)


def _outside(first: int, last: int) -> list[tuple[int, int, bool]]:
    """Tiles near the image's edge one by one, since it is known which of their taps are outside; many as a group."""
    if last - first > _MOST_EDGE_TILES:
        return [(first, last - first, False)]
    return [(number, 1, False) for number in range(first, last)]
