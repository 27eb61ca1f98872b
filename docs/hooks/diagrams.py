"""Draw the Mermaid flowcharts of a page as SVG, in the page's own colours: a page loads no script from elsewhere.

    flowchart LR                       a direction: LR or TB
        a(["Source"]) --> b["Parse"]   boxes, round or not; <br> breaks a line
        a -->|unless| c                an edge with a text; a box keeps the text that it was given first

Other Mermaid is an error. Code hosts draw all of it themselves.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from typing import Any

_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BOX = re.compile(r'(?P<name>\w+)(?:(?P<round>\()?\["(?P<text>[^"]*)"\]\)?)?')
_ARROW = re.compile(r"\s*-->(?:\|(?P<text>[^|]*)\|)?\s*")

LETTER, LINE, PAD, GAP, APART = 7.3, 17, 11, 46, 14  # pixels: text, inside boxes, between them


@dataclass
class Box:
    lines: list[str]
    is_round: bool
    rank: int = 0
    x: float = 0
    y: float = 0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * LETTER + 2 * PAD

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PAD


@dataclass
class Chart:
    is_across: bool
    boxes: dict[str, Box] = field(default_factory=dict)
    edges: list[tuple[str, str, str]] = field(default_factory=list)  # from, to, text


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _FENCE.sub(lambda found: f"<figure>{drawn(parsed(found[1]))}</figure>", markdown)


def parsed(text: str) -> Chart:
    head, *lines = filter(None, map(str.strip, text.splitlines()))
    if head not in ("flowchart LR", "flowchart TB"):
        raise ValueError(f"a diagram begins with {head!r}")
    chart = Chart(head.endswith("LR"))
    for line in lines:
        position, before, label = 0, "", ""
        while position < len(line):
            box = _BOX.match(line, position)
            if box is None:
                raise ValueError(f"a diagram has the line {line!r}")
            name, position = box["name"], box.end()
            if box["text"] is not None:
                chart.boxes[name] = Box(box["text"].split("<br>"), box["round"] is not None)
            if before:
                chart.edges.append((before, name, label))
            arrow = _ARROW.match(line, position)
            if position < len(line) and arrow is None:
                raise ValueError(f"a diagram has the line {line!r}")
            if arrow is not None:
                before, label, position = name, arrow["text"] or "", arrow.end()
    return chart


def _place(chart: Chart) -> tuple[float, float]:
    """Give every box its position, by ranks: one more than those of the boxes before it. The size of the whole."""
    for _ in chart.boxes:
        for start, end, _text in chart.edges:
            chart.boxes[end].rank = max(chart.boxes[end].rank, chart.boxes[start].rank + 1)
    ends = {end for _, end, _ in chart.edges}
    for start in chart.boxes.keys() - ends:  # one that nothing leads to stands next to its reader
        after = [chart.boxes[end].rank for begin, end, _ in chart.edges if begin == start]
        chart.boxes[start].rank = min(after, default=1) - 1
    ranks: dict[int, list[Box]] = defaultdict(list)
    for box in chart.boxes.values():
        ranks[box.rank].append(box)
    labels: dict[int, float] = defaultdict(float)  # of the widest text on an edge into a rank
    for _, end, text in chart.edges:
        rank = chart.boxes[end].rank
        labels[rank] = max(
            labels[rank], len(text) * LETTER if chart.is_across else LINE * bool(text)
        )

    def along(box: Box) -> float:
        return box.width if chart.is_across else box.height

    def aside(box: Box) -> float:
        return box.height if chart.is_across else box.width

    extent = max(sum(aside(box) + APART for box in rank) for rank in ranks.values())
    position = 2.0
    for number in sorted(ranks):
        rank = ranks[number]
        position += labels[number]
        thickness = max(map(along, rank))
        free = (extent - sum(map(aside, rank))) / len(rank)
        other = free / 2
        for box in rank:
            middle = position + (thickness - along(box)) / 2
            box.x, box.y = (middle, other) if chart.is_across else (other, middle)
            other += aside(box) + free
        position += thickness + GAP
    return (position - GAP + 2, extent) if chart.is_across else (extent, position - GAP + 2)


def drawn(chart: Chart) -> str:
    width, height = _place(chart)
    parts = [
        f'<svg class="diagram" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>'
    ]
    for start, end, text in chart.edges:
        a, b = chart.boxes[start], chart.boxes[end]
        if chart.is_across:
            x, y, u, v = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
            curve = f"C{(x + u) / 2:.1f} {y:.1f} {(x + u) / 2:.1f} {v:.1f}"
        else:
            x, y, u, v = a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y
            curve = f"C{x:.1f} {(y + v) / 2:.1f} {u:.1f} {(y + v) / 2:.1f}"
        parts.append(
            f'<path class="edge" d="M{x:.1f} {y:.1f}{curve} {u:.1f} {v:.1f}" marker-end="url(#arrow)"/>'
        )
        if text:
            place = f'x="{(x + u) / 2:.1f}" y="{(y + v) / 2 - 5:.1f}"'
            parts.append(f'<text class="label" {place}>{escape(text)}</text>')
    for box in chart.boxes.values():
        corner = box.height / 2 if box.is_round else 4
        size = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{corner:.1f}"'
        parts.append(f'<rect x="{box.x:.1f}" y="{box.y:.1f}" {size}/>')
        for number, line in enumerate(box.lines):
            y = box.y + PAD / 2 + LINE * (number + 0.75)
            parts.append(f'<text x="{box.x + box.width / 2:.1f}" y="{y:.1f}">{escape(line)}</text>')
    return "".join([*parts, "</svg>"])
