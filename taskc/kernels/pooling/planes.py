"""Pooling on processors of NCHW: lanes have neighbouring pixels of a channel's line.

The rows of all windows are folded first, column by column, into lines in the block's memory, with what changes nothing
at their ends in place of padding. The columns of each window are folded from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.pooling.plan import Planes
from taskc.kernels.pooling.problem import Problem


def planes(problem: Problem, plan: Planes) -> KernelDefinition:
    if plan.columns is not None:
        return _parts_of_lines(problem, plan)
    given, made, rows, own = problem.given, problem.made, problem.outputs[0], plan.own
    shape, length = (problem.images, problem.channels, rows), problem.seen(problem.outputs[1])
    fold_rows = _fold_rows(problem, plan)
    fold_columns = _fold_columns(problem, plan, problem.outputs[1])

    @tc.kernel(workers=plan.lanes)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        for image, channel, row in tc.tiles(shape, by=(1, 1, plan.lines)):
            folds = tc.shared(problem.wide[plan.lines, length])
            for r in range(plan.lines):
                for q in range(0, length, own.shape[0]):
                    for (o,) in own:
                        if q + o < length:
                            folds[r, q + o] = problem.start
                if row + r < rows:
                    fold_rows(x, folds, r, image, channel, row + r)
            for r in range(plan.lines):
                if row + r < rows:
                    fold_columns(folds, r, y, image, channel, row + r, 0)

    return pool


def _parts_of_lines(problem: Problem, plan: Planes) -> KernelDefinition:
    """A block has a part of some lines, in the middle or at an end."""
    assert plan.columns is not None
    given, made, (rows, columns), own = problem.given, problem.made, problem.outputs, plan.own
    (height, width), (above, left) = problem.extents, problem.padding[:2]
    (down, right), step, length = problem.stride, problem.dilation[0], problem.seen(plan.columns)
    fold_columns = _fold_columns(problem, plan, plan.columns)

    @tc.function
    def fold_rows(
        x: Any, folds: Any, line: Any, image: Any, channel: Any, i: Any, start: Any
    ) -> Any:
        for q in range(0, length, own.shape[0]):
            found = tc.tile(problem.wide, own, problem.start)
            for r in range(problem.size[0]):
                h = i * down + r * step - above
                if 0 <= h < height:
                    for (o,) in own:
                        column = start + q + o
                        if 0 <= column < width:
                            value = x[image, channel, h, column].to(problem.wide)
                            found[o] = problem.folded(found[o], value)
            for (o,) in own:
                if q + o < length:
                    folds[line, q + o] = found[o]

    @tc.kernel(workers=plan.lanes)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        shape = problem.images, problem.channels, rows, columns
        for image, channel, row, j in tc.tiles(shape, by=(1, 1, plan.lines, plan.columns)):
            folds = tc.shared(problem.wide[plan.lines, length])
            for r in range(plan.lines):
                if row + r < rows:
                    fold_rows(x, folds, r, image, channel, row + r, j * right - left)
            for r in range(plan.lines):
                if row + r < rows:
                    fold_columns(folds, r, y, image, channel, row + r, j)

    return pool


def _fold_rows(problem: Problem, plan: Planes) -> Callable[..., Any]:
    (height, width), above, left = problem.extents, problem.padding[0], problem.padding[1]
    down, step, own = problem.stride[0], problem.dilation[0], plan.own
    wide, start, folded = problem.wide, problem.start, problem.folded
    end = min(width, problem.seen(problem.outputs[1]) - left)  # of what windows see

    @tc.function
    def fold_rows(x: Any, folds: Any, line: Any, image: Any, channel: Any, i: Any) -> Any:
        for q in range(0, end, own.shape[0]):
            found = tc.tile(wide, own, start)
            for r in range(problem.size[0]):
                h = i * down + r * step - above
                if 0 <= h < height:
                    for (o,) in own:
                        if q + o < end:
                            found[o] = folded(found[o], x[image, channel, h, q + o].to(wide))
            for (o,) in own:
                if q + o < end:
                    folds[line, left + q + o] = found[o]

    return fold_rows


def _fold_columns(problem: Problem, plan: Planes, columns: int) -> Callable[..., Any]:
    """Of so many results of a line, from the first on."""
    whole, right, apart = problem.outputs[1], problem.stride[1], problem.dilation[1]
    wide, own, start = problem.wide, plan.own, problem.start
    folded, finished, output_at = problem.folded, problem.finished, problem.output_at

    @tc.function
    def fold_columns(
        folds: Any, line: Any, y: Any, image: Any, channel: Any, i: Any, first: Any
    ) -> Any:
        for j in range(0, columns, own.shape[0]):
            found = tc.tile(wide, own, start)
            for s in range(problem.size[1]):
                for (o,) in own:
                    if j + o < columns:
                        found[o] = folded(found[o], folds[line, (j + o) * right + s * apart])
            for (o,) in own:
                at = first + j + o
                if j + o < columns and at < whole:
                    y[output_at(image, i, at, channel)] = finished(found[o], i, at)

    return fold_columns
