"""The tuning database: what was measured, on disk, for all processes of a user.

It is one SQLite file. What `add` returned from is in it, whatever becomes of the process; several may write at a time.
A call that looks for a plan creates nothing, and where the database can't be used it goes on without: a reading method
finds nothing and logs a warning, once in a process, while one that writes raises a `DatabaseError`.

A connection mustn't cross a fork, since SQLite would believe that it holds its parent's locks: before a fork all are
closed, and each process opens its own when it needs one.
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
    """A file of rows and facts; the one of the cache folder, if none is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._given = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._opened: object = None  # which file: one of its name may have taken its place
        self._tuned: dict[tuple[str, str], tuple[object, Mapping[str, Row]]] = {}
        _all.add(self)

    @property
    def path(self) -> Path:
        return self._given or cache_folder() / "tuning" / "tuning.sqlite3"

    # --- rows ----------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Keeps a row, in place of one with the same operator, problem, plan, machine and version."""
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
        """All rows that are of these."""
        asked = {"operator": operator, "problem": problem, "machine": machine, "version": version}
        given = {name: value for name, value in asked.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "TRUE"
        query = f"SELECT {COLUMNS} FROM results WHERE {where} ORDER BY {', '.join(_KEY)}"
        return [Row(*values) for values in self._found(query, *given.values())]

    def find(
        self, operator: str, problem: str, plan: str, machine: str, version: str
    ) -> Row | None:
        query = (
            f"SELECT {COLUMNS} FROM results WHERE {' AND '.join(f'{name} = ?' for name in _KEY)}"
        )
        found = self._found(query, operator, machine, problem, version, plan)
        return Row(*found[0]) if found else None

    def tuned(self, operator: str, machine: str) -> Mapping[str, Row]:
        """The row to go by for each problem: by the newest version, what tuning chose, else the fastest.

        Where there is none, it is the one that taskc came with.
        """
        seed, _ = _seed(machine)
        own = self._own_tuned(operator, machine)
        return {**seed.get(operator, {}), **own} if operator in seed else own

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
                check(row)  # another program may have put it there
            except RowError as error:
                _warn_once(f"a row of the tuning database {self.path} is passed over: {error}")
            else:
                fastest.append(row)
        tuned = _newest(fastest)
        self._tuned[operator, machine] = state, tuned
        return tuned

    def chosen(self, operator: str, machine: str) -> dict[str, str]:
        """The plan to take for each problem that was tuned."""
        return {problem: row.plan for problem, row in self.tuned(operator, machine).items()}

    def best(self, operator: str, problem: str, machine: str) -> Row | None:
        return self.tuned(operator, machine).get(problem)

    # --- facts ---------------------------------------------------------------------------------

    def facts(self, machine: str) -> dict[str, float]:
        """What was measured of a machine itself; what taskc came with, where that wasn't."""
        _, seed = _seed(machine)
        own = self._found("SELECT fact, value FROM facts WHERE machine = ?", machine)
        return {**seed, **dict(own)}

    def fact(self, machine: str, name: str) -> float | None:
        return self.facts(machine).get(name)

    def set_fact(self, machine: str, name: str, value: float) -> None:
        fact = Fact(machine, name, value)
        check(fact)
        with self._changing() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", astuple(fact))

    # --- in and out ----------------------------------------------------------------------------

    def export_lines(self) -> Iterator[str]:
        """Its content as text: see rows.py."""
        yield header()
        yield from map(to_line, self.rows())
        query = "SELECT machine, fact, value FROM facts ORDER BY machine, fact"
        yield from (to_line(Fact(*values)) for values in self._found(query))

    def import_lines(self, lines: Iterable[str]) -> int:
        """Adds what lines say, all of it or nothing, and returns how much of it is new or newer.

        Of two rows with one key the newer stays, and a fact that there is already.
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
        """Adds what another database has, as `import_lines` does."""
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
        """Deletes the rows of which all that is given is true, and returns how many they were.

        before      a date
        other_than  a version, with or without its build (`+…`)
        machine     with it alone, the facts of that machine go, too
        """
        asked = {
            "date < ?": before,
            "instr(version || '+', ? || '+') <> 1": other_than,
            "machine = ?": machine,
        }
        given = {test: value for test, value in asked.items() if value is not None}
        if not given:
            raise ValueError("prune needs to know what: all of it is deleted with its file")
        with self._changing() as connection:
            query = f"DELETE FROM results WHERE {' AND '.join(given)}"
            deleted = connection.execute(query, tuple(given.values())).rowcount
            if [*given.values()] == [machine]:
                connection.execute("DELETE FROM facts WHERE machine = ?", (machine,))
        with self._using(create=True) as connection, suppress(sqlite3.OperationalError):
            assert connection is not None
            connection.execute("VACUUM")  # gives the room back, unless another process is reading
        return deleted

    # --- the file ------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises a DatabaseError where the database is there and can't be read."""
        with self._using(create=False) as connection:
            if connection is not None:
                connection.execute(f"SELECT {COLUMNS} FROM results LIMIT 1").fetchall()

    def close(self) -> None:
        """It is opened again when it is needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._opened = None

    def __del__(self) -> None:
        self.close()

    def _found(self, query: str, *values: str | float) -> list[tuple[Any, ...]]:
        """The answer; nothing, and a warning, where the database can't be used."""
        try:
            with self._using(create=False) as connection:
                return [] if connection is None else connection.execute(query, values).fetchall()
        except DatabaseError as error:
            _warn_once(str(error))
            return []

    def state(self) -> object:
        """Another one after each change, whoever makes it."""
        with suppress(DatabaseError), self._using(create=False) as connection:
            if connection is not None:
                (version,) = connection.execute("PRAGMA data_version").fetchone()
                return self._opened, version, connection.total_changes
        return None

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """All of it, or nothing; once it is left, it is on disk."""
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
        """A connection to the file that is there now; None where there is none."""
        path = self.path
        if create and not path.exists():
            new_file(path)
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            self.close()
            return None
        found = (path, status.st_dev, status.st_ino)
        if self._connection is None or self._opened != found:
            self.close()
            self._refuse_what_others_may_write(path)
            self._connection, self._opened = connect(path), found
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
    """The one of the cache folder."""
    return Database()


def _newest(rows: Iterable[Row]) -> dict[str, Row]:
    """Each problem's row of the newest version: what was chosen, else the fastest."""
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row.problem, []).append(row)
    found = {}
    for problem, candidates in by_problem.items():
        newest = max(candidates, key=lambda row: (version_order(row.version), row.date)).version
        found[problem] = min(
            (row for row in candidates if row.version == newest),
            key=lambda row: (row.outcome != "chosen", row.seconds or 0.0),
        )
    return found


_SEED = Path(__file__).parent / "seed.jsonl"


@cache
def _seed(machine: str) -> tuple[dict[str, dict[str, Row]], dict[str, float]]:
    """What taskc came with for a machine: rows by operator and problem, and facts."""
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
