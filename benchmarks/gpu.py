"""The CUDA target on a GPU: first all correctness checks, then times against cuBLAS, cuDNN and torch's attention.

    python benchmarks/gpu.py [--only NAME] [--quick] [OPTION...] [PART...]
    python benchmarks/gpu.py --bring-up [--rungs 1-14] [OPTION...]

    --seconds N, --json FILE, --log FILE, --kernels FOLDER

    --checks    every kernel against NumPy; --times: against torch. These two if no part is named
    --variants  several plans of a large product, and which of them `choose` takes
    --counters  what the simulator says of bank conflicts and sectors, and what ncu counts
    --sanitize  a check of each kernel under memcheck, racecheck, synccheck and initcheck
    --bring-up  the first thing on a new GPU: its features one after another (gpu_rungs.py), each in a process of its
                own. `--list` says what uses which, and needs no GPU; `--rungs 15`: the largest under compute-sanitizer

It writes benchmarks/results/<device>.json after each row, and a log beside it. Each part has its share of the time,
and what the parts before have left of theirs; what it can't do in that is left out, and named at the end. A kernel
that fails, crashes or hangs costs its own row: the next one has another process. A check has ten seconds and a
measurement twenty, once their process has imported all and started the device; a kernel that hangs or breaks its
process is left out from there on, and one that is wrong isn't measured. torch, where it is installed, brings
the peers; nothing else is needed but taskc, cuda-python and NVRTC. Before everything else all kernels are compiled, in
as many processes as there are cores; `--compile-only --kernels FOLDER` does that on a machine without a GPU, and the
folder spares the one that has one the time.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_cases import Family
    from gpu_record import Record

HERE = Path(__file__).parent
PARTS = ("checks", "times", "variants", "counters", "sanitize")
LIMIT = 460.0  # seconds for everything
# What a part may take of the time that is left, beside those that come behind it.
SHARES = {"compile": 2, "checks": 3, "times": 8, "variants": 4, "counters": 2, "sanitize": 4}
_FOUND = 9  # how compute-sanitizer is to end where it has found something
_AT_ONCE = max(4, (os.cpu_count() or 1) * 3 // 4)  # processes under it

Job = dict[str, Any]
Broken = dict[str, str]


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
    parser.add_argument("--log", type=Path, metavar="FILE", help="write what is said there")
    parser.add_argument(
        "--kernels", type=Path, metavar="FOLDER", help="where compiled kernels lie, or are put"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help="for everything; 460 by default, 540 of --bring-up",
    )
    parser.add_argument("--bring-up", action="store_true", help="one feature after another")
    parser.add_argument("--rungs", metavar="N-M", default="", help="only these of --bring-up")
    parser.add_argument("--list", action="store_true", help="what --bring-up's rungs use")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    parser.add_argument(
        "--target", default="sm_90a", help="of --compile-only, --bring-up; sm_90a by default"
    )
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--child", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_imports()
    if options.child:
        return child(options.child)
    if options.list:
        from gpu_rungs import chosen, listed

        for line in listed(chosen(options.rungs), options.target):
            print(line)
        return 0
    with tempfile.TemporaryDirectory() as private:
        if options.kernels is not None:
            os.environ["TASKC_CACHE"] = str(options.kernels.absolute())
            if not options.compile_only and options.kernels.is_dir():
                # What was carried here may be another user's, whose code isn't run; whoever names it wants it.
                shutil.copytree(options.kernels, private, dirs_exist_ok=True)
                os.environ["TASKC_CACHE"] = private
        if options.compile_only:
            return compile_only(options, program)
        return bring_up(options, program) if options.bring_up else measure(options, program)


def prepare_imports() -> None:
    """The examples are modules, and so is what stands beside this file."""
    for folder in (HERE, HERE.parent / "examples", HERE.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def child(file: Path) -> int:
    from gpu_counters import simulate
    from gpu_first import WORKS
    from gpu_jobs import work_on
    from gpu_rungs import TOOLS
    from gpu_work import check, compile_ahead, measure, prepare

    if sys.platform == "linux":  # whoever cuts off the parent wants no kernel left on the device
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    tools = dict.fromkeys(("check", *TOOLS, "counters"), check)
    works = {"compile": compile_ahead, "simulate": simulate, "measure": measure, **tools, **WORKS}
    return work_on(file, works, prepare)


# --- what is done ----------------------------------------------------------------------------


def parts_of(options: argparse.Namespace) -> list[str]:
    named = [part for part in PARTS if getattr(options, part)]
    return named or ["checks", "times"]


def jobs_of(part: str, options: argparse.Namespace, target: str) -> list[Job]:
    """The jobs of a part, in order."""
    from gpu_cases import FAMILIES, name_of
    from gpu_variants import VARIANTS

    def jobs(kind: str, families: Iterable[Family], sizes: Callable[[Family], Any]) -> list[Job]:
        return [
            {"kind": kind, "family": family.name, "size": size, "case": name_of(size)}
            for family in families
            if options.only in family.name and family.target in ("", target)
            for size in sizes(family)
        ]

    def measured(family: Family) -> Any:
        return family.quick if options.quick else family.sizes

    match part:
        case "checks":
            return jobs("check", FAMILIES, lambda family: (*family.checks, *family.ladder))
        case "times":
            return jobs("measure", FAMILIES, measured)
        case "variants":
            timed = jobs("measure", VARIANTS, measured)
            names = {job["family"] for job in timed}
            families = [family for family in VARIANTS if family.name in names]
            return [*jobs("check", families, lambda family: family.checks), *timed]
        case "counters":
            return jobs("counters", FAMILIES, lambda family: family.counted)
        case _:
            return jobs("", FAMILIES, lambda family: (*family.checks[:1], *family.ladder))


def compile_all(jobs: Iterable[Job], target: str, program: Path, end: float) -> list[Job]:
    """Every kernel of some jobs once, in as many processes as there are cores."""
    from gpu_jobs import run_concurrently

    different = {(job["family"], job["case"]): job for job in jobs}
    todo = [{**job, "kind": "compile", "target": target} for job in different.values()]
    return run_concurrently(todo, program, end, os.cpu_count() or 1)


def compile_only(options: argparse.Namespace, program: Path) -> int:
    from gpu_jobs import is_hazard, line_of, run_concurrently

    start = time.monotonic()
    if options.bring_up:
        jobs, counted = rung_jobs(options), []
    else:
        parts = [part for part in PARTS if getattr(options, part)] or PARTS
        jobs = [job for part in parts for job in jobs_of(part, options, options.target)]
        counted = [
            {**job, "kind": "simulate", "target": options.target}
            for job in jobs_of("counters", options, options.target)
        ]
    done = compile_all(jobs, options.target, program, start + 10 * LIMIT)
    done += run_concurrently(counted, program, start + 10 * LIMIT, os.cpu_count() or 1)
    failed = [row for row in done if "error" in row or "left_out" in row or is_hazard(row)]
    for row in done:
        if row in failed or "remarks" in row:
            print(line_of(row))
    spent = time.monotonic() - start
    print(f"{len(done) - len(failed)} of {len(done)} are compiled or simulated, in {spent:.0f} s")
    return 1 if failed else 0


def rung_jobs(options: argparse.Namespace) -> list[Job]:
    """Checks of the ladder."""
    from gpu_rungs import chosen, jobs_of_rung

    every = [job for rung in chosen(options.rungs) for job in jobs_of_rung(rung)]
    return [job for job in every if job["case"]]


def bring_up(options: argparse.Namespace, program: Path) -> int:
    """This process never asks the device for anything: whatever hangs, it goes on."""
    from gpu_record import Record
    from gpu_rungs import LIMIT, chosen, climb

    start = time.monotonic()
    end = start + (LIMIT if options.seconds is None else options.seconds)
    record = Record(
        options.json or HERE / "results" / "bring_up.json", "see the first rung", options.log
    )
    compile_and_say(rung_jobs(options), options.target, program, end, record)
    climb(
        chosen(options.rungs), program, end, record.note, shutil.which("compute-sanitizer"),
        folder=record.file.parent / "failures", target=options.target,
    )  # fmt: skip
    record.say(f"the ladder took {time.monotonic() - start:.0f} s")
    return 0 if record.finish() else 1


def compile_and_say(
    jobs: list[Job], target: str, program: Path, end: float, record: Record
) -> None:
    from gpu_jobs import line_of

    start, before = time.monotonic(), cached()
    made = compile_all(jobs, target, program, end)
    done = [row for row in made if "error" not in row and "left_out" not in row]
    for row in made:
        if row not in done or "remarks" in row:
            record.say(line_of(row))
    found = f"{len(done)} of {len(made)} compiled or found compiled"
    new = len(cached() - before)
    record.say(f"{found} after {time.monotonic() - start:.0f} s; {new} files are new")


def cached() -> set[str]:
    folder = os.environ.get("TASKC_CACHE")
    return {file.name for file in (Path(folder) / "cuda").glob("*")} if folder else set()


def measure(options: argparse.Namespace, program: Path) -> int:
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
    record = Record(file, f"{context.name}, {described(context)}", options.log)
    record.say(f"{context.name}: {described(context)}")
    if find_spec("torch") is None:
        record.say(
            "torch isn't installed: nothing is compared with cuBLAS, cuDNN and its attention"
        )
    start = time.monotonic()
    jobs = {part: jobs_of(part, options, target) for part in parts_of(options)}
    seconds = LIMIT if options.seconds is None else options.seconds
    ends = ends_of(["compile", *jobs], start + seconds)
    every = [job for some in jobs.values() for job in some]
    compile_and_say(every, target, program, next(ends), record)
    broken: dict[str, str] = {}
    whole = True
    for part, some in jobs.items():
        record.say(f"--- {part}, after {time.monotonic() - start:.0f} s")
        try:
            _WAYS.get(part, plain)(some, target, program, next(ends), record, broken)
        except Exception as error:  # what other parts find is worth having
            record.say(f"{part} broke off: {type(error).__name__}: {error}")
            whole = False
        for row in record.rows:
            if "error" in row:
                broken.setdefault(row["family"], f"{row['family']} {row['case']} failed before")
    return 0 if record.finish() and whole else 1


def ends_of(parts: list[str], end: float) -> Iterator[float]:
    """When each part's time is over: asked for when the part begins, so that it has what others have left."""
    for number, part in enumerate(parts):
        now, left = time.monotonic(), sum(SHARES[one] for one in parts[number:])
        yield now + (end - now) * SHARES[part] / left


