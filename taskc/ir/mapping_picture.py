"""Pictures of a mapping: who owns which task, as text or as SVG.

A cell shows the worker, and `:slot` where workers have several; `+` says that others own the task
too, `·` that nobody does.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from taskc.ir.mapping_forms import Integers, Shape

Cell = tuple[int, str]  # the worker, -1 for none, and the text

NOBODY = (-1, "·")
CELL_HEIGHT = 22
LETTER_WIDTH = 8
GREY = "#808080"  # can be read on a light and on a dark page


class Owners(NamedTuple):
    """Of each task of an array that holds the shape: its first owner, -1 for none, and how many it has."""

    shape: Shape
    workers: Integers
    slots: Integers
    copies: Integers
    are_slots_shown: bool


def table(owners: Owners) -> str:
    """A grid of at most 16 × 16 cells: the last two dimensions, with the others at 0."""
    rows, _ = _grid(owners, 16)
    texts = [["…" if cell is None else cell[1] for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in texts
    ]
    return "\n".join([*_heading(len(owners.shape)), *lines])


def svg(owners: Owners, most: int = 64) -> str:
    """A grid of at most `most` × `most` cells, coloured by worker."""
    rows, is_whole = _grid(owners, most)
    width = LETTER_WIDTH * (2 + max(len(cell[1]) for row in rows for cell in row if cell))
    shapes = [
        _svg_cell(cell, j * width, i * CELL_HEIGHT, width)
        for i, row in enumerate(rows)
        for j, cell in enumerate(row)
    ]
    captions = _heading(len(owners.shape))
    if not is_whole:
        captions.append(f"{' × '.join(map(str, owners.shape[-2:]))} tasks, the corners shown")
    for line, caption in enumerate(captions, start=len(rows)):
        y = (line + 0.5) * CELL_HEIGHT
        shapes.append(f'<text x="4" y="{y:g}" fill="{GREY}" text-anchor="start">{caption}</text>')
    height = CELL_HEIGHT * (len(rows) + len(captions))
    widest = max(
        [width * len(rows[0]), *(LETTER_WIDTH * (2 + len(caption)) for caption in captions)]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{widest}" height="{height}" '
        f'viewBox="0 0 {widest} {height}" font-family="monospace" font-size="12" '
        f'text-anchor="middle" dominant-baseline="central">{"".join(shapes)}</svg>'
    )


def _svg_cell(cell: Cell | None, x: int, y: int, width: int) -> str:
    worker, text = cell or (-1, "…")
    # A worker's cell brings its own background, so that its ink can be read on any page. The golden
    # angle, 137.5 degrees, keeps the colours of neighbouring workers apart.
    fill = "none" if worker < 0 else f"hsl({worker * 137.5 % 360:g}, 65%, 76%)"
    ink = GREY if worker < 0 else "#1a1a1a"
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{CELL_HEIGHT}" fill="{fill}" '
        f'stroke="{GREY}"/>'
        f'<text x="{x + width / 2:g}" y="{y + CELL_HEIGHT / 2:g}" fill="{ink}">{text}</text>'
    )


def html(owners: Owners, name: str) -> str:
    return f"<div>{svg(owners)}<div><code>{escape(name)}</code></div></div>"


def _heading(rank: int) -> list[str]:
    return [f"[{'0, ' * (rank - 2)}:, :]"] if rank > 2 else []


def _grid(owners: Owners, most: int) -> tuple[list[list[Cell | None]], bool]:
    """The cells of the last two dimensions, None where elided, and whether that is all of them."""
    rank = len(owners.shape)
    plane = (0,) * (rank - 2)

    def last_two(values: Integers) -> Integers:
        leading: Integers = values[plane]
        return leading.reshape(values.shape[-2:] if rank > 1 else (1, -1))

    workers, slots, copies = map(last_two, (owners.workers, owners.slots, owners.copies))
    rows, columns = (_shown(extent, most) for extent in (1, 1, *owners.shape)[-2:])

    def cell(i: int, j: int) -> Cell:
        worker = int(workers[i, j])
        if worker < 0:
            return NOBODY
        slot = f":{slots[i, j]}" if owners.are_slots_shown else ""
        return worker, f"{worker}{slot}{'+' if copies[i, j] > 1 else ''}"

    cells = [[None if i is None or j is None else cell(i, j) for j in columns] for i in rows]
    return cells, None not in rows and None not in columns


def _shown(extent: int, most: int) -> list[int | None]:
    """The indices, with a None for what is left out of the middle."""
    if extent <= most:
        return list(range(extent))
    head = most // 2
    return [*range(head), None, *range(extent - (most - head - 1), extent)]
