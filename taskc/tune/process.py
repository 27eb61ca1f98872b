"""A worker process as its parent sees it: it is asked, and answers, or ends. Then another one is started."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

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
