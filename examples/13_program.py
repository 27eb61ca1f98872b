"""A layer of a network, a recurrence and a loop until nothing changes: programs, fused into few kernels, each one call.

`tc.compute((rows, columns), lambda i, j: …)` says: each element is this expression of its indices, and who computes
it is left open; so the compiler puts the bias and gelu into the stores of the first product and the residual into those
of the second one, and `taskc show examples/13_program.py:layer --stage fused` has two kernels where four calls are
written.
"""

from __future__ import annotations

from math import erf, sqrt

import numpy as np

import taskc as tc
from taskc import f32
from taskc.kernels.matmul import matmul

ROWS, WIDE, INNER = 24, 32, 64

random = np.random.default_rng(0)
up = random.standard_normal((WIDE, INNER)).astype(np.float32) / 8
down = random.standard_normal((INNER, WIDE)).astype(np.float32) / 8
bias = random.standard_normal(INNER).astype(np.float32)


@tc.program
def layer(x: f32[ROWS, WIDE], y: tc.out[f32[ROWS, WIDE]]) -> None:
    offsets = tc.constant(bias)
    wide = matmul(ROWS, INNER, WIDE, packed=True)(x, up)
    active = tc.compute((ROWS, INNER), lambda i, j: tc.gelu(wide[i, j] + offsets[j]))
    narrow = matmul(ROWS, WIDE, INNER, packed=True)(active, down)
    tc.compute((ROWS, WIDE), lambda i, j: x[i, j] + narrow[i, j], out=y)


@tc.program
def last(x: f32[ROWS, WIDE], y: tc.out[f32[ROWS, WIDE]]) -> None:
    """Row t of the result is the mean of the rows up to t, the later ones weighing more."""
    first = x[0]
    tc.compute(WIDE, lambda j: first[j], out=y[0])
    for t in tc.steps(ROWS - 1):
        before, new = y[t], x[t + 1]
        tc.compute(WIDE, lambda j: before[j] * 0.5 + new[j] * 0.5, out=y[t + 1])


@tc.kernel(workers=8)
def differ(x: f32[1, WIDE], z: f32[1, WIDE], far: tc.out[tc.boolean[1]]) -> None:
    for row in tc.tiles(1, by=1):
        own = tc.repeat(1, WIDE // 8) * tc.spatial(1, 8)
        change = tc.tile(f32, own)
        for i, j in own:
            change[i, j] = abs(x[row + i, j] - z[row + i, j])
        largest = tc.reduce(change, 1, "max")
        for i in largest.mapping:
            far[row + i] = largest[i] > 1e-6


def chances_of(random: np.random.Generator) -> tuple[np.ndarray]:
    chances = random.random((WIDE, WIDE)).astype(np.float32)
    return (chances / chances.sum(1, keepdims=True),)


@tc.program(example=chances_of)
def steady(chances: f32[WIDE, WIDE], y: tc.out[f32[1, WIDE]]) -> None:
    """How often a Markov chain is in each of its states, in the long run: steps until they change nothing."""
    x = tc.compute((1, WIDE), lambda i, j: f32(1 / WIDE))
    moves = tc.compute(1, lambda i: True)
    for _ in tc.steps_while(moves):
        following = matmul(1, WIDE, WIDE)(x, chances)
        differ(x, following, out=moves)
        tc.compute((1, WIDE), lambda i, j: following[i, j], out=x)
    tc.compute((1, WIDE), lambda i, j: x[i, j], out=y)


def main() -> None:
    x = random.standard_normal((ROWS, WIDE)).astype(np.float32)
    h = x.astype(np.float64) @ up + bias
    gelu = np.vectorize(lambda value: value * (1 + erf(value / sqrt(2))) / 2)
    errors = [np.abs(layer(x) - (x + gelu(h) @ down)).max()]
    mean = x[0].astype(np.float64)
    for row in x[1:]:
        mean = (mean + row) / 2
    errors.append(np.abs(last(x)[-1] - mean).max())
    (chances,) = steady.example()
    x = steady(chances)
    errors.append(np.abs(x @ chances - x).max())
    print(f"program: largest error {max(errors):.1e}")


if __name__ == "__main__":
    main()
