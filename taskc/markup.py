"""HTML for pages and notebooks: elements with escaped text, tables, and style sheets.

A page is one self-contained file, without fonts or network, and with no scripts but the few lines below. An inset is a
part of somebody else's page, such as a notebook; it has no scripts at all, and doesn't change the rest of that page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

# Characters that affect a terminal or a reader in other ways: control characters, marks of direction, surrogates. Line
# breaks and tabs are allowed.
_UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """A text with each unseen character replaced by its escape."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


class Markup(str):
    """HTML, which isn't escaped again."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: object) -> Markup:
    """An element. Arguments that aren't Markup are escaped as text; `class_` is class, and `data_key` data-key."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(str(value)))}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    return Markup(
        "".join(part if isinstance(part, Markup) else escape(visible(part)) for part in parts)
    )


def section(title: str, *inside: str) -> Markup:
    return tag("section", tag("h2", title), *inside)


def facts_list(facts: Iterable[tuple[str, str]]) -> Markup:
    """Names with their values, as cards."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in facts))


def cell(*inside: str) -> Markup:
    return tag("td", *inside)


def number(value: float | None, text: Callable[[Any], str]) -> Markup:
    """A table cell ordered by its value; empty ones come last."""
    shown, key = ("", "") if value is None else (text(value), value)
    return tag("td", shown, class_="number", data_key=key)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Markup]], *, sorts: bool = False
) -> Markup:
    """A table; if it sorts, pressing a heading sorts by its column."""
    head = tag("thead", tag("tr", *(tag("th", heading) for heading in headings)))
    body = tag("tbody", *(tag("tr", *row) for row in rows))
    made = tag("table", head, body, class_="sorts" if sorts else "still")
    return tag("div", made, class_="wide")


def inset(*inside: str) -> Markup:
    """The HTML that a notebook shows for an object."""
    return tag("div", tag("style", Markup(_INSET)), *inside, class_="taskc")


def page(title: str, *inside: str, style: str = "") -> str:
    """A whole page; `style` is added for pages of its kind."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}{tag("title", title)}<style>{_STYLE}{style}</style></head>\n'
        f"<body>{tag('main', tag('h1', title), *inside)}<script>{_SCRIPT}</script></body></html>\n"
    )


# Styles of pages and insets. A page's colours follow the window's theme. An inset takes its colours from the text
# around it, since notebooks and sites switch themes in their own ways.
_SHARED = """
h3 { font-size: 1rem; margin: 0 0 .3rem; }
p, figcaption, summary, .legend, .few { color: var(--soft); }
pre, code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
code { font-size: .87em; overflow-wrap: anywhere; color: var(--ink); background: none; padding: 0; }
pre { font-size: .87em; line-height: 1.4; color: var(--ink); background: var(--card); margin: .4rem 0;
  padding: .5rem .7rem; border-left: 3px solid transparent; border-radius: 3px; overflow-x: auto; white-space: pre; }
pre.error { border-left-color: #d64545; }
pre.warning { border-left-color: #c98a1b; }
pre.note { border-left-color: #4a86c5; }
.wide { overflow-x: auto; }
.wide + .wide { margin-top: .9em; }
table { border-collapse: collapse; font-size: .95em; }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: .8rem 0; }
figure svg { display: block; max-width: none; }
"""

_STYLE = (
    f"""
:root {{ color-scheme: light dark; --page: #fdfdfc; --ink: #1d2126; --soft: #5a626b; --line: #d5d8dc;
  --card: #f2f3f4; --dot: #2f6fb7; --winner: #0b7a3b; --default: #b34700; --warning: #8a4b00; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #14171b; --ink: #e4e7ea; --soft: #9ba4ad; --line: #363c43;
  --card: #1e2328; --dot: #6ba7ea; --winner: #4cc47f; --default: #f29a4f; --warning: #f0b35a; }} }}
{_SHARED}"""
    + """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 75ch; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl div { background: var(--card); border-radius: 6px; padding: .5rem .7rem; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; font-size: 1.05rem; font-weight: 600; overflow-wrap: anywhere; }
.warning { color: var(--warning); font-weight: 600; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; text-align: left; cursor: pointer; }
th[aria-sort] button::after { content: " \\25B4"; }
th[aria-sort=descending] button::after { content: " \\25BE"; }
td code { display: block; min-width: 15rem; }
ul { margin: .2rem 0 1rem; padding-left: 1.2rem; }
.plot { display: block; width: 100%; max-width: 520px; height: auto; }
.plot text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.plot line, .plot .frame { stroke: var(--line); fill: none; }
.plot path { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.plot .dashed { stroke: var(--soft); stroke-dasharray: 5 4; stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .9rem; }
.legend svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: .3rem; }
.few { font-size: .85rem; }
@media (max-width: 600px) {
  table, thead, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(4, 1fr); border-bottom: 1px solid var(--line); }
  th, td { border: 0; white-space: normal; padding-right: .3rem; }
  th:last-child, td:last-child { grid-column: 1 / -1; }
  td code { min-width: 0; }
}
"""
)

# Three times, for a higher specificity than the surrounding page's own styles of tables.
_INSET = f""".taskc.taskc.taskc {{ --ink: currentColor; --soft: color-mix(in srgb, currentColor 75%, transparent);
  --line: color-mix(in srgb, currentColor 22%, transparent); --card: color-mix(in srgb, currentColor 6%, transparent);
  margin-bottom: 1rem;
code, details, figcaption, figure, pre, summary, table, tbody, td, th, thead, tr {{ all: revert; }}
summary::before, summary::after {{ content: none; }}{_SHARED}}}"""

_SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.onclick = () => {
      const falls = head.ariaSort === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.ariaSort = falls ? "descending" : "ascending";
      const key = row => {
        const {dataset, textContent} = row.cells[column];
        return "key" in dataset ? Number(dataset.key || Infinity) : textContent;
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => (key(a) > key(b)) - (key(a) < key(b)));
      table.tBodies[0].append(...(falls ? rows.reverse() : rows));
    };
  });
}
"""
