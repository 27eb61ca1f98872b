"""How long the compiler itself takes: the pipelined matmul from source to stage lean, and the simulator.

    python benchmarks/compile_time.py [--quick] [--json FILE]

Times are medians; the first run, which loads grammars and fills caches of mappings, is not counted.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np
from report import Row, finish, parse_options

from taskc.backend.sim import run
from taskc.passes.pipeline import lower_steps

EXAMPLE = Path(__file__).parent.parent / "examples" / "03_matmul.py"


def load_example() -> ModuleType:
    specification = importlib.util.spec_from_file_location("matmul_example", EXAMPLE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


def main() -> None:
    options = parse_options(__doc__ or "")
    repeats = 5 if options.quick else 25
    example = load_example()
    rows = []
    for stages, target in ((1, "generic"), (2, "generic"), (3, "sm_80"), (4, "sm_80")):
        kernel = replace(example.make_pipelined(256, 256, 256, stages=stages).ir, target=target)

        def compile_all(stages: int = stages, target: str = target) -> None:
            parsed = example.make_pipelined(256, 256, 256, stages=stages).ir
            for _ in lower_steps(replace(parsed, target=target)):
                pass

        case = f"parse to lean, {stages} stages, {target}"
        rows.append(Row("compile", case, 1, milliseconds(compile_all, repeats)))
        totals: dict[str, list[float]] = {}
        for _ in range(repeats):
            for step in lower_steps(kernel):
                totals.setdefault(step.name, []).append(step.seconds * 1e3)
        if stages == 2:
            rows += [Row("pass", name, 1, median(times)) for name, times in totals.items()]

    kernel = example.make_pipelined(256, 256, 256, stages=2)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    c = np.empty((256, 256), np.float32)
    rows.append(
        Row(
            "simulate",
            "matmul 256^3, parsed",
            1,
            milliseconds(lambda: run(kernel.ir, [a, b, c]), 3),
        )
    )
    finish(rows, options.json)


if __name__ == "__main__":
    main()
