"""Tuning sessions with real workers: planted faults, and a tuner that is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import taskc as tc
from taskc import f32, spatial
from taskc.tune.bench import WorkerBench
from taskc.tune.database import Database
from taskc.tune.space import exhaustive
from taskc.tune.tuner import Tuner
from taskc.tune.workers import Workers

KINDS = ("right", "crashes", "hangs", "wrong", "also_right")


@tc.tune(kind=KINDS, reference=lambda x: 2.0 * x.astype(np.float64))
def planted(n, *, kind="right"):  # type: ignore[no-untyped-def]
    """A kernel whose name the worker of tests/tune/planted.py knows, or that computes something else.

    Their blocks differ: kernels whose code is the same would be one candidate.
    """
    factor, width = (3.0 if kind == "wrong" else 2.0), 4 + KINDS.index(kind)

    def of(x: f32[n], y: tc.out[f32[n]]):  # type: ignore[no-untyped-def, valid-type]
        for (first,) in tc.tiles((n,), by=(width,)):
            for (i,) in spatial(width):
                if first + i < n:
                    y[first + i] = x[first + i] * factor

    of.__name__ = kind
    return tc.kernel(workers=width)(of)


def test_faults_are_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    space, database = planted.space(100), Database(tmp_path / "rows")
    command = (sys.executable, "-m", "tests.tune.planted")
    workers = Workers(threads=1, processes=1, folder=tmp_path / "cache", command=command)
    with WorkerBench(space, reference=planted.reference, workers=workers, limit=2.5) as bench:
        found = Tuner(space, bench, database, exhaustive).run()
    outcomes = {trial.plan.values[0][1]: trial.result for trial in found.trials}
    assert {kind: result.outcome for kind, result in outcomes.items()} == {
        "right": "measured", "crashes": "crashed", "hangs": "timed out", "wrong": "wrong", "also_right": "measured",
    }  # fmt: skip
    assert "SIGSEGV" in outcomes["crashes"].note
    assert "2.5 seconds" in outcomes["hangs"].note
    assert "off by" in outcomes["wrong"].note
    assert found.winner.values[0][1] in ("right", "also_right")
    kept = {row.outcome for row in database.rows()}
    assert kept == {"measured", "chosen", "crashed", "timed out", "wrong"}
    # What crashed and what hung did so before it was compiled.
    assert found.stages["parse"] == found.stages["compile"] == found.stages["check"] == 3


SESSION = """
import sys
from pathlib import Path
from taskc.kernels.matmul import MATMUL
from taskc.runtime.machine import machine
from taskc.tune.database import Database
from taskc.tune.bench import tuned
from taskc.tune.space import Space
from tests.kernels.problems import gemm
from taskc import f32

def tell(trial):
    if trial.result.is_measured:
        print(space.text(trial.plan), flush=True)

space = Space(MATMUL, gemm(40, 64, 24, (f32, f32, f32)), machine())
database, seed, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
tuned(space, database=Database(database), most=most, progress=tell, seed=seed, strategy="random")
print("done", flush=True)
"""


def session(database: Path, seed: int, most: int = 40) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SESSION, str(database), str(seed), str(most)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)


def told(lines: str) -> list[str]:
    """The plans of whole lines: the last one may have been cut."""
    whole = lines.split("\n")[:-1]
    return [line for line in whole if line not in ("ready", "done")]


@pytest.mark.parametrize(
    "times", [2, pytest.param(50, marks=pytest.mark.sweep)], ids=["twice", "fifty_times"]
)
def test_a_killed_tuner_loses_nothing(tmp_path: Path, times: int) -> None:
    path, moments, finished = tmp_path / "rows", random.Random(7), set()
    for number in range(times):
        with session(path, number) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            # The first one at any time, others after a measurement.
            lines = [running.stdout.readline() for _ in range(moments.randint(min(number, 1), 4))]
            time.sleep(moments.uniform(0, 0.5))
            running.send_signal(signal.SIGKILL)
            finished |= set(told("".join([*lines, running.stdout.read()])))
        rows = Database(path).rows()
        assert finished <= {row.plan for row in rows if row.seconds is not None}
    assert finished, "none was killed after its first measurement"


def test_two_tuners_at_once_both_finish(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    both = [session(path, seed, most=10) for seed in (1, 2)]
    plans: set[str] = set()
    for running in both:
        said, _ = running.communicate(timeout=240)
        assert running.returncode == 0
        assert said.endswith("done\n")
        plans |= set(told(said))
    assert {row.plan for row in Database(path).rows() if row.seconds is not None} == plans
