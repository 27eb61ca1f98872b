"""3 x 3 convolutions on processors by Winograd's F(4 x 4, 3 x 3): 36 products for 16 results, in place of 144.

A tile of 4 x 4 results is of 6 x 6 pixels, which overlap those of the tiles beside it:

    results = A^T ((G w G^T) * (B^T pixels B)) A        with * of 36 pairs of numbers, summed over the channels

A block has some rows of tiles, and of all their channels the transforms in its memory. For a few vectors of
features at a time, 36 GEMMs follow, as tall as the block has tiles, and their sums are transformed back. Filters are
packed as transforms, in the order in which the GEMMs read them.

Errors are larger than those of direct sums, and spread: an infinity makes no numbers of whole tiles. Of pixels from the
standard normal distribution, with filters that give results of their magnitude, in f32, against f64:

    channels        64       128      256      512
    root of mean squares, of that of results
      winograd      1.7e-6   2.3e-6   2.9e-6   3.6e-6
      direct        4.3e-7   6.0e-7   8.3e-7   1.1e-6
    largest, of the largest result
      winograd      5.9e-6   1.1e-5   1.5e-5   1.5e-5
      direct        8.8e-7   1.2e-6   1.7e-6   2.4e-6
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, TypeAlias

import numpy as np

import taskc as tc
from taskc import CompileError, TensorType, f64, repeat, spatial
from taskc.ir.arithmetic import convert
from taskc.kernels.convolution.plan import Winograd
from taskc.kernels.convolution.problem import Problem
from taskc.kernels.signatures import Function, Value, Values

Array: TypeAlias = "np.ndarray[Any, Any]"
Matrix = tuple[tuple[float, ...], ...]

# B^T = BOTH @ PIXELS, G = BOTH @ FILTERS / 24 and A^T = RESULTS @ BOTH, of the points 0, 1, -1, 2, -2 and
# infinity: what is found of a point and of its opposite is the sum and the difference of what even and odd powers have.
BOTH: Matrix = (
    (1, 0, 0, 0, 0, 0),
    (0, 1, 1, 0, 0, 0),
    (0, 1, -1, 0, 0, 0),
    (0, 0, 0, 1, 1, 0),
    (0, 0, 0, 1, -1, 0),
    (0, 0, 0, 0, 0, 1),
)
PIXELS: Matrix = (
    (4, 0, -5, 0, 1, 0),
    (0, 0, -4, 0, 1, 0),
    (0, -4, 0, 1, 0, 0),
    (0, 0, -1, 0, 1, 0),
    (0, -2, 0, 2, 0, 0),
    (0, 4, 0, -5, 0, 1),
)
FILTERS: Matrix = ((6, 0, 0), (-4, 0, -4), (0, -4, 0), (1, 0, 4), (0, 2, 0), (0, 0, 24))
SCALE = 24.0**-2  # of filters, which are transformed along both axes
_AT_A_TIME = 1 << 13  # numbers that NumPy transforms at a time, which stay in a core's cache
RESULTS: Matrix = (
    (1, 1, 0, 1, 0, 0),
    (0, 0, 1, 0, 2, 0),
    (0, 1, 0, 4, 0, 0),
    (0, 0, 1, 0, 8, 1),
)


@tc.function
def transform(tile: Value, extent: int, first: Matrix, second: Matrix, lanes: int) -> None:
    """Replace the extent x extent elements of a tile by M tile M^T, where M is second @ first.

    All columns come first, then all rows: loops, so that a kernel has the text of one column and one row.
    """
    for b in range(extent):
        for lane in spatial(lanes):
            column = [tile[a, b, lane] for a in range(extent)]
            changed = product(second, product(first, column))
            for a, value in enumerate(changed):
                tile[a, b, lane] = value
    for a in range(len(second)):
        for lane in spatial(lanes):
            row = [tile[a, b, lane] for b in range(extent)]
            changed = product(second, product(first, row))
            for b, value in enumerate(changed):
                tile[a, b, lane] = value


@tc.function
def product(matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    return [combination(tc.static(terms(row)), values) for row in matrix]


def terms(row: tuple[float, ...]) -> list[tuple[int, float]]:
    """Places and factors, that of 1 first, which takes no product."""
    found = [(place, factor) for place, factor in enumerate(row) if factor]
    return sorted(found, key=lambda term: term[1] != 1)


@tc.function
def combination(terms: list[tuple[int, float]], values: Sequence[Value]) -> Value:
    first, scale = terms[0]
    total = values[first] if scale == 1 else values[first] * scale
    for place, factor in tc.static(terms[1:]):
        total = total + values[place] * factor
    return total


def packed_type(problem: Problem, plan: Winograd) -> TensorType:
    """The type of packed filters: 36 numbers for each feature and channel, zeros beyond features and channels."""
    blocks = max(1, ceil(problem.features / plan.wide))
    layout = repeat(blocks, 36, plan.vectors_of(problem) * plan.lanes) * repeat(plan.wide, 1, 1)
    return problem.dtype[layout.shape].laid(layout)


def pack_filters(problem: Problem, plan: Winograd) -> tc.KernelDefinition:
    """Transforms filters, G w G^T, in f64: it is done once, and errors of it are in all that is summed."""
    given, made, lanes = problem.types[1], packed_type(problem, plan), plan.lanes
    filter_at, features, channels = problem.filter_at, problem.features, problem.channels
    own = repeat(6, 6, 1) * spatial(1, 1, lanes)

    @tc.function
    def tap(w: Value, f: Value, r: Value, s: Value, c: Value) -> Any:
        value = f64(0)
        if f < features and c < channels:
            value = w[filter_at(f, r, s, c)].to(f64)
        return value

    @tc.kernel(workers=lanes)
    def pack_filters(w: tc.typed[given], packed: tc.out[made]) -> None:
        for f, c in tc.tiles((made.shape[0], made.shape[2]), by=(lanes, lanes)):
            for q in range(lanes):
                u = tc.tile(f64, own)
                for r in range(3):
                    for s in range(3):
                        for o in spatial(lanes):
                            u[r, s, o] = tap(w, f + o, r, s, c + q)
                transform(u, 3, FILTERS, BOTH, lanes)
                for a, b, o in own:
                    packed[f + o, 6 * a + b, c + q] = (u[a, b, o] * SCALE).to(problem.dtype)

    pack_filters.by_numpy = _packed_by_numpy(problem, plan)
    return pack_filters


def _packed_by_numpy(problem: Problem, plan: Winograd) -> Callable[[Array], Array]:
    """A function from an array of filters to their transforms, with the bits that the kernel stores.

    A factor is a power of two, or that of a sum's only term: a fused sum is that of the rounded products.
    """
    features, _, channels = packed_type(problem, plan).shape
    axes = [problem.filters.index(axis) for axis in "HWOI"]

    def packed(w: Array) -> Array:
        added = [(0, features - problem.features), (0, channels - problem.channels)]
        taps = np.pad(w.transpose(axes), [(0, 0), (0, 0), *added])
        filters = np.empty((features, 36, channels), problem.dtype.numpy)
        step = max(1, _AT_A_TIME // channels)
        for first in range(0, features, step):
            here = slice(first, first + step)
            columns = product(FILTERS, [*convert(taps[:, :, here], problem.dtype, f64)])
            for a, row in enumerate(product(BOTH, columns)):
                for b, u in enumerate(product(BOTH, product(FILTERS, [*row]))):
                    filters[here, 6 * a + b] = convert(u * SCALE, f64, problem.dtype)
        return filters

    return packed


def winograd(problem: Problem, plan: Winograd) -> tc.KernelDefinition | tc.ProgramDefinition:
    if misfit := plan.misfit(problem):
        raise CompileError(f"this plan doesn't fit the convolution: {misfit}", hint=str(plan))
    vectors, whole, lanes = plan.vectors_of(problem), plan.tiles_of(problem), plan.lanes
    lines, _ = plan.lines_of(problem)
    features, total = problem.stored_features, problem.total
    load_pixels = _load_pixels(problem, plan)
    finish = _finish(problem, plan)

    @tc.function
    def blocks(x: Value, w: Value, further: Values, y: Value) -> None:
        shape, by = (problem.images, features, lines), (1, plan.features, plan.lines)
        for image, feature, line in tc.tiles(shape, by=by, order=plan.order):
            pixels = tc.shared(total[36, vectors, whole, lanes])
            sums = tc.shared(total[36, plan.vectors, whole, lanes])
            load_pixels(x, pixels, image, line)
            for f in range(0, plan.features, plan.wide):
                if feature + f < features:
                    _multiply(problem, plan, pixels, w, sums, feature + f)
                    finish(sums, further, y, image, feature + f, line)

    return problem.of_packed(lanes, blocks, pack_filters(problem, plan))


def _load_pixels(problem: Problem, plan: Winograd) -> Function:
    vectors, lanes, total = plan.vectors_of(problem), plan.lanes, problem.total
    _, across = plan.lines_of(problem)
    shape = (vectors, 4 * plan.lines + 2, 4 * across + 2, lanes)
    own = repeat(6, 6, 1) * spatial(1, 1, lanes)
    image_at, (above, left, _, _) = problem.image_at, problem.padding

    @tc.function
    def load_pixels(x: Value, pixels: Value, image: Value, line: Value) -> None:
        """pixels[6 * a + b] = (B^T d B)[a, b], for the pixels d of all tiles of a block."""
        near = tc.load(
            shape,
            lambda q, i, j, c: x[image_at(image, 4 * line + i - above, j - left, lanes * q + c)].to(
                total
            ),
            fill=0,
        )
        for q in range(vectors):
            for i in range(plan.lines):
                for j in range(across):
                    d = tc.tile(total, own)
                    for a, b, c in own:
                        d[a, b, c] = near[q, 4 * i + a, 4 * j + b, c]
                    transform(d, 6, PIXELS, BOTH, lanes)
                    for a, b, c in own:
                        pixels[6 * a + b, q, i * across + j, c] = d[a, b, c]

    return load_pixels


@tc.function
def _multiply(
    problem: Problem, plan: Winograd, pixels: Value, w: Value, sums: Value, feature: Value
) -> None:
    """36 GEMMs; the last tiles of registers overlap those before them."""
    vectors, tiles, lanes = plan.vectors_of(problem), plan.tiles_of(problem), plan.lanes
    for n in range(36):
        for first in range(0, tiles, plan.tiles):
            t = min(first, tiles - plan.tiles)
            acc = tc.tile(problem.total, plan.own, 0)
            for q in range(vectors):
                for c in range(lanes):
                    for i, v, o in plan.own:
                        number = w[feature + v * lanes + o, n, lanes * q + c]
                        acc[i, v, o] += pixels[n, q, t + i, c] * number.to(problem.total)
            for i, v, o in plan.own:
                sums[n, v, t + i, o] = acc[i, v, o]


def _finish(problem: Problem, plan: Winograd) -> Function:
    (_, across), lanes, epilogue = plan.lines_of(problem), plan.lanes, problem.epilogue
    features, stored = problem.features, problem.stored_features
    (height, width), output_at = problem.outputs, problem.output_at
    own, made = (repeat(n, n, 1) * spatial(1, 1, lanes) for n in (6, 4))

    @tc.function
    def finish(
        sums: Value, further: Values, y: Value, image: Value, feature: Value, line: Value
    ) -> None:
        """A^T m A of all tiles of a block, as results."""
        for v in range(plan.vectors):
            for i in range(plan.lines):
                for j in range(across):
                    m = tc.tile(problem.total, own)
                    for a, b, o in own:
                        m[a, b, o] = sums[6 * a + b, v, i * across + j, o]
                    transform(m, 6, BOTH, RESULTS, lanes)
                    for a, b, o in made:
                        h, k = 4 * (line + i) + a, 4 * j + b
                        f = feature + v * lanes + o
                        if h < height and k < width and f < stored:
                            at = output_at(image, h, k, f)
                            value = problem.result(0)
                            if f < features:
                                value = epilogue(m[a, b, o], further, f, at)
                            y[at] = value

    return finish