def plain(
    jobs: list[Job], target: str, program: Path, end: float, record: Record, broken: Broken
) -> list[Job]:
    from gpu_jobs import run_jobs

    return run_jobs(jobs, program, end, record.note, broken)


def variants(
    jobs: list[Job], target: str, program: Path, end: float, record: Record, broken: Broken
) -> None:
    """Kernels whose results are wrong are not measured."""
    from gpu_variants import comparison

    checked = [job for job in jobs if job["kind"] == "check"]
    for row in plain(checked, target, program, end, record, broken):
        if "error" in row:
            broken.setdefault(row["family"], f"{row['family']} {row['case']} failed before")
    measured = [job for job in jobs if job["kind"] != "check"]
    for line in comparison(plain(measured, target, program, end, record, broken), target):
        record.say(line)


def counters(
    jobs: list[Job], target: str, program: Path, end: float, record: Record, broken: Broken
) -> None:
    from gpu_counters import counted

    counted([job for job in jobs if job["family"] not in broken], target, program, end, record)
    for job in jobs:
        if job["family"] in broken:
            record.note({**job, "left_out": broken[job["family"]]})


def sanitize(
    jobs: list[Job], target: str, program: Path, end: float, record: Record, broken: Broken
) -> None:
    """Each under each tool, several at a time: nothing is timed.

    What has hung would hang again; what has failed otherwise may be explained here.
    """
    from gpu_jobs import run_process
    from gpu_rungs import TOOLS

    tool = shutil.which("compute-sanitizer")
    if tool is None:
        record.say("compute-sanitizer isn't installed: none of its tools was run")
        return

    def run(job: Job) -> None:
        why = broken.get(job["family"], "")
        if "hung" in why:
            record.note({**job, "left_out": why})
            return
        command = [tool, f"--tool={job['kind']}", f"--error-exitcode={_FOUND}"]
        *_, row = run_process([job], program, end, command)
        if row.get("broken") == "hung":
            broken[job["family"]] = f"{job['family']} {job['case']} hung before"
        record.note(row)

    todo = [{**job, "kind": kind} for kind in TOOLS for job in jobs]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(run, todo))


_WAYS: dict[str, Callable[..., None]] = {
    "variants": variants,
    "counters": counters,
    "sanitize": sanitize,
}


if __name__ == "__main__":
    sys.exit(main())
