"""Jobs of `gpu.py` in processes of their own: one that crashes, hangs or breaks the device costs its own row."""

from __future__ import annotations

import json
import os
import re
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

from taskc.format import ratio_text, time_text

Job = dict[str, Any]
Note = Callable[[Job], None]
Broken = dict[str, str]  # families, and what has happened to each

# Seconds until a process is ready: its imports, torch's too, and cuInit. They count against no job.
STARTS = 120.0
# Seconds that a job may take once it is.
LIMITS = {"check": 10.0, "measure": 20.0}
HANGS = 60.0  # of another kind
_ENDS = 15.0  # seconds until its process has ended, once all is done
OUT_OF_TIME = "out of time"
OFF_DEVICE = ("compile", "simulate")  # kinds of jobs
_HAZARD = re.compile(r"\(C75\d\d\)")
_SHOWN = 300  # characters of what a process says at its end


def run_jobs(
    jobs: Sequence[Job], program: Path, end: float, note: Note, broken: Broken | None = None
) -> list[Job]:
    """All jobs, in order: those of a kind in one process, and in another one behind a job that breaks it.

    note    is given each job's row as soon as it is there
    broken  families that are left out. One that hangs or breaks its process is put there
    """
    broken = {} if broken is None else broken
    done: list[Job] = []

    def known(row: Job) -> None:
        note(row)
        done.append(row)

    left = list(jobs)
    while left:
        count = next((k for k, job in enumerate(left) if job["kind"] != left[0]["kind"]), len(left))
        batch, rest = left[:count], left[count:]
        for job in batch:
            if job["family"] in broken:
                known({**job, "left_out": broken[job["family"]]})
        batch = [job for job in batch if job["family"] not in broken]
        finished = 0
        for row in run_process(batch, program, end) if batch else ():
            finished += 1
            known(row)
            if "broken" in row:
                broken[row["family"]] = f"{row['family']} {row['case']} {row['broken']} before"
        left = batch[finished:] + rest
    return done


def run_concurrently(jobs: Sequence[Job], program: Path, end: float, processes: int) -> list[Job]:
    """All jobs, in any order, in several processes at a time."""
    parts = [list(jobs[k::processes]) for k in range(processes)]

    def run(part: list[Job]) -> list[Job]:
        return run_jobs(part, program, end, lambda row: None)

    with ThreadPoolExecutor(processes) as pool:
        return [row for rows in pool.map(run, [part for part in parts if part]) for row in rows]


