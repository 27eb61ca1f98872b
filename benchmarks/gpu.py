"""The CUDA target on a GPU: first all correctness checks, then times against cuBLAS, cuDNN and torch's attention.

    python benchmarks/gpu.py [--only NAME] [--quick] [--json FILE] [--kernels FOLDER] [PART...]

    --checks    every kernel against NumPy; --times: against torch. These two if no part is named
    --variants  several plans of a large product, and which of them `choose` takes
    --counters  what the simulator says of bank conflicts and sectors, and what ncu counts
    --sanitize  a check of each kernel under memcheck and racecheck

It writes benchmarks/results/<device>.json, and a log beside it. torch, where it is installed, brings the peers;
nothing else is needed but taskc, cuda-python and NVRTC. Before everything else all kernels are compiled, in as
many processes as there are cores; `--compile-only --kernels FOLDER` does that on a machine without a GPU, and
the folder spares the one that has one the time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import Any

HERE = Path(__file__).parent
PARTS = ("checks", "times", "variants", "counters", "sanitize")
LIMIT = 460.0  # seconds for everything
_INTERNAL = ("family", "size", "fatal")
_FOUND = 9  # how compute-sanitizer is to end where it has found something
_AT_ONCE = 4  # processes under it

Job = dict[str, Any]


def main(program: Path = Path(__file__)) -> int:
    """program  what a child runs: this file, or one that prepares something and calls this function"""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes: about a minute")
    parser.add_argument(
        "--only", metavar="NAME", default="", help="families with this in their name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument(
        "--kernels", type=Path, metavar="FOLDER", help="where compiled kernels lie, or are put"
    )
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    parser.add_argument("--target", default="sm_90a", help="of --compile-only; sm_90a by default")
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--child", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_imports()
    if options.child:
        return child(options.child)
    with tempfile.TemporaryDirectory() as private:
        if options.kernels is not None:
            os.environ["TASKC_CACHE"] = str(options.kernels.absolute())
            if not options.compile_only and options.kernels.is_dir():
                # What was carried here may be another user's, whose code isn't run; whoever names it wants it.
                shutil.copytree(options.kernels, private, dirs_exist_ok=True)
                os.environ["TASKC_CACHE"] = private
        return compile_only(options, program) if options.compile_only else measure(options, program)


def prepare_imports() -> None:
    """The examples are modules, and so is what stands beside this file."""
    for folder in (HERE, HERE.parent / "examples", HERE.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def child(file: Path) -> int:
    from gpu_counters import simulate
    from gpu_jobs import work_on
    from gpu_work import check, compile_ahead, measure

    tools = dict.fromkeys(("check", "memcheck", "racecheck", "counters"), check)
    works = {"compile": compile_ahead, "simulate": simulate, "measure": measure, **tools}
    return work_on(file, works)


# --- what is done ----------------------------------------------------------------------------


def parts_of(options: argparse.Namespace) -> list[str]:
    named = [part for part in PARTS if getattr(options, part)]
    return named or ["checks", "times"]


def jobs_of(part: str, options: argparse.Namespace) -> list[Job]:
    """The jobs of a part, in order."""
    from gpu_cases import FAMILIES, name_of
    from gpu_variants import VARIANTS

    kind = {"checks": "check", "times": "measure", "variants": "measure", "counters": "counters"}
    families = VARIANTS if part == "variants" else FAMILIES
    chosen = [family for family in families if options.only in family.name]
    found = []
    for family in chosen:
        match part:
            case "checks":
                sizes = family.checks
            case "counters":
                sizes = family.counted
            case "sanitize":
                sizes = family.checks[:1]
            case _:
                sizes = family.quick if options.quick else family.sizes
        found += [
            {"kind": kind.get(part, ""), "family": family.name, "size": size, "case": name_of(size)}
            for size in sizes
        ]
    return found


def compile_all(jobs: Iterable[Job], target: str, program: Path, end: float) -> list[Job]:
    """Every kernel of some jobs once, in as many processes as there are cores."""
    from gpu_jobs import run_beside

    different = {(job["family"], job["case"]): job for job in jobs}
    todo = [{**job, "kind": "compile", "target": target} for job in different.values()]
    return run_beside(todo, program, end, os.cpu_count() or 1)


def compile_only(options: argparse.Namespace, program: Path) -> int:
    from gpu_jobs import line_of, run_beside

    start = time.monotonic()
    parts = [part for part in PARTS if getattr(options, part)] or PARTS
    jobs = [job for part in parts for job in jobs_of(part, options)]
    done = compile_all(jobs, options.target, program, start + 10 * LIMIT)
    counted = [
        {**job, "kind": "simulate", "target": options.target}
        for job in jobs_of("counters", options)
    ]
    done += run_beside(counted, program, start + 10 * LIMIT, os.cpu_count() or 1)
    failed = [row for row in done if "error" in row]
    for row in failed:
        print(line_of(row))
    spent = time.monotonic() - start
    print(f"{len(done) - len(failed)} of {len(done)} are compiled or simulated, in {spent:.0f} s")
    return 1 if failed else 0


def measure(options: argparse.Namespace, program: Path) -> int:
    from report import described, write

    from taskc import device

    try:
        context = device.context()
        target = context.target
    except device.DeviceError as error:
        print(f"nothing is measured: {error}", file=sys.stderr)
        return 1
    slug = re.sub(r"\W+", "_", context.name.lower()).strip("_")
    file = options.json or HERE / "results" / f"{slug}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    done: list[Job] = []
    with file.with_suffix(".log").open("w") as log:

        def say(text: str) -> None:
            print(text, flush=True)
            log.write(f"{text}\n")
            log.flush()

        say(f"{context.name}: {described(context)}")
        if find_spec("torch") is None:
            say("torch isn't installed: nothing is compared with cuBLAS, cuDNN and its attention")
        jobs = {part: jobs_of(part, options) for part in parts_of(options)}
        every = [job for some in jobs.values() for job in some]
        made = compile_all(every, target, program, start + LIMIT)
        say(f"{len(made)} compiled or found compiled after {time.monotonic() - start:.0f} s")
        for part, some in jobs.items():
            say(f"--- {part}, after {time.monotonic() - start:.0f} s")
            done += _WAYS.get(part, plain)(some, target, program, start + LIMIT, say)
            # What is known so far stays, whatever the next part does.
            write(file, f"{context.name}, {described(context)}", [shown(row) for row in done])
        failed = [row for row in done if "error" in row]
        for text in (*summary(done), f"{len(done) - len(failed)} of {len(done)} are right; {file}"):
            say(text)
    return 1 if failed else 0


def plain(jobs: list[Job], target: str, program: Path, end: float, say: Any) -> list[Job]:
    from gpu_jobs import run_jobs

    return run_jobs(jobs, program, end, say)


def variants(jobs: list[Job], target: str, program: Path, end: float, say: Any) -> list[Job]:
    from gpu_variants import comparison

    rows = plain(jobs, target, program, end, say)
    for line in comparison(rows, target):
        say(line)
    return rows


def counters(jobs: list[Job], target: str, program: Path, end: float, say: Any) -> list[Job]:
    from gpu_counters import counted

    return counted(jobs, target, program, end, say)


def sanitize(jobs: list[Job], target: str, program: Path, end: float, say: Any) -> list[Job]:
    """Each under memcheck and racecheck, several at a time: nothing is timed."""
    from gpu_jobs import line_of, run_process

    tool = shutil.which("compute-sanitizer")
    if tool is None:
        say("compute-sanitizer isn't installed: neither memcheck nor racecheck was run")
        return []

    def run(job: Job) -> Job:
        command = [tool, f"--tool={job['kind']}", f"--error-exitcode={_FOUND}"]
        *_, row = run_process([job], program, end, command)
        say(line_of(row))
        return row

    todo = [{**job, "kind": kind} for kind in ("memcheck", "racecheck") for job in jobs]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(run, todo))


_WAYS: dict[str, Callable[..., list[Job]]] = {
    "variants": variants,
    "counters": counters,
    "sanitize": sanitize,
}


# --- what is said of it ----------------------------------------------------------------------


def shown(row: Job) -> Job:
    kept = {key: value for key, value in row.items() if key not in _INTERNAL}
    return {"benchmark": row["family"], **kept}


def summary(rows: list[Job]) -> list[str]:
    """For each benchmark that has a peer, and for all."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.get("ratio"):
            ratios.setdefault(row["family"], []).append(row["ratio"])
    if not ratios:
        return []
    lines = [f"{name:28} {_of(found)}" for name, found in ratios.items()]
    return [*lines, f"{'all':28} {_of([ratio for found in ratios.values() for ratio in found])}"]


def _of(ratios: list[float]) -> str:
    losses = sum(ratio < 1 for ratio in ratios)
    return f"minimum {min(ratios):.2f}, geometric mean {geometric_mean(ratios):.2f}, {losses} losses of {len(ratios)}"


if __name__ == "__main__":
    sys.exit(main())
