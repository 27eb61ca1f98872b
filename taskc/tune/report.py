"""The report of a tuning run as an HTML page: all plans that were tried, and which choices made the best one fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from math import ceil, floor, log10
from statistics import median
from typing import Any, TypeAlias

from taskc.dataclass import dataclass
from taskc.format import number_text, rate_text, share_text, spread_text, time_text
from taskc.ir.mapping import Mapping
from taskc.markup import Markup, cell, facts_list, joined, number, page, section, table, tag
from taskc.pictures import figure
from taskc.runtime.settings import VERSION
from taskc.tune.rows import parts, said, short, text_of
from taskc.tune.tuner import Plan, Trial, Tuned

# --- Pictures: dots and lines on two logarithmic axes, as SVG, and bars


Points: TypeAlias = "Sequence[tuple[float, float]]"

# Designed for a window 360 points wide, where letters keep their size; in a wide one all is a little larger.
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

_ORDER = ("", "default", "winner")  # drawn in this order


@dataclass(frozen=True, slots=True)
class Dot:
    """A dot of a plot.

    kind   winner, default, or nothing
    title  the text of its tooltip
    """

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from `low` to `high`; `text` formats its values."""

    name: str
    low: float
    high: float
    text: Callable[[float], str]

    @staticmethod
    def around(name: str, values: Iterable[float], text: Callable[[float], str]) -> Axis:
        listed = list(values)
        low, high = min(listed) / 1.2, max(listed) * 1.2
        wider = max(1.0, _LEAST_RANGE / (high / low)) ** 0.5
        return Axis(name, low / wider, high * wider, text)

    def place(self, value: float) -> float:
        """The position of a value: 0 to 1 if it is in range."""
        return log10(value / self.low) / log10(self.high / self.low)

    def ticks(self) -> list[float]:
        """A few round numbers in range."""
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
    """A circle, a ring for the default, a diamond for the winner: they differ not only in colour."""
    if kind == "winner":
        place = f"translate({x} {y}) rotate(45)"
        return tag("rect", *inside, class_="dot winner", x=-5, y=-5, width=10, height=10, transform=place)  # fmt: skip
    radius = 6 if kind == "default" else 3.5
    return tag("circle", *inside, class_=f"dot {kind}".strip(), cx=x, cy=y, r=radius)


def legend(*kinds: tuple[str, str]) -> Markup:
    """The meaning of each kind of dot."""
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


_MOST_CELLS = 32  # in a row or a column of a mapping's picture
_MOST_VALUES = 8


def report(found: Tuned, title: str) -> str:
    """An HTML page that needs no other file and no network."""
    return page(
        title,
        *_head(found),
        _finals(found),
        tag("div", _predictions(found), _roofline(found), class_="plots"),
        _choices(found),
        _mappings(found.winner),
        _failures(found),
        _trials(found),
        style=STYLE,
    )


# --- the result ------------------------------------------------------------------------------


def _head(found: Tuned) -> Iterator[Markup]:
    space, tried = found.space, found.trials
    yield tag("p", tag("code", f"{space.operator.name}: {said(space.problem_text)}"))
    yield facts_list(_facts(found))
    yield tag("p", "The best plan: ", tag("code", said(space.text(found.winner))))
    if found.winner != space.default:
        yield tag("p", "The default: ", tag("code", said(space.text(space.default))))
    stages = ", ".join(f"{stage} {runs}" for stage, runs in found.stages.items())
    known = sum(not trial.is_new for trial in tried)
    yield tag("p", f"{known} of the {len(tried)} were known before. Runs of each stage: {stages}.")
    for warning in found.warnings:
        yield tag("p", f"Warning: {warning}", class_="warning")
    if found.was_interrupted:
        yield tag("p", "Interrupted: this is what was found until then.", class_="warning")


def _facts(found: Tuned) -> Iterator[tuple[str, str]]:
    space, seconds = found.space, _seconds(found, found.winner)
    if seconds is not None:
        yield "best time", time_text(seconds)
        if space.work is not None:
            yield "speed", rate_text(space.work.operations / seconds)
            yield "of the roofline", share_text(space.work.seconds / seconds)
    if found.winner == space.default:
        yield "against the default", "it is the default"
    elif (gain := _gain(found)) is not None:
        yield "against the default", f"{gain:.2f} × as fast"
    failed = sum(not trial.result.is_measured for trial in found.trials)
    yield "tried", f"{len(found.trials)} of {len(space.plans)} plans"
    yield "failed", f"{failed}"
    yield "tuning took", f"{found.seconds:.1f} s"
    yield "machine", space.machine.name or "unnamed"
    yield "threads" if space.machine.is_processor else "multiprocessors", f"{space.machine.threads}"
    yield "taskc", VERSION


def _gain(found: Tuned) -> float | None:
    """The speedup of the winner over the default."""
    if found.default is not None:
        return found.default.ratio
    default, best = (_seconds(found, plan) for plan in (found.space.default, found.winner))
    return None if default is None or best is None else default / best


