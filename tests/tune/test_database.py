"""The tuning database: nothing that was added is lost, and where it can't be used calls go on."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from taskc.kernels.machine_facts import ProcessorFacts
from taskc.tune import database as database_module, rows as database_file
from taskc.tune.database import Database
from taskc.tune.rows import DatabaseError, Row, RowError, days_ago, from_line, now, to_line

ROW = Row(
    operator="matmul",
    problem='{"k":64,"m":16,"n":32}',
    plan='{"rows":8}',
    machine="a machine, 2 threads",
    version="0.1.0",
    outcome="measured",
    seconds=2e-3,
    spread=0.01,
    samples=12,
    predicted=1e-3,
    date="2026-01-31T12:30:00+00:00",
    note="",
    digest="abc",
)


def row(plan: int = 0, **fields: Any) -> Row:
    return replace(ROW, plan=f'{{"rows":{plan}}}', **fields)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.sqlite3")


def test_what_was_added_is_there(database: Database) -> None:
    wrong = row(1, outcome="wrong", seconds=None, spread=None, samples=0, note="off by 3")
    database.add(ROW)
    database.add(wrong)
    assert Database(database.path).rows() == sorted([ROW, wrong], key=lambda row: row.plan)
    assert database.find("matmul", ROW.problem, wrong.plan, ROW.machine, "0.1.0") == wrong
    assert database.find("matmul", ROW.problem, wrong.plan, ROW.machine, "0.2.0") is None


def test_a_row_takes_the_place_of_one_with_its_key(database: Database) -> None:
    again = replace(ROW, seconds=1e-3, outcome="chosen", date=now())
    others = [
        replace(ROW, **{name: value})
        for name, value in {
            "operator": "conv2d",
            "problem": "{}",
            "plan": "{}",
            "machine": "another",
            "version": "0.2.0",
        }.items()
    ]
    for added in (ROW, *others, again):
        database.add(added)
    assert sorted(map(repr, database.rows())) == sorted(map(repr, [again, *others]))


def test_rows_are_asked_for_by_field(database: Database) -> None:
    other = row(1, operator="conv2d", problem="{}", machine="another", version="0.2.0")
    database.add(ROW)
    database.add(other)
    for name in ("operator", "problem", "machine", "version"):
        assert database.rows(**{name: getattr(other, name)}) == [other]
    assert database.rows(operator="matmul", machine="another") == []


def test_the_best_row_is_the_chosen_or_the_fastest_of_the_newest_version(
    database: Database,
) -> None:
    def best() -> Row | None:
        return database.best("matmul", ROW.problem, ROW.machine)

    def then_best(added: Row) -> bool:
        database.add(added)
        return best() == added

    assert best() is None
    assert not then_best(row(0, outcome="crashed", seconds=None, samples=0))
    assert then_best(row(1, seconds=2e-3))
    assert then_best(row(2, seconds=1e-3))
    assert not then_best(row(3, seconds=3e-3))
    assert then_best(row(4, seconds=4e-3, outcome="chosen"))
    assert then_best(row(5, version="0.9.0", seconds=9e-3))
    assert then_best(row(6, version="0.10.0rc1", seconds=9e-3))
    assert then_best(row(7, version="0.10.0+aaaa", seconds=9e-3, date="2026-02-01T00:00:00+00:00"))
    assert not then_best(row(8, version="0.10.0+bbbb", seconds=1e-3))  # an older build
    assert not then_best(row(9, machine="another", version="1.0"))
    assert not then_best(row(9, operator="conv2d", version="1.0"))
    assert not then_best(row(9, problem="{}", version="1.0"))
    chosen = database.chosen("matmul", ROW.machine)
    assert chosen == {ROW.problem: '{"rows":7}', "{}": '{"rows":9}'}


def test_what_another_connection_adds_is_found(database: Database) -> None:
    other = Database(database.path)
    for seconds in (3e-3, 2e-3, 1e-3):
        other.add(row(int(seconds * 1e3), seconds=seconds))
        found = database.best("matmul", ROW.problem, ROW.machine)
        assert found is not None
        assert found.seconds == seconds


def test_threads_share_a_database(database: Database) -> None:
    def work(number: int) -> bool:
        database.add(row(number))
        return row(number) in database.rows()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


def test_facts_of_a_machine(database: Database) -> None:
    assert database.fact("a machine", "bandwidth") is None
    database.set_fact("a machine", "bandwidth", 1e10)
    database.set_fact("a machine", "bandwidth", 2e10)
    database.set_fact("another", "bandwidth", 3e10)
    assert Database(database.path).fact("a machine", "bandwidth") == 2e10
    assert database.facts("another") == {"bandwidth": 3e10}


def test_what_is_no_row_is_not_added(database: Database) -> None:
    with pytest.raises(RowError, match="samples is a whole number"):
        database.add(replace(ROW, samples=-1))
    with pytest.raises(RowError, match="value is a number, not inf"):
        database.set_fact("a machine", "bandwidth", float("inf"))
    assert not database.path.exists()


def test_reading_creates_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "folder" / "tuning.sqlite3")
    assert database.rows() == []
    assert database.best("matmul", ROW.problem, ROW.machine) is None
    assert database.fact("a machine", "bandwidth") is None
    database.check()
    assert list(tmp_path.iterdir()) == []
    database.add(ROW)
    assert database.best("matmul", ROW.problem, ROW.machine) == ROW


def test_it_lies_in_the_cache_folder_and_is_its_owner_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database = Database()
    for name in ("one", "two"):
        monkeypatch.setenv("TASKC_CACHE", str(tmp_path / name))
        assert database.rows() == []
        database.add(ROW)
        folder = tmp_path / name / "tuning"
        assert folder.stat().st_mode & 0o777 == 0o700
        files = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert set(files.values()) == {0o600}
        assert "tuning.sqlite3" in files


@pytest.mark.skipif(sys.platform == "win32", reason="an open file stays where it is")
def test_a_file_that_takes_its_place_is_opened(database: Database, tmp_path: Path) -> None:
    def delete() -> None:
        for path in tmp_path.glob(f"{database.path.name}*"):
            path.unlink()

    database.add(ROW)
    delete()
    assert database.rows() == []
    database.add(row(1))
    assert database.rows() == Database(database.path).rows() == [row(1)]
    other = Database(tmp_path / "other.sqlite3")
    other.add(row(2))
    other.close()
    delete()
    other.path.rename(database.path)
    database.add(row(3))
    assert database.rows() == Database(database.path).rows() == [row(2), row(3)]


def test_what_taskc_came_with_stands_in(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seed = Database(tmp_path / "seed.sqlite3")
    elsewhere = row(3, machine="another")
    crashed = row(4, problem='"crashed"', outcome="crashed", seconds=None)
    for kept in (row(0), row(1, seconds=1e-3), row(2, problem="[]"), elsewhere, crashed):
        seed.add(kept)
    seed.set_fact(ROW.machine, "bandwidth", 1.0)
    seed.set_fact(ROW.machine, "peak", 2.0)
    file = tmp_path / "seed.jsonl"
    file.write_text("\n".join(seed.export_lines()))
    monkeypatch.setattr(database_module, "_SEED", file)
    monkeypatch.setattr(database_module, "_seed", database_module._seed.__wrapped__)
    own = row(5, problem="[]", seconds=9.0)
    assert database.best("matmul", "[]", ROW.machine) == row(2, problem="[]")
    database.add(own)
    database.set_fact(ROW.machine, "peak", 3.0)
    assert database.best("matmul", ROW.problem, ROW.machine) == row(1, seconds=1e-3)
    assert database.best("matmul", "[]", ROW.machine) == own
    assert database.chosen("matmul", "another") == {elsewhere.problem: elsewhere.plan}
    assert database.chosen("matmul", ROW.machine) == {ROW.problem: row(1).plan, "[]": own.plan}
    assert database.facts(ROW.machine) == {"bandwidth": 1.0, "peak": 3.0}
    assert database.rows() == [own]


def test_what_taskc_comes_with_is_in_order() -> None:
    lines = database_module._SEED.read_text(encoding="utf-8").splitlines()
    items = [from_line(line) for line in lines]
    assert items.count(None) == 1  # the line that says the format


def test_prune(database: Database) -> None:
    old = row(1, date=days_ago(40))
    young, elsewhere = row(2, date=days_ago(20)), row(3, machine="another", date=now())
    newer = row(4, version="0.2.0", date=now())
    for added in (old, young, elsewhere, newer):
        database.add(added)
    database.set_fact("another", "bandwidth", 1.0)
    with pytest.raises(ValueError, match="needs to know what"):
        database.prune()
    assert database.prune(before=days_ago(30)) == 1
    assert database.prune(other_than="0.2.0", machine=ROW.machine) == 1
    assert {found.plan for found in database.rows()} == {elsewhere.plan, newer.plan}
    assert database.fact("another", "bandwidth") == 1.0
    assert database.prune(machine="another") == 1
    assert database.fact("another", "bandwidth") is None
    assert database.rows() == [newer]


def test_pruning_gives_room_back(database: Database) -> None:
    for i in range(100):
        database.add(row(i, note="x" * 4000))
    database.add(row(100, version="0.2.0"))
    database.close()
    size = database.path.stat().st_size
    database.prune(other_than="0.2.0")
    database.close()
    assert database.path.stat().st_size < size / 4


def test_a_version_is_of_several_builds(database: Database) -> None:
    versions = ("0.1.0", "0.1.0+aa", "0.1.0+bb", "0.1.01")
    for i, version in enumerate(versions):
        database.add(row(i, version=version))
    assert database.prune(other_than="0.1.0") == 1
    assert {found.version for found in database.rows()} == {*versions[:3]}
    assert database.prune(other_than="0.1.0+aa") == 2
    assert {found.version for found in database.rows()} == {"0.1.0+aa"}


def test_a_database_is_brought_to_a_newer_format(
    database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database.add(ROW)
    database.close()
    statement = "ALTER TABLE facts ADD COLUMN unit TEXT DEFAULT 'B/s'"
    with monkeypatch.context() as patch:
        patch.setattr(database_file, "FORMATS", (*database_file.FORMATS, (statement, "stop")))
        with pytest.raises(DatabaseError, match="syntax error"):
            Database(database.path).check()  # nothing of a format, or all of it
    with monkeypatch.context() as patch:
        patch.setattr(database_file, "FORMATS", (*database_file.FORMATS, (statement,)))
        merged = Database(tmp_path / "merged.sqlite3")
        assert merged.merge(database.path) == 1  # which leaves the file as it is
        assert Database(database.path).rows() == [ROW]
    with pytest.raises(DatabaseError, match="is of a newer taskc: its format is 2") as caught:
        Database(database.path).add(ROW)
    assert str(database.path) in str(caught.value)


FORK = """
import os, sys
from pathlib import Path
from taskc.tune.database import Database
from taskc.tune.rows import from_line

database = Database(Path(sys.argv[1]))
first, second, third, fourth = map(from_line, sys.stdin)
database.add(first)
ready, done = os.pipe(), os.pipe()
if os.fork() == 0:
    database.add(second)
    os.write(ready[1], b".")
    os.read(done[0], 1)
    database.add(third)
    os._exit(0)
os.read(ready[0], 1)
database.add(fourth)
database.close()
os.write(done[1], b".")
assert os.wait()[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_has_a_connection_of_its_own(database: Database) -> None:
    """Its parent closes the file first: what it adds afterwards is in the file that is there."""
    rows = [row(i) for i in range(4)]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(database.path)],
        input="\n".join(map(to_line, rows)),
        text=True,
        check=True,
    )
    assert database.rows() == rows


def test_rates_of_processors_that_were_measured_come_with_taskc(tmp_path: Path) -> None:
    found = Database(tmp_path / "none.sqlite3").facts("emeraldrapids avx512_vnni, 2048 KiB")
    assert {*found} <= {item.name for item in fields(ProcessorFacts)}
    assert found["own_bytes_per_cycle"] > found["shared_bytes_per_cycle"]
