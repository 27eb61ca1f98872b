"""Pictures of mappings and findings in notebooks, and mappings as SVG.

The classes don't know HTML: they call `taskc.errors.rendered`, which loads this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

from taskc.errors import Finding, Findings
from taskc.ir.mapping import Mapping
from taskc.ir.mapping_text import FEW, Cell, grid, heading
from taskc.markup import Markup, inset, tag

CELL_HEIGHT = 22
LETTER_WIDTH = 7.25  # of monospace at 12 pixels
GREY = "#808080"  # readable on light and dark pages


def svg(mapping: Mapping, most: int = 64, ink: str = GREY) -> Markup:
    """A standalone grid of at most `most` × `most` cells, coloured by worker; `ink` is the colour of its captions."""
    owners = mapping.pictured
    rows, is_whole = grid(owners, most)
    width = 5 + ceil(LETTER_WIDTH * max(len(cell[1]) for row in rows for cell in row if cell))
    drawn = [
        _svg_cell(cell, j * width, i * CELL_HEIGHT, width, ink)
        for i, row in enumerate(rows)
        for j, cell in enumerate(row)
    ]
    captions = heading(len(owners.shape))
    if not is_whole:
        shown = "corners" if len(rows) > 1 else "ends"
        captions.append(f"{' × '.join(map(str, owners.shape[-2:]))} tasks, the {shown} shown")
    lines = [
        tag("text", caption, x=4, y=f"{(line + 0.5) * CELL_HEIGHT:g}", text_anchor="start")
        for line, caption in enumerate(captions, start=len(rows))
    ]
    height = CELL_HEIGHT * (len(rows) + len(captions))
    widest = max(
        [width * len(rows[0]), *(ceil(LETTER_WIDTH * (1 + len(text))) for text in captions)]
    )
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
    """A cell's background, light enough for its text on any page.

    102.9 degrees are slightly more than 2/7 of the circle: workers whose numbers differ by up to 6, or by a power of
    two up to 128, as neighbours' do, are at least 50 degrees apart. Workers 7 apart differ in lightness.
    """
    return f"hsl({worker * 102.9 % 360:.4g}, 65%, {80 - worker // 7 % 2 * 8}%)"


def figure(mapping: Mapping, caption: Markup, most: int = FEW) -> Markup:
    """The picture within a page, in the page's text colour."""
    picture = tag("div", svg(mapping, most, "currentColor"), class_="wide")
    return tag("figure", tag("figcaption", caption), picture)


def _mapping(mapping: Mapping) -> Markup:
    return inset(figure(mapping, tag("code", mapping.name)))


def _findings(findings: Iterable[Finding]) -> Markup:
    shown = [tag("pre", str(finding), class_=finding.severity) for finding in findings]
    return inset(*(shown or [tag("div", "no findings")]))


_RENDERERS: dict[tuple[type, str], Callable[..., Markup]] = {
    (Mapping, "svg"): svg,
    (Mapping, "html"): _mapping,
    (Finding, "html"): lambda finding: _findings((finding,)),
    (Findings, "html"): _findings,
}


def render(subject: object, form: str, *options: object) -> Markup:
    return _RENDERERS[type(subject), form](subject, *options)
