"""Processes that compile, check and time candidates, and outlive what these do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from taskc.kernels.matmul import matmul
from taskc.tune.operands import write_operands
from taskc.tune.worker import Parcel, parcel_of
from taskc.tune.workers import Checked, Compiled, Failed, WorkerError, Workers
from tests.tune.kernels import doubled, endless, operands


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    command = (sys.executable, "-m", "tests.tune.planted")
    folder = tmp_path_factory.mktemp("cache")
    with Workers(threads=1, processes=1, folder=folder, command=command) as made:
        yield made


def test_a_candidate_is_compiled_checked_and_timed(workers: Workers, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((96, 96), np.float32) for _ in range(2))
    write_operands(tmp_path, [a, b], [a.astype(np.float64) @ b])
    parcels = [parcel_of(matmul(96, 96, 96, packed=packed)) for packed in (False, True)]
    heard: list[Parcel] = []
    made = workers.compile_all([*parcels, parcels[0]], lambda parcel, found: heard.append(parcel))
    assert sorted(heard, key=parcels.index) == parcels == list(made)
    codes = set()
    for found in made.values():
        assert isinstance(found, Compiled)
        assert set(found.seconds) == {"parse", "prove", "lower", "compile"}
        codes.add(found.code)
    assert len(codes) == 2
    for parcel in parcels:
        checked = workers.check(parcel, tmp_path)
        assert isinstance(checked, Checked)
        assert 0 < checked.error < 1e-5
        alone = workers.race([parcel], tmp_path, samples=3)
        assert isinstance(alone, list)
        (timed,) = alone
        assert 1 <= len(timed.seconds) <= 3
        assert 96**3 / 1e12 < min(timed.seconds) < 1
        # Between two uses of a copy, 96 x 96 arrays of three operands, more is touched than 4 MiB.
        assert timed.copies > 4 << 20 // (3 * 4 * 96 * 96)
        assert timed.disturbances.discarded < 1
    race = workers.race(parcels, tmp_path, samples=4)
    assert isinstance(race, list)
    assert [len(own.seconds) for own in race] == [len(race[0].seconds)] * 2


def test_what_was_compiled_once_is_in_the_cache(workers: Workers) -> None:
    parcel = doubled("once")
    for stages in ({"parse", "prove", "lower", "compile"}, {"parse"}):
        found = workers.compile_all([parcel])[parcel]
        assert isinstance(found, Compiled)
        assert set(found.seconds) == stages
    # What is lowered to the same text is compiled once.
    other = Parcel(parcel.ir.replace("x[i]", "x[i + 0]"))
    found = workers.compile_all([other])[other]
    assert isinstance(found, Compiled)
    assert set(found.seconds) == {"parse", "prove", "lower"}


def test_faults_cost_one_candidate(workers: Workers, tmp_path: Path) -> None:
    folder = operands(tmp_path)
    assert workers.check(doubled(), folder) == Checked(0.0)
    crashed = workers.check(doubled("crashes"), folder)
    assert crashed == Failed("crashed", "its process was ended by SIGSEGV")
    late = workers.check(doubled("hangs"), folder, limit=0.3)
    assert late == Failed("timed out", "it took more than 0.3 seconds")
    late = workers.race(
        [endless()], folder, limit=1
    )  # in compiled code, where Python sees no signal
    assert late == Failed("timed out", "it took more than 1 seconds")
    wrong = workers.check(doubled("wrong", 2.001), folder)
    assert isinstance(wrong, Failed)
    assert wrong.state == "wrong"
    assert "1.9e-06 is allowed" in wrong.note
    compiled = workers.compile_all([doubled("first"), doubled("crashes"), doubled("last")])
    assert [type(found) for found in compiled.values()] == [Compiled, Failed, Compiled]
    broken = Parcel(doubled().ir.replace("y[i]", "y[i + 1]"))
    refused = workers.compile_all([broken])[broken]
    assert isinstance(refused, Failed)
    assert refused.state == "refused"
    assert "y" in refused.note
    assert workers.check(doubled("prints"), folder) == Checked(0.0)
    assert workers.check(doubled(), tmp_path / "absent").state == "refused"


def test_what_is_interrupted_leaves_no_answer_behind(workers: Workers, tmp_path: Path) -> None:
    folder = operands(tmp_path)

    def interrupt(parcel: Parcel, found: Compiled | Failed) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.compile_all([doubled("first"), doubled("second"), doubled("third")], interrupt)
    assert workers.check(doubled(), folder) == Checked(0.0)


def test_where_no_worker_can_be_started(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('there is no room')")
    with Workers(processes=1, folder=tmp_path, command=command) as workers:
        for _ in range(2):
            with pytest.raises(WorkerError, match=r"exit code 1: there is no room"):
                workers.compile_all([doubled()])
    with pytest.raises(RuntimeError):
        workers.compile_all([doubled()])
    with pytest.raises(WorkerError, match="the workers are closed"):
        workers.check(doubled(), tmp_path)


def children(parent: int) -> set[int]:
    """The processes that it has started, as long as they run."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            state, owner = file.read_text().rpartition(")")[2].split()[:2]
            if int(owner) == parent and state != "Z":
                found.add(int(file.parent.name))
    return found


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # one that nobody has waited for yet


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_no_process_outlives_its_parent(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tune.parent", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        time.sleep(0.3)
        started = children(parent.pid)
        parent.send_signal(signal.Signals[name])
        parent.wait(60)
    assert len(started) == 2
    if name == "SIGKILL":  # then one of them ends only when its time is over
        end = time.monotonic() + 20
        while any(map(is_running, started)) and time.monotonic() < end:
            time.sleep(0.1)
    assert not any(map(is_running, started))
