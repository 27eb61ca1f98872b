"""A 2-D convolution, NHWC, as a matrix product that is never laid out in memory.

`spatial(4, 8) * repeat(4, 4)` says: of a block of 16 pixels x 32 channels each of 32 workers owns 4
neighbouring pixels and 4 neighbouring channels.
"""

from __future__ import annotations

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial


def make_convolution(
    images, height, width, channels, filters, *, size=3, stride=1, padding=1, bk=8, stages=2
):
    rows = (height + 2 * padding - size) // stride + 1
    columns = (width + 2 * padding - size) // stride + 1
    pixels, depth = images * rows * columns, size * size * channels
    own = spatial(4, 8) * repeat(4, 4)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def convolution(
        x: f32[images, height, width, channels],
        w: f32[size, size, channels, filters],
        y: tc.out[f32[images, rows, columns, filters]],
    ):
        for pixel, filter in tc.tiles((pixels, filters), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(depth, by=bk, stages=stages):
                # Row i of this block is a pixel of y, column q a channel under the filter. Where
                # the index leaves x, in the padding too, the value is 0.
                sx = tc.load(
                    (bm, bk),
                    lambda i, q: x[
                        (pixel + i) // (rows * columns),
                        (pixel + i) // columns % rows * stride
                        + (p + q) // channels // size
                        - padding,
                        (pixel + i) % columns * stride + (p + q) // channels % size - padding,
                        (p + q) % channels,
                    ],
                    fill=0,
                )
                sw = tc.load(
                    (bk, bn),
                    lambda q, j: w[
                        (p + q) // channels // size,
                        (p + q) // channels % size,
                        (p + q) % channels,
                        filter + j,
                    ],
                    fill=0,
                )
                for q in range(bk):
                    for i, j in own:
                        acc[i, j] += sx[i, q] * sw[q, j]
            for i, j in own:
                if pixel + i < pixels and filter + j < filters:
                    image, place = (pixel + i) // (rows * columns), (pixel + i) % (rows * columns)
                    y[image, place // columns, place % columns, filter + j] = acc[i, j]

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
