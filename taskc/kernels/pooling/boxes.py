"""Pooling on GPUs, by boxes of results: neighbouring threads have what lies beside each other."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import KernelDefinition
from taskc.kernels.pooling.plan import Boxes
from taskc.kernels.pooling.problem import Problem


def boxes(problem: Problem, plan: Boxes) -> KernelDefinition:
    given, made, own = problem.given, problem.made, plan.own
    (height, width), (taps, across) = problem.extents, problem.size
    (down, right), (step, apart) = problem.stride, problem.dilation
    above, left = problem.padding[:2]
    wide, start, folded, finished = problem.wide, problem.start, problem.folded, problem.finished
    image_at, whole, box = problem.image_at, made.shape, own.shape

    @tc.function
    def pixel(place: Any) -> Any:
        """Image, row, column and channel of a result."""
        n, a, b, c = place
        return (n, a, b, c) if problem.results == "NHWC" else (n, b, c, a)

    @tc.kernel(workers=own.workers)
    def pool(x: tc.typed[given], y: tc.out[made]) -> None:
        for (*first,) in tc.tiles(whole, by=box):
            found = tc.tile(wide, own, start)
            for r in range(taps):
                for s in range(across):
                    for (*at,) in own:
                        place = tuple(first[axis] + at[axis] for axis in range(4))
                        image, i, j, channel = pixel(place)
                        h, column = i * down + r * step - above, j * right + s * apart - left
                        is_there = all(place[axis] < whole[axis] for axis in range(4))
                        if is_there and 0 <= h < height and 0 <= column < width:
                            value = x[image_at(image, h, column, channel)].to(wide)
                            found[at] = folded(found[at], value)
            for (*at,) in own:
                place = tuple(first[axis] + at[axis] for axis in range(4))
                if all(place[axis] < whole[axis] for axis in range(4)):
                    _, i, j, _ = pixel(place)
                    y[place] = finished(found[at], i, j)

    return pool
