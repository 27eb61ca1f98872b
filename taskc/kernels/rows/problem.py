"""Functions of rows along an axis as problems: softmax and normalizations, whichever algorithm computes them.

The operands, their order and their types are written down here.
"""

from __future__ import annotations

from math import prod

import taskc as tc
from taskc import DType, Mapping
from taskc.dataclass import dataclass
from taskc.kernels.signatures import Extent, Function, Value, wide


@dataclass(frozen=True, slots=True)
class Groups:
    """Images [images, channels, ...] whose rows are groups of neighbouring channels.

    A normalization's parameters are those of channels, and not of a row's elements.
    """

    shape: tuple[Extent, ...]
    count: int

    @property
    def channels(self) -> int:
        return int(self.shape[1])

    @property
    def pixels(self) -> int:
        return prod(self.shape[2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """y = function(x) for each row of x[m, n], or of x[m, n, inner] along the middle axis.

    Numbers of 16 bits are converted as they are read.

    function         softmax, log_softmax, layer_norm or rms_norm
    scaled, shifted  whether a normalization has such an operand, of n elements
    epsilon          what a normalization adds to the variance
    groups           what rows are, where they are groups of an image's channels
    """

    function: str
    m: Extent
    n: Extent
    dtype: DType
    scaled: bool = False
    shifted: bool = False
    epsilon: float = 1e-5
    inner: Extent = 1
    groups: Groups | None = None

    @property
    def is_contiguous(self) -> bool:
        """Whether a row's elements are neighbours."""
        return isinstance(self.inner, int) and self.inner == 1

    @property
    def wide(self) -> DType:
        """The type of sums and powers."""
        return wide(self.dtype)

    @property
    def has_peak(self) -> bool:
        """Whether a row's largest element is looked for."""
        return self.function in ("softmax", "log_softmax")

    @property
    def is_centred(self) -> bool:
        """Whether a row's mean is taken away before its variance is taken."""
        return self.function == "layer_norm"

    @property
    def parameter_of(self) -> Function:
        """The parameter of a row's element."""
        groups = self.groups

        @tc.function
        def parameter_of(row: Value, j: Value) -> Value:
            if groups is None:
                return j
            else:
                return row % groups.count * (groups.channels // groups.count) + j // groups.pixels

        return parameter_of

    def kernel(self, own: Mapping, rows: int, block: Function) -> tc.KernelDefinition:
        """block(x, scale, shift, y, *first) for so many rows at a time, as a kernel of the problem's parameters."""
        inner, by = ((), (rows,)) if self.is_contiguous else ((self.inner,), (1, rows))
        shape, tiled = (self.m, self.n, *inner), (self.m, *inner)
        array, vector = self.dtype[shape], (self.dtype[self.n],)
        if self.groups is not None:
            array = self.dtype[self.groups.shape].reshape(*shape)
            vector = (self.dtype[self.groups.channels],)

        def kernel(
            x: tc.typed[array],
            scale: tc.typed[vector if self.scaled else ()],
            shift: tc.typed[vector if self.shifted else ()],
            y: tc.out[array],
        ) -> None:
            for (*first,) in tc.tiles(tiled, by=by):
                block(x, scale, shift, y, *first)

        kernel.__name__ = self.function
        return tc.kernel(workers=own.workers)(kernel)
