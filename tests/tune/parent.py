"""A parent of workers, one of which has nothing to do while the other one's candidate never ends."""

from __future__ import annotations

import sys
from pathlib import Path

from taskc.tune import workers as process
from taskc.tune.workers import Workers
from tests.tune.kernels import endless, operands

process._GRACE = 0.5
folder = operands(Path(sys.argv[1]))
with Workers(threads=1, processes=2, folder=folder) as workers:
    workers.compile_all([endless()])
    print("ready", flush=True)  # noqa: T201
    workers.race([endless()], folder, limit=1)
