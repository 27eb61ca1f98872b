"""A profile as a page of HTML, which needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taskc.format import bytes_text, factor_text, share_text, time_text
from taskc.markup import Markup, cell, number, page, section, table, tag
from taskc.profiling.drawings import STYLE, lanes
from taskc.profiling.profile import Profile, ProfiledCall, Work
from taskc.runtime.settings import VERSION

_COLUMNS = ("time", "share", "predicted", "roofline", "bytes", "moved")


def page_of(found: Profile, named: str, notes: Sequence[str] = ()) -> str:
    """The page of a profile.

    named  the profiled program, as the user named it

    """
    return page(
        found.name,
        tag("p", tag("code", named)),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in _facts(found))),
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
        table((*_COLUMNS, "calls", "kernel"), rows, sorts=True),
    )


def _calls(found: Profile) -> Markup:
    total = found.total.seconds
    rows = (
        (number(place, str), *_numbers(call.work, total), number(call.times, str), _named(call))
        for place, call in enumerate(found.calls, start=1)
    )
    return section("Calls", table(("", *_COLUMNS, "times", "kernel, from"), rows, sorts=True))


def _named(call: ProfiledCall) -> Markup:
    origins = (tag("div", origin, class_="few") for origin in call.origins)
    return cell(tag("code", call.kernel), *origins)


def _numbers(work: Work, total: float) -> tuple[Markup, ...]:
    return (
        number(work.seconds, time_text),
        number(work.seconds / total if total else 0.0, share_text),
        number(work.predicted, time_text),
        number(work.share, share_text),
        number(work.bytes, bytes_text),
        number(
            work.moved / work.bytes if work.bytes else None, lambda ratio: factor_text(ratio, 1.0)
        ),
    )
