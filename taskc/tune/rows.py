"""Rows and facts of the tuning database, and their text: a line of JSON for each.

    {"format": 1}
    {"operator": "matmul", "problem": "{…}", "plan": "{…}", "machine": "…", "outcome": "measured", …}
    {"machine": "…", "fact": "bandwidth", "value": 2.5e10}

A line for the format comes first, and may occur anywhere, so that files can be joined. Every field that is read is
checked, and nothing is evaluated.

A problem or a plan is one line of JSON, too, the same in all runs:

    {"is": "Panels", "lanes": 16, "rows": 8, "tall": 16, "vectors": 3}

Fields with default values are left out, so that adding a field doesn't change existing texts.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Mapping as Names
from contextlib import closing, suppress
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from taskc.dataclass import dataclass
from taskc.ir.mapping import Mapping
from taskc.ir.types import DTYPES, DType
from taskc.lang.sizes import Dimension

# --- problems and plans as text ----------------------------------------------------------------

FUNCTION = "function "  # the prefix of a function's name in the parts of a text

_KIND = "is"
_FORM: Any = {"sort_keys": True, "separators": (",", ":")}


def text_of(value: Any, *, whole: bool = False) -> str:
    """The text of frozen data: numbers, strings, types, mappings, tuples of these, and functions by name.

    whole  include fields with default values: for people, not as a key
    """
    return json.dumps(_plain(value, whole), **_FORM)


def _plain(value: Any, whole: bool) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_plain(item, whole) for item in value]
        case DType():
            return {_KIND: "type", "name": str(value)}
        case Mapping():
            return {_KIND: "mapping", "text": str(value)}
        case Dimension():
            return {_KIND: "dim", "multiple": value.multiple}
    if is_dataclass(value) and not isinstance(value, type):
        given = {
            item.name: _plain(getattr(value, item.name), whole)
            for item in fields(value)
            if item.compare and (whole or getattr(value, item.name) != _default(item))
        }
        return {_KIND: type(value).__name__, **given}
    if callable(value):
        return {_KIND: "function", "name": _name_of(value)}
    return {_KIND: type(value).__name__, "text": str(value)}


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _name_of(value: Callable[..., Any]) -> str:
    named = getattr(value, "function", value)
    module = getattr(named, "__module__", "")
    name = getattr(named, "__qualname__", None) or getattr(named, "__name__", type(named).__name__)
    return f"{module}.{name}"


class TextError(ValueError):
    """A text isn't that of a plan."""


_DEEPEST = 16
_GREATEST = 1 << 63
# The field of each kind of tagged object, with its type.
_TAGGED: dict[str, tuple[str, type]] = {
    "type": ("name", str), "mapping": ("text", str), "dim": ("multiple", int), "function": ("name", str),
}  # fmt: skip


def is_written(text: str) -> bool:
    """Whether a text from a file could have been written by `text_of`, so that `parts` accepts it."""
    try:
        said = json.loads(text)
        return _is_plain(said, 0) and json.dumps(said, allow_nan=False, **_FORM) == text
    except (ValueError, RecursionError):
        return False


def _is_plain(said: Any, depth: int) -> bool:
    match said:
        case int():  # a bool, too
            return -_GREATEST <= said < _GREATEST
        case list():
            return depth < _DEEPEST and all(_is_plain(item, depth + 1) for item in said)
        case dict():
            kind = said.get(_KIND)
            if isinstance(kind, str) and kind in _TAGGED:
                name, expected = _TAGGED[kind]
                return said.keys() == {_KIND, name} and type(said[name]) is expected
            return depth < _DEEPEST and all(_is_plain(item, depth + 1) for item in said.values())
    return True  # a string, a float or null


def plan_of(text: str, types: Names[str, type]) -> Any:
    """The plan of a text, of one of these types."""
    try:
        said = json.loads(text)
        made = _made(said, types)
    except Exception as error:  # a plan's constructor may raise anything
        raise TextError(f"this is no plan: {text[:200]}") from error
    if type(made) not in types.values():
        raise TextError(f"this is no plan: {text[:200]}")
    return made


def _made(said: Any, types: Names[str, type]) -> Any:
    match said:
        case None | bool() | int() | float() | str():
            return said
        case list():
            return tuple([_made(item, types) for item in said])
        case {"is": "type", "name": str(name)}:
            return DTYPES[name]
        case {"is": "mapping", "text": str(text)}:
            return Mapping.parse(text)
        case {"is": str(kind)}:
            given = {name: _made(value, types) for name, value in said.items() if name != _KIND}
            return types[kind](**given)
    raise TextError(f"{said!r} is no part of a plan")


