"""Pooling on processors of NHWC and NCHWc: lanes have channels, and a tile has neighbouring pixels of a line.

    own = repeat(pixels, vectors) * spatial(1, lanes)

The columns that a tile's windows see are folded first, each down its window's rows, and then a window's columns. So
neighbouring windows share what they have in common, and each number is read once. Nothing around an image is read: rows
outside are left out, and the tiles of a line that reach over its ends are code of their own. Where the
width is known only at a call, so are these tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.images import channels_of, tiles_of_line
from taskc.kernels.pooling.plan import Lines
from taskc.kernels.pooling.problem import Problem

_UNROLLED = 4  # parts of a window, beyond which they are a loop


def lines(problem: Problem, plan: Lines) -> KernelDefinition:
    given, made, (rows, columns) = problem.given, problem.made, problem.outputs
    stored = channels_of(made, problem.results)
    tile = _tile(problem, plan)
    is_open = not isinstance(columns, int)  # known only at a call
    parts = () if is_open else tiles_of_line(columns, plan.pixels, problem.inside(1))

    @tc.function
    def line(x: Any, y: Any, image: Any, channel: Any, i: Any) -> Any:
        if is_open:
            for j in range(0, columns, plan.pixels):
                for c in range(0, plan.channels, plan.wide):
                    if channel + c < stored:
                        tile(x, y, image, channel + c, i, j, plan.pixels, None)
        for part in tc.static(parts):
            for t in range(part.count):
                j = part.first + t * part.wide
                for c in range(0, plan.channels, plan.wide):
                    if channel + c < stored:
                        tile(x, y, image, channel + c, i, j, part.wide, part.is_inside)

    @tc.kernel(workers=plan.lanes)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        shape, by = (problem.images, stored, rows), (1, plan.channels, plan.lines)
        for image, channel, row in tc.tiles(shape, by=by):
            for r in range(plan.lines):
                if row + r < rows:
                    line(x, y, image, channel, row + r)

    return pool


def _tile(problem: Problem, plan: Lines) -> Callable[..., Any]:
    wide, start, folded, finished = problem.wide, problem.start, problem.folded, problem.finished
    (_, across), (_, right) = problem.size, problem.stride
    output_at, stored = problem.output_at, channels_of(problem.made, problem.results)
    taps = min(across, plan.taps)
    fold_columns, apart = _fold_columns(problem, plan), problem.dilation[1] // plan.unit(problem)

    columns, width, left = problem.outputs[1], problem.extents[1], problem.padding[1]

    @tc.function
    def seen_columns(
        x: Any,
        seen: Any,
        folds: Any,
        image: Any,
        channel: Any,
        i: Any,
        j: Any,
        first: Any,
        is_inside: Any,
    ) -> Any:
        """What a tile's windows see, which is inside the image, or not, or it is known only at a call (None)."""
        start = j * right + first * problem.dilation[1] - left
        if is_inside is not None:
            fold_columns(x, seen, folds, image, channel, i, j, first, is_inside)
        elif start >= 0 and start + (folds.shape[0] - 1) * plan.unit(problem) < width:
            fold_columns(x, seen, folds, image, channel, i, j, first, True)
        else:
            fold_columns(x, seen, folds, image, channel, i, j, first, False)

    @tc.function
    def fold(
        x: Any,
        found: Any,
        own: Any,
        image: Any,
        channel: Any,
        i: Any,
        j: Any,
        first: Any,
        is_first: Any,
        is_inside: Any,
    ) -> Any:
        """Folds some columns of each window, from the tap `first` on."""
        pixels = own.shape[0]
        folds = plan.tile((pixels - 1) * right + (taps - 1) * apart + 1)
        seen = tc.tile(wide, folds, start)
        seen_columns(x, seen, folds, image, channel, i, j, first, is_inside)
        for s in tc.static(range(taps)):
            for p, o in own:
                value = seen[p * right + s * apart, o]
                found[p, o] = value if is_first and s == 0 else folded(found[p, o], value)

    @tc.function
    def tile(
        x: Any, y: Any, image: Any, channel: Any, i: Any, j: Any, pixels: Any, is_inside: Any
    ) -> Any:
        own = plan.tile(pixels)
        found = tc.tile(wide, own, start)
        if across <= taps * _UNROLLED:
            for first in tc.static(range(0, across, taps)):
                fold(x, found, own, image, channel, i, j, first, first == 0, is_inside)
        else:
            for first in range(0, across, taps):
                fold(x, found, own, image, channel, i, j, first, False, is_inside)
        for p, o in own:
            if channel + o < stored and (is_inside is not None or j + p < columns):
                value = finished(found[p, o], i, j + p)
                is_one = channel + o < problem.channels
                y[output_at(image, i, j + p, channel + o)] = value if is_one else 0

    return tile


def _fold_columns(problem: Problem, plan: Lines) -> Callable[..., Any]:
    (height, width), (taps, across) = problem.extents, problem.size
    (down, right), (step, apart) = problem.stride, problem.dilation
    (above, left), unit = problem.padding[:2], plan.unit(problem)
    wide, folded, image_at = problem.wide, problem.folded, problem.image_at
    given = channels_of(problem.given, problem.order)
    is_whole = across % min(across, plan.taps) == 0

    @tc.function
    def fold_row(
        x: Any,
        seen: Any,
        folds: Any,
        image: Any,
        channel: Any,
        i: Any,
        j: Any,
        r: Any,
        first: Any,
        is_inside: Any,
    ) -> Any:
        h = i * down + r * step - above
        if 0 <= h < height:
            for q, o in folds:
                column = j * right + first * apart + q * unit - left
                is_there = (is_inside or 0 <= column < width) and channel + o < given
                if is_there and (is_whole or first + q < across):
                    value = x[image_at(image, h, column, channel + o)].to(wide)
                    seen[q, o] = value if r == 0 else folded(seen[q, o], value)

    @tc.function
    def fold_columns(
        x: Any,
        seen: Any,
        folds: Any,
        image: Any,
        channel: Any,
        i: Any,
        j: Any,
        first: Any,
        is_inside: Any,
    ) -> Any:
        """Each column that the windows from j on see, from their tap `first` on."""
        fold_row(x, seen, folds, image, channel, i, j, 0, first, is_inside)
        for r in range(1, taps):
            fold_row(x, seen, folds, image, channel, i, j, r, first, is_inside)

    return fold_columns
