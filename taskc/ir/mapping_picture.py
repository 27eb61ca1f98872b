"""Pictures of a mapping: who owns which task, as text or as SVG.

A cell shows the worker, and `:slot` where workers have several; `+` says that others own the task
too, `·` that nobody does. Of a long dimension only both ends are asked for, and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from taskc.ir.mapping_forms import Shape
from taskc.markup import Markup, inset, tag

Cell = tuple[int, str]  # the worker, -1 for none, and the text

NOBODY = (-1, "·")
CELL_HEIGHT = 22
LETTER_WIDTH = 7.25  # of monospace at 12 pixels
GREY = "#808080"  # can be read on a light and on a dark page
FEW = 16  # rows and columns, where others stand around the picture


class Owners(NamedTuple):
    """Who owns which task.

    shape  of the tasks
    of     from tasks, an array of numbers for each dimension: the worker and the slot that own each first, -1 for
           nobody, and how many do
    """

    shape: Shape
    of: Callable[[Sequence[Any]], tuple[Any, Any, Any]]
    are_slots_shown: bool


def table(owners: Owners) -> str:
    """A grid of at most 16 × 16 cells: the last two dimensions, with the others at 0."""
    rows, _ = _grid(owners, FEW)
    texts = [["…" if cell is None else cell[1] for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in texts
    ]
    return "\n".join([*_heading(len(owners.shape)), *lines])


def svg(owners: Owners, most: int, ink: str = GREY) -> Markup:
    """A grid of at most `most` × `most` cells, coloured by worker; `ink` is what is written beside them."""
    rows, is_whole = _grid(owners, most)
    width = 5 + ceil(LETTER_WIDTH * max(len(cell[1]) for row in rows for cell in row if cell))
    drawn = [
        _svg_cell(cell, j * width, i * CELL_HEIGHT, width, ink)
        for i, row in enumerate(rows)
        for j, cell in enumerate(row)
    ]
    captions = _heading(len(owners.shape))
    if not is_whole:
        shown = "corners" if len(rows) > 1 else "ends"
        captions.append(f"{' × '.join(map(str, owners.shape[-2:]))} tasks, the {shown} shown")
    lines = [
        tag("text", caption, x=4, y=f"{(line + 0.5) * CELL_HEIGHT:g}", text_anchor="start")
        for line, caption in enumerate(captions, start=len(rows))
    ]
    height = CELL_HEIGHT * (len(rows) + len(captions))
    widest = max([width * len(rows[0]), *(ceil(LETTER_WIDTH * (1 + len(it))) for it in captions)])
    return tag(
        "svg", tag("g", *drawn, stroke=GREY, stroke_width=0.5), tag("g", *lines, fill=ink),
        xmlns="http://www.w3.org/2000/svg", width=widest + 1, height=height + 1,
        viewBox=f"-0.5 -0.5 {widest + 1} {height + 1}", font_family="monospace", font_size=12,
        text_anchor="middle", dominant_baseline="central",
    )  # fmt: skip


def _svg_cell(cell: Cell | None, x: int, y: int, width: int, ink: str) -> Markup:
    worker, text = cell or (-1, "…")
    fill = "none" if worker < 0 else _colour(worker)
    own_ink = ink if worker < 0 else "#1a1a1a"
    middle = f"{x + width / 2:g}", f"{y + CELL_HEIGHT / 2:g}"
    return Markup(
        f'<rect x="{x}" y="{y}" width="{width}" height="{CELL_HEIGHT}" fill="{fill}"/>'
        f'<text x="{middle[0]}" y="{middle[1]}" fill="{own_ink}" stroke="none">{text}</text>'
    )


def _colour(worker: int) -> str:
    """A cell's background, light enough for its ink whatever the page is.

    102.9 degrees are 2/7 of the circle and a little: workers whose numbers differ by up to 6, or by a power of two up
    to 128, as neighbours' do, are 50 degrees apart at least. Those that differ by 7 are in another lightness.
    """
    return f"hsl({worker * 102.9 % 360:.4g}, 65%, {80 - worker // 7 % 2 * 8}%)"


def html(owners: Owners, name: str) -> str:
    return inset(figure(owners, tag("code", name), FEW))


def figure(owners: Owners, caption: Markup, most: int) -> Markup:
    """The picture within a page, whose ink it takes."""
    picture = tag("div", svg(owners, most, "currentColor"), class_="wide")
    return tag("figure", tag("figcaption", caption), picture)


def _heading(rank: int) -> list[str]:
    return [f"[{'0, ' * (rank - 2)}:, :]"] if rank > 2 else []


def _grid(owners: Owners, most: int) -> tuple[list[list[Cell | None]], bool]:
    """The cells of the last two dimensions, None where elided, and whether that is all of them."""
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
    """The indices, with a None for what is left out of the middle."""
    if extent <= most:
        return list(range(extent))
    head = most // 2
    return [*range(head), None, *range(extent - (most - head - 1), extent)]