def _finals(found: Tuned) -> Markup:
    if not found.finals:
        return section(
            "Finals",
            tag("p", "There were none: nothing could be measured, or all was known before."),
        )
    rows = (
        (
            number(final.seconds, time_text),
            number(final.spread, spread_text),
            number(final.ratio, "{:.3f}".format),
            cell("{:.3f} to {:.3f}".format(*final.quartiles)),
            cell(_plan(found, final.plan)),
        )
        for final in found.finals
    )
    return section(
        "Finals",
        tag("p", "The best plans and the default ran in turns. A tie goes to the default."),
        table(("median", "spread", "time over the winner's", "its quartiles", "plan"), rows),
    )


# --- pictures --------------------------------------------------------------------------------

_LEGEND = (("winner", "the winner"), ("default", "the default"), ("", "other plans"))


def _predictions(found: Tuned) -> Markup:
    title = "Time against prediction"
    shown = _measured(found)
    if not shown or not _is_predicted(found):
        return section(title, tag("p", "There are no predictions to compare times with."))
    values = [value for trial in shown for value in (trial.predicted, trial.result.seconds)]
    across = Axis.around("predicted", values, time_text)
    up = Axis("measured", across.low, across.high, time_text)
    dots = [
        Dot(trial.predicted, trial.result.seconds, _kind(found, trial.plan), _pointed(found, trial))
        for trial in shown
    ]
    diagonal = [(across.low, across.low), (across.high, across.high)]
    return section(
        title,
        tag("p", "On the dashed line a plan takes as long as the cost model says."),
        tag("figure", plot(title, across, up, dots, diagonal, is_dashed=True), legend(*_LEGEND)),
    )


def _pointed(found: Tuned, trial: Trial) -> str:
    times = f"{time_text(trial.result.seconds)}, predicted {time_text(trial.predicted)}"
    return f"{said(found.space.text(trial.plan))}: {times}"


def _roofline(found: Tuned) -> Markup:
    work, title = found.space.work, "Roofline"
    times = {
        _kind(found, plan): seconds
        for plan in (found.space.default, found.winner)
        if (seconds := _seconds(found, plan)) is not None
    }
    if work is None or not (work.operations and work.nbytes and times):
        return section(title, tag("p", "The work of this problem isn't counted."))
    intensity, peak = work.operations / work.nbytes, work.operations_per_second / 1e9
    ridge = work.operations_per_second / work.bytes_per_second
    speeds = {kind: work.operations / seconds / 1e9 for kind, seconds in times.items()}
    across = Axis.around(
        "operations per byte", (intensity / 4, intensity * 4, ridge / 4, ridge * 4), number_text
    )
    slope = peak * across.low / ridge
    up = Axis.around("GFLOP/s", (slope, peak, *speeds.values()), number_text)
    dots = [Dot(intensity, y, kind, rate_text(1e9 * y)) for kind, y in speeds.items()]
    roof = [(across.low, slope), (ridge, peak), (across.high, peak)]
    return section(
        title,
        tag(
            "p",
            f"The problem has {number_text(intensity)} operations for each byte of its operands. The machine does at"
            f" most {rate_text(1e9 * peak)}, and moves at most {number_text(work.bytes_per_second / 1e9)} GB/s.",
        ),
        tag("figure", plot(title, across, up, dots, roof), legend(*_LEGEND[:2])),
    )


# --- the worth of choices --------------------------------------------------------------------


def _choices(found: Tuned) -> Markup:
    title = "What each choice was worth"
    values = _times_by_choice(found)
    worth = {
        name: max(map(min, times.values())) / min(map(min, times.values()))
        for name, times in values.items()
        if len(times) > 1
    }
    if not worth:
        return section(title, tag("p", "No choice was measured with more than one value."))
    ordered = sorted(worth, key=worth.__getitem__, reverse=True)
    fastest = min(trial.result.seconds for trial in _measured(found))
    return section(
        title,
        tag(
            "p",
            "For each value the fastest of the plans that have it (the faint bar) and the median of these (the "
            "strong one), as speeds: the longer, the faster. Beside a choice's name: how many times as long the "
            "fastest plan of its worst value takes. What else these plans differ in isn't taken out.",
        ),
        tag(
            "div",
            *(_choice(name, worth[name], values[name], fastest) for name in ordered),
            class_="choices",
        ),
    )


def _choice(name: str, worth: float, values: dict[str, list[float]], fastest: float) -> Markup:
    ordered = sorted(values, key=lambda value: min(values[value]))
    lines = []
    for value in ordered[:_MOST_VALUES]:
        best, middle = min(values[value]), median(values[value])
        numbers = f" best {time_text(best)}, median {time_text(middle)}, plans {len(values[value])}"
        lines.append(tag("div", tag("code", value), tag("span", numbers, class_="few")))
        lines.append(bar(fastest / best, fastest / middle))
    left = len(ordered) - _MOST_VALUES
    if left > 0:
        lines.append(tag("p", f"{left} slower values are left out", class_="few"))
    return tag("div", tag("h3", name, tag("span", f" up to {worth:.3g} ×", class_="few")), *lines)


