"""The parent's side of worker processes: requests in, outcomes out, whatever a candidate does to its process.

    with Workers() as workers:
        workers.compile_all(parcels, on_each)
        workers.check(parcel, folder)
        workers.time(parcel, folder, samples=15)

Compilations run on all processors, and so does `check_all`. Times are of one process, and nothing is compiled
meanwhile: a call returns when all that it has started is done.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, Literal, Protocol, TypeAlias

from taskc.runtime.machine import machine
from taskc.runtime.settings import cache_folder
from taskc.tune.stages import Parcel
from taskc.tune.timing import Disturbances

# --- A worker process as its parent sees it: it is asked, and answers, or ends. Then another one is started


State: TypeAlias = Literal["wrong", "refused", "crashed", "timed out"]

_STARTED = 120.0  # seconds until a process that doesn't say that it is there is given up
_GRACE = 10.0  # seconds: so much after its limit a process ends by itself, if its parent is gone


@dataclass(frozen=True, slots=True)
class Failed:
    """A candidate that is out, and why, in a line.

    wrong      its results are, or an assertion in it doesn't hold
    refused    it doesn't compile, or finds no memory
    crashed    its process ended
    timed out  it took too long
    """

    state: State
    note: str


class WorkerError(Exception):
    """No worker can be started, whatever the candidate."""


class Process:
    """One process at a time. Requests wait for each other; any thread may end or close it meanwhile."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = command
        self.environment = environment
        self.starting = threading.Lock()
        self.asking = threading.Lock()
        self.is_closed = False
        self.start()

    def start(self) -> None:
        with self.starting:
            if self.is_closed:
                raise WorkerError("the workers are closed")
            self.is_ready = self.is_late = False
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=self.environment,
                # Where this package is, whatever else has its name where the parent runs.
                cwd=Path(__file__).parents[2],
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the parent, which ends this one
            )

    def end(self) -> None:
        """Ends the process, whatever it does; the next request starts another one."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Ends it, and there will be no other."""
        with self.starting:
            self.is_closed = True
        self.end()
        with self.asking:  # who still reads what it said is done soon
            self._release()

    def _release(self) -> None:
        for file in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(OSError):  # what it was to read, and never will
                if file is not None:
                    file.close()

    def wait_until_ready(self) -> None:
        """Until it has started, and keeps no processor busy."""
        with self.asking:
            self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        if self.process.poll() is not None:
            self._release()
            self.start()
        if not self.is_ready:
            if not self._line(_STARTED):
                raise WorkerError(f"no worker can be started: {self._ended(_STARTED).note}")
            self.is_ready = True

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any] | Failed:
        """The answer to a request that may take so many seconds."""
        with self.asking:
            self._wait_until_ready()
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(json.dumps({**request, "limit": limit + _GRACE}) + "\n")
                self.process.stdin.flush()
                line = self._line(limit)
            except BrokenPipeError:
                line = ""
            except BaseException:  # its answer would be taken for that to the next request
                self.end()
                raise
            if not line.endswith("\n"):
                return self._ended(limit)
        answer: dict[str, Any] = json.loads(line)
        return Failed(**answer) if "state" in answer else answer

    def _line(self, limit: float) -> str:
        """What it says next; nothing if it ends, as it has to after so many seconds."""
        assert self.process.stdout is not None
        timer = threading.Timer(limit, self._expire)
        timer.daemon = True
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self.is_late = True
        self.process.kill()

    def _ended(self, limit: float) -> Failed:
        """Why there is no answer."""
        self.end()
        if self.is_late:
            return Failed("timed out", f"it took more than {limit:g} seconds")
        code = self.process.returncode
        if code < 0:
            return Failed("crashed", f"its process was ended by {signal.Signals(-code).name}")
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines()
        because = f": {said[-1]}" if said else ""
        return Failed("crashed", f"its process ended with exit code {code}{because}")


Answer: TypeAlias = "dict[str, Any] | Failed"

COMMAND = (sys.executable, "-m", "taskc.tune.worker")


@dataclass(frozen=True, slots=True)
class Compiled:
    """seconds  of the stages that ran, by name
    code     the hash of the machine code
    note     what is known of it besides
    """

    seconds: Mapping[str, float]
    code: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """error: the worst, relative to the root mean square of what should come out."""

    error: float


@dataclass(frozen=True, slots=True)
class Timed:
    """seconds: of a call, in each sample; times: calls of a sample; copies: of the operands, used in turn."""

    seconds: tuple[float, ...]
    times: int
    copies: int
    disturbances: Disturbances

    @property
    def median(self) -> float:
        return median(self.seconds)


