"""The CUDA target on a GPU: first all correctness checks, then times against cuBLAS, cuDNN and torch's attention.

    python benchmarks/gpu.py [--only NAME] [--quick] [--seconds N] [--json FILE] [--kernels FOLDER] [PART...]

    --checks    every kernel against NumPy; --times: against torch. These two if no part is named
    --variants  several plans of a large product, and which of them `choose` takes
    --counters  what the simulator says of bank conflicts and sectors, and what ncu counts
    --sanitize  a check of each kernel under memcheck and racecheck

It writes benchmarks/results/<device>.json after each row, and a log beside it. Each part has its share of the time,
and what the parts before have left of theirs; what it can't do in that is left out, and named at the end. A kernel
that fails, crashes or hangs costs its own row: the next one has another process. torch, where it is installed, brings
the peers; nothing else is needed but taskc, cuda-python and NVRTC. Before everything else all kernels are compiled, in
as many processes as there are cores; `--compile-only --kernels FOLDER` does that on a machine without a GPU, and the
folder spares the one that has one the time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_record import Record

HERE = Path(__file__).parent
PARTS = ("checks", "times", "variants", "counters", "sanitize")
LIMIT = 460.0  # seconds for everything
# What a part may take of the time that is left, beside those that come behind it.
SHARES = {"compile": 2, "checks": 3, "times": 8, "variants": 4, "counters": 2, "sanitize": 4}
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
    parser.add_argument(
        "--seconds", type=float, metavar="N", default=LIMIT, help="for everything; 460 by default"
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
    failed = [row for row in done if "error" in row or "left_out" in row]
    for row in done:
        if row in failed or "remarks" in row:
            print(line_of(row))
    spent = time.monotonic() - start
    print(f"{len(done) - len(failed)} of {len(done)} are compiled or simulated, in {spent:.0f} s")
    return 1 if failed else 0


def measure(options: argparse.Namespace, program: Path) -> int:
    from gpu_jobs import line_of
    from gpu_record import Record
    from report import described

    from taskc import device

    try:
        context = device.context()
        target = context.target
    except device.DeviceError as error:
        print(f"nothing is measured: {error}", file=sys.stderr)
        return 1
    slug = re.sub(r"\W+", "_", context.name.lower()).strip("_")
    file = options.json or HERE / "results" / f"{slug}.json"
    record = Record(file, f"{context.name}, {described(context)}")
    record.say(f"{context.name}: {described(context)}")
    if find_spec("torch") is None:
        record.say(
            "torch isn't installed: nothing is compared with cuBLAS, cuDNN and its attention"
        )
    start = time.monotonic()
    jobs = {part: jobs_of(part, options) for part in parts_of(options)}
    ends = ends_of(["compile", *jobs], start + options.seconds)
    every = [job for some in jobs.values() for job in some]
    made = compile_all(every, target, program, next(ends))
    done = [row for row in made if "error" not in row and "left_out" not in row]
    seconds = time.monotonic() - start
    for row in made:
        if "remarks" in row:
            record.say(line_of(row))
    record.say(f"{len(done)} of {len(made)} compiled or found compiled after {seconds:.0f} s")
    for part, some in jobs.items():
        record.say(f"--- {part}, after {time.monotonic() - start:.0f} s")
        _WAYS.get(part, plain)(some, target, program, next(ends), record)
    return 0 if record.finish() else 1


def ends_of(parts: list[str], end: float) -> Iterator[float]:
    """When each part's time is over: asked for when the part begins, so that it has what others have left."""
    for number, part in enumerate(parts):
        now, left = time.monotonic(), sum(SHARES[one] for one in parts[number:])
        yield now + (end - now) * SHARES[part] / left


def plain(jobs: list[Job], target: str, program: Path, end: float, record: Record) -> list[Job]:
    from gpu_jobs import run_jobs

    return run_jobs(jobs, program, end, record.note)


def variants(jobs: list[Job], target: str, program: Path, end: float, record: Record) -> None:
    from gpu_variants import comparison

    for line in comparison(plain(jobs, target, program, end, record), target):
        record.say(line)


def counters(jobs: list[Job], target: str, program: Path, end: float, record: Record) -> None:
    from gpu_counters import counted

    counted(jobs, target, program, end, record)


def sanitize(jobs: list[Job], target: str, program: Path, end: float, record: Record) -> None:
    """Each under memcheck and racecheck, several at a time: nothing is timed."""
    from gpu_jobs import run_process

    tool = shutil.which("compute-sanitizer")
    if tool is None:
        record.say("compute-sanitizer isn't installed: neither memcheck nor racecheck was run")
        return

    def run(job: Job) -> None:
        command = [tool, f"--tool={job['kind']}", f"--error-exitcode={_FOUND}"]
        *_, row = run_process([job], program, end, command)
        record.note(row)

    todo = [{**job, "kind": kind} for kind in ("memcheck", "racecheck") for job in jobs]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(run, todo))


_WAYS: dict[str, Callable[..., None]] = {
    "variants": variants,
    "counters": counters,
    "sanitize": sanitize,
}


if __name__ == "__main__":
    sys.exit(main())