def _times_by_choice(found: Tuned) -> dict[str, dict[str, list[float]]]:
    times: dict[str, dict[str, list[float]]] = {}
    for trial in _measured(found):
        for name, value in parts(text_of(trial.plan, whole=True)).items():
            label = "algorithm" if name == "is" else short(name)
            of_value = times.setdefault(label, {}).setdefault(f"{value}", [])
            of_value.append(trial.result.seconds)
    return times


# --- mappings --------------------------------------------------------------------------------


def _mappings(plan: Plan) -> Markup:
    drawn = [
        figure(mapping, joined((f"{name}: ", tag("code", f"{mapping}"))), _MOST_CELLS)
        for name, mapping in mappings_of(plan)
    ]
    title = "The winner's mappings"
    if not drawn:
        return section(title, tag("p", "It has none."))
    return section(title, tag("p", "Who has which task: worker, or worker:slot."), *drawn)


def mappings_of(value: Any, name: str = "") -> Iterator[tuple[str, Mapping]]:
    """The mappings of a plan by name: in its fields, a template's choices, and properties."""
    if isinstance(value, Mapping):
        yield name, value
    elif isinstance(value, tuple):
        for item in value:
            match item:
                case (str(choice), Mapping() as mapping):
                    yield choice, mapping
    elif is_dataclass(value):
        names = [item.name for item in fields(value)]
        names += [
            key for key in dir(value) if isinstance(getattr(type(value), key, None), property)
        ]
        for key in names:
            yield from mappings_of(getattr(value, key), f"{name}.{key}" if name else key)


# --- all trials ------------------------------------------------------------------------------


def _failures(found: Tuned) -> Markup:
    """The plans that weren't measured, by reason."""
    reasons: dict[tuple[str, str], list[Plan]] = {}
    for trial in found.trials:
        if not trial.result.is_measured:
            reasons.setdefault((trial.result.outcome, trial.result.note), []).append(trial.plan)
    if not reasons:
        return section("Failures", tag("p", "There were none."))
    said_of = (
        tag(
            "div",
            tag("h3", outcome, *([": ", note] if note else [])),
            tag("ul", *(tag("li", _plan(found, plan)) for plan in plans)),
        )
        for (outcome, note), plans in reasons.items()
    )
    return section("Failures", *said_of)


def _trials(found: Tuned) -> Markup:
    """All trials, the fastest first."""
    is_predicted = _is_predicted(found)
    named = "tried, time, spread, samples, predicted, time over that, outcome, plan".split(", ")
    ordered = sorted(enumerate(found.trials, start=1), key=lambda item: item[1].result.seconds)
    rows = (
        _row(found, place, trial, trial.predicted if is_predicted else None)
        for place, trial in ordered
    )
    return section("All trials", table(named, rows, sorts=True))


def _row(found: Tuned, place: int, trial: Trial, predicted: float | None) -> tuple[Markup, ...]:
    result = trial.result
    seconds, spread = (result.seconds, result.spread) if result.is_measured else (None, None)
    ratio = None if seconds is None or predicted is None else seconds / predicted
    return (
        number(place, str),
        number(seconds, time_text),
        number(spread, spread_text),
        number(result.samples, str),
        number(predicted, time_text),
        number(ratio, "{:.2f}".format),
        cell(result.outcome, "" if trial.is_new else ", known before"),
        cell(_plan(found, trial.plan)),
    )


# --- plans and numbers -----------------------------------------------------------------------


def _plan(found: Tuned, plan: Plan) -> Markup:
    """A plan's choices, and whether it is the winner or the default."""
    marks = [("winner", found.winner), ("default", found.space.default)]
    shown = (tag("span", name, " ", class_=f"mark {name}") for name, its in marks if its == plan)
    return joined((tag("code", said(found.space.text(plan))), *shown))


def _kind(found: Tuned, plan: Plan) -> str:
    return "winner" if plan == found.winner else "default" if plan == found.space.default else ""


def _measured(found: Tuned) -> list[Trial]:
    return [trial for trial in found.trials if trial.result.is_measured]


def _is_predicted(found: Tuned) -> bool:
    """Whether there is a cost model: templates may have none."""
    return all(trial.predicted > 0 for trial in found.trials)


def _seconds(found: Tuned, plan: Plan) -> float | None:
    """A plan's time in the finals, or else in its trial."""
    finals = (final.seconds for final in found.finals if final.plan == plan)
    tried = (trial.result.seconds for trial in _measured(found) if trial.plan == plan)
    return next(iter((*finals, *tried)), None)
