"""What a user waits for: the import, the first call of a kernel, and every call.

    python benchmarks/latency.py [--quick] [--json FILE]

The first call is measured in fresh processes, from its start to its return: proofs, lowering, LLVM (cold),
or proofs and lowering left out (from the cache). The work itself takes microseconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from report import Row, finish, parse_options

IMPORT = """
import time
start = time.perf_counter()
import taskc
print(time.perf_counter() - start)
"""

FIRST = """
import time
import numpy as np
from taskc.kernels.matmul import matmul
{warm}
a, b = np.ones(({m}, 768), np.float32), np.ones((768, 768), np.float32)
kernel = matmul({m}, 768, 768)
start = time.perf_counter()
kernel(a, b)
print(time.perf_counter() - start)
"""

# What happens once in a process, whatever is called: llvmlite and the grammars are loaded.
WARM = "matmul(3, 5, 7)(np.ones((3, 7), np.float32), np.ones((7, 5), np.float32))"

CALLS = """
import time
import numpy as np
import taskc as tc
from taskc import f32, spatial

@tc.kernel(workers=16)
def add(a: f32[16], b: f32[16], c: tc.out[f32[16]]):
    for i in spatial(16):
        c[i] = a[i] + b[i]

a, b, c = (np.ones(16, np.float32) for _ in range(3))
add(a, b, out=c)
best = 1.0
for _ in range(50):
    start = time.perf_counter()
    for _ in range(2000):
        add(a, b, out=c)
    best = min(best, (time.perf_counter() - start) / 2000)
print(best)
"""


def seconds(program: str, cache: str) -> float:
    file = Path(cache) / "program.py"  # a kernel's source has to be somewhere
    file.write_text(program)
    environment = os.environ | {"TASKC_CACHE": cache}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    options = parse_options(__doc__ or "")
    repeats = 3 if options.quick else 9
    rows = []

    def add(case: str, times: list[float]) -> None:
        rows.append(Row("latency", case, 1, median(times) * 1e3))

    with TemporaryDirectory() as cache:
        add("import taskc", [seconds(IMPORT, cache) for _ in range(repeats)])
        add("a call of a compiled kernel, 3 arrays", [seconds(CALLS, cache) for _ in range(3)])
    for m in (128, 1):
        cold, cached = [], []
        for _ in range(repeats):
            with TemporaryDirectory() as cache:
                program = FIRST.format(m=m, warm=WARM)
                cold.append(seconds(program, cache))
                cached.append(seconds(program, cache))
        add(f"first call, matmul {m}x768x768: cold", cold)
        add(f"first call, matmul {m}x768x768: from the cache", cached)
    with TemporaryDirectory() as cache:
        program = FIRST.format(m=128, warm="")
        seconds(program, cache)
        add(
            "the same, first kernel of a process", [seconds(program, cache) for _ in range(repeats)]
        )
    finish(rows, options.json)


if __name__ == "__main__":
    main()
