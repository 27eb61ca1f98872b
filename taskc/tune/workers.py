"""The parent's side of worker processes: requests in, outcomes out, whatever a candidate does to its process.

    with Workers() as workers:
        workers.compile_all(parcels, on_each)
        workers.check(parcel, folder)
        workers.race(parcels, folder, samples=15)

Compilations and `check_all` use all processors. Times are measured in one process while nothing is compiled: a call
returns when everything that it started is done.

Workers can also be on the machines of a Ray cluster (`ray_workers`): each has a process like those on this machine.
Requests go there, with the contents of the folder that they name; measurements come back, and are stored only in the
database here. The cluster's machines have to be like this one.
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
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.runtime.machine import machine
from taskc.runtime.settings import cache_folder
from taskc.tune.choose import fingerprint
from taskc.tune.timing import Disturbances
from taskc.tune.worker import Parcel

# --- A worker process, from its parent's side: it answers requests, or ends and is started again


State: TypeAlias = Literal["wrong", "refused", "crashed", "timed out"]

_STARTED = 120.0  # seconds after which a process that isn't ready is given up
_GRACE = 10.0  # seconds after its limit, when a process ends by itself if its parent is gone


@dataclass(frozen=True, slots=True)
class Failed:
    """A candidate that failed, and why, in a line.

    wrong      its results are wrong, or an assertion fails
    refused    it doesn't compile, or runs out of memory
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
                # The package's parent folder, so that it is found, and not another of its name.
                cwd=Path(__file__).parents[2],
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the parent, which ends this one
            )

    def end(self) -> None:
        """End the process, whatever it does; the next request starts another one."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the process for good."""
        with self.starting:
            self.is_closed = True
        self.end()
        with self.asking:  # a thread that still reads its output will finish soon
            self._release()

    def _release(self) -> None:
        for file in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(OSError):  # unread input of the ended process
                if file is not None:
                    file.close()

    def wait_until_ready(self) -> None:
        """Wait until it has started, and keeps no processor busy."""
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
        """The answer to a request, within a limit of seconds."""
        with self.asking:
            self._wait_until_ready()
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(json.dumps({**request, "limit": limit + _GRACE}) + "\n")
                self.process.stdin.flush()
                line = self._line(limit)
            except BrokenPipeError:
                line = ""
            except BaseException:  # its answer would be taken for the next request's
                self.end()
                raise
            if not line.endswith("\n"):
                return self._ended(limit)
        answer: dict[str, Any] = json.loads(line)
        return Failed(**answer) if "state" in answer else answer

    def _line(self, limit: float) -> str:
        """Its next line; empty if it ends, which it must within the limit."""
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
        """The reason why there is no answer."""
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
T = TypeVar("T")

COMMAND = (sys.executable, "-m", "taskc.tune.worker")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled candidate.

    seconds  of the stages that ran, by name
    code     the hash of the machine code
    note     such as its resources
    """

    seconds: Mapping[str, float]
    code: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """error: the worst, relative to the root mean square of the expected result."""

    error: float


@dataclass(frozen=True, slots=True)
class Timed:
    """seconds: a call's time in each sample; times: calls in a sample; copies: of the operands, used in turn."""

    seconds: tuple[float, ...]
    times: int
    copies: int
    disturbances: Disturbances


class AnyProcess(Protocol):
    """Answers requests: a `Process`, here or elsewhere."""

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any] | Failed: ...
    def wait_until_ready(self) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class Workers:
    """Worker processes, until they are closed or the parent ends.

    threads    the threads of a kernel; by default those of the parent's calls
    processes  the number of processes; by default one for each processor
    folder     the cache folder of candidates, apart from the parent's
    command    the command that runs a worker
    start      starts a process from a command and an environment
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        processes: int | None = None,
        folder: Path | None = None,
        command: Sequence[str] = COMMAND,
        start: Callable[[Sequence[str], Mapping[str, str]], AnyProcess] = Process,
    ) -> None:
        environment = dict(os.environ)
        for name in ("TASKC_TARGET", "TASKC_DUMP"):
            environment.pop(name, None)
        environment["TASKC_THREADS"] = str(threads or machine().threads)
        environment["TASKC_CACHE"] = str((folder or cache_folder() / "tune").absolute())
        count = processes or _processors()
        self._processes = [start(command, environment) for _ in range(count)]
        self._executor = ThreadPoolExecutor(count)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, whatever they do."""
        for process in self._processes:
            process.close()
        self._executor.shutdown(cancel_futures=True)

    def compile_all(
        self,
        parcels: Iterable[Parcel],
        on_each: Callable[[Parcel, Compiled | Failed], object] = lambda parcel, outcome: None,
        *,
        limit: float = 60.0,
    ) -> dict[Parcel, Compiled | Failed]:
        """Compile each once. `on_each` is called in this thread as soon as one is done."""
        requests = {parcel: {"do": "compile", "parcel": parcel.text} for parcel in parcels}
        return self._ask_all(requests, Compiled, on_each, limit)

    def check_all(
        self, folders: Mapping[Parcel, Path], *, limit: float = 60.0
    ) -> dict[Parcel, Checked | Failed]:
        """Check parcels as `check` does, each on its folder, in parallel."""
        requests = {parcel: _check(parcel, folder) for parcel, folder in folders.items()}
        return self._ask_all(requests, Checked, lambda parcel, outcome: None, limit)

    def _ask_all(
        self,
        requests: Mapping[Parcel, dict[str, Any]],
        kind: Callable[..., T],
        on_each: Callable[[Parcel, T | Failed], object],
        limit: float,
    ) -> dict[Parcel, T | Failed]:
        """Distribute requests over all processes; answers are of this kind."""
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
        outcomes: dict[Parcel, T | Failed] = {}
        try:
            for future in as_completed(futures):
                parcel = futures[future]
                outcomes[parcel] = _read(future.result(), kind)
                on_each(parcel, outcomes[parcel])
        except BaseException:  # a late answer would be taken for another request's
            for future in futures:
                future.cancel()
            for process in self._processes:
                process.end()
            raise
        return outcomes

    def check(self, parcel: Parcel, folder: Path, *, limit: float = 60.0) -> Checked | Failed:
        """Run it once, on operands that `write_operands` wrote to a folder."""
        return _read(self._processes[0].ask(_check(parcel, folder), limit), Checked)

    def race(
        self, parcels: Sequence[Parcel], folder: Path, *, samples: int = 15, limit: float = 60.0
    ) -> list[Timed] | Failed:
        """Interleaved samples: the n-th ones of all ran one after another. It fails if one of them does."""
        request = {
            "do": "time",
            "parcels": [parcel.text for parcel in parcels],
            "folder": str(folder.absolute()),
            "samples": samples,
        }
        for process in self._processes:
            process.wait_until_ready()
        answer = self._processes[0].ask(request, limit)
        if isinstance(answer, Failed):
            return answer
        disturbances = Disturbances(**answer["disturbances"])
        return [
            Timed(tuple(samples), times, answer["copies"], disturbances)
            for samples, times in zip(answer["seconds"], answer["times"], strict=True)
        ]


