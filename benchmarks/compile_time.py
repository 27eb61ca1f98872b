"""How long the compiler itself takes: from source to stage lean, to a GPU's machine code, and the simulator.

    python benchmarks/compile_time.py [--quick] [--json FILE] [--growth]

Times are medians; the first run, which loads grammars and fills caches of mappings, is not counted.
With --growth: how CPU time grows with a kernel instead (growth.py).
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np
from growth import growth
from report import Row, finish, parse_options

import taskc as tc
from taskc import DType, bf16, f16, f32, repeat, spatial
from taskc.backend.cuda.compile import compile_kernel, compile_many
from taskc.backend.sim import run
from taskc.ir.nodes import Kernel
from taskc.kernels.matmul import Tiling, matmul
from taskc.passes.pipeline import lower, lower_steps

# 16 rows by 8 columns, of which each worker of a warp has two pairs: what mma.sync adds to.
PAIRS = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
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
    options = parse_options(__doc__ or "", growth="how time grows with a kernel, instead")
    if options.growth:
        growth(quick=options.quick, file=options.json)
        return
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
    rows += machine_code(repeats=3 if options.quick else 9)
    finish(rows, options.json)


def machine_code(repeats: int) -> list[Row]:
    """The largest products for GPUs; and 12 of them, by one thread and by all.

    Nothing comes from the cache on disk.
    """
    rows = []
    for target, dtype in (("sm_90a", bf16), ("sm_90a", f16), ("sm_80", bf16), ("sm_80", f32)):
        case = f"matmul 4096^3 {dtype}, {target}"
        to_lean = partial(_largest, target, dtype)
        rows.append(Row("compile", f"{case}, to lean", 1, milliseconds(to_lean, repeats)))
        to_code = partial(compile_kernel, to_lean())
        rows.append(Row("NVRTC", case, 1, milliseconds(to_code, repeats)))
    candidates = [
        lower(replace(made, target="sm_80"))
        for depth, stages in product((16, 32, 64), (2, 3, 4, 5))
        for made in [_candidate(depth, stages)]
    ]
    one = milliseconds(lambda: [compile_kernel(kernel) for kernel in candidates], 1)
    rows.append(Row("NVRTC", "12 candidates, sm_80", 1, one))
    threads = os.cpu_count() or 1
    concurrent = milliseconds(lambda: compile_many(candidates), 1)
    rows.append(Row("NVRTC", "12 candidates, sm_80", threads, concurrent))
    return rows


def _largest(target: str, dtype: DType) -> Kernel:
    made = matmul(
        4096, 4096, 4096, dtype=dtype, total=f32, machine=tc.machine(target), result=dtype
    ).ir
    assert isinstance(made, Kernel)
    return lower(replace(made, target=target))


def _candidate(depth: int, stages: int) -> Kernel:
    own = spatial(2, 4) * repeat(4, 4) * PAIRS
    made = matmul(
        1024, 1024, 1024,
        dtype=f16, total=f32, machine=tc.machine("sm_80"), tiling=Tiling(own, depth, stages),
    ).ir  # fmt: skip
    assert isinstance(made, Kernel)
    return made


if __name__ == "__main__":
    main()
