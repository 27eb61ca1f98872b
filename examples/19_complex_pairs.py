"""Complex numbers as pairs: the Mandelbrot set, and a Fourier transform by Stockham's stages.

`spatial(*by)` says: each worker has two pairs of a stage, and stores the two that come of them, so that real and
imaginary part, neighbours in the last dimension, are one worker's.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

import taskc as tc
from taskc import f64, i32, spatial


@tc.function
def times(a: Any, b: Any) -> Any:
    """The product of two pairs."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def make_mandelbrot(rows: Any, columns: int, *, most: int = 20, lanes: int = 16) -> Any:
    @tc.kernel(workers=lanes)
    def mandelbrot(y: f64[rows], x: f64[columns], turns: tc.out[i32[rows, columns]]) -> None:
        for row, column in tc.tiles((rows, columns), by=(1, lanes)):
            for j in spatial(lanes):
                if column + j < columns:
                    z, c = (f64(0), f64(0)), (x[column + j], y[row])
                    re, im, count = z[0], z[1], i32(0)
                    while count < most and re * re + im * im < 4.0:
                        square = times((re, im), (re, im))
                        re, im = square[0] + c[0], square[1] + c[1]
                        count += 1
                    turns[row, column + j] = count

    return mandelbrot


def make_stage(half: int, stride: int, *, lanes: int = 16) -> Any:
    """Butterflies of elements `half` pairs apart, each of `stride` neighbouring transforms."""
    across = min(lanes, stride)
    by = lanes // across, across

    @tc.kernel(workers=by[0] * across)
    def stage(x: f64[2, half, stride, 2], y: tc.out[f64[half, 2, stride, 2]]) -> None:
        for first, start in tc.tiles((half, stride), by=by):
            for i, j in spatial(*by):
                p, q = first + i, start + j
                if p < half and q < stride:
                    angle = p.to(f64) * (-pi / half)
                    root = tc.cos(angle), tc.sin(angle)
                    a, b = (x[0, p, q, 0], x[0, p, q, 1]), (x[1, p, q, 0], x[1, p, q, 1])
                    turned = times((a[0] - b[0], a[1] - b[1]), root)
                    y[p, 0, q, 0], y[p, 0, q, 1] = a[0] + b[0], a[1] + b[1]
                    y[p, 1, q, 0], y[p, 1, q, 1] = turned

    return stage


def make_fourier(n: int, *, lanes: int = 16) -> Any:
    """Of n pairs, a power of 2 and at least 4."""
    strides = [1 << k for k in range(n.bit_length() - 1)]
    stages = [(n // 2 // s, s, make_stage(n // 2 // s, s, lanes=lanes)) for s in strides]

    @tc.program
    def fourier(x: f64[n, 2], y: tc.out[f64[n, 2]]) -> None:
        for half, stride, stage in stages[:-1]:
            x = stage(x.reshape(2, half, stride, 2))
        half, stride, stage = stages[-1]
        stage(x.reshape(2, half, stride, 2), out=y.reshape(half, 2, stride, 2))

    return fourier


mandelbrot, fourier = make_mandelbrot(3, 20), make_fourier(16)


def main() -> None:
    pairs = np.random.default_rng(0).normal(size=(16, 2))
    numbers = pairs @ [1, 1j]
    transformed = fourier(pairs) @ [1, 1j]
    turns = mandelbrot(np.zeros(3), np.linspace(-1.9, 0.24, 20))
    assert (turns == 20).all()  # the real axis from -2 to 1/4 lies in the set
    print(f"complex_pairs: largest error {np.abs(transformed - np.fft.fft(numbers)).max()}")


if __name__ == "__main__":
    main()
