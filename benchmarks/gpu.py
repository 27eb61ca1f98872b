"""The CUDA target on a GPU: first all correctness checks, then times against cuBLAS, cuDNN and torch's attention.

    python benchmarks/gpu.py [--quick] [--only matmul] [--json FILE] [--sanitize]

It writes benchmarks/results/<device>.json, and a log beside it. Each family of cases runs in a process of its own,
which is started anew behind a case that crashes, hangs or breaks the device; that one's row says so. torch, where
it is installed, brings the peers; nothing else is needed but taskc, cuda-python and NVRTC.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
LIMIT = 465.0  # seconds for everything
HANGS = 60.0  # a case may take so long
_FOUND = "the process ended with 9"  # what is asked of compute-sanitizer
_INTERNAL = ("family", "size", "fatal")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes: about a minute")
    parser.add_argument(
        "--only", metavar="NAME", default="", help="families with this in their name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument(
        "--sanitize", action="store_true", help="also run a check of each under compute-sanitizer"
    )
    parser.add_argument("--child", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_imports()
    if options.child:
        return child(options.child)
    return parent(options)


def prepare_imports() -> None:
    """The examples are modules, and so is what stands beside this file."""
    for folder in (HERE, HERE.parent / "examples", HERE.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


# --- the parent ------------------------------------------------------------------------------


def parent(options: argparse.Namespace) -> int:
    from gpu_cases import FAMILIES, name_of
    from report import described, write

    from taskc import device

    try:
        context = device.context()
    except device.DeviceError as error:
        print(f"nothing is measured: {error}", file=sys.stderr)
        return 1
    slug = re.sub(r"\W+", "_", context.name.lower()).strip("_")
    file = options.json or HERE / "results" / f"{slug}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    families = [family for family in FAMILIES if options.only in family.name]
    jobs: list[dict[str, Any]] = []
    for what in ("checks", "quick" if options.quick else "sizes"):
        for family in families:
            kind = "check" if what == "checks" else "measure"
            jobs += [
                {"kind": kind, "family": family.name, "size": size, "case": name_of(size)}
                for size in getattr(family, what)
            ]
    with file.with_suffix(".log").open("w") as log:

        def say(text: str) -> None:
            print(text, flush=True)
            log.write(f"{text}\n")
            log.flush()

        say(f"{context.name}: {described(context)}")
        if find_spec("torch") is None:
            say("torch isn't installed: nothing is compared with cuBLAS, cuDNN and its attention")
        done = run_jobs(jobs, say)
        if options.sanitize:
            done += sanitized([job for job in jobs if job["kind"] == "check"], say)
    rows = [
        {"benchmark": row["family"], **{k: v for k, v in row.items() if k not in _INTERNAL}}
        for row in done
        if row["kind"] == "measure" or "error" in row
    ]
    failed = [row for row in done if "error" in row]
    write(file, f"{context.name}, {described(context)}", rows)
    wins = [row["ratio"] for row in rows if row.get("ratio")]
    if wins:
        print(
            f"minimum {min(wins):.2f}, median {median(wins):.2f}, {sum(r < 1 for r in wins)} losses"
        )
    print(f"{len(done) - len(failed)} of {len(done)} are right; {file}")
    return 1 if failed else 0


def run_jobs(jobs: list[dict[str, Any]], say: Any) -> list[dict[str, Any]]:
    """All jobs, in order: those of a family and a kind in one process, unless one breaks it."""
    end = time.monotonic() + LIMIT
    done: list[dict[str, Any]] = []
    while jobs:
        first = jobs[0]
        group = [j for j in jobs if (j["kind"], j["family"]) == (first["kind"], first["family"])]
        results = run_child(group, end)
        for row in results:
            say(line_of(row))
        done += results
        jobs = jobs[len(results) :]
    return done


def sanitized(checks: list[dict[str, Any]], say: Any) -> list[dict[str, Any]]:
    """The first check of each family under memcheck and racecheck."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        say("compute-sanitizer isn't installed: neither memcheck nor racecheck was run")
        return []
    firsts = list({job["family"]: job for job in reversed(checks)}.values())[::-1]
    done = []
    for tool in ("memcheck", "racecheck"):
        for job in firsts:
            command = [program, f"--tool={tool}", "--error-exitcode=9", "--log-file=/dev/stderr"]
            (row,) = run_child([{**job, "kind": tool}], time.monotonic() + 4 * HANGS, command)
            say(line_of(row))
            done.append(row)
    return done


def run_child(
    group: list[dict[str, Any]], end: float, under: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The results of the first jobs of a group: one at least.

    under  a command that runs the process, and whose own findings are errors
    """
    if time.monotonic() > end:
        return [{**job, "error": "not measured: out of time"} for job in group]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.json"
        file.write_text(json.dumps(group))
        usual = HANGS * len(group) * (4 if under else 1)
        limit = min(usual, max(1.0, end + HANGS - time.monotonic()))
        try:
            ended = subprocess.run(
                [*under, sys.executable, __file__, "--child", str(file)],
                capture_output=True, text=True, check=False, timeout=limit,
            )  # fmt: skip
            why = f"the process ended with {ended.returncode}: {ended.stderr.strip()[-300:]}"
        except subprocess.TimeoutExpired:
            why = "it took too long"
        found = file.with_suffix(".done")
        lines = found.read_text().splitlines() if found.exists() else []
        results: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if under and why.startswith(_FOUND):
            results = []
    if len(results) < len(group) and not (results and results[-1].get("fatal")):
        results.append({**group[len(results)], "error": why})
    return results


def line_of(row: dict[str, Any]) -> str:
    head = f"{row['kind']:9} {row['family']:26} {row['case']:24}"
    if "error" in row:
        return f"{head} FAILED: {row['error']}"
    if row["kind"] != "measure":
        return f"{head} right: {row['error_of_bound']:.2f} of the bound"
    text = f"{head} {row['ours_ms']:9.4f} ms"
    if row.get("tflops"):
        text += f" {row['tflops']:7.1f} TFLOP/s"
    if row.get("fraction_of_copy"):
        text += f" {row['fraction_of_copy']:4.0%} of a copy"
    if row.get("ratio"):
        low, high = row["quartiles"]
        text += f"  {row['peer']} {row['peer_ms']:9.4f} ms  {row['ratio']:.2f}x ({low:.2f} to {high:.2f})"
    return text


# --- a child ---------------------------------------------------------------------------------


def child(file: Path) -> int:
    """Jobs of one family: a line of JSON for each, as soon as it is known."""
    from gpu_work import check, measure

    from taskc.device import DeviceError

    with file.with_suffix(".done").open("w") as done:
        for job in json.loads(file.read_text()):
            fatal = False
            try:
                result = (measure if job["kind"] == "measure" else check)(job)
            except DeviceError as error:  # what the device does after an error means nothing
                result, fatal = {"error": str(error), "fatal": True}, True
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            done.write(json.dumps({**job, **result}) + "\n")
            done.flush()
            if fatal:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
