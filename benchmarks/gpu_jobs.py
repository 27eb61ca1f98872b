"""Jobs of `gpu.py` in processes of their own: one that crashes, hangs or breaks the device costs its own row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Note = Callable[[Job], None]

HANGS = 60.0  # seconds that a job may take
_STARTS = 4 * HANGS  # under a tool
_OUT_OF_TIME = "out of time"
_OFF_DEVICE = ("compile", "simulate")  # kinds of jobs
_SHOWN = 300  # characters of what a process says at its end


def run_jobs(jobs: Sequence[Job], program: Path, end: float, note: Note) -> list[Job]:
    """All jobs, in order: those of a kind in one process, and in another one behind a job that breaks it.

    note  is given each job's row as soon as it is there
    """
    done: list[Job] = []
    while len(done) < len(jobs):
        left = jobs[len(done) :]
        count = next((k for k, job in enumerate(left) if job["kind"] != left[0]["kind"]), len(left))
        for row in run_process(left[:count], program, end):
            note(row)
            done.append(row)
    return done


def run_beside(jobs: Sequence[Job], program: Path, end: float, processes: int) -> list[Job]:
    """All jobs, in any order, in several processes at a time."""
    parts = [list(jobs[k::processes]) for k in range(processes)]

    def run(part: list[Job]) -> list[Job]:
        return run_jobs(part, program, end, lambda row: None)

    with ThreadPoolExecutor(processes) as pool:
        return [row for rows in pool.map(run, [part for part in parts if part]) for row in rows]


def run_process(
    jobs: Sequence[Job], program: Path, end: float, under: Sequence[str] = ()
) -> Iterator[Job]:
    """The results of the first jobs, one at least, each as soon as it is there.

    end    when time is over, for all: what runs then is cut off
    under  a command that runs the process, and whose own findings are errors: it ends with another code then
    """
    if time.monotonic() > end:
        yield from [{**job, "left_out": _OUT_OF_TIME} for job in jobs]
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.json"
        file.write_text(json.dumps(jobs))
        found = file.with_suffix(".done")
        found.touch()
        last: Job = {}
        count = 0
        with found.open() as results, (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(
                [*under, sys.executable, str(program), "--child", str(file)],
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            since, why = time.monotonic(), ""
            while not why:
                time.sleep(0.02)
                code, now = process.poll(), time.monotonic()
                # What was written before the end is read before the end is believed.
                for line in results:
                    last, since, count = json.loads(line), now, count + 1
                    yield last
                if code is not None:
                    said.seek(0)
                    why = f"the process ended with {code}: {said.read().strip()[-(4 * _SHOWN if under else _SHOWN) :]}"
                elif now > end:
                    why = _OUT_OF_TIME
                elif now - since > (_STARTS if under else HANGS):
                    why = "it took too long"
            with suppress(ProcessLookupError):  # whatever it has started, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if count < len(jobs) and not last.get("fatal"):
        yield {**jobs[count], "left_out" if why == _OUT_OF_TIME else "error": why}
    elif under and code:
        yield {**jobs[-1], "error": why}


def work_on(file: Path, works: dict[str, Callable[[Job], Job]]) -> int:
    """The process's side: a line of JSON for each job, as soon as it is known."""
    from taskc import device

    with file.with_suffix(".done").open("a") as done:
        for job in json.loads(file.read_text()):
            fatal = False
            try:
                result = works[job["kind"]](job)
            except device.DeviceError as error:
                result, fatal = {"error": str(error)}, True
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
                fatal = job["kind"] not in _OFF_DEVICE and not _works(device)
            if fatal:  # what the device does after an error of its own means nothing
                result["fatal"] = True
            done.write(json.dumps({**job, **result}) + "\n")
            done.flush()
            if fatal:
                return 1
    return 0


def _works(device: Any) -> bool:
    """An error of another library's may say in its own words that a kernel has broken the device."""
    try:
        device.synchronize()
    except device.DeviceError:
        return False
    return True


def line_of(row: Job) -> str:
    head = f"{row['kind']:9} {row['family']:28} {row['case']:26}"
    if "error" in row:
        return f"{head} FAILED: {row['error']}"
    if "left_out" in row:
        return f"{head} left out: {row['left_out']}"
    if row.get("remarks"):
        return f"{head} {'; '.join(row['remarks'])}"
    if "error_of_bound" in row:
        return f"{head} right: {row['error_of_bound']:.2f} of the bound"
    if "ours_ms" not in row:
        return head
    text = f"{head} {row['ours_ms']:9.4f} ms"
    if row.get("tflops"):
        text += f" {row['tflops']:7.1f} TFLOP/s"
    for name in ("peak", "copy"):
        if row.get(f"fraction_of_{name}"):
            text += f" {row[f'fraction_of_{name}']:4.0%} of {name}"
    if row.get("ratio"):
        low, high = row["quartiles"]
        text += f"  {row['peer']} {row['peer_ms']:9.4f} ms  {row['ratio']:.2f}x ({low:.2f} to {high:.2f})"
    return text
