"""The output of every benchmark: one table, and one JSON file."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskc.tune.timing import Pairs

# Benchmarks time full code. The first result's own processes have both tiers.
os.environ.setdefault("TASKC_TIER", "full")

PACKAGES = (
    *("numpy", "ml_dtypes", "lark", "llvmlite", "onnxruntime", "torch", "jax", "numba"),
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
)


@dataclass(frozen=True)
class Row:
    """One measurement; `ratio` is peer / ours, above 1 a win. Without a peer both stay None.

    fraction_of_peak  of the rate of a loop of fused multiply-adds
    fraction_of_copy  of the rate of a copy of as many bytes
    peak_bytes        of memory that a process took at most, and planned_bytes, that it was to take
    cpu_ms            until the result; last_ms, last_cpu_ms and last_peak_bytes, until all kernels have full code
    kernels           that were compiled
    spans             CPU seconds and number, by the part of a compile (taskc/ir/spans.py)
    """

    benchmark: str
    case: str
    threads: int
    ours_ms: float
    peer: str | None = None
    peer_ms: float | None = None
    ratio: float | None = None
    fraction_of_peak: float | None = None
    fraction_of_copy: float | None = None
    quartiles: tuple[float, float] | None = None
    kept: int | None = None
    discarded: int | None = None
    peak_bytes: int | None = None
    planned_bytes: int | None = None
    cpu_ms: float | None = None
    last_ms: float | None = None
    last_cpu_ms: float | None = None
    last_peak_bytes: int | None = None
    peer_cpu_ms: float | None = None
    kernels: int | None = None
    spans: dict[str, tuple[float, int]] | None = None

    @classmethod
    def paired(
        cls, benchmark: str, case: str, threads: int, peer: str, found: Pairs, parts: int = 1
    ) -> Row:
        """A row of interleaved pairs, whose calls do `parts` parts each."""
        return cls(
            *(benchmark, case, threads, found.ours / parts, peer, found.theirs / parts),
            found.ratio,
            quartiles=found.quartiles,
            kept=found.kept,
            discarded=found.discarded,
        )


def parse_options(description: str, **flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    for name, text in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    return parser.parse_args()


def finish(rows: list[Row], file: Path | None) -> None:
    """Print the table with its minimum, geometric mean and losses; write the file."""
    from taskc.format import (
        bytes_text,
        ratio_text,
        time_text,
    )  # a peer's process doesn't load taskc

    first = max((len(row.benchmark) for row in rows), default=0)
    width = max((len(row.case) for row in rows), default=0)
    peers = max((len(row.peer or "") for row in rows), default=0)
    for row in rows:
        line = (
            f"{row.benchmark:{first}} {row.case:{width}} {row.threads:2} thread(s)"
            f" {time_text(row.ours_ms / 1e3, 'ms', '9.4g')}"
        )
        if row.ratio is not None:
            line += f"   {row.peer:{peers}} {time_text(row.peer_ms / 1e3, 'ms', '9.4g')}   {ratio_text(row.ratio):>6}"
        for fraction, name in ((row.fraction_of_peak, "peak"), (row.fraction_of_copy, "copy")):
            if fraction is not None:
                line += f"   {fraction:4.0%} of {name}"
        if row.peak_bytes is not None and row.planned_bytes is not None:
            peak, planned = bytes_text(row.peak_bytes, "MiB"), bytes_text(row.planned_bytes, "MiB")
            line += f"   {peak} at most, planned were {planned}"
        if row.cpu_ms is not None:
            line += f"   {time_text(row.cpu_ms / 1e3, 'ms', '9.4g')} of CPU, {row.kernels} kernels"
        print(line)
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        losses = sum(ratio < 1 for ratio in ratios)
        print(
            f"minimum {min(ratios):.2f}, geometric mean {geometric_mean(ratios):.2f}, {losses} losses"
        )
    record(rows, file)


def summary(rows: list[Row]) -> None:
    """Print for each benchmark the ratios to the fastest peer of each case, and those of two threads to one."""
    peers: dict[tuple[str, int], dict[str, float]] = {}
    times: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.ratio is not None:
            cases = peers.setdefault((row.benchmark, row.threads), {})
            cases[row.case] = min(row.ratio, cases.get(row.case, row.ratio))
            found = times.setdefault((row.benchmark, row.case), {})
            found[row.threads] = min(row.ours_ms, found.get(row.threads, row.ours_ms))
    for (benchmark, threads), cases in peers.items():
        least = min(cases, key=lambda case: cases[case])
        losses = sum(ratio < 1 for ratio in cases.values())
        print(
            f"{benchmark}, {threads} thread(s), to the fastest peer: geometric mean"
            f" {geometric_mean(cases.values()):.2f} of {len(cases)}, {losses} losses,"
            f" least {cases[least]:.2f}: {least}"
        )
    gains: dict[str, dict[str, float]] = {}
    for (benchmark, case), found in times.items():
        if found.get(1, 0.0) > 1 and 2 in found:
            gains.setdefault(benchmark, {})[case] = found[1] / found[2]
    for benchmark, cases in gains.items():
        least = min(cases, key=lambda case: cases[case])
        print(
            f"{benchmark}, 2 threads to 1, where it takes over 1 ms: geometric mean"
            f" {geometric_mean(cases.values()):.2f} of {len(cases)}, least {cases[least]:.2f}: {least}"
        )


def record(rows: list[Row], file: Path | None) -> None:
    """Write the file, if one is asked for."""
    if file is not None:
        machine = f"{_processor()}, {os.cpu_count()} cores, {platform.system()}"
        write(file, machine, [asdict(row) for row in rows])


def write(file: Path, machine: str, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine,
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "rows": rows,
    }
    file.write_text(json.dumps(content, indent=1) + "\n")


def described(context: Any) -> str:
    """The capability, size and driver of a CUDA device, as text."""
    major, minor = context.capability
    from taskc.format import bytes_text

    memory = bytes_text(context.memory_bytes, "GiB")
    driver = context.api.cuDriverGetVersion()
    return (
        f"compute capability {major}.{minor}, {context.processors} multiprocessors, {memory},"
        f" driver for CUDA {driver // 1000}.{driver % 1000 // 10}"
    )


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def _commit() -> str:
    """The commit of this checkout; "unknown" if it has no git folder."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
