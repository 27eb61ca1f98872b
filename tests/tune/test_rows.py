"""The text of rows: what is written is read back, and what is no row is refused by its field."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from taskc.tune.database import Database
from taskc.tune.rows import Row, RowError, check, now, to_line
from tests.tune.test_database import ROW, database, row

__all__ = ["database"]  # a fixture


def line(**fields: Any) -> str:
    return json.dumps({**asdict(ROW), **fields})


def test_a_database_goes_through_lines(database: Database, tmp_path: Path) -> None:
    odd = row(1, note="of 'ü'\n\t\x1b[31m", outcome="refused", seconds=None, samples=0, date=now())
    for added in (ROW, odd, row(2, machine="名 of a machine")):
        database.add(added)
    database.set_fact("a machine", "bandwidth", 2.5e10)
    lines = list(database.export_lines())
    assert lines[0] == '{"format": 1}'
    assert all(text.isascii() and "\n" not in text for text in lines)
    other = Database(tmp_path / "other.sqlite3")
    assert other.import_lines([*lines, "", *lines]) == 4
    assert list(other.export_lines()) == lines
    assert other.import_lines(lines) == 0
    merged = Database(tmp_path / "merged.sqlite3")
    assert merged.merge(database.path) == 4
    assert list(merged.export_lines()) == lines


@pytest.mark.parametrize("way", ["lines", "file"])
def test_the_newer_of_two_rows_stays(database: Database, tmp_path: Path, way: str) -> None:
    def take(taken: Row, number: int) -> int:
        if way == "lines":
            return database.import_lines([to_line(taken)])
        other = Database(tmp_path / f"{number}.sqlite3")
        other.add(taken)
        other.set_fact("a machine", "bandwidth", 5.0)
        return database.merge(other.path)

    database.add(ROW)
    database.set_fact("a machine", "bandwidth", 1.0)
    newer = replace(ROW, date="2026-03-31T12:30:00.500000+00:00", seconds=5e-3)
    assert take(replace(ROW, date="2026-01-30T12:30:00+00:00", seconds=1e-3), 1) == 0
    assert database.rows() == [ROW]
    assert take(newer, 2) == 1
    assert database.rows() == [newer]
    assert take(ROW, 3) == 0
    assert database.rows() == [newer]
    assert database.fact("a machine", "bandwidth") == 1.0


CODE = "__import__('os').system('touch hacked')"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CODE, "it isn't JSON: Expecting value"),
        ("{", "it isn't JSON"),
        ("[" * 100_000, "it isn't JSON"),
        ("x" * 1_000_000, "it has more than 524288 characters"),
        ("[1]", "it has [1] in place of named fields"),
        ("null", "it has None in place of named fields"),
        ('{"format": 2}', "its format is 2; this taskc reads 1"),
        ("{}", "the field operator is missing"),
        ('{"fact": "peak", "machine": "m"}', "the field value is missing"),
        ('{"fact": "peak", "machine": "m", "value": null}', "value is a number, not None"),
        (line(__class__="x"), "there is no field '__class__'"),
        (line(operator=""), "operator is a name of at most 512 characters that can be printed"),
        (line(operator=5), "not 5"),
        (line(operator="\x1b[2J"), r"not '\x1b[2J'"),
        (line(machine="m" * 513), "machine is a name"),
        (line(machine="\ud800"), r"not '\ud800'"),
        (line(problem=CODE), "problem is JSON on one line, as taskc writes it, not"),
        (line(problem={"m": 1}), "as taskc writes it, not {'m': 1}"),
        (line(problem="{\n}"), "problem is JSON on one line"),
        (line(problem="NaN"), "problem is JSON on one line"),
        (line(problem='{"k":1e999}'), "problem is JSON on one line"),
        (line(problem=f'{{"k":{10**400}}}'), "problem is JSON on one line"),
        (line(problem='{"k": 1}'), "problem is JSON on one line"),
        (line(problem='{"k":1,"k":1}'), "problem is JSON on one line"),
        (line(problem='{"f":{"is":"function"}}'), "problem is JSON on one line"),
        (line(problem='{"f":{"is":"type","name":[]}}'), "problem is JSON on one line"),
        (line(problem="[" * 20 + "]" * 20), "problem is JSON on one line"),
        (line(plan="[" * 16_000), "plan is JSON on one line"),
        (line(plan=f'"{"x" * 20_000}"'), "plan is JSON on one line"),
        (line(version="newest"), "version is a version of taskc, not 'newest'"),
        (line(version="9" * 500), "version is a version of taskc"),
        (line(outcome="won"), "outcome is one of measured, chosen, wrong, crashed"),
        (line(outcome=["measured"]), "outcome is one of"),
        (line(seconds="1"), "seconds is a number of seconds up to a million, or nothing, not '1'"),
        (line(seconds=True), "not True"),
        (line(seconds=-1), "not -1"),
        (line(seconds=1e300), "not 1e+300"),
        (line(seconds=1).replace('"seconds": 1', '"seconds": 1e999'), "not inf"),
        (line(seconds=float("nan")), "it isn't JSON: NaN is no number of JSON"),
        (line(seconds=float("-inf")), "it isn't JSON: -Infinity is no number of JSON"),
        (line(seconds=None), "a row that is measured has seconds and samples"),
        (line(seconds=0), "a row that is measured has seconds and samples"),
        (line(samples=0), "a row that is measured has seconds and samples"),
        (line(samples=1.5), "samples is a whole number of at least 0, not 1.5"),
        (line(samples=True), "samples is a whole number"),
        (line(samples=10**4000), "not a number of 13288 bits"),
        (line(spread=-0.1), "spread is a number of at least 0, or nothing, not -0.1"),
        (line(predicted={}), "predicted is a number of seconds"),
        (line(date=5), "date is a date such as 2026-01-31T12:30:00+00:00, not 5"),
        (line(date="yesterday"), "not 'yesterday'"),
        (line(date="2026-01-31T12:30:00"), "date is a date"),
        (line(date="2026-01-31T12:30:00+01:00"), "date is a date"),
        (line(date="2026-01-31 12:30:00+00:00"), "date is a date"),
        (line(note="\udc80"), "note is a text"),
        (line(note=None), "note is a text, not None"),
    ],
)
def test_what_is_no_row_is_refused_with_its_line(
    database: Database, text: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.perf_counter()
    with pytest.raises(RowError) as caught:
        database.import_lines([to_line(ROW), "", text])
    assert str(caught.value).startswith("line 3: ")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()
    assert time.perf_counter() - began < 1.0
    assert os.listdir(tmp_path) == []  # nothing was imported, nor run


def test_lines_are_taken_one_at_a_time(database: Database) -> None:
    """A file without an end isn't read to its end: its first wrong line is enough."""

    def lines() -> Iterator[str]:
        yield "wrong"
        pytest.fail("a line is read after the wrong one")

    wrong: Iterable[str] = lines()
    with pytest.raises(RowError, match="line 1"):
        database.import_lines(wrong)


def test_fields_with_defaults_may_be_left_out(database: Database) -> None:
    said = asdict(ROW)
    del said["note"], said["digest"]
    assert database.import_lines([json.dumps(said)]) == 1
    assert database.rows() == [replace(ROW, digest="")]


def test_the_dates_of_rows_are_in_one_form() -> None:
    check(replace(ROW, date=now()))
    check(replace(ROW, date="2026-01-31T12:30:00.000001+00:00"))
