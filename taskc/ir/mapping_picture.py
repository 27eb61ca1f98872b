"""Tables of a mapping, which show the owner of each task; `taskc/pictures.py` draws them.

A cell shows the worker, and `:slot` where workers have several slots; `+` marks tasks with more owners,
`·` tasks without any. Of a long dimension only both ends are computed and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from taskc.ir.mapping_forms import Shape

Cell = tuple[int, str]  # the worker, -1 for none, and the text

NOBODY = (-1, "·")
FEW = 16  # most rows and columns in a text table


class Owners(NamedTuple):
    """The owners of tasks.

    shape  of the tasks
    of     from tasks, an array of numbers for each dimension: the worker and the slot that own each first, -1 for
           nobody, and how many do
    """

    shape: Shape
    of: Callable[[Sequence[Any]], tuple[Any, Any, Any]]
    are_slots_shown: bool


def table(owners: Owners) -> str:
    """A grid of at most 16 × 16 cells: the last two dimensions, with the others at 0."""
    rows, _ = grid(owners, FEW)
    texts = [["…" if cell is None else cell[1] for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in texts
    ]
    return "\n".join([*heading(len(owners.shape)), *lines])


def heading(rank: int) -> list[str]:
    return [f"[{'0, ' * (rank - 2)}:, :]"] if rank > 2 else []


def grid(owners: Owners, most: int) -> tuple[list[list[Cell | None]], bool]:
    """The cells of the last two dimensions, None where elided, and whether these are all."""
    rows, columns = (_shown(extent, most) for extent in (1, 1, *owners.shape)[-2:])
    asked = [[place for place in places if place is not None] for places in (rows, columns)]
    plane = np.ix_(*asked)
    leading = [np.int64(0)] * (len(owners.shape) - 2)
    coordinates = [*leading, *plane][-len(owners.shape) :]
    workers, slots, copies = (
        iter(np.broadcast_to(values, (len(asked[0]), len(asked[1]))).ravel().tolist())
        for values in owners.of(coordinates)
    )

    def cell(worker: int, slot: int, count: int) -> Cell:
        if worker < 0:
            return NOBODY
        own = f":{slot}" if owners.are_slots_shown else ""
        return worker, f"{worker}{own}{'+' if count > 1 else ''}"

    cells = [
        [
            None if None in (i, j) else cell(next(workers), next(slots), next(copies))
            for j in columns
        ]
        for i in rows
    ]
    return cells, None not in rows and None not in columns


def _shown(extent: int, most: int) -> list[int | None]:
    """The indices, with a None for those left out in the middle."""
    if extent <= most:
        return list(range(extent))
    head = most // 2
    return [*range(head), None, *range(extent - (most - head - 1), extent)]
