"""The thread pool (fork-join), which runs blocks.

c/pool.c is the threads' code, and c/program.c the number of jobs that are run at once. Threads start with the first
call that needs them, and again in the child of a fork, and live as long as the process. They never touch Python, so
its exit doesn't wait for them, and take no signals: Python's main thread handles these between two blocks.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from taskc.backend.cpu import jit
from taskc.backend.cpu.jit import Object, object_of
from taskc.ir.reentry import Turn, may_wait

_FUTEX = {"x86_64": 202, "aarch64": 98}  # number of the system call
_PAUSE = {"x86_64": "pause", "aarch64": "yield", "arm64": "yield"}
_MONOTONIC = {"darwin": 6}  # number of the clock; elsewhere 1

_PAGE = 4096
_LINE = 64  # bytes: a cache line
_SUMMED = 256  # bytes that a checksum takes at a time
_LEAST_SCRATCH = 1 << 20


class _Pool(ctypes.Structure):
    """`pool` of c/pool.c."""

    _fields_ = (
        ("state", ctypes.c_int64), ("gap", ctypes.c_char * 56),
        ("calls", ctypes.c_void_p), ("chunk", ctypes.c_int64),
        ("busy", ctypes.c_int32), ("sleepers", ctypes.c_int32),
        ("helpers", ctypes.c_int32), ("ready", ctypes.c_int32),
        ("scratch", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("parts", ctypes.c_void_p),
    )  # fmt: skip


_limits: list[int] = []


def limit_threads(most: int | None) -> None:
    """Set the maximum number of threads, before the first call; None removes the limit."""
    _limits[:] = [] if most is None else [most]


def thread_count() -> int:
    """The number of threads that run blocks: the processors that this process may use, or fewer on request."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for limit in (container_limit(Path("/sys/fs/cgroup")), *_limits):
        if limit is not None:
            count = min(count, limit)
    return max(1, count)


