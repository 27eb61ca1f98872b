"""What a user waits for: the import, the first call of a kernel, and every call, by what it is called with.

    python benchmarks/latency.py [--quick] [--json FILE]

The first call is measured in fresh processes, from its start to its return: proofs, lowering, LLVM (cold),
or proofs and lowering left out (from the cache). The work itself takes microseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

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

# By what is called with; round after round, so that each meets the machine as the others do.
CALLS = """
import json
import time
import warnings

import numpy as np
import taskc as tc
from taskc import f32, spatial

try:
    import torch
except ImportError:
    torch = None

@tc.kernel(workers=16)
def add(a: f32[16], b: f32[16], c: tc.out[f32[16]]):
    for i in spatial(16):
        c[i] = a[i] + b[i]

class Exporting:
    def __init__(self):
        self.array = np.ones(16, np.float32)
        self.__dlpack__, self.__dlpack_device__ = self.array.__dlpack__, self.array.__dlpack_device__

a, b, c = (np.ones(16, np.float32) for _ in range(3))
x, y, z = (Exporting() for _ in range(3))
calls = {
    "NumPy, out=": lambda: add(a, b, out=c),
    "NumPy": lambda: add(a, b),
    "DLPack, out=": lambda: add(x, y, out=z),
    "DLPack": lambda: add(x, y),
}
if torch is not None:
    p, q, r = (torch.ones(16) for _ in range(3))
    weight = torch.nn.Parameter(torch.ones(16))
    operator = tc.torch.operator(add, "benchmark::add")
    torch.set_grad_enabled(False)

    calls |= {
        "PyTorch, out=": lambda: add(p, q, out=r),
        "PyTorch": lambda: add(p, q),
        "PyTorch, a Parameter": lambda: add(weight, q),
        "PyTorch, as an operator": lambda: operator(p, q),
        "torch.add, out=": lambda: torch.add(p, q, out=r),
        "torch.add": lambda: torch.add(p, q),
    }
best = dict.fromkeys(calls, 1.0)
for call in calls.values():
    for _ in range(100):
        call()
for _ in range(40):
    for name, call in calls.items():
        count = 20 if "DLPack" in name or "operator" in name else 1000
        start = time.perf_counter()
        for _ in range(count):
            call()
        best[name] = min(best[name], (time.perf_counter() - start) / count)
print(json.dumps(best))
"""


def measured(program: str, cache: str) -> Any:
    file = Path(cache) / "program.py"  # a kernel's source has to be somewhere
    file.write_text(program)
    environment = os.environ | {"TASKC_CACHE": cache}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    options = parse_options(__doc__ or "")
    repeats = 3 if options.quick else 9
    rows = []

    def add(case: str, times: list[float]) -> None:
        rows.append(Row("latency", case, 1, median(times) * 1e3))

    with TemporaryDirectory() as cache:
        add("import taskc", [measured(IMPORT, cache) for _ in range(repeats)])
        rounds = [measured(CALLS, cache) for _ in range(3)]
    for name in rounds[0]:
        add(f"a call of a compiled kernel, 3 arrays: {name}", [calls[name] for calls in rounds])
    if len(rounds[0]) < 5:
        print("PyTorch isn't installed: its tensors are left out")
    for m in (128, 1):
        cold, cached = [], []
        for _ in range(repeats):
            with TemporaryDirectory() as cache:
                program = FIRST.format(m=m, warm=WARM)
                cold.append(measured(program, cache))
                cached.append(measured(program, cache))
        add(f"first call, matmul {m}x768x768: cold", cold)
        add(f"first call, matmul {m}x768x768: from the cache", cached)
    with TemporaryDirectory() as cache:
        program = FIRST.format(m=128, warm="")
        measured(program, cache)
        add(
            "the same, first kernel of a process",
            [measured(program, cache) for _ in range(repeats)],
        )
    finish(rows, options.json)


if __name__ == "__main__":
    main()
