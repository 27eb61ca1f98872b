"""Workers on the machines of a Ray cluster: `taskc tune … --workers ray://head:10001`, with `pip install ray`.

Each has a process like those of this machine; requests, and what is in the folder that one names, go there. What was
measured comes back, and the database here is the only one. The cluster's machines have to be like this one.
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
_OURS = ("TASKC_THREADS",)  # what a worker there is told of the environment here


def ray_workers(address: str) -> Workers:
    """One for each processor of the cluster at `ray://HOST:PORT`; `ray://` is the one that this machine is part of."""
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
    """A process on some machine of the cluster, as `Process` is one of this machine."""

    def __init__(self, ray: Any, environment: Mapping[str, str]) -> None:
        self._ray = ray
        self._folders: dict[str, Any] = {}
        given = {name: environment[name] for name in _OURS if name in environment}
        self._host = ray.remote(_Host).options(num_cpus=1).remote(given)
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
        """What a folder has; it goes to the cluster once."""
        if folder not in self._folders:
            found = {path.name: path.read_bytes() for path in Path(folder).glob("*.npy")}
            self._folders[folder] = self._ray.put(found)
        return self._folders[folder]

    def wait_until_ready(self) -> None:
        self._ray.get(self._host.wait_until_ready.remote())

    def end(self) -> None:
        self._ray.get(self._host.end.remote())

    def close(self) -> None:
        self._ray.get(self._host.close.remote())
        self._ray.kill(self._host)


class _Host:
    """What runs on a machine of the cluster, around a process there."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        self._cache = tempfile.TemporaryDirectory(prefix="taskc-tune-")
        self._folders: dict[str, str] = {}
        own = {**os.environ, "TASKC_CACHE": self._cache.name}
        self._process = Process((sys.executable, *COMMAND[1:]), own)

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
