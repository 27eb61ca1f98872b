"""A profile's pictures: kernels over time, a lane each, and the temporaries in the arena over the same time.

Pictures stretch to the page's width, so their text is beside or below them, and in tooltips.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from taskc.format import bytes_text, time_text
from taskc.markup import Markup, tag
from taskc.profiling.profile import Memory, Profile

_WIDTH = 1000.0
_HEIGHT = 300.0
_NARROW = 0.8  # units of the width: bars that begin closer together are merged
_MOST_LANES = 10

STYLE = """
.lanes { display: grid; grid-template-columns: minmax(5rem, 14rem) 1fr; gap: .25rem .8rem; align-items: center; }
.lanes svg { display: block; width: 100%; background: var(--card); border-radius: 3px; }
.lanes .lane { height: 18px; }
.lanes .arena { height: 240px; }
.lanes rect { fill: var(--dot); }
.lanes .arena rect { fill-opacity: .3; stroke: var(--dot); stroke-width: 1; vector-effect: non-scaling-stroke; }
.lanes line { stroke: var(--default); stroke-dasharray: 6 4; vector-effect: non-scaling-stroke; }
.lanes .name { font-size: .87rem; overflow-wrap: anywhere; }
.axis { display: flex; justify-content: space-between; color: var(--soft); font-size: .85rem; }
@media (max-width: 600px) { .lanes { grid-template-columns: 1fr; gap: .1rem; } }
"""


@dataclass(slots=True)
class _Bar:
    """Consecutive calls drawn as one bar."""

    start: float
    end: float
    title: str
    count: int = 1


def lanes(found: Profile) -> Markup:
    """The calls of each kernel over time, and the arena."""
    names = [name for name, _ in found.by_kernel()]
    shown = names if len(names) <= _MOST_LANES else names[: _MOST_LANES - 1]
    end = sum(seconds for _, seconds in found.sequence)
    bars: dict[str, list[_Bar]] = {name: [] for name in shown}
    others: list[_Bar] = []
    now = 0.0
    for number, seconds in found.sequence:
        call = found.calls[number]
        title = f"{call.kernel}: {time_text(seconds)}"
        if call.origins:
            title += f", {', '.join(call.origins)}"
        bars.get(call.kernel, others).append(_Bar(now, now + seconds, title))
        now += seconds
    rows = [part for name in shown for part in _lane(name, bars[name], end)]
    if others:
        rows += _lane(f"{len(names) - len(shown)} more kernels", others, end)
    rows += [tag("span"), _axis(end)]
    if found.memory.rooms:
        rows += _arena(found.memory, end)
    return tag("div", *rows, class_="lanes")


def _lane(name: str, bars: Sequence[_Bar], end: float) -> Iterator[Markup]:
    drawn = [
        _box(bar.start / end, bar.end / end, 0.0, 1.0, _said(bar)) for bar in _merged(bars, end)
    ]
    yield tag("span", name, class_="name")
    yield _picture("lane", f"calls of {name} over time", drawn)


def _merged(bars: Iterable[_Bar], end: float) -> Iterator[_Bar]:
    """The bars, with ones too narrow to be seen merged into the bar before."""
    last: _Bar | None = None
    for bar in bars:
        if last is not None and (bar.start - last.start) * _WIDTH < _NARROW * end:
            last = _Bar(last.start, bar.end, last.title, last.count + 1)
            continue
        if last is not None:
            yield last
        last = bar
    if last is not None:
        yield last


def _said(bar: _Bar) -> str:
    return bar.title if bar.count == 1 else f"{bar.title}, and {bar.count - 1} more calls"


def _axis(end: float) -> Markup:
    ticks = (tag("span", time_text(end * part / 4) if part else "0") for part in range(5))
    return tag("div", *ticks, class_="axis")


def _arena(memory: Memory, end: float) -> Iterator[Markup]:
    """Each block from its first call's begin to its last call's end, with offset 0 at the bottom."""
    total = max(memory.activations, 1)
    drawn = []
    for room in memory.rooms:
        tensors = ", ".join(dict.fromkeys(room.tensors))
        title = f"{tensors}: {room.bytes:,} bytes from {room.offset:,} on"
        low, high = room.offset / total, (room.offset + room.bytes) / total
        drawn.append(_box(room.start / end, room.end / end, 1 - high, 1 - low, title))
    height = _HEIGHT * (1 - memory.alive / total)
    drawn.append(tag("line", x1=0, x2=_WIDTH, y1=f"{height:.1f}", y2=f"{height:.1f}"))
    yield tag("span", f"arena, {bytes_text(memory.activations)}", class_="name")
    yield _picture("arena", "the arena over time", drawn)


def _box(left: float, right: float, top: float, bottom: float, title: str) -> Markup:
    width, height = max((right - left) * _WIDTH, 0.3), max((bottom - top) * _HEIGHT, 0.3)
    return tag(
        "rect", tag("title", title), x=f"{left * _WIDTH:.2f}", y=f"{top * _HEIGHT:.2f}",
        width=f"{width:.2f}", height=f"{height:.2f}",
    )  # fmt: skip


def _picture(kind: str, title: str, drawn: Iterable[Markup]) -> Markup:
    box = f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"
    return tag(
        "svg", tag("title", title), *drawn, class_=kind, role="img", viewBox=box,
        preserveAspectRatio="none",
    )  # fmt: skip
