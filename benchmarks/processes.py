"""A benchmark in a process of its own for each number of threads, since pools are sized when they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from report import Row

THREADS = (1, 2)
# What says to a pool how large it is: NumPy's, PyTorch's and our own.
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TASKC_THREADS")
_HERE, _ROWS = "TASKC_BENCHMARK_THREADS", "TASKC_BENCHMARK_ROWS"

# What is measured on so many threads, with the flags of the command line.
Measure = Callable[[int, list[str]], Iterable[Row]]


def is_measuring() -> bool:
    """This process is one of those that `rows_of` starts."""
    return _HERE in os.environ


def write_rows(measure: Measure) -> None:
    """Measures what this process was started for."""
    rows = [asdict(row) for row in measure(int(os.environ[_HERE]), sys.argv[1:])]
    Path(os.environ[_ROWS]).write_text(json.dumps(rows), encoding="utf-8")


def rows_of(script: str, flags: list[str]) -> list[Row]:
    """What a script measures on each number of threads that there are processors for."""
    rows: list[Row] = []
    for threads in THREADS:
        if threads > (os.cpu_count() or 1):
            continue
        with TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            environment = os.environ | dict.fromkeys((*POOLS, _HERE), str(threads))
            environment[_ROWS] = str(file)
            subprocess.run([sys.executable, script, *flags], env=environment, check=True)
            rows += [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    return rows