@cache
def parts(text: str) -> dict[str, Any]:
    """The choices of a text by name: nested ones as `few.depth`, and a template's as `values.bk`."""
    choices: dict[str, Any] = {}

    def collect(value: Any, prefix: str) -> None:
        kind = value.get(_KIND) if isinstance(value, dict) else None
        if kind == "function":
            choices[prefix] = f"{FUNCTION}{value['name']}"
        elif kind in ("type", "mapping"):
            choices[prefix] = value.get("name") or value.get("text")
        elif isinstance(value, dict):
            for name, item in value.items():
                collect(item, f"{prefix}.{name}" if prefix else name)
        elif isinstance(value, list):
            for name, item in value if _are_named(value) else enumerate(value):
                collect(item, f"{prefix}.{name}")
        else:
            choices[prefix] = value

    collect(json.loads(text), "")
    return choices


def _are_named(items: list[Any]) -> bool:
    """Whether the items are pairs of a name and a value."""
    return all(
        isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in items
    )


def said(text: str) -> str:
    """A plan or a problem for people: `Panels lanes=16 rows=8`."""
    named = dict(parts(text))
    kind = named.pop(_KIND, "")
    return " ".join([kind, *(f"{short(name)}={value}" for name, value in named.items())])


def short(name: str) -> str:
    """A choice's name for people, without the prefix of a template's choices and arguments."""
    return name.removeprefix("values.").removeprefix("given.")


# --- rows --------------------------------------------------------------------------------------

FORMAT = 1  # of the lines
MEASURED = ("measured", "chosen")
OUTCOMES = (*MEASURED, "wrong", "crashed", "timed out", "refused")
LONGEST = 1 << 19  # characters of a line

_LONGEST_TEXT = 1 << 14
_LONGEST_NAME = 512
_MOST_SECONDS = 1e6
_VERSION = re.compile(r"(\d{1,9}(?:\.\d{1,9}){0,3})([a-z.]{0,8}\d{0,9})(\+[0-9a-z.]{1,64})?")


class RowError(ValueError):
    """An item isn't a valid row or fact."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a plan for a problem on a machine.

    problem, plan  JSON on one line, always the same for the same problem and plan
    machine    the machine's fingerprint
    version    taskc's version
    outcome    one of OUTCOMES: "chosen" is the measured plan that tuning decided for
    seconds    the median of a call's time; None if it wasn't measured
    spread     the interquartile range over the median
    predicted  seconds by the cost model
    date       ISO, UTC, in the form of `now`
    note       such as an error's first line, or a signal
    digest     of the candidate's text
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
    """A measured number of a machine, such as a bandwidth."""

    machine: str
    fact: str
    value: float


def now() -> str:
    """The date of a row made now."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def days_ago(days: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(days=days)).isoformat(timespec="seconds")


def version_order(version: str) -> tuple[tuple[int, ...], bool]:
    """A sort key of versions: 0.10.0 is newer than 0.10.0rc1 and 0.9.0. Builds (`+…`) don't count."""
    match = _VERSION.fullmatch(version)
    return (tuple(map(int, match[1].split("."))), not match[2]) if match else ((), False)


# --- checks ------------------------------------------------------------------------------------


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_NAME


def _is_json(value: Any) -> bool:
    """Whether it is one line of JSON as problems and plans are written. JSON escapes unprintable characters."""
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
    """Whether it is in the one form whose text order is its time order."""
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
    """Raise a RowError if a field is invalid."""
    for field in fields(item):
        value = getattr(item, field.name)
        is_right, expected = _CHECKS[field.name]
        if not is_right(value):
            raise RowError(f"{field.name} is {expected}, not {_shown(value)}")
    if isinstance(item, Row) and item.outcome in MEASURED and not (item.seconds and item.samples):
        raise RowError(f"a row that is {item.outcome} has seconds and samples")


def _shown(value: object) -> str:
    """An unknown value in short: even converting a long number to digits takes long."""
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
    """The item of a line; None for a line with the format. An invalid line raises a RowError."""
    if len(line) > LONGEST:
        raise RowError(f"it has more than {LONGEST} characters")
    try:
        fields_read = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RowError(f"it isn't JSON: {error}") from None
    if not isinstance(fields_read, dict):
        raise RowError(f"it has {_shown(fields_read)} in place of named fields")
    if set(fields_read) == {"format"}:
        if fields_read["format"] != FORMAT:
            raise RowError(
                f"its format is {_shown(fields_read['format'])}; this taskc reads {FORMAT}"
            )
        return None
    kind = Fact if "fact" in fields_read else Row
    item = kind(**_named(kind, fields_read))
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


# --- The database's file: its format, how it is opened, and readable errors