def container_limit(folder: Path) -> int | None:
    """Whole processors of the container's CPU quota, from either version of control groups."""
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota, period = (
                (folder / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii")
                for name in ("quota", "period")
            )
        except (OSError, ValueError):
            return None
    try:
        return max(1, int(quota) // int(period)) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max"
        return None


def pool_text(machine: str) -> str:
    """The text of c/runtime.c as LLVM IR, with the processor's pause instruction."""
    text = (files("taskc.backend.cpu") / "c" / "runtime.ll").read_text("utf-8")
    return text.replace('asm sideeffect "pause"', f'asm sideeffect "{_PAUSE.get(machine, "")}"')


def has_futex(system: str, machine: str) -> bool:
    return system == "linux" and machine in _FUTEX


def pool_object() -> Object:
    """The pool's compiled code for this processor."""
    return object_of("pool", pool_text(platform.machine()))


_EXPORTED = (
    *("pool", "run", "helper", "try", "claim", "release", "step", "checksum"),
    *("due", "look", "go_on", "print", "raise", "main_thread", "inside", "watching", "sig_block"),
    *("system_call", "futex", "current_processor", "keep_on"),
    *("masks", "processors", "handles", "handled", "avoided"),
    *("begin", "run_program", "monotonic_clock", "stamps", "taken", "stamped", "stamp_nothing"),
    *("call_kernel", "call_program", "entry", "torch", "samples", "buffers_class"),
)


class Pool:
    def __init__(self) -> None:
        code = pool_object().code
        self.library = jit.load_object(code, "taskc.pool", _EXPORTED)
        self.run = self.library["run"]
        self.step = self.library["step"]
        self._memory = _Pool.from_address(self.library["pool"])
        self._claim = ctypes.CFUNCTYPE(None)(self.library["claim"])
        self._try = ctypes.CFUNCTYPE(ctypes.c_bool)(self.library["try"])
        self._release = ctypes.CFUNCTYPE(None)(self.library["release"])
        self._raise = ctypes.PYFUNCTYPE(None)(self.library["raise"])
        arguments = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
        self._checksum = ctypes.CFUNCTYPE(None, *arguments)(self.library["checksum"])
        # Threads run it until the process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.library))
        self._set("main_thread", ctypes.c_int64, threading.main_thread().ident or 0)
        self._set("sig_block", ctypes.c_int32, int(signal.SIG_BLOCK))
        self._set("monotonic_clock", ctypes.c_int32, _MONOTONIC.get(sys.platform, 1))
        self._keeps_apart = has_futex(sys.platform, platform.machine())
        if self._keeps_apart:
            self._set("futex", ctypes.c_int64, _FUTEX[platform.machine()])
            system = ctypes.CDLL(None)
            for name, function in (
                ("system_call", system.syscall),
                ("current_processor", system.sched_getcpu),
                ("keep_on", system.pthread_setaffinity_np),
            ):
                self._set(name, ctypes.c_void_p, ctypes.cast(function, ctypes.c_void_p).value or 0)
        self._turn = Turn()
        self._scratch: list[np.ndarray[Any, Any]] = []
        self._table: ctypes.Array[ctypes.c_void_p] | None = None
        self._parts: np.ndarray[Any, Any] | None = None
        self._handles: list[int] = []
        self._apart: tuple[Any, ...] = ()
        self._started = 1  # including the calling thread
        self._threads = 1
        self._wanted: int | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Reset the state after a fork: the child has no threads, and may have inherited a call's half-done work."""
        self._started = 1
        self._handles = []
        self._scratch = []  # which a thread of the parent may have been replacing
        self._memory.state = self._memory.bytes = 0
        self._memory.busy = self._memory.sleepers = self._memory.ready = 0
        self._set("watching", ctypes.c_int8, 0)
        self._set("inside", ctypes.c_int32, 0)
        self._set("main_thread", ctypes.c_int64, threading.get_ident())

    def _set(self, name: str, kind: type[Any], value: int) -> None:
        kind.from_address(self.library[name]).value = value

    def checksum(self, memory: memoryview) -> str:
        """A checksum that detects all damage within eight bytes, and other damage but for chance, at the speed of
        memory.
        """
        array, sums = np.frombuffer(memory, np.uint8), np.zeros(_SUMMED, np.uint8)
        blocks = array.size // _SUMMED
        self._checksum(array.ctypes.data, blocks, sums.ctypes.data)
        remainder = array[blocks * _SUMMED :].tobytes()
        return hashlib.sha256(b"%d:%b%b" % (array.size, sums.tobytes(), remainder)).hexdigest()[:32]

    def raise_again(self) -> None:
        """Raise the exception of the signal handler that made a call give up."""
        self._raise()

    def prepare(self, scratch: int) -> None:
        """Start the threads and give each at least so many bytes of scratch, which only grows."""
        with self._turn.taken() as is_alone:
            if is_alone:
                self._claim()
            elif not self._try():  # held by the call that this one interrupts: run alone
                return
            try:
                self._grow(scratch)
            finally:
                self._release()

    def _grow(self, scratch: int) -> None:
        memory = self._memory
        threads = self._wanted or thread_count()
        size = max(scratch, memory.bytes, _LEAST_SCRATCH)
        if threads > len(self._scratch) or size > memory.bytes:
            memory.ready = 0
            self._scratch = [np.empty(size + 2 * _PAGE, np.uint8) for _ in range(threads)]
            # A load waits for earlier stores at the same offset in a page, and large arrays begin at a page.
            addresses = [(b.ctypes.data & -_PAGE) + _PAGE * 3 // 2 for b in self._scratch]
            self._table = (ctypes.c_void_p * threads)(*addresses)
            memory.scratch, memory.bytes = ctypes.addressof(self._table), size
            self._parts = np.zeros((threads + 1) * _LINE, np.uint8)
            memory.parts = -(-self._parts.ctypes.data // _LINE) * _LINE
        self._start(threads)
        self._threads = min(threads, self._started)
        memory.helpers = self._threads - 1
        memory.ready = 1

    def _start(self, threads: int) -> None:
        """Start the missing threads; fewer where the system allows no more."""
        create = ctypes.CDLL(None).pthread_create
        with _no_signals():
            while self._started < threads:
                thread = ctypes.c_void_p()
                helper, number = ctypes.c_void_p(self.library["helper"]), self._started
                if create(ctypes.byref(thread), None, helper, ctypes.c_void_p(number)):
                    break
                self._handles.append(thread.value or 0)
                self._started += 1
        if self._keeps_apart:
            self._keep_apart()

    def _keep_apart(self) -> None:
        """Tell the pool which processors exist, if there is one for every thread."""
        available = os.sched_getaffinity(0)
        count = min(max(available) + 1, 1024) if self._started <= len(available) else 0
        masks = np.zeros((count, 1024), np.bool_)
        masks[:, [n for n in available if n < 1024]] = True
        masks[np.arange(count), np.arange(count)] = False
        packed = np.packbits(masks, axis=1, bitorder="little")
        handles = np.array(self._handles, np.uint64)
        self._apart = packed, handles
        for name, kind, value in (
            ("masks", ctypes.c_void_p, packed.ctypes.data),
            ("processors", ctypes.c_int32, count),
            ("handles", ctypes.c_void_p, handles.ctypes.data),
            ("handled", ctypes.c_int64, len(handles)),
            ("avoided", ctypes.c_int32, -1),
        ):
            self._set(name, kind, value)

    @property
    def threads(self) -> int:
        """The number of threads that run blocks, or will once they are started."""
        if self._memory.ready:  # for the moment, a call may have reduced the number of helpers
            return self._threads
        return self._wanted or thread_count()

    def limit(self, threads: int) -> None:
        """Use so many threads from now on; for measurements and tests."""
        self._wanted = threads
        self.prepare(0)


@contextmanager
def _no_signals() -> Iterator[None]:
    """Threads started inside block all signals, except those for their own faults."""
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_pool: list[Pool] = []
_making = Turn()
_ahead: list[threading.Thread] = []


def make_ahead() -> None:
    """Make the pool in a thread, while this one lowers the first kernel: LLVM takes 0.1 s for its code.

    The first call of `pool` waits for the thread, and raises what failed there.
    """
    if not _pool and not _ahead and may_wait() and thread_count() > 1:
        thread = threading.Thread(target=_make_ahead, name="taskc pool")
        _ahead.append(thread)
        thread.start()


def _make_ahead() -> None:
    with suppress(Exception):
        pool()


def pool() -> Pool:
    if not _pool:
        with _making.taken():  # without the lock, the first pool stored wins
            if not _pool:
                _pool.append(Pool())
    return _pool[0]
