"""The threads that run blocks: how many, when they start, what they are given.

pool.ll is what they do. They are made at the first call that needs them, again in the child of a fork, and
live as long as the process: they never touch Python, so that its exit doesn't wait for them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from importlib.resources import files

from taskc.backend.cpu import jit

_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {
    "x86_64": 'call void asm sideeffect "pause", ""()',
    "aarch64": 'call void asm sideeffect "yield", ""()',
}
_LINE = 64
_LEAST_SCRATCH = 1 << 20


class _Pool(ctypes.Structure):
    """%pool of pool.ll."""

    _fields_ = (
        ("state", ctypes.c_int64), ("gap", ctypes.c_char * 56),
        ("next", ctypes.c_int64), ("gap2", ctypes.c_char * 56),
        ("job", ctypes.c_void_p), ("arguments", ctypes.c_void_p),
        ("blocks", ctypes.c_int64), ("chunk", ctypes.c_int64),
        ("busy", ctypes.c_int32), ("sleepers", ctypes.c_int32),
        ("helpers", ctypes.c_int32), ("ready", ctypes.c_int32),
        ("scratch", ctypes.c_void_p), ("bytes", ctypes.c_int64),
    )  # fmt: skip


_limits: list[int] = []


def limit_threads(most: int | None) -> None:
    """No more threads than that, whatever there is; before the first call."""
    _limits[:] = [] if most is None else [most]


def thread_count() -> int:
    """How many threads run blocks: the processors that this process may use, or fewer on request."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for limit in (_cgroup_limit(), *_limits):
        if limit is not None:
            count = min(count, limit)
    return max(1, count)


def _cgroup_limit() -> int | None:
    """Whole processors' worth of time that the container has."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


class Pool:
    def __init__(self) -> None:
        machine = platform.machine()
        text = (files("taskc.backend.cpu") / "pool.ll").read_text(encoding="utf-8")
        text = text.replace("$PAUSE", _PAUSE[machine]).replace("$FUTEX", str(_FUTEX[machine]))
        self.library = jit.load_text(text, "taskc.pool", ("pool", "run", "helper"))
        self.run = self.library["run"]
        self._memory = _Pool.from_address(self.library["pool"])
        self._helper = self.library["helper"]
        self._lock = threading.Lock()
        self._scratch: list[ctypes.Array[ctypes.c_char]] = []
        self._table: ctypes.Array[ctypes.c_void_p] | None = None
        self._threads = 0
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A child of a fork has none of its parent's threads, and perhaps their half-done work."""
        self._lock = threading.Lock()
        self._threads = 0
        self._memory.state = 0
        self._memory.busy = self._memory.sleepers = self._memory.ready = 0

    def prepare(self, scratch: int, threads: int | None = None) -> None:
        """Threads run, and each has so many bytes. Asked again with more, it grows.

        What was given to a running job stays alive: it may still be in use.
        """
        with self._lock:
            memory = self._memory
            threads = threads or self._threads or thread_count()
            size = max(scratch, memory.bytes, _LEAST_SCRATCH)
            if threads > self._threads or size > memory.bytes or not memory.ready:
                table = (ctypes.c_void_p * threads)()
                for number in range(threads):
                    block = ctypes.create_string_buffer(size + 2 * _LINE)
                    self._scratch.append(block)
                    table[number] = (ctypes.addressof(block) + _LINE) & -_LINE
                self._claim()
                self._table = table
                memory.scratch, memory.bytes = ctypes.addressof(table), size
                self._start(threads)
                memory.ready = 1
                memory.busy = 0

    def _claim(self) -> None:
        """Waits until no job runs, and keeps others from beginning one on the pool."""
        memory = self._memory
        while memory.ready and memory.busy:
            os.sched_yield()
        memory.ready = 0

    def _start(self, threads: int) -> None:
        create = ctypes.CDLL(None).pthread_create
        for number in range(max(1, self._threads), threads):
            thread = ctypes.c_void_p()
            failed = create(
                ctypes.byref(thread), None, ctypes.c_void_p(self._helper), ctypes.c_void_p(number)
            )
            if failed:
                threads = number
                break
        self._threads = threads
        self._memory.helpers = threads - 1

    @property
    def threads(self) -> int:
        return int(self._memory.helpers) + 1

    def limit(self, threads: int) -> None:
        """Uses no more than so many threads from now on; for measurements."""
        self.prepare(0, threads)
        self._memory.helpers = threads - 1


_pool: list[Pool] = []
_making = threading.Lock()


def pool() -> Pool:
    if not _pool:
        with _making:
            if not _pool:
                _pool.append(Pool())
    return _pool[0]