class AnyProcess(Protocol):
    """What is asked, and answers: a `Process`, here or elsewhere."""

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any] | Failed: ...
    def wait_until_ready(self) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class Workers:
    """Processes that are there until they are closed, or the parent ends.

    threads    that a kernel runs on: those of the parent's calls, if not said
    processes  that compile at a time: one for each processor, if not said
    folder     the cache folder of candidates: the parent's own keeps what its calls use
    memory     bytes that a process may have beside what it starts with; None sets no limit
    command    what runs a worker
    start      makes a process of a command and an environment
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        processes: int | None = None,
        folder: Path | None = None,
        memory: int | None = None,
        command: Sequence[str] = COMMAND,
        start: Callable[[Sequence[str], Mapping[str, str]], AnyProcess] = Process,
    ) -> None:
        threads = threads or machine().threads
        environment = dict(os.environ)
        for name in ("TASKC_TARGET", "TASKC_DUMP"):
            environment.pop(name, None)
        environment["TASKC_THREADS"] = str(threads)
        environment["TASKC_CACHE"] = str((folder or cache_folder() / "tune").absolute())
        self.threads = threads
        count = processes or _processors()
        command = [*command, *([] if memory is None else [str(memory)])]
        self._processes = [start(command, environment) for _ in range(count)]
        self._executor = ThreadPoolExecutor(count)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes, whatever they do."""
        for process in self._processes:
            process.close()
        self._executor.shutdown(cancel_futures=True)

    def compile_all(
        self,
        parcels: Iterable[Parcel],
        on_each: Callable[[Parcel, Compiled | Failed], object] = lambda parcel, found: None,
        *,
        limit: float = 60.0,
    ) -> dict[Parcel, Compiled | Failed]:
        """Compiles each once. `on_each` hears of it in this thread as soon as it is done."""
        requests = {parcel: {"do": "compile", "parcel": parcel.text} for parcel in parcels}
        made: dict[Parcel, Compiled | Failed] = {}

        def hear(parcel: Parcel, answer: Answer) -> None:
            made[parcel] = answer if isinstance(answer, Failed) else Compiled(**answer)
            on_each(parcel, made[parcel])

        self._ask_all(requests, hear, limit)
        return made

    def check_all(
        self, folders: Mapping[Parcel, Path], *, limit: float = 60.0
    ) -> dict[Parcel, Checked | Failed]:
        """Checks parcels as `check` does, each on what is in its folder, beside each other."""
        requests = {parcel: _check(parcel, folder, None) for parcel, folder in folders.items()}
        found: dict[Parcel, Checked | Failed] = {}

        def hear(parcel: Parcel, answer: Answer) -> None:
            found[parcel] = answer if isinstance(answer, Failed) else Checked(**answer)

        self._ask_all(requests, hear, limit)
        return found

    def _ask_all(
        self,
        requests: Mapping[Parcel, dict[str, Any]],
        hear: Callable[[Parcel, Answer], None],
        limit: float,
    ) -> None:
        """Asks all processes. Each answer is heard in this thread as soon as it is there."""
        idle: SimpleQueue[AnyProcess] = SimpleQueue()
        for process in self._processes:
            idle.put(process)

        def ask(request: dict[str, Any]) -> Answer:
            process = idle.get()
            try:
                return process.ask(request, limit)
            finally:
                idle.put(process)

        futures = {
            self._executor.submit(ask, request): parcel for parcel, request in requests.items()
        }
        try:
            for future in as_completed(futures):
                hear(futures[future], future.result())
        except BaseException:  # an answer that comes later would be taken for another one's
            for future in futures:
                future.cancel()
            for process in self._processes:
                process.end()
            raise

    def check(
        self, parcel: Parcel, folder: Path, *, tolerance: float | None = None, limit: float = 60.0
    ) -> Checked | Failed:
        """Runs it once, on what `write_operands` has put into a folder.

        tolerance  that its error may have; by the results' types, if not said
        """
        answer = self._processes[0].ask(_check(parcel, folder, tolerance), limit)
        return answer if isinstance(answer, Failed) else Checked(**answer)

    def time(
        self,
        parcel: Parcel,
        folder: Path,
        *,
        samples: int = 15,
        seconds: float = 1e-3,
        rotates: bool = True,
        limit: float = 60.0,
    ) -> Timed | Failed:
        """Samples of so many seconds at least; `rotates=False` keeps operands in the caches."""
        found = self.race(
            [parcel], folder, samples=samples, seconds=seconds, rotates=rotates, limit=limit
        )
        return found if isinstance(found, Failed) else found[0]

    def race(
        self,
        parcels: Sequence[Parcel],
        folder: Path,
        *,
        samples: int = 15,
        seconds: float = 1e-3,
        rotates: bool = True,
        limit: float = 60.0,
    ) -> list[Timed] | Failed:
        """Samples of each, in turn: the n-th ones of all ran side by side. It fails if one of them does."""
        request = {
            "do": "time",
            "parcels": [parcel.text for parcel in parcels],
            "folder": str(folder.absolute()),
            "samples": samples,
            "seconds": seconds,
            "rotates": rotates,
        }
        for process in self._processes:
            process.wait_until_ready()
        answer = self._processes[0].ask(request, limit)
        if isinstance(answer, Failed):
            return answer
        disturbances = Disturbances(**answer["disturbances"])
        return [
            Timed(tuple(own), times, answer["copies"], disturbances)
            for own, times in zip(answer["seconds"], answer["times"], strict=True)
        ]


def _check(parcel: Parcel, folder: Path, tolerance: float | None) -> dict[str, Any]:
    where = str(folder.absolute())
    return {"do": "check", "parcel": parcel.text, "folder": where, "tolerance": tolerance}


def _processors() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
