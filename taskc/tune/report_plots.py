"""The report's pictures: points and lines on two logarithmic axes, as SVG within a page, and bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TypeAlias

from taskc.markup import Markup, tag

Points: TypeAlias = "Sequence[tuple[float, float]]"

# For a window of 360 points, where letters keep their size; on a wide one all is a little larger.
_WIDTH, _HEIGHT = 330, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 22, 38
_MOST_TICKS = 5
_LEAST_RANGE = 4.0  # an axis's end over its start

STYLE = """
.mark { font-size: .8rem; font-weight: 600; }
.mark.winner { color: var(--winner); }
.mark.default { color: var(--default); }
.dot { fill: var(--dot); fill-opacity: .5; }
.dot.default { fill: var(--page); fill-opacity: .6; stroke: var(--default); stroke-width: 2.5; }
.dot.winner { fill: var(--winner); fill-opacity: 1; stroke: var(--page); stroke-width: 1; }
.choices, .plots { display: grid; gap: 1.4rem 2rem; }
.choices { grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 0 2rem; }
.bar { height: 9px; background: var(--card); border-radius: 2px; position: relative; margin: .1rem 0 .45rem; }
.bar span { position: absolute; inset: 0 auto 0 0; border-radius: 2px; background: var(--dot); opacity: .4; }
.bar .median { opacity: 1; }
"""

_ORDER = ("", "default", "winner")  # what is drawn over what


@dataclass(frozen=True, slots=True)
class Dot:
    """kind   winner, default, or nothing
    title  what is said where it is pointed at
    """

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic one, from `low` to `high`; `text` names its values."""

    name: str
    low: float
    high: float
    text: Callable[[float], str]

    @staticmethod
    def around(name: str, values: Iterable[float], text: Callable[[float], str]) -> Axis:
        found = list(values)
        low, high = min(found) / 1.2, max(found) * 1.2
        wider = max(1.0, _LEAST_RANGE / (high / low)) ** 0.5
        return Axis(name, low / wider, high * wider, text)

    def place(self, value: float) -> float:
        """0 to 1, if it is in range."""
        return log10(value / self.low) / log10(self.high / self.low)

    def ticks(self) -> list[float]:
        """Round numbers in range: few of them."""
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            ticks = [step * 10.0**power for power in powers for step in steps]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) <= _MOST_TICKS:
                return ticks
        return ticks[:: ceil(len(ticks) / _MOST_TICKS)]


def plot(
    name: str, across: Axis, up: Axis, dots: Iterable[Dot], line: Points, *, is_dashed: bool = False
) -> Markup:
    """Dots, and a line whose points are in range."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at(x: float, y: float) -> tuple[str, str]:
        from_left, from_bottom = across.place(x), up.place(y)
        return (
            f"{_LEFT + from_left * (right - _LEFT):.1f}",
            f"{bottom - from_bottom * (bottom - _TOP):.1f}",
        )

    drawn = [tag("title", name)]
    for tick in across.ticks():
        x, _ = at(tick, up.low)
        drawn.append(tag("line", x1=x, x2=x, y1=_TOP, y2=bottom))
        drawn.append(tag("text", across.text(tick), x=x, y=bottom + 14, text_anchor="middle"))
    for tick in up.ticks():
        _, y = at(across.low, tick)
        drawn.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y))
        drawn.append(tag("text", up.text(tick), x=_LEFT - 5, y=y, dy=4, text_anchor="end"))
    drawn.append(tag("text", across.name, x=right, y=_HEIGHT - 5, text_anchor="end"))
    drawn.append(tag("text", up.name, x=0, y=12))
    path = "L".join(" ".join(at(*point)) for point in line)
    drawn.append(tag("path", d=f"M{path}", class_="dashed" if is_dashed else "line"))
    for dot in sorted(dots, key=lambda dot: _ORDER.index(dot.kind)):
        x, y = at(dot.x, dot.y)
        drawn.append(_shape(dot.kind, x, y, tag("title", dot.title)))
    return tag("svg", *drawn, class_="plot", role="img", viewBox=f"0 0 {_WIDTH} {_HEIGHT}")


def _shape(kind: str, x: str, y: str, *inside: str) -> Markup:
    """A circle, the default's a ring, the winner's a diamond: they differ in more than colour."""
    if kind == "winner":
        place = f"translate({x} {y}) rotate(45)"
        return tag("rect", *inside, class_="dot winner", x=-5, y=-5, width=10, height=10, transform=place)  # fmt: skip
    radius = 6 if kind == "default" else 3.5
    return tag("circle", *inside, class_=f"dot {kind}".strip(), cx=x, cy=y, r=radius)


def legend(*kinds: tuple[str, str]) -> Markup:
    """What each kind of dot is."""
    said = (
        tag("span", tag("svg", _shape(kind, "0", "0"), viewBox="-8 -8 16 16"), text)
        for kind, text in kinds
    )
    return tag("div", *said, class_="legend")


def bar(best: float, middle: float) -> Markup:
    """Two shares of the whole in one bar."""
    parts = (
        tag("span", class_=name, style=f"width: {100 * share:.1f}%")
        for name, share in (("best", best), ("median", middle))
    )
    return tag("div", *parts, class_="bar", aria_hidden="true")