def run_process(
    jobs: Sequence[Job],
    program: Path,
    end: float,
    under: Sequence[str] = (),
    together: float | None = None,
) -> Iterator[Job]:
    """The results of the first jobs, one at least, each as soon as it is there.

    end       when time is over, for all: what runs then is cut off
    under     a command that runs the process, and whose own findings are errors: it ends with another code then
    together  the seconds that all of them may take, in place of limits of their own
    """
    if time.monotonic() > end:
        yield from [{**job, "left_out": OUT_OF_TIME} for job in jobs]
        return
    last: Job = {}
    count, code = 0, None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.json"
        file.write_text(json.dumps(jobs))
        found = file.with_suffix(".done")
        found.touch()
        with found.open() as results, (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(
                [*under, sys.executable, str(program), "--child", str(file)],
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            clock = _Clock(jobs, together, 2 if under else 1)
            why, broken = "", ""
            try:
                while not why:
                    time.sleep(0.02)
                    code, now = process.poll(), time.monotonic()
                    # What was written before the end is read before the end is believed.
                    for line in results:
                        row = json.loads(line)
                        clock.note_row(row, now)
                        if "ready" not in row:
                            last, count = row, count + 1
                            yield last
                    if code is not None:
                        said.seek(0)
                        shown = said.read().strip()[-(4 * _SHOWN if under else _SHOWN) :]
                        why, broken = f"the process ended with {code}: {shown}", "broke its process"
                    elif now > end:
                        why = OUT_OF_TIME
                    elif count < len(jobs) and now > clock.end:
                        why, broken = clock.why, "hung"
                    elif now > clock.end:
                        break  # all is done, and it doesn't end
            finally:
                _kill(process)
    if count < len(jobs) and not last.get("fatal"):
        key = "left_out" if why == OUT_OF_TIME else "error"
        yield {**jobs[count], key: why, **({"broken": broken} if broken else {})}
    elif under and code:
        yield {**jobs[-1], "error": why}


class _Clock:
    """When a process has taken too long.

    end  that is when, and `why` is what is said of it
    """

    def __init__(self, jobs: Sequence[Job], together: float | None, patience: float) -> None:
        self._left = list(jobs)
        self._together = together
        self._patience = patience
        self._until(patience * STARTS, time.monotonic(), "it wasn't ready after")

    def _until(self, seconds: float, now: float, what: str) -> None:
        self.end, self.why = now + seconds, f"{what} {seconds:g} s"

    def note_row(self, row: Job, now: float) -> None:
        """Handle a row: the process is ready, or a job has a result."""
        if "ready" not in row:
            self._left = self._left[1:]
        if not self._left:
            self._until(self._patience * _ENDS, now, "it didn't end after")
        elif self._together is None:
            limit = LIMITS.get(self._left[0]["kind"], HANGS)
            self._until(self._patience * limit, now, "it hung: no result after")
        elif "ready" in row:
            self._until(self._patience * self._together, now, "it hung: it didn't end within")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """And whatever it has started. Who waits in the driver for a kernel may stay: nobody waits for him."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)


def work_on(
    file: Path, works: dict[str, Callable[[Job], Job]], prepare: Callable[[list[Job]], None]
) -> int:
    """The process's side: a line of JSON when it is ready, and for each job as soon as it is known.

    prepare  imports what the jobs want, and starts the device
    """
    from taskc import device

    jobs = json.loads(file.read_text())
    with file.with_suffix(".done").open("a") as done:

        def say(row: Job) -> None:
            done.write(json.dumps(row) + "\n")
            done.flush()

        start = time.monotonic()
        try:
            prepare(jobs)
        except device.DeviceError as error:
            say({**jobs[0], "error": str(error), "fatal": True, "broken": "found no device"})
            return 1
        say({"ready": time.monotonic() - start})
        for job in jobs:
            fatal = False
            try:
                result = works[job["kind"]](job)
            except device.DeviceError as error:
                result, fatal = {"error": str(error)}, True
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
                fatal = job["kind"] not in OFF_DEVICE and not _works(device)
            if fatal:  # what the device does after an error of its own means nothing
                result |= {"fatal": True, "broken": "broke the device"}
            say({**job, **result})
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


def is_hazard(row: Job) -> bool:
    """Whether the assembler has put waits into a kernel's products, or ignores what it says of registers."""
    return any(_HAZARD.search(remark) for remark in row.get("remarks", ()))


def line_of(row: Job) -> str:
    head = f"{row['kind']:9} {row['family']:28} {row['case']:26}"
    if row["kind"] == "rung":
        return line_of_rung(row)
    if "error" in row:
        timed = f"; it takes {_time(row['ours_ms'])}" if "ours_ms" in row else ""
        return f"{head} FAILED: {row['error']}{timed}"
    if "left_out" in row:
        return f"{head} left out: {row['left_out']}"
    if row.get("remarks"):
        return f"{head} {'; '.join(row['remarks'])}"
    if "error_of_bound" in row:
        return f"{head} right: {row['error_of_bound']:.2f} of the bound"
    if "ours_ms" not in row:
        return head
    text = f"{head} {_time(row['ours_ms'], '9.4f')}"
    if row.get("tflops"):
        text += f" {row['tflops']:7.1f} TFLOP/s"
    for name in ("peak", "copy"):
        if row.get(f"fraction_of_{name}"):
            text += f" {row[f'fraction_of_{name}']:4.0%} of {name}"
    if row.get("ratio"):
        low, high = row["quartiles"]
        peer = f"{row['peer']} {_time(row['peer_ms'], '9.4f')}"
        text += f"  {peer}  {ratio_text(row['ratio'])} ({low:.2f} to {high:.2f})"
    return text


def line_of_rung(row: Job) -> str:
    """The rung, how it ended, and each of its steps."""
    head = f"rung {row['case']:3} {row['family']:46}"
    if "left_out" in row:
        return f"{head} left out: {row['left_out']}"
    said = "; ".join(_step_text(step) for step in row["steps"])
    verdict = "FAILED" if "error" in row else "right"
    return f"{head} {verdict} in {time_text(row['seconds'], 's', '.1f')}: {said}"


def _step_text(step: Job) -> str:
    name = f"{step['family']} {step['case']}".strip()
    for key in ("error", "left_out"):
        if key in step:
            return f"{name}: {step[key]}"
    if "error_of_bound" in step:
        return f"{name} {step['error_of_bound']:.2f} of the bound"
    if "ours_ms" in step:
        return " ".join([name, *_times_of(step)])
    return f"{name} {step.get('said', '')}".strip()


def _times_of(step: Job) -> list[str]:
    """A timing as text, with its rate, and its ratios to a copy and a peer."""
    rate = [f"{step['tflops']:.1f} TFLOP/s"] if step.get("tflops") else []
    copy = [f"{step['fraction_of_copy']:.0%} of copy"] if step.get("fraction_of_copy") else []
    ratio = [ratio_text(step["ratio"])] if step.get("ratio") else []
    return [_time(step["ours_ms"]), *rate, *copy, *ratio]


def _time(milliseconds: float, digits: str = ".4f") -> str:
    return time_text(milliseconds / 1e3, "ms", digits)
