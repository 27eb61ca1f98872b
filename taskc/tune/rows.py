"""What the tuning database keeps, and its text: a line of JSON for each row and fact.

    {"format": 1}
    {"operator": "matmul", "problem": "{…}", "plan": "{…}", "machine": "…", "outcome": "measured", …}
    {"machine": "…", "fact": "bandwidth", "value": 2.5e10}

The first line says the format; it may stand anywhere, so that files can be joined. What is read is checked field by
field, and nothing in it is evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn

from taskc.tune.texts import is_written

FORMAT = 1  # of the lines
MEASURED = ("measured", "chosen")
OUTCOMES = (*MEASURED, "wrong", "crashed", "timed out", "refused")
LONGEST = 1 << 19  # characters of a line

_LONGEST_TEXT = 1 << 14
_LONGEST_NAME = 512
_MOST_SECONDS = 1e6
_VERSION = re.compile(r"(\d{1,9}(?:\.\d{1,9}){0,3})([a-z.]{0,8}\d{0,9})(\+[0-9a-z.]{1,64})?")


class RowError(ValueError):
    """What is to be kept is no row."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a plan for a problem on a machine.

    problem, plan  JSON on one line, always the same for the same problem and plan
    machine    its fingerprint
    version    taskc's
    outcome    one of OUTCOMES: "chosen" is the one of those measured that tuning decided for
    seconds    of a call, the median; None where it wasn't measured
    spread     the range between its quartiles over the median
    predicted  seconds, by the cost model
    date       ISO, UTC, as `now` says it
    note       the error's first line, or the signal, for one
    digest     of what was measured
    """

    operator: str
    problem: str
    plan: str
    machine: str
    version: str
    outcome: str
    seconds: float | None
    spread: float | None
    samples: int
    predicted: float | None
    date: str
    note: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that was measured of a machine, such as a bandwidth."""

    machine: str
    fact: str
    value: float


def now() -> str:
    """The date of a row that is made now."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def days_ago(days: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(days=days)).isoformat(timespec="seconds")


def version_order(version: str) -> tuple[tuple[int, ...], bool]:
    """Sorts versions: of 0.10.0rc1, 0.9.0 and 0.10.0 the last is the newest. It is silent about builds (`+…`)."""
    said = _VERSION.fullmatch(version)
    return (tuple(map(int, said[1].split("."))), not said[2]) if said else ((), False)


# --- checks ------------------------------------------------------------------------------------


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_NAME


def _is_json(value: Any) -> bool:
    """On one line, as problems and plans are written. What can't be printed JSON escapes."""
    is_line = isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_TEXT
    return is_line and is_written(value)


def _is_note(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        return False
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_duration(value: Any) -> bool:
    return value is None or _is_number(value, 0, _MOST_SECONDS)


def _is_date(value: Any) -> bool:
    """In the one form whose order as text is that of time."""
    try:
        date = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return date.utcoffset() == timedelta(0) and date.isoformat() == value


_DURATION = (_is_duration, "a number of seconds up to a million, or nothing")
_NAME = (_is_name, f"a name of at most {_LONGEST_NAME} characters that can be printed")
_JSON = (_is_json, "JSON on one line, as taskc writes it")
_NOTE = (_is_note, "a text")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "operator": _NAME,
    "problem": _JSON,
    "plan": _JSON,
    "machine": _NAME,
    "version": (
        lambda value: isinstance(value, str) and _VERSION.fullmatch(value) is not None,
        "a version of taskc",
    ),
    "outcome": (
        lambda value: isinstance(value, str) and value in OUTCOMES,
        f"one of {', '.join(OUTCOMES)}",
    ),
    "seconds": _DURATION,
    "spread": (
        lambda value: value is None or _is_number(value, 0, 1e6),
        "a number of at least 0, or nothing",
    ),
    "samples": (
        lambda value: isinstance(value, int) and _is_number(value, 0, 1e9),
        "a whole number of at least 0",
    ),
    "predicted": _DURATION,
    "date": (_is_date, "a date such as 2026-01-31T12:30:00+00:00"),
    "note": _NOTE,
    "digest": _NOTE,
    "fact": _NAME,
    "value": (lambda value: _is_number(value, -1e30, 1e30), "a number"),
}


def check(item: Row | Fact) -> None:
    """Raises a RowError where a field is not what it has to be."""
    for field in fields(item):
        value = getattr(item, field.name)
        is_right, expected = _CHECKS[field.name]
        if not is_right(value):
            raise RowError(f"{field.name} is {expected}, not {_shown(value)}")
    if isinstance(item, Row) and item.outcome in MEASURED and not (item.seconds and item.samples):
        raise RowError(f"a row that is {item.outcome} has seconds and samples")


def _shown(value: object) -> str:
    """An unknown value, in short: of a long number even the digits are work."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return f"a number of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


# --- lines -------------------------------------------------------------------------------------


def header() -> str:
    return json.dumps({"format": FORMAT})


def to_line(item: Row | Fact) -> str:
    return json.dumps(asdict(item))


def from_line(line: str) -> Row | Fact | None:
    """What a line says; None of one that says the format. A RowError says what is wrong with it."""
    if len(line) > LONGEST:
        raise RowError(f"it has more than {LONGEST} characters")
    try:
        said = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RowError(f"it isn't JSON: {error}") from None
    if not isinstance(said, dict):
        raise RowError(f"it has {_shown(said)} in place of named fields")
    if set(said) == {"format"}:
        if said["format"] != FORMAT:
            raise RowError(f"its format is {_shown(said['format'])}; this taskc reads {FORMAT}")
        return None
    kind = Fact if "fact" in said else Row
    item = kind(**_named(kind, said))
    check(item)
    return item


def _named(kind: type[Row | Fact], said: dict[str, Any]) -> dict[str, Any]:
    known = {field.name: field.default for field in fields(kind)}
    unknown = sorted(said.keys() - known.keys())
    missing = [name for name in known if known[name] is MISSING and name not in said]
    if unknown:
        raise RowError(f"there is no field {_shown(unknown[0])}")
    if missing:
        raise RowError(f"the field {missing[0]} is missing")
    return said


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
