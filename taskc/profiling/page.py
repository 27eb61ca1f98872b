"""A profile as a page of HTML, which needs no other file and no network.

A profile's pictures: kernels over time, a lane each, and the temporaries in the arena over the same time.

Pictures stretch to the page's width, so their text is beside or below them, and in tooltips.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from taskc.dataclass import dataclass
from taskc.format import bytes_text, share_text, time_text
from taskc.markup import Markup, cell, facts_list, number, page, section, table, tag
from taskc.profiling.profile import COLUMNS, Memory, Profile, ProfiledCall, Work
from taskc.runtime.settings import VERSION

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
    for place, seconds in found.sequence:
        call = found.calls[place]
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


def page_of(found: Profile, named: str, notes: Sequence[str] = ()) -> str:
    """The page of a profile.

    named  the profiled program, as the user named it
    """
    return page(
        found.name,
        tag("p", tag("code", named)),
        facts_list(_facts(found)),
        *(tag("p", f"Note: {note}.", class_="warning") for note in notes),
        _pictures(found),
        _memory(found),
        _kernels(found),
        _calls(found),
        style=STYLE,
    )


def _facts(found: Profile) -> Iterator[tuple[str, str]]:
    total = found.total
    yield "by one call", time_text(found.seconds)
    yield "call by call", time_text(total.seconds)
    yield "predicted", time_text(total.predicted)
    yield "of the roofline", share_text(total.share)
    yield "bytes, at least", bytes_text(total.bytes)
    yield "loaded and stored", bytes_text(total.moved)
    yield "operations", f"{total.operations:,}"
    yield "calls", f"{sum(call.times for call in found.calls):,}"
    yield "kernels", f"{len({call.kernel for call in found.calls}):,}"
    yield "threads", f"{found.threads}"
    yield "rounds", f"{found.rounds}"
    yield "taskc", VERSION


def _pictures(found: Profile) -> Markup:
    title = "Calls over time"
    if not any(seconds for _, seconds in found.sequence):
        return section(title, tag("p", "There are none that take any."))
    said = "Each call where it was made, in the lane of its kernel: point at one to see what it is."
    if found.memory.rooms:
        said += (
            " Below, where temporaries lie in the arena, from the first call that needs them to the last one; the"
            " dashed line is the most that is needed at once."
        )
    return section(title, tag("p", said), lanes(found))


def _memory(found: Profile) -> Markup:
    memory = found.memory
    rows = (
        ("weights", memory.weights, "constants"),
        ("activations", memory.activations, "the arena, in which temporaries lie"),
        ("needed at once", memory.alive, "of these: no arena is smaller"),
        ("workspace", memory.workspace, "what kernels have for themselves, on all threads"),
        ("inputs", memory.inputs, "the caller's"),
        ("outputs", memory.outputs, "the caller's"),
    )
    made = ((cell(name), number(count, "{:,}".format), cell(said)) for name, count, said in rows)
    return section("Memory", table(("what", "bytes", ""), made))


def _kernels(found: Profile) -> Markup:
    total = found.total.seconds
    rows = (
        (
            *_numbers(Work.sum(call.work for call in calls), total),
            number(sum(call.times for call in calls), str),
            cell(tag("code", kernel)),
        )
        for kernel, calls in found.by_kernel()
    )
    return section(
        "Kernels",
        tag(
            "p",
            "Predicted is the least that the processor takes, for the bytes or for the operations, and roofline how "
            "much of the time that is. Bytes are those of the arguments, each part once; moved says how many times as "
            "much is loaded and stored, of memory or of a cache.",
        ),
        table((*COLUMNS, "calls", "kernel"), rows, sorts=True),
    )


def _calls(found: Profile) -> Markup:
    total = found.total.seconds
    rows = (
        (number(place, str), *_numbers(call.work, total), number(call.times, str), _named(call))
        for place, call in enumerate(found.calls, start=1)
    )
    return section("Calls", table(("", *COLUMNS, "times", "kernel, from"), rows, sorts=True))


def _named(call: ProfiledCall) -> Markup:
    origins = (tag("div", origin, class_="few") for origin in call.origins)
    return cell(tag("code", call.kernel), *origins)


def _numbers(work: Work, total: float) -> tuple[Markup, ...]:
    return tuple([number(value(work, total), text) for value, text in COLUMNS.values()])
