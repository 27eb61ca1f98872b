"""The tiers of a kernel's code: quick code at once, full code a little later.

| tier | LLVM's passes and code generation | LLVM's time | speed of the code |
| --- | --- | --- | --- |
| quick | no passes; code generation without optimization | less than a tenth | 1.5 to 7 times slower |
| full | everything (module.py) | 20 to 100 ms a kernel | |

A large kernel's quick code is generated with optimization, which takes half of full code's time: otherwise its values
would not fit on the stack.

Both come from one kernel at stage lean, and no pass reassociates: their results are the same bits. Loops that full
code unrolls stay loops in quick code, with their register tiles in memory: that is a quarter of the text, and no slower
without optimization. Inlining and SROA make it no faster either.

`job` of quick code jumps to the address in `now`, which is its own body's at first. Full code is made in a background
thread while no call waits for a compilation, and its address is stored in `now`: whoever holds the address of `job`
needs no news, and blocks that are being run finish in quick code.

`finish` waits for all full code. TASKC_TIER=full makes it at once; TASKC_TIER=quick stays with quick code.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread
from typing import TypeAlias

import llvmlite.binding as llvm

from taskc.backend.cpu import processes
from taskc.backend.cpu.memory import STACK
from taskc.backend.cpu.processor import Processor
from taskc.ir.nodes import Do, Kernel
from taskc.ir.operations import TILED
from taskc.ir.reentry import may_wait
from taskc.ir.rewrite import all_below
from taskc.ir.spans import span

NOW = "now"

# Bytes of the stack that a line of text may take without allocation of registers: at most 24 were measured, and 16 in
# kernels of more than 2,000 lines.
_FRAME = 24
# Seconds between two looks whether calls wait, and after the last one that did.
_POLL, _GRACE = 0.01, 0.1

_JUMP = f"""\
@{NOW} = global ptr @body, align 8
define void @job(i64 %first, i64 %last, ptr %arguments, ptr %scratch) nounwind {{
  %body = load atomic ptr, ptr @{NOW} monotonic, align 8
  musttail call void %body(i64 %first, i64 %last, ptr %arguments, ptr %scratch)
  ret void
}}
"""

logger = logging.getLogger(__name__)


def has_quick(lean: Kernel) -> bool:
    """Whether a kernel may become quick code: AMX's tiles need LLVM's passes, and numbers that are known."""
    return not any(node.operation in TILED for node in all_below(lean.body, Do))


@span("LLVM/quick code")
def quick_code(text: str, processor: Processor) -> bytes:
    """The object of a module's quick code."""
    module = llvm.parse_assembly(f"{text.replace('@job', '@body')}\n{_JUMP}")
    module.verify()
    # Without optimization each value has a place on the stack, beside up to STACK bytes of private arrays.
    is_small = text.count("\n") * _FRAME <= STACK // 2
    machine = processor.quick_machine if is_small else processor.machine
    code: bytes = machine.emit_object(module)
    return code


# --- The background thread ----------------------------------------------------------------------

# Nothing here takes a lock that a call which interrupts another one would wait for: see ir/reentry.py.

_Job: TypeAlias = "Callable[[], None] | Event | None"

_jobs: SimpleQueue[_Job] = SimpleQueue()
_compiling: set[object] = set()  # a token for each call that waits for a compilation
_threads: list[Thread] = []
_failures: list[BaseException] = []
_last = 0.0  # when a compilation ended that a call waited for


@contextmanager
def compiling() -> Iterator[None]:
    """A context in which a call waits for a compilation: the background thread pauses."""
    global _last
    token = object()
    _compiling.add(token)
    try:
        yield
    finally:
        _last = time.monotonic()
        _compiling.discard(token)


def later(job: Callable[[], None]) -> None:
    """Run a job in the background thread."""
    _jobs.put(job)
    _start()


def _start() -> None:
    if not _threads and may_wait():  # otherwise the next call that may wait starts it
        thread = Thread(target=_run, name="taskc full code", daemon=True)
        _threads.append(thread)
        thread.start()


def finish() -> None:
    """Wait until all kernels so far have their full code; raise what has failed in the background."""
    if not _jobs.empty():
        _start()
    if _threads:
        done = Event()
        _jobs.put(done)
        done.wait()
    if _failures:
        raise _failures.pop()


def _run() -> None:
    processes.help_with(1, 0)
    while (job := _jobs.get()) is not None:
        while (_compiling or time.monotonic() < _last + _GRACE) and _threads:
            time.sleep(_POLL)
        if not _threads:
            return
        if isinstance(job, Event):
            job.set()
            continue
        try:
            job()
        except Exception as error:
            logger.exception("full code failed: the kernel goes on in quick code")
            _failures.append(error)


def _stop() -> None:
    """End the thread after the kernel at hand: LLVM's own end must not overtake its work."""
    while _threads:
        thread = _threads.pop()  # it looks whether it is still there before each kernel
        _jobs.put(None)
        thread.join()


def _forked() -> None:
    """The child of a fork has no such thread: the next job starts one."""
    _threads.clear()
    _compiling.clear()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
