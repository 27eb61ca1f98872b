"""Workers on the machines of a Ray cluster: `taskc tune … --workers ray://head:10001`, with `pip install ray`.

Each worker has a process like those on this machine. Requests go there, with the contents of the folder that they name;
measurements come back, and are stored only in the database here. The cluster's machines have to be like this one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taskc.errors import CompileError
from taskc.runtime.machine import machine
from taskc.tune.choose import fingerprint
from taskc.tune.workers import COMMAND, Failed, Process, Workers

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
