"""Images with blocked channels (NCHWc), the layout in which one convolution passes them to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import taskc as tc
from taskc import DType
from taskc.kernels.convolution import blocked
from taskc.programs.tracing import TensorHandle


@dataclass(frozen=True)
class Blocked:
    """Images [n, channels, height, width] as NCHWc; the last block of channels is filled with zeros."""

    handle: TensorHandle
    channels: int

    @staticmethod
    def empty(shape: tuple[Any, ...], dtype: DType) -> Blocked:
        """Memory for images of this shape."""
        images, channels, height, width = shape
        kind = blocked(images, channels, height, width, dtype)
        return Blocked(cast("TensorHandle", tc.empty(kind)), channels)

    @property
    def shape(self) -> tuple[Any, ...]:
        images, _, *extents = self.handle.shape
        return images, self.channels, *extents

    @property
    def dtype(self) -> DType:
        return self.handle.dtype

    @cached_property
    def rows(self) -> TensorHandle:
        """The same images as NCHW, for operators that take no blocked ones."""
        x = self.handle
        return cast("TensorHandle", tc.compute(self.shape, lambda *at: x[at], name="rows"))

    def computed(self, name: str, function: Callable[..., Any]) -> Blocked:
        """These images, once a computation has written the function's value for each index."""
        channels, shape = self.channels, self.handle.shape

        @tc.function
        def filled(*at):
            return function(*at) if at[1] < channels else 0

        value = function if shape[1] == channels else filled
        tc.compute(shape, value, name=name, out=self.handle)
        return self


def like(
    x: TensorHandle | Blocked, dtype: DType, function: Callable[..., Any]
) -> TensorHandle | Blocked:
    """The function's value at each element of x; blocked if x is blocked."""
    if isinstance(x, Blocked):
        return Blocked.empty(x.shape, dtype).computed("elements", function)
    return cast("TensorHandle", tc.compute(x.shape, function))


def elements_of(x: TensorHandle | Blocked) -> TensorHandle:
    """The handle from which to read elements of x at the indices that `like` passes."""
    return x.handle if isinstance(x, Blocked) else x


def can_be_blocked(shape: tuple[Any, ...]) -> bool:
    """Whether images of this shape can be blocked: all extents but the batch are numbers, on a CPU."""
    is_sized = len(shape) == 4 and all(isinstance(extent, int) for extent in shape[1:])
    return is_sized and tc.machine().is_processor
