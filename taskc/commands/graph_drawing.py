"""Draw a graph as SVG: boxes in layers, each below the boxes that it reads, with lines between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taskc.markup import Markup, joined, tag

_WIDTH, _HEIGHT = 210, 40  # of a box
_BESIDE, _BELOW = 26, 30  # between boxes
_LONGEST = 28  # letters of a line in a box


@dataclass(frozen=True, slots=True)
class Box:
    """A vertex of a graph.

    title, line  its text
    note         its tooltip
    behind       the numbers of the boxes that it reads, each less than its own
    """

    title: str
    line: str
    note: str
    behind: tuple[int, ...]


def drawn(boxes: Sequence[Box]) -> Markup:
    places = _places(boxes)
    width = max((x for x, _ in places), default=0) + _WIDTH + _BESIDE
    height = max((y for _, y in places), default=0) + _HEIGHT + _BELOW
    lines = [
        _line(places[one], places[number])
        for number, box in enumerate(boxes)
        for one in dict.fromkeys(box.behind)
    ]
    shown = [_box(box, *place) for box, place in zip(boxes, places, strict=True)]
    # Full size: the page scrolls.
    return tag(
        "svg", joined(lines), joined(shown), xmlns="http://www.w3.org/2000/svg", width=width,
        height=height, viewBox=f"0 0 {width} {height}", role="img",
    )  # fmt: skip


def _places(boxes: Sequence[Box]) -> list[tuple[int, int]]:
    """The upper left corners; the boxes of a layer are ordered by the mean position of the boxes that they read."""
    layers: list[list[int]] = []
    layer_of: list[int] = []
    for number, box in enumerate(boxes):
        layer = 1 + max((layer_of[one] for one in box.behind), default=-1)
        layer_of.append(layer)
        layers += [[] for _ in range(layer + 1 - len(layers))]
        layers[layer].append(number)
    across = [0.0] * len(boxes)
    for layer_boxes in layers:
        layer_boxes.sort(key=lambda number: _mean(across[one] for one in boxes[number].behind))
        for place, number in enumerate(layer_boxes):
            across[number] = place - (len(layer_boxes) - 1) / 2
    first = min(across, default=0.0)
    return [
        (
            int((x - first) * (_WIDTH + _BESIDE)) + _BESIDE // 2,
            layer * (_HEIGHT + _BELOW) + _BELOW // 2,
        )
        for x, layer in zip(across, layer_of, strict=True)
    ]


def _mean(numbers: Iterable[float]) -> float:
    listed = [*numbers]
    return sum(listed) / len(listed) if listed else 0.0


def _line(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x, y = start[0] + _WIDTH // 2, start[1] + _HEIGHT
    u, v = end[0] + _WIDTH // 2, end[1]
    # A line across several layers bends around their boxes.
    aside = 0 if v - y <= _BELOW else _WIDTH
    path = f"M{x} {y}C{x + aside} {y + _BELOW} {u + aside} {v - _BELOW} {u} {v}"
    return tag("path", d=path, style="fill:none;stroke:var(--soft);stroke-opacity:.6")


def _box(box: Box, x: int, y: int) -> Markup:
    frame = tag(
        "rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=5,
        style="fill:var(--card);stroke:var(--line)",
    )  # fmt: skip
    style = "font:12px system-ui,sans-serif;fill:var(--ink)"
    title = tag("text", _cut(box.title), x=x + 8, y=y + 16, style=f"{style};font-weight:600")
    line = tag("text", _cut(box.line), x=x + 8, y=y + 32, style=style)
    return tag("g", tag("title", box.note), frame, title, line)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
