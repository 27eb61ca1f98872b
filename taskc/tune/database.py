"""The tuning database: measurements on disk, for all processes of a user.

It is one SQLite file. Once `add` returns, the row is in the file, whatever happens to the process; several processes
may write at a time. Looking for a plan never creates the file. If the database can't be used, reading methods find
nothing and log a warning, once in a process; writing methods raise a `DatabaseError`.

A connection mustn't cross a fork, since SQLite would believe that it holds its parent's locks. All connections are
closed before a fork, and each process opens its own when it needs one.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

from taskc.backend.cache import private_folder_problem, problem_of
from taskc.ir.reentry import door
from taskc.runtime.settings import cache_folder
from taskc.tune.rows import (
    COLUMNS,
    MEASURED,
    DatabaseError,
    Fact,
    Row,
    RowError,
    check,
    connect,
    content,
    from_line,
    header,
    new_file,
    to_line,
    told,
    version_order,
)

__all__ = ["Database", "DatabaseError", "Row", "database"]

logger = logging.getLogger(__name__)

_MOST_LINES = 1_000_000
_KEY = ("operator", "machine", "problem", "version", "plan")
_FIELDS = tuple(field.name for field in fields(Row))
_PLACES = ", ".join("?" * len(_FIELDS))
_REPLACE = f"INSERT OR REPLACE INTO results ({COLUMNS}) VALUES ({_PLACES})"
_MERGE = (
    f"INSERT INTO results ({COLUMNS}) VALUES ({_PLACES}) ON CONFLICT ({', '.join(_KEY)}) DO UPDATE"
    f" SET {', '.join(f'{name} = excluded.{name}' for name in _FIELDS if name not in _KEY)}"
    " WHERE excluded.date > date"
)
_MERGE_FACT = "INSERT INTO facts VALUES (?, ?, ?) ON CONFLICT (machine, fact) DO NOTHING"
# The fastest row of the group after a given one; the index has a group's rows in order of their seconds.
_NEXT_FASTEST = (
    f"SELECT {COLUMNS} FROM results WHERE operator = ? AND machine = ? AND outcome IN {MEASURED}"
    " AND (problem, version, outcome) > (?, ?, ?)"
    " ORDER BY problem, version, outcome, seconds LIMIT 1"
)


class Database:
    """A file of rows and facts; by default the one in the cache folder."""

    def __init__(self, path: Path | None = None) -> None:
        self._given = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._opened: object = None  # the file's identity: another file may replace it
        self._tuned: dict[tuple[str, str], tuple[object, Mapping[str, Row]]] = {}
        _all.add(self)

    @property
    def path(self) -> Path:
        return self._given or cache_folder() / "tuning" / "tuning.sqlite3"

    # --- rows ----------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Add a row, replacing one with the same operator, problem, plan, machine and version."""
        check(row)
        with self._changing() as connection:
            connection.execute(_REPLACE, astuple(row))

    def rows(
        self,
        *,
        operator: str | None = None,
        problem: str | None = None,
        machine: str | None = None,
        version: str | None = None,
    ) -> list[Row]:
        """All rows with these values."""
        asked = {"operator": operator, "problem": problem, "machine": machine, "version": version}
        conditions = {name: value for name, value in asked.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in conditions) or "TRUE"
        query = f"SELECT {COLUMNS} FROM results WHERE {where} ORDER BY {', '.join(_KEY)}"
        return [Row(*values) for values in self._found(query, *conditions.values())]

    def find(
        self, operator: str, problem: str, plan: str, machine: str, version: str
    ) -> Row | None:
        query = (
            f"SELECT {COLUMNS} FROM results WHERE {' AND '.join(f'{name} = ?' for name in _KEY)}"
        )
        found = self._found(query, operator, machine, problem, version, plan)
        return Row(*found[0]) if found else None

    def tuned(self, operator: str, machine: str) -> Mapping[str, Row]:
        """The row that decides for each problem: of the newest version, the chosen plan's, or else the fastest.

        For other problems, it is the row that comes with taskc.
        """
        seed, _ = _seed(machine)
        measured = self._own_tuned(operator, machine)
        return {**seed.get(operator, {}), **measured} if operator in seed else measured

    def _own_tuned(self, operator: str, machine: str) -> Mapping[str, Row]:
        state = self.state()
        known = self._tuned.get((operator, machine))
        if known is not None and known[0] == state:
            return known[1]
        fastest: list[Row] = []
        last = ("", "", "")
        while found := self._found(_NEXT_FASTEST, operator, machine, *last):
            row = Row(*found[0])
            last = (row.problem, row.version, row.outcome)
            try:
                check(row)  # another program may have written it
            except RowError as error:
                _warn_once(f"a row of the tuning database {self.path} is passed over: {error}")
            else:
                fastest.append(row)
        tuned = _newest(fastest)
        self._tuned[operator, machine] = state, tuned
        return tuned

    def chosen(self, operator: str, machine: str) -> dict[str, str]:
        """The plan to take for each tuned problem."""
        return {problem: row.plan for problem, row in self.tuned(operator, machine).items()}

    def best(self, operator: str, problem: str, machine: str) -> Row | None:
        return self.tuned(operator, machine).get(problem)

    # --- facts ---------------------------------------------------------------------------------

    def facts(self, machine: str) -> dict[str, float]:
        """The measured facts of a machine, and for others those that come with taskc."""
        _, seed = _seed(machine)
        measured = self._found("SELECT fact, value FROM facts WHERE machine = ?", machine)
        return {**seed, **dict(measured)}

    def fact(self, machine: str, name: str) -> float | None:
        return self.facts(machine).get(name)

    def set_fact(self, machine: str, name: str, value: float) -> None:
        fact = Fact(machine, name, value)
        check(fact)
        with self._changing() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", astuple(fact))

    # --- in and out ----------------------------------------------------------------------------

    def export_lines(self) -> Iterator[str]:
        """The content as text: see rows.py."""
        yield header()
        yield from map(to_line, self.rows())
        query = "SELECT machine, fact, value FROM facts ORDER BY machine, fact"
        yield from (to_line(Fact(*values)) for values in self._found(query))

    def import_lines(self, lines: Iterable[str]) -> int:
        """Add all items of some lines, or none if one is wrong; returns the number of new or newer ones.

        Of two rows with the same key the newer is kept; existing facts are kept.
        """
        items: list[Row | Fact] = []
        for number, line in enumerate(lines, 1):
            if number > _MOST_LINES:
                raise RowError(f"line {number}: {_MOST_LINES} lines are the most")
            try:
                item = from_line(line) if line.strip() else None
            except RowError as error:
                raise RowError(f"line {number}: {error}") from None
            if item is not None:
                items.append(item)
        return self._merge(items)

    def merge(self, path: Path) -> int:
        """Add the content of another database, as `import_lines` does."""
        try:
            items = content(path)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise told(path, error) from error
        for item in items:
            check(item)
        return self._merge(items)

    def _merge(self, items: Iterable[Row | Fact]) -> int:
        with self._changing() as connection:
            before = connection.total_changes
            for item in items:
                connection.execute(_MERGE if isinstance(item, Row) else _MERGE_FACT, astuple(item))
            return connection.total_changes - before

    def prune(
        self,
        *,
        before: str | None = None,
        other_than: str | None = None,
        machine: str | None = None,
    ) -> int:
        """Delete the rows that match all arguments; returns their number.

        before      a date
        other_than  a version, with or without its build (`+…`)
        machine     if it is the only argument, the machine's facts are deleted, too
        """
        asked = {
            "date < ?": before,
            "instr(version || '+', ? || '+') <> 1": other_than,
            "machine = ?": machine,
        }
        conditions = {test: value for test, value in asked.items() if value is not None}
        if not conditions:
            raise ValueError("prune needs to know what: all of it is deleted with its file")
        with self._changing() as connection:
            query = f"DELETE FROM results WHERE {' AND '.join(conditions)}"
            deleted = connection.execute(query, tuple(conditions.values())).rowcount
            if [*conditions.values()] == [machine]:
                connection.execute("DELETE FROM facts WHERE machine = ?", (machine,))
        with self._using(create=True) as connection, suppress(sqlite3.OperationalError):
            assert connection is not None
            connection.execute("VACUUM")  # gives the room back, unless another process is reading
        return deleted

    # --- the file ------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise a DatabaseError if the database exists and can't be read."""
        with self._using(create=False) as connection:
            if connection is not None:
                connection.execute(f"SELECT {COLUMNS} FROM results LIMIT 1").fetchall()

    def close(self) -> None:
        """Close the connection; it is opened again when needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._opened = None

    def __del__(self) -> None:
        self.close()

    def _found(self, query: str, *values: str | float) -> list[tuple[Any, ...]]:
        """The rows of a query; none, and a warning, if the database can't be used."""
        try:
            with self._using(create=False) as connection:
                return [] if connection is None else connection.execute(query, values).fetchall()
        except DatabaseError as error:
            _warn_once(str(error))
            return []

    def state(self) -> object:
        """A value that changes after each change of the file, by any process."""
        with suppress(DatabaseError), self._using(create=False) as connection:
            if connection is not None:
                (version,) = connection.execute("PRAGMA data_version").fetchone()
                return self._opened, version, connection.total_changes
        return None

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: on disk when the block ends, or rolled back."""
        with self._using(create=True) as connection:
            assert connection is not None
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection

    @contextmanager
    def _using(self, *, create: bool) -> Iterator[sqlite3.Connection | None]:
        with self._lock, door():
            try:
                yield self._connected(create=create)
            except (sqlite3.Error, OSError) as error:
                self.close()
                raise told(self.path, error) from error

    def _connected(self, *, create: bool) -> sqlite3.Connection | None:
        """A connection to the current file; None if there is no file."""
        path = self.path
        if create and not path.exists():
            new_file(path)
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            self.close()
            return None
        identity = (path, status.st_dev, status.st_ino)
        if self._connection is None or self._opened != identity:
            self.close()
            self._refuse_what_others_may_write(path)
            self._connection, self._opened = connect(path), identity
        return self._connection

    def _refuse_what_others_may_write(self, path: Path) -> None:
        folder = path.parent
        if self._given is None:
            problem = private_folder_problem(folder)
        else:  # a folder that isn't taskc's, so its rights aren't taskc's to change
            problem = problem_of(folder.resolve())
        if problem:
            raise DatabaseError(f"{folder} {problem}: no tuning database is used there")
        problem = problem_of(path, stat.S_ISREG)
        if problem:
            raise DatabaseError(f"the tuning database {path} {problem}: it isn't used")


@cache
def database() -> Database:
    """The database of the cache folder."""
    return Database()


def _newest(rows: Iterable[Row]) -> dict[str, Row]:
    """For each problem, the row of the newest version: the chosen plan's, or else the fastest."""
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(row)
    newest_rows = {}
    for problem, candidates in by_problem.items():
        newest = max(candidates, key=lambda row: (version_order(row.version), row.date)).version
        newest_rows[problem] = min(
            (row for row in candidates if row.version == newest),
            key=lambda row: (row.outcome != "chosen", row.seconds or 0.0),
        )
    return newest_rows


_SEED = Path(__file__).parent / "seed.jsonl"


@cache
def _seed(machine: str) -> tuple[dict[str, dict[str, Row]], dict[str, float]]:
    """Rows (by operator and problem) and facts that come with taskc for a machine."""
    rows: dict[str, list[Row]] = {}
    facts = {}
    named = json.dumps(machine)
    with _SEED.open(encoding="utf-8") as file:
        for line in file:
            item = from_line(line) if named in line else None
            if isinstance(item, Row) and item.machine == machine and item.outcome in MEASURED:
                rows.setdefault(item.operator, []).append(item)
            elif isinstance(item, Fact) and item.machine == machine:
                facts[item.fact] = item.value
    return {operator: _newest(tuned) for operator, tuned in rows.items()}, facts


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        logger.warning("%s", text)


# --- forks -------------------------------------------------------------------------------------

_all: WeakSet[Database] = WeakSet()
_held: list[Database] = []


def _before_fork() -> None:
    for each in list(_all):
        each._lock.acquire()
        _held.append(each)
        each.close()


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
