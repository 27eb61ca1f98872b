"""taskc db: what it shows of the database, and what it changes."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from taskc.tune.database import Database
from taskc.tune.rows import Row, days_ago, now
from tests.commands.conftest import process

PROBLEM = '{"dtype":{"is":"type","name":"f32"},"is":"Problem","k":64,"m":16,"n":%d}'
EPYC, XEON = "AMD EPYC 9R14, 2 threads", "Intel Xeon, 32 threads"


def row(rows: int = 8, n: int = 32, **fields: Any) -> Row:
    plan = f'{{"is":"Panels","rows":{rows}}}'
    given = {
        "operator": "matmul",
        "machine": EPYC,
        "version": tc.__version__,
        "outcome": "measured",
        "seconds": 2.5e-3,
        "spread": 0.0123,
        "samples": 12,
        "predicted": 1e-3,
        "date": now(),
        **fields,
    }
    return Row(problem=PROBLEM % n, plan=plan, **given)


NONE = "there are no such rows\n"
ROWS = (
    row(8),
    row(6, seconds=1.5e-3),
    row(4, outcome="crashed", seconds=None, spread=None, samples=0, note="SIGSEGV\x1b[2J"),
    row(8, n=48, machine=XEON, date=days_ago(50)),
    row(8, operator="batch_matmul", version="0.0.1"),
)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Database:
    """Five rows."""
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path / "cache"))
    database = Database()
    monkeypatch.setattr("taskc.commands.db.database", lambda: database)
    for each in ROWS:
        database.add(each)
    database.set_fact(EPYC, "bandwidth", 2e10)
    return database


def test_list(run: Any, kept: Database) -> None:
    ended = run("db", "list")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert re.split("  +", lines[0]) == ["operator", "problem", "plans", "best", "last", "machine"]
    day = now()[:10]
    assert [re.split("  +", line) for line in lines[1:]] == [
        ["batch_matmul", "m=16 n=32 k=64 f32", "1", "2.5 ms", day, EPYC],
        ["matmul", "m=16 n=32 k=64 f32", "3", "1.5 ms", day, EPYC],
        ["matmul", "m=16 n=48 k=64 f32", "1", "2.5 ms", days_ago(50)[:10], XEON],
    ]
    (answer,) = json.loads(run("db", "list", "matmul", "--machine", "epyc", "--json").out)
    assert answer == {
        "operator": "matmul",
        "problem": PROBLEM % 32,
        "machine": EPYC,
        "plans": 3,
        "seconds": 1.5e-3,
        "date": max(each.date for each in ROWS[:3]),
    }


def test_show(run: Any, kept: Database) -> None:
    ended = run("db", "show", "matmul", "n=32", "f32")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0] == f"matmul m=16 n=32 k=64 f32 on {EPYC}"
    version = tc.__version__
    assert [re.split("  +", line.strip()) for line in lines[2:]] == [
        ["1.5 ms", "1.2%", "1 ms", "measured", version, "Panels rows=6"],
        ["2.5 ms", "1.2%", "1 ms", "measured", version, "Panels rows=8"],
        ["-", "-", "1 ms", r"crashed: SIGSEGV\x1b[2J", version, "Panels rows=4"],
    ]
    shown = json.loads(run("db", "show", "matmul", "n=32", "--json").out)
    assert shown == [asdict(ROWS[i]) for i in (1, 0, 2)]


def test_best(run: Any, kept: Database) -> None:
    lines = run("db", "best", "matmul").out.splitlines()
    assert [re.split("  +", line.strip()) for line in lines[1:]] == [
        ["matmul", "m=16 n=32 k=64 f32", "1.5 ms", EPYC, "Panels rows=6"],
        ["matmul", "m=16 n=48 k=64 f32", "2.5 ms", XEON, "Panels rows=8"],
    ]
    assert json.loads(run("db", "best", "--machine", "xeon", "--json").out) == [asdict(ROWS[3])]


@pytest.mark.parametrize("action", ["list", "show", "best"])
def test_nothing_is_said_to_be_nothing(run: Any, kept: Database, action: str) -> None:
    assert run("db", action, "conv2d").out == NONE
    assert run("db", action, "matmul", "n=33").out == NONE
    assert run("db", action, "--machine", "GPU", "--json").out == "[]\n"


@pytest.mark.parametrize("way", ["output", "file", "merge"])
def test_rows_are_carried_to_another_database(
    run: Any, kept: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "rows.jsonl"
    lines = list(kept.export_lines())
    if way == "file":
        assert run("db", "export", str(file)).code == 0
        assert file.read_text() == "".join(f"{line}\n" for line in lines)
    exported = run("db", "export").out
    words = {
        "output": ("import", "-"),
        "file": ("import", str(file)),
        "merge": ("merge", str(kept.path)),
    }
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path / "another"))
    ended = process("db", *words[way], input=exported)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "6 rows added\n", "")
    assert list(Database().export_lines()) == lines
    ended = process("db", *words[way], "--json", input=exported)
    assert json.loads(ended.stdout) == {"added": 0}


def test_the_standard_input_may_be_anything(kept: Database) -> None:
    command = [sys.executable, "-m", "taskc", "db", "import", "-"]
    ended = subprocess.run(command, input=b"\xff\n", capture_output=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"error: -, line 1: it isn't JSON")


def test_names_may_be_anything(run: Any, kept: Database) -> None:
    assert run("db", "list", "\udcff", "\udcff", "--machine", "\udcff").out == NONE
    assert r"of the name \udcff" in run("db", "prune", "--machine", "\udcff").err


def test_what_cannot_be_imported_is_told_by_its_line(
    run: Any, kept: Database, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"format": 1}\nimport os\n')
    ended = run("db", "import", str(file))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {file}, line 2: it isn't JSON: ")
    assert ended.err.endswith("; nothing is imported\n")
    ended = run("db", "import", "/dev/zero")  # a line without an end
    assert (
        ended.err
        == "error: /dev/zero, line 1: it has more than 524288 characters; nothing is imported\n"
    )
    assert run("db", "import", str(tmp_path / "missing")).code == 1


def test_what_cannot_be_merged_is_told(run: Any, kept: Database, tmp_path: Path) -> None:
    other = Database(tmp_path / "other.sqlite3")
    other.add(row(1))
    other.close()
    connection = sqlite3.connect(other.path)
    connection.execute("UPDATE results SET samples = 'many'")
    connection.commit()
    connection.close()
    ended = run("db", "merge", str(other.path))
    assert (ended.code, ended.out) == (1, "")
    said = "samples is a whole number of at least 0, not 'many'; nothing is merged"
    assert ended.err == f"error: {other.path}: {said}\n"
    assert len(kept.rows()) == 5
    assert run("db", "merge", str(tmp_path / "missing")).code == 1


def test_prune(run: Any, kept: Database) -> None:
    assert run("db", "prune").code == 2
    assert run("db", "prune", "--older-than", "-1").code == 2
    ended = run("db", "prune", "--machine", "threads")
    assert ended.code == 2
    assert f"several machines: {EPYC}; {XEON}" in ended.err
    assert run("db", "prune", "--machine", "GPU").code == 2
    assert run("db", "prune", "--older-than", "30", "--machine", "epyc").out == "0 rows deleted\n"
    assert run("db", "prune", "--older-than", "30").out == "1 row deleted\n"
    assert json.loads(run("db", "prune", "--other-versions", "--json").out) == {"deleted": 1}
    assert run("db", "prune", "--machine", "epyc").out == "3 rows deleted\n"
    assert kept.rows() == []


def test_a_database_that_cannot_be_used_is_an_error(run: Any, kept: Database) -> None:
    path = kept.path
    kept.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    for words in ("list", "show", "best", "export", "import -", "prune --older-than 3"):
        ended = run("db", *words.split())
        assert (ended.code, ended.out) == (1, "")
        said = (
            f"the tuning database {path} is of a newer taskc: its format is 9, and this one knows 1"
        )
        assert ended.err == f"error: {said}\n"


def test_without_a_database_there_are_no_rows(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path / "cache"))
    assert run("db", "list").out == NONE
    assert run("db", "export").out == '{"format": 1}\n'
    assert list(tmp_path.iterdir()) == []