# Statements that migrate the file to each format from the one before. Its number is SQLite's `user_version`.
FORMATS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE results (
            operator TEXT NOT NULL, problem TEXT NOT NULL, plan TEXT NOT NULL, machine TEXT NOT NULL,
            version TEXT NOT NULL, outcome TEXT NOT NULL, seconds REAL, spread REAL,
            samples INTEGER NOT NULL, predicted REAL, date TEXT NOT NULL, note TEXT NOT NULL,
            digest TEXT NOT NULL,
            PRIMARY KEY (operator, machine, problem, version, plan)
        ) WITHOUT ROWID""",
        f"""CREATE INDEX fastest ON results (operator, machine, problem, version, outcome, seconds)
            WHERE outcome IN {MEASURED}""",
        """CREATE TABLE facts (
            machine TEXT NOT NULL, fact TEXT NOT NULL, value REAL NOT NULL,
            PRIMARY KEY (machine, fact)
        ) WITHOUT ROWID""",
    ),
)

COLUMNS = ", ".join(field.name for field in fields(Row))
_WAIT = 10.0  # seconds for another process's lock, and for reading another database
_LARGEST = 256 << 20  # bytes of a database to merge
_STEPS = 10_000  # of SQLite's virtual machine, between two looks at the clock

# SQLite's messages, and readable ones. Error codes exist only since Python 3.11.
_DAMAGED = "it is damaged, or no database; if it is moved away, another is begun"
_REASONS = (
    ("is full", "there is no space left"),
    ("disk I/O error", "the disk is full, or broken"),
    ("readonly", "it can't be written"),
    ("unable to open", "it, or its folder, can't be written"),
    ("not a database", _DAMAGED),
    ("malformed", _DAMAGED),
    ("UTF-8", _DAMAGED),
    ("utf-8", _DAMAGED),
    ("no such", _DAMAGED),  # table, or column
    ("locked", "another process has locked it for too long"),
    ("interrupted", "reading it takes too long"),
)


class DatabaseError(OSError):
    """The database can't be used; the message is a sentence that says why."""


def new_file(path: Path) -> None:
    """An empty file, which SQLite accepts as a new database; files that SQLite adds get its permissions."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))


def connect(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path, "mode=rw")
    except sqlite3.OperationalError:
        log = path.with_name(f"{path.name}-wal")
        if os.access(path.parent, os.W_OK) or (log.exists() and log.stat().st_size):
            raise
        return _connect(path, "immutable=1")  # otherwise SQLite would write even to read


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=_WAIT,
        isolation_level=None,  # transactions are explicit
        check_same_thread=False,  # `Database` has a lock
    )
    try:
        _migrate(connection, path)
        if mode == "mode=rw":
            # A committed row survives its process, though not a power failure right after.
            connection.execute("PRAGMA synchronous = NORMAL")
            with suppress(sqlite3.OperationalError):  # another process is doing it
                connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate it to the newest format."""
    if _format(connection, path) == len(FORMATS):
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for statements in FORMATS[_format(connection, path) :]:  # another process may have done it
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(FORMATS)}")


def _format(connection: sqlite3.Connection, path: Path) -> int:
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= number <= len(FORMATS):
        raise DatabaseError(
            f"the tuning database {path} is of a newer taskc: its format is {number}, and this one"
            f" knows {len(FORMATS)}"
        )
    return int(number)


def content(path: Path) -> list[Row | Fact]:
    """The content of a database of any format. The file is untrusted: only known tables are read."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DatabaseError(f"{path} is no regular file")
    if status.st_size > _LARGEST:
        raise DatabaseError(f"{path} has {status.st_size >> 20} MiB: {_LARGEST >> 20} are the most")
    end = time.monotonic() + _WAIT
    name = f"{path.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(name, uri=True, timeout=_WAIT)) as other,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as copy,
    ):
        for connection in (other, copy):
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        number = _format(other, path)
        if not number or _schema(other) != _schema_of(number):
            raise DatabaseError(f"{path} is no tuning database")
        other.backup(copy)
        _migrate(copy, path)
        rows = copy.execute(f"SELECT {COLUMNS} FROM results").fetchall()
        facts = copy.execute("SELECT machine, fact, value FROM facts").fetchall()
    return [*(Row(*values) for values in rows), *(Fact(*values) for values in facts)]


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """The statements that created a database's tables, views and triggers."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100"
    return {*connection.execute(query).fetchall()}


def _schema_of(number: int) -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statements in FORMATS[:number]:
            for statement in statements:
                fresh.execute(statement)
        return _schema(fresh)


def told(path: Path, error: Exception) -> DatabaseError:
    """A database error as a readable `DatabaseError`."""
    if isinstance(error, DatabaseError):
        return error
    said = str(error)
    if isinstance(error, OSError):
        reason = error.strerror or said
    else:
        reason = next(
            (words for words_of_sqlite, words in _REASONS if words_of_sqlite in said), said
        )
    return DatabaseError(f"the tuning database {path} can't be used: {reason}")