def _read(answer: Answer, kind: Callable[..., T]) -> T | Failed:
    return answer if isinstance(answer, Failed) else kind(**answer)


def _check(parcel: Parcel, folder: Path) -> dict[str, Any]:
    return {"do": "check", "parcel": parcel.text, "folder": str(folder.absolute())}


def _processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- the machines of a Ray cluster -------------------------------------------------------------

_SCHEME = "ray://"
_OURS = ("TASKC_THREADS",)  # environment variables passed to remote workers


def ray_workers(address: str) -> Workers:
    """A worker for each processor of the cluster at `ray://HOST:PORT`; `ray://` is this machine's cluster."""
    try:
        import ray
    except ImportError:
        raise CompileError(
            f"{address} needs Ray, which isn't installed", hint="pip install ray"
        ) from None
    ray.init(
        address="auto" if address == _SCHEME else address,
        ignore_reinit_error=True,
        log_to_driver=False,
    )

    def start(command: Sequence[str], environment: Mapping[str, str]) -> RemoteProcess:
        return RemoteProcess(ray, environment)

    return Workers(processes=max(1, int(ray.cluster_resources().get("CPU", 1))), start=start)


class RemoteProcess:
    """A process on a machine of the cluster, with the interface of `Process`."""

    def __init__(self, ray: Any, environment: Mapping[str, str]) -> None:
        self._ray = ray
        self._folders: dict[str, Any] = {}
        settings = {name: environment[name] for name in _OURS if name in environment}
        self._host = ray.remote(_Host).options(num_cpus=1).remote(settings)
        there, here = ray.get(self._host.machine.remote()), fingerprint(machine())
        if there != here:
            raise CompileError(
                f"a machine of the cluster is another one than this: {there}, not {here}"
            )

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any] | Failed:
        files = self._files(request["folder"]) if "folder" in request else None
        answer: dict[str, Any] = self._ray.get(self._host.ask.remote(request, limit, files))
        return Failed(**answer) if "state" in answer else answer

    def _files(self, folder: str) -> Any:
        """The contents of a folder, sent to the cluster once."""
        if folder not in self._folders:
            contents = {path.name: path.read_bytes() for path in Path(folder).glob("*.npy")}
            self._folders[folder] = self._ray.put(contents)
        return self._folders[folder]

    def wait_until_ready(self) -> None:
        self._ray.get(self._host.wait_until_ready.remote())

    def end(self) -> None:
        self._ray.get(self._host.end.remote())

    def close(self) -> None:
        self._ray.get(self._host.close.remote())
        self._ray.kill(self._host)


class _Host:
    """The actor on a machine of the cluster that owns a process there."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        self._cache = tempfile.TemporaryDirectory(prefix="taskc-tune-")
        self._folders: dict[str, str] = {}
        worker_environment = {**os.environ, "TASKC_CACHE": self._cache.name}
        self._process = Process((sys.executable, *COMMAND[1:]), worker_environment)

    def machine(self) -> str:
        return fingerprint(machine())

    def ask(
        self, request: dict[str, Any], limit: float, files: Mapping[str, bytes] | None
    ) -> dict[str, Any]:
        if files is not None:
            request = {**request, "folder": self._folder(request["folder"], files)}
        answer = self._process.ask(request, limit)
        return asdict(answer) if isinstance(answer, Failed) else answer

    def _folder(self, name: str, files: Mapping[str, bytes]) -> str:
        """This machine's copy of a folder."""
        if name not in self._folders:
            self._folders[name] = tempfile.mkdtemp(dir=self._cache.name)
            for file, content in files.items():
                (Path(self._folders[name]) / file).write_bytes(content)
        return self._folders[name]

    def wait_until_ready(self) -> None:
        self._process.wait_until_ready()

    def end(self) -> None:
        self._process.end()

    def close(self) -> None:
        self._process.close()
        self._cache.cleanup()
