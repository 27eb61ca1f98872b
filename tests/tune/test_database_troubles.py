"""What may befall a database: killed writers, several at once, full disks, files and folders that can't be used."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taskc.tune.database import Database
from taskc.tune.rows import DatabaseError, to_line
from tests.abuse.files import run_hostile_database, run_mutant_of_a_row
from tests.tune.test_database import ROW, database, row

__all__ = ["database"]  # a fixture

# What scripts begin with: `Database`, `row(number)`, and `finishes(work, …)`, whose processes do their work at once.
PRELUDE = """
import os, random, signal, struct, sys, tempfile, time
from dataclasses import replace
from pathlib import Path
from taskc.tune.database import Database, DatabaseError
from taskc.tune.rows import from_line

ROW = from_line(sys.argv[1])

def row(number):
    return replace(ROW, plan=str(number))

def start(work, *values):
    child = os.fork()
    if child:
        return child
    try:
        work(*values)
        os._exit(0)
    finally:
        os._exit(1)
"""


def run(script: str, *arguments: str) -> str:
    """What a script writes; it forks, so it has a process to itself."""
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE + script, to_line(ROW), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of POSIX")

# Two writers add rows and say each that `add` returned from; one of them is killed. Each file is used twice, so that
# writers die as they create a file, too.
KILLS = """
def write(path, first, pipe):
    database = Database(path)
    for number in range(first, first + 100_000):
        database.add(row(number))
        os.write(pipe, struct.pack("i", number))

