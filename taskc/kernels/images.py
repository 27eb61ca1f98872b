"""Images, for all operators that take them: where their numbers lie, NHWC, NCHW or NCHWc, and options by axis."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import taskc as tc
from taskc import CompileError, DType, Machine, TensorType, f32, repeat

Extent = Any  # an int, or a tc.dim
Pair = int | tuple[int, int]
Sides = int | tuple[int, int] | tuple[int, int, int, int]
ORDERS = ("NHWC", "NCHW", "NCHWc")


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
    extents: tuple[int, int],
    channels: int,
    order: str,
    lanes: int,
) -> TensorType:
    """The type of images in an order; `lanes` are the channels of a block of NCHWc."""
    if order == "NHWC":
        return TensorType(dtype, (images, *extents, channels))
    if order == "NCHW":
        return TensorType(dtype, (images, channels, *extents))
    blocks = ceil(channels / lanes)
    known = images if isinstance(images, int) else 1
    layout = repeat(max(1, known), max(1, blocks), *extents) * repeat(1, lanes, 1, 1)
    return TensorType(dtype, (images, blocks * lanes, *extents)).laid(layout)


def number_at(order: str) -> Callable[..., Any]:
    """The indices of a number of images in an order."""

    @tc.function
    def number_at(image, i, j, channel):
        return (image, i, j, channel) if order == "NHWC" else (image, channel, i, j)

    return number_at


def check_orders(*orders: str) -> None:
    for order in orders:
        if order not in ORDERS:
            raise CompileError(f"images are NHWC, NCHW or NCHWc, not {order}")


def pair(value: Pair) -> tuple[int, int]:
    """Of both axes: of height and width."""
    return (value, value) if isinstance(value, int) else value


def sides(value: Sides) -> tuple[int, int, int, int]:
    """Above, left, below and right."""
    match value:
        case int():
            return value, value, value, value
        case (down, right):
            return down, right, down, right
    return value
