"""taskc db: list, export, import and prune the tuning database."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from taskc.commands.terminal import (
    UsageError,
    add_json,
    columns,
    printable,
    put,
    words,
    write,
    write_error,
    write_json,
    write_text,
)
from taskc.format import many, time_text
from taskc.output_file import replacing
from taskc.runtime.settings import VERSION
from taskc.tune.database import Database, database
from taskc.tune.rows import LONGEST, Row, RowError, days_ago

SUMMARY = "what was tuned: list, show, best, export, import, merge, prune"
DESCRIPTION = """\
Shows what tuning has measured, carries it to other machines, and deletes it.
"""
_STANDARD_INPUT = "-"
_WIDEST = 160  # characters of a cell; JSON has all of them

Action = Callable[[argparse.Namespace, Database], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    def add(name: str, action: Action, about: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=about, description=f"{about.capitalize()}.")
        added.set_defaults(action=action)
        return added

    for name, action, about in (
        ("list", _list, "the problems that were tuned"),
        ("show", _show, "all plans that were tried, the fastest first"),
        ("best", _best, "the plan that calls take for each problem"),
    ):
        shown = add(name, action, about)
        shown.add_argument("operator", nargs="?", metavar="OPERATOR", help="such as matmul")
        shown.add_argument(
            "words", nargs="*", metavar="WORD", help="what the problem has: m=1024, f32"
        )
        _add_machine(shown)
        add_json(shown)
    exported = add("export", _export, "all of it as lines of JSON")
    exported.add_argument("file", nargs="?", metavar="FILE", help="in place of the output")
    imported = add("import", _import, "adds the rows of lines of JSON; the newer of two stays")
    imported.add_argument("file", metavar="FILE", help=f"{_STANDARD_INPUT} is the standard input")
    merged = add("merge", _merge, "adds the rows of another database; the newer of two stays")
    merged.add_argument("file", metavar="FILE", help="a tuning.sqlite3")
    pruned = add("prune", _prune, "deletes the rows of which all that is asked for is true")
    pruned.add_argument("--older-than", metavar="DAYS", type=_days, help="measured before")
    pruned.add_argument(
        "--other-versions", action="store_true", help=f"by a taskc that isn't {VERSION}"
    )
    _add_machine(pruned)
    for parser_with_counts in (imported, merged, pruned):
        add_json(parser_with_counts)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--machine", metavar="NAME", help="measured on it; a part of its name will do"
    )


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days <= 36500:
        raise argparse.ArgumentTypeError(f"{text} is no number of days from 0 to 36500")
    return days


def run(options: argparse.Namespace) -> int:
    kept = database()
    kept.check()
    action: Action = options.action
    return action(options, kept)


# --- listing -----------------------------------------------------------------------------------


def _list(options: argparse.Namespace, kept: Database) -> int:
    groups = _groups(_asked(options, kept))
    best = {key: kept.best(*key) for key in groups}
    seconds = {key: row.seconds if row else None for key, row in best.items()}
    last = {key: max(row.date for row in rows) for key, rows in groups.items()}
    if options.json:
        names = ("operator", "problem", "machine", "plans", "seconds", "date")
        return _write_json(
            [
                dict(zip(names, (*key, len(rows), seconds[key], last[key]), strict=True))
                for key, rows in groups.items()
            ]
        )
    table = [("operator", "problem", "plans", "best", "last", "machine")]
    for key, rows in groups.items():
        operator, problem, machine = key
        table.append(
            (
                *(printable(operator), _words(problem), str(len(rows)), time_text(seconds[key])),
                *(last[key][:10], printable(machine)),
            )
        )
    _write_table(table, right=(2, 3))
    return 0


def _show(options: argparse.Namespace, kept: Database) -> int:
    groups = _groups(_asked(options, kept))
    ordered = {key: sorted(rows, key=_by_time) for key, rows in groups.items()}
    if options.json:
        return _write_json([asdict(row) for rows in ordered.values() for row in rows])
    for key, rows in ordered.items():
        operator, problem, machine = key
        write((f"{printable(operator)} {_words(problem)}", "bold"), f" on {printable(machine)}")
        table = [("time", "spread", "predicted", "outcome", "version", "plan")]
        for row in rows:
            spread = "-" if row.spread is None else f"{row.spread:.1%}"
            outcome = row.outcome + (f": {_short(row.note)}" if row.note else "")
            table.append(
                (
                    *(time_text(row.seconds), spread, time_text(row.predicted), printable(outcome)),
                    *(printable(row.version), _words(row.plan)),
                )
            )
        _write_table(table, right=(0, 1, 2), margin="  ")
    if not ordered:
        _write_table([])
    return 0


def _best(options: argparse.Namespace, kept: Database) -> int:
    rows_or_none = [kept.best(*key) for key in _groups(_asked(options, kept))]
    best = [row for row in rows_or_none if row is not None]
    if options.json:
        return _write_json([asdict(row) for row in best])
    table = [("operator", "problem", "time", "machine", "plan")]
    for row in best:
        named = printable(row.operator), _words(row.problem), time_text(row.seconds)
        table.append((*named, printable(row.machine), _words(row.plan)))
    _write_table(table, right=(2,))
    return 0


def _asked(options: argparse.Namespace, kept: Database) -> Iterator[Row]:
    """The rows of an operator, with all words in the problem, on machines whose names contain a text."""
    wanted = set(options.words)
    for row in kept.rows():
        is_asked = options.operator in (None, row.operator) and _is_named(
            row.machine, options.machine
        )
        if is_asked and (not wanted or wanted <= set(words(row.problem))):
            yield row


def _is_named(machine: str, part: str | None) -> bool:
    return part is None or part.casefold() in machine.casefold()


def _groups(rows: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.operator, row.problem, row.machine), []).append(row)
    return groups


def _by_time(row: Row) -> tuple[bool, float]:
    return row.seconds is None, row.seconds or 0.0


# --- in and out --------------------------------------------------------------------------------


def _export(options: argparse.Namespace, kept: Database) -> int:
    if options.file is None:
        for line in kept.export_lines():
            put(f"{line}\n")
        return 0
    with replacing(options.file) as file:
        file.writelines(f"{line}\n".encode() for line in kept.export_lines())
    return 0


def _import(options: argparse.Namespace, kept: Database) -> int:
    is_input = options.file == _STANDARD_INPUT
    name = 0 if is_input else options.file
    try:
        with open(name, encoding="utf-8", errors="replace", closefd=not is_input) as file:
            added = kept.import_lines(_lines(file))
    except RowError as error:
        write_error(f"error: {printable(options.file)}, {error}; nothing is imported")
        return 1
    return _write_count(options, "added", added)


def _lines(file: TextIO) -> Iterator[str]:
    """Lines, where one that is too long is read only in part."""
    return iter(lambda: file.readline(LONGEST + 1), "")


def _merge(options: argparse.Namespace, kept: Database) -> int:
    try:
        added = kept.merge(Path(options.file))
    except RowError as error:
        write_error(f"error: {printable(options.file)}: {error}; nothing is merged")
        return 1
    return _write_count(options, "added", added)


def _prune(options: argparse.Namespace, kept: Database) -> int:
    before = None if options.older_than is None else days_ago(options.older_than)
    other_than = VERSION if options.other_versions else None
    machine = None if options.machine is None else _only_machine(options.machine, kept)
    if (before, other_than, machine) == (None, None, None):
        raise UsageError("say what is pruned: --older-than, --other-versions or --machine")
    deleted = kept.prune(before=before, other_than=other_than, machine=machine)
    return _write_count(options, "deleted", deleted)


def _only_machine(part: str, kept: Database) -> str:
    """The one machine that a name, or a part of it, means."""
    names = sorted({row.machine for row in kept.rows() if _is_named(row.machine, part)})
    if part in names or len(names) == 1:
        return part if part in names else names[0]
    listed = "; ".join(map(printable, names))
    raise UsageError(
        f"{printable(part)} is the name of several machines: {listed}"
        if names
        else f"there is no machine of the name {printable(part)}"
    )


# --- output ------------------------------------------------------------------------------------


def _words(text: str) -> str:
    return _short(" ".join(words(text)))


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _write_table(
    table: Sequence[Sequence[str]], *, right: Iterable[int] = (), margin: str = ""
) -> None:
    if len(table) > 1:
        write_text(columns(table, right=right, margin=margin))
    else:
        write("there are no such rows")


def _write_count(options: argparse.Namespace, name: str, count: int) -> int:
    if options.json:
        return _write_json({name: count})
    write(f"{many(count, 'row')} {name}")
    return 0


def _write_json(answer: object) -> int:
    write_json(answer)
    return 0
