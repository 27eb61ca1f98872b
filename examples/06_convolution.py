"""A 2-D convolution, NHWC, as a matrix product that is never laid out in memory.

`spatial(4, 8) * repeat(4, 4)` says: of a block of 16 pixels x 32 channels each of 32 workers owns 4
neighbouring pixels and 4 neighbouring channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_convolution(
    images: int,
    height: int,
    width: int,
    channels: int,
    features: int,
    *,
    size: int = 3,
    stride: int = 1,
    padding: int = 1,
    bk: int = 8,
    stages: int = 2,
) -> tc.KernelDefinition:
    rows = (height + 2 * padding - size) // stride + 1
    columns = (width + 2 * padding - size) // stride + 1
    pixels, depth = images * rows * columns, size * size * channels
    own = spatial(4, 8) * repeat(4, 4)
    bm, bn = own.shape

    # Pixels are numbered through all images, and the channels under the filter from 0 to depth.

    @tc.function
    def of_x(pixel: Any, q: Any) -> Any:
        return (
            pixel // (rows * columns),
            pixel // columns % rows * stride + q // channels // size - padding,
            pixel % columns * stride + q // channels % size - padding,
            q % channels,
        )

    @tc.function
    def of_w(q: Any, feature: Any) -> Any:
        return q // channels // size, q // channels % size, q % channels, feature

    @tc.function
    def of_y(pixel: Any, feature: Any) -> Any:
        return pixel // (rows * columns), pixel // columns % rows, pixel % columns, feature

    @tc.kernel(workers=own.workers)
    def convolution(
        x: f32[images, height, width, channels],
        w: f32[size, size, channels, features],
        y: tc.out[f32[images, rows, columns, features]],
    ) -> None:
        for pixel, feature in tc.tiles((pixels, features), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(depth, by=bk, stages=stages):
                # An index that is outside, in the padding for one, gives the fill.
                sx = tc.load((bm, bk), lambda i, q: x[of_x(pixel + i, p + q)], fill=0)
                sw = tc.load((bk, bn), lambda q, j: w[of_w(p + q, feature + j)], fill=0)
                for q in range(bk):
                    for i, j in own:
                        acc[i, j] += sx[i, q] * sw[q, j]
            for i, j in own:
                if pixel + i < pixels and feature + j < features:
                    y[of_y(pixel + i, feature + j)] = acc[i, j]

    return convolution


convolution = make_convolution(2, 7, 9, 5, 35)


def main() -> None:
    x, w = convolution.example()
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    exact = np.einsum("nhwcij,ijcf->nhwf", windows, w)
    print(f"convolution: largest error {np.abs(convolution(x, w) - exact).max():.1e}")


if __name__ == "__main__":
    main()
