"""The file of the tuning database: its format, how it is opened, and what stands in the way, in words."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path

from taskc.tune.rows import MEASURED, Fact, Row

# Statements that make each format of the file from the one before. Its number is SQLite's `user_version`.
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
_WAIT = 10.0  # seconds for another process's lock, and for reading what another database has
_LARGEST = 256 << 20  # bytes of a database that is merged
_STEPS = 10_000  # of SQLite's machine, between two looks at the clock

# SQLite's words, and what they mean to a person. Codes of errors are there from Python 3.11 on.
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
    """The database can't be used: a sentence says why."""


def new_file(path: Path) -> None:
    """An empty file, which SQLite takes for a new database: the files that it puts beside it get its rights."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))


def connect(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path, "mode=rw")
    except sqlite3.OperationalError:
        log = path.with_name(f"{path.name}-wal")
        if os.access(path.parent, os.W_OK) or (log.exists() and log.stat().st_size):
            raise
        return _connect(path, "immutable=1")  # else SQLite wants to write even to read


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=_WAIT,
        isolation_level=None,  # transactions are begun here
        check_same_thread=False,  # there is a lock
    )
    try:
        _migrate(connection, path)
        if mode == "mode=rw":
            # A committed row outlives its process, though not a failure of power that comes at once.
            connection.execute("PRAGMA synchronous = NORMAL")
            with suppress(sqlite3.OperationalError):  # another process is at it
                connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Makes it a database of the newest format."""
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
    """All that a database has, of whatever format. It may be anybody's: nothing but tables of ours is read."""
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
    """The statements that made the tables of a database, and its views and triggers."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100"
    return {*connection.execute(query).fetchall()}


def _schema_of(number: int) -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statements in FORMATS[:number]:
            for statement in statements:
                fresh.execute(statement)
        return _schema(fresh)


def told(path: Path, error: Exception) -> DatabaseError:
    """An error as a sentence."""
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
