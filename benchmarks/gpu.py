"""The CUDA target on a GPU: first all correctness checks, then times against cuBLAS, cuDNN and torch's attention.

    python benchmarks/gpu.py [--quick] [--only matmul] [--json FILE]

It writes benchmarks/results/<device>.json, and a log beside it. Each family of cases runs in a process of its own,
which is started anew behind a case that crashes, hangs or breaks the device; that one's row says so. torch, where
it is installed, brings the peers; nothing else is needed but taskc, cuda-python and NVRTC.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
LIMIT = 465.0  # seconds for everything
HANGS = 60.0  # a case may take so long
_INTERNAL = ("family", "size", "fatal")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes: about a minute")
    parser.add_argument(
        "--only", metavar="NAME", default="", help="families with this in their name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--child", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_imports()
    if options.child:
        return child(options.child)
    return parent(options.quick, options.only, options.json)


def prepare_imports() -> None:
    """The examples are modules, and so is what stands beside this file."""
    for folder in (HERE, HERE.parent / "examples", HERE.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


# --- the parent ------------------------------------------------------------------------------


def parent(quick: bool, only: str, file: Path | None) -> int:
    from gpu_cases import FAMILIES, name_of
    from report import described, write

    from taskc import device

    try:
        context = device.context()
    except device.DeviceError as error:
        print(f"nothing is measured: {error}", file=sys.stderr)
        return 1
    slug = re.sub(r"\W+", "_", context.name.lower()).strip("_")
    file = file or HERE / "results" / f"{slug}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    families = [family for family in FAMILIES if only in family.name]
    jobs: list[dict[str, Any]] = []
    for what in ("checks", "quick" if quick else "sizes"):
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


def run_child(group: list[dict[str, Any]], end: float) -> list[dict[str, Any]]:
    """The results of the first jobs of a group: one at least."""
    if time.monotonic() > end:
        return [{**job, "error": "not measured: out of time"} for job in group]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.json"
        file.write_text(json.dumps(group))
        limit = min(HANGS * len(group), max(1.0, end + HANGS - time.monotonic()))
        try:
            ended = subprocess.run(
                [sys.executable, __file__, "--child", str(file)],
                capture_output=True, text=True, check=False, timeout=limit,
            )  # fmt: skip
            why = f"the process ended with {ended.returncode}: {ended.stderr.strip()[-300:]}"
        except subprocess.TimeoutExpired:
            why = "it took too long"
        found = file.with_suffix(".done")
        lines = found.read_text().splitlines() if found.exists() else []
        results: list[dict[str, Any]] = [json.loads(line) for line in lines]
    if len(results) < len(group) and not (results and results[-1].get("fatal")):
        results.append({**group[len(results)], "error": why})
    return results


def line_of(row: dict[str, Any]) -> str:
    head = f"{row['kind']:7} {row['family']:26} {row['case']:24}"
    if "error" in row:
        return f"{head} FAILED: {row['error']}"
    if row["kind"] == "check":
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
                result = (check if job["kind"] == "check" else measure)(job)
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