folder, kills = Path(sys.argv[2]), int(sys.argv[3])
rng = random.Random(14)
said = []
for kill in range(kills):
    path = folder / f"{kill // 2}.sqlite3"
    pipe = os.pipe()
    children = [start(write, path, (2 * kill + i) * 100_000, pipe[1]) for i in range(2)]
    os.close(pipe[1])
    for child in children:
        time.sleep(rng.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    if kill % 2 == 0:
        said = []
    with os.fdopen(pipe[0], "rb") as pipe:
        said += [str(number) for (number,) in struct.iter_unpack("i", pipe.read())]
    database = Database(path)
    database.check()
    kept = {row.plan for row in database.rows()}
    assert kept >= set(said), (kill, len(said), len(kept))
    print(len(said))
"""


@posix
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.sweep)])
def test_killed_writers_lose_nothing(tmp_path: Path, kills: int) -> None:
    counts = [int(word) for word in run(KILLS, str(tmp_path), str(kills)).split()]
    assert len(counts) == kills
    assert sum(counts) > 10 * kills


TOGETHER = """
def write(path, first):
    database = Database(path)
    for number in range(first, first + 20):
        database.add(row(number))
        assert row(number) in database.rows()

for number in range(5):
    path = Path(sys.argv[2]) / f"{number}.sqlite3"
    children = [start(write, path, 100 * i) for i in range(4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    print(len(Database(path).rows()))
"""


@posix
def test_several_begin_a_database_at_once(tmp_path: Path) -> None:
    assert run(TOGETHER, str(tmp_path)).split() == ["80"] * 5


# No file may be longer than so many bytes; SQLite is told of it as of a disk that is full.
FULL = """
import resource
path, most = Path(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
database = Database(path)
for number in range(1000):
    try:
        database.add(row(number))
    except DatabaseError as error:
        print(error)
        break
print(number, len(database.rows()), database.best("matmul", ROW.problem, ROW.machine) is None)
"""


@posix
@pytest.mark.parametrize("most", [0, 5_000, 400_000])
def test_a_full_disk_is_a_sentence(database: Database, most: int) -> None:
    said, counts = run(FULL, str(database.path), str(most)).splitlines()
    assert said == f"the tuning database {database.path} can't be used: the disk is full, or broken"
    added, found, is_untuned = counts.split()
    assert added == found
    assert (int(added) > 20) == (most == 400_000)
    assert is_untuned == str(added == "0")
    database.add(row(1))  # there is room again
    assert len(database.rows()) == int(added) + 1


# Root may write everywhere, so it becomes somebody else first.
READ_ONLY = """
if os.getuid() == 0:
    os.setuid(65534)
folder = Path(tempfile.mkdtemp())
tuned, untuned = folder / "tuned.sqlite3", folder / "untuned.sqlite3"
Database(tuned).add(row(1))
folder.chmod(0o500)
try:
    for path in (tuned, untuned):
        database = Database(path)
        print([row.plan for row in database.rows()])
        try:
            database.add(row(2))
        except DatabaseError as error:
            print(str(error).replace(str(folder), "FOLDER"))
finally:
    folder.chmod(0o700)
    tuned.unlink()
    folder.rmdir()
"""


@posix
def test_what_is_in_a_read_only_folder_is_read() -> None:
    assert run(READ_ONLY).splitlines() == [
        "['1']",
        "the tuning database FOLDER/tuned.sqlite3 can't be used: it can't be written",
        "[]",
        "the tuning database FOLDER/untuned.sqlite3 can't be used: Permission denied",
    ]


def newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()


def another_text(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE results SET note = CAST(X'ff' AS TEXT)")
    connection.commit()
    connection.close()


def another_file(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    path.chmod(0o600)


def garbage(start: int, count: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(start)
            file.write(b"?" * count)

    return write


def folder_of_its_name(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


DAMAGED = "can't be used: it is damaged, or no database; if it is moved away, another is begun"


@pytest.mark.parametrize(
    ("befalls", "said"),
    [
        (newer, "{} is of a newer taskc: its format is 9, and this one knows 1"),
        (garbage(0, 100), f"{{}} {DAMAGED}"),
        (garbage(4096, 20_000), f"{{}} {DAMAGED}"),
        (another_text, f"{{}} {DAMAGED}"),
        (another_file, f"{{}} {DAMAGED}"),
        (folder_of_its_name, "{} is no file: it isn't used"),
        (link, "{} is a symbolic link: it isn't used"),
        (lambda path: path.chmod(0o666), "{} can be written by others: it isn't used"),
        (lambda path: path.parent.chmod(0o777), None),
    ],
)
def test_what_cannot_be_used_is_told_once(
    database: Database,
    befalls: Callable[[Path], None],
    said: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database.add(ROW)
    database.close()
    befalls(database.path)
    if said is None:
        place, said = (
            database.path.parent,
            "can be written by others: no tuning database is used there",
        )
        said = f"{place} {said}"
    else:
        said = f"the tuning database {said.format(database.path)}"
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert database.rows() == []
            assert database.best("matmul", ROW.problem, ROW.machine) is None
            assert database.fact("a machine", "bandwidth") is None
    assert caplog.messages == [said]
    with pytest.raises(DatabaseError) as caught:
        database.check()
    assert str(caught.value) == said
    if befalls is not another_text:  # which is one row's matter
        with pytest.raises(DatabaseError) as caught:
            database.add(ROW)
        assert str(caught.value) == said


def test_the_folder_in_the_cache_is_closed_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path))
    Database().add(ROW)
    folder = tmp_path / "tuning"
    folder.chmod(0o777)
    assert Database().rows() == [ROW]
    assert folder.stat().st_mode & 0o777 == 0o755
    assert caplog.messages == [f"{folder} could be written by others; now it can't"]


def test_what_merge_cannot_use_is_a_sentence(database: Database, tmp_path: Path) -> None:
    database.add(ROW)
    text, empty = tmp_path / "text", tmp_path / "empty"
    text.write_text("no database\n" * 100)
    empty.write_bytes(b"")
    for path, said in (
        (tmp_path / "missing", "No such file or directory"),
        (text, DAMAGED),
        (empty, "is no tuning database"),
    ):
        with pytest.raises(DatabaseError) as caught:
            database.merge(path)
        assert str(path) in str(caught.value)
        assert said in str(caught.value)
    assert database.rows() == [ROW]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="devices of POSIX")
def test_what_is_no_file_is_not_merged(database: Database, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(DatabaseError, match="is no regular file"):
            database.merge(path)
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DatabaseError, match="has 1048576 MiB: 256 are the most"):
        database.merge(tmp_path / "large")


@pytest.mark.parametrize("number", range(20))
def test_hostile_databases(number: int) -> None:
    run_hostile_database(number)


@pytest.mark.parametrize("number", range(40))
def test_mutants_of_rows(number: int) -> None:
    run_mutant_of_a_row(number)


def test_rows_of_another_program_do_not_go_round(database: Database) -> None:
    database.add(ROW)
    with database._changing() as connection:
        connection.execute("UPDATE results SET seconds = 'x'")
    assert database.tuned(ROW.operator, ROW.machine) == {}
