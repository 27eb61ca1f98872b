"""A benchmark in a process of its own for each number of threads, since pools are sized when they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from report import Row, finish, parse_options, summary

THREADS = (1, 2)
# What says to a pool how large it is: NumPy's, PyTorch's and our own.
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TASKC_THREADS")
CALM = 0.05  # seconds, in which the other side's threads stop waiting for work
_HERE, _ROWS = "TASKC_BENCHMARK_THREADS", "TASKC_BENCHMARK_ROWS"

# What limits the peers to a lesser processor: NumPy, its OpenBLAS, and PyTorch with its libraries; of the C library,
# which LLVM calls too, what chooses by the processor. Nothing limits ONNX Runtime.
LESSER = {
    "avx2": {
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "sse2": {
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA",
    },
}

# What is measured on so many threads, with the flags of the command line.
Measure = Callable[[int, list[str]], Iterable[Row]]
Call = Callable[[], object]
# A benchmark and a case, our call and each peer's; or a row that is measured already.
Cases = Iterable[tuple[str, str, Call, dict[str, Call]] | Row]


def is_measuring() -> bool:
    """This process is one of those that `rows_of` starts."""
    return _HERE in os.environ


def write_rows(measure: Measure) -> None:
    """Measures what this process was started for."""
    rows = [asdict(row) for row in measure(int(os.environ[_HERE]), sys.argv[1:])]
    Path(os.environ[_ROWS]).write_text(json.dumps(rows), encoding="utf-8")


def stand_in(target: str) -> None:
    """From here on this processor is one of a lesser target, to us."""
    import llvmlite.binding as llvm

    from taskc.backend.cpu.processor import host, typical

    lesser = typical(target)
    has = dict.fromkeys((name[1:] for name in lesser.features.split(",") if name), True)
    llvm.get_host_cpu_features, llvm.get_host_cpu_name = lambda: has, lambda: lesser.name
    host.cache_clear()
    if host().target != target:
        raise RuntimeError(f"this stands in for {host().target}, not for {target}")


def rows_of(script: str, flags: list[str]) -> list[Row]:
    """A script's rows on each number of threads that there are processors for."""
    rows: list[Row] = []
    for threads in THREADS:
        if threads > (os.cpu_count() or 1):
            continue
        with TemporaryDirectory() as folder:
            file = Path(folder) / "rows.json"
            environment = os.environ | dict.fromkeys((*POOLS, _HERE), str(threads))
            environment[_ROWS] = str(file)
            for target, limits in LESSER.items():
                if f"--{target}" in flags:
                    environment |= limits
            subprocess.run([sys.executable, script, *flags], env=environment, check=True)
            rows += [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
    return rows


def compare(script: str, description: str, cases: Callable[[int, bool], Cases]) -> None:
    """The whole of a script that times its cases on so many threads, fewer of them if quick, beside their peers."""

    def measure(threads: int, flags: list[str]) -> Iterator[Row]:
        from taskc.tune.timing import Probe, pairs

        probe, quick = Probe(threads), "--quick" in flags
        budget, calm = 0.3 if quick else 1.0, CALM if threads > 1 else 0.0
        for given in cases(threads, quick):
            if isinstance(given, Row):
                yield given
                continue
            benchmark, case, ours, peers = given
            for peer, call in peers.items():
                found = pairs(
                    ours, call, probe, budget=budget, calm=calm, of_processor=threads == 1
                )
                yield Row.paired(benchmark, case, threads, peer, found)

    if is_measuring():
        write_rows(measure)
        return
    options = parse_options(description)
    rows = rows_of(script, ["--quick"] * options.quick)
    finish(rows, options.json)
    summary(rows)
