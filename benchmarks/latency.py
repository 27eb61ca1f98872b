"""The waiting times of a user: the import, the first call of a kernel, and every call, by what it is called with.

    python benchmarks/latency.py [--quick] [--json FILE]

The first call is measured in fresh processes, from its start to its return: proofs, lowering, LLVM (cold),
or proofs and lowering left out (from the cache). The work itself takes microseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
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

CALLS = Path(__file__).parent / "latency_calls.py"

# By whose arrays a kernel is called with: the name of that call, and those of the others that do the same.
CASES = {
    "NumPy, out=": ("np.add, out=", "ONNX Runtime, bound"),
    "NumPy": ("np.add", "ONNX Runtime"),
    "a model": ("ONNX Runtime",),
    "a model, run()": ("ONNX Runtime",),
    "a model, run() by names of outputs": ("ONNX Runtime by names of outputs",),
    "a model by names of inputs": ("ONNX Runtime",),
    "InferenceSession, run()": ("ONNX Runtime",),
    "InferenceSession, bound": ("ONNX Runtime, bound",),
    "a model, another size at each call": ("ONNX Runtime, another size at each call",),
    "a model with states, one place more at each call": (),
    "one packed, out=": (),
    "one packed": (),
    "PyTorch, out=": ("torch.add, out=",),
    "PyTorch": ("torch.add",),
    "PyTorch, a Parameter": (),
    "tc.torch.operator": (),
    "JAX, out= NumPy's": (),
    "JAX": (),
    "tc.jax.operator, in jax.jit": ("x + y in jax.jit",),
    "__dlpack__ alone, out=": (),
    "__dlpack__ alone": (),
}


def measured(program: str, cache: str) -> Any:
    file = Path(cache) / "program.py"  # a kernel's source has to be somewhere
    file.write_text(program)
    return printed(file, cache)


def printed(file: Path, cache: str) -> Any:
    environment = os.environ | {"TASKC_CACHE": cache}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def call_rows(rounds: list[dict[str, float]]) -> Iterator[Row]:
    """The calls of each case, and beside it those of its peers."""
    times = {name: median(calls[name] for calls in rounds) * 1e3 for name in rounds[0]}
    for case, peers in CASES.items():
        named = f"a call of a compiled kernel, 3 arrays: {case}"
        if case not in times:
            print(f"{case}: not installed")
            continue
        ours, found = times[case], [peer for peer in peers if peer in times]
        if not found:
            yield Row("latency", named, 1, ours)
        for peer in found:
            yield Row("latency", named, 1, ours, peer, times[peer], times[peer] / ours)
        if len(found) < len(peers):
            print(f"{case}: a peer isn't installed")


def main() -> None:
    options = parse_options(__doc__ or "")
    repeats = 3 if options.quick else 9
    rows = []

    def add(case: str, times: list[float]) -> None:
        rows.append(Row("latency", case, 1, median(times) * 1e3))

    with TemporaryDirectory() as cache:
        add("import taskc", [measured(IMPORT, cache) for _ in range(repeats)])
        rows += call_rows([printed(CALLS, cache) for _ in range(3)])
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
