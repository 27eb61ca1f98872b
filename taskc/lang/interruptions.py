"""Calls that interrupt the body of a program while it is traced: they are no calls of that program.

A handler of a signal, a finalizer or a trace function runs in the thread and the context of what it interrupts, so that
a call in it looks like one of the body's. Where it has no handles, the frames between it and the body tell.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextvars import copy_context
from types import FrameType
from typing import TypeVar

from taskc.lang.sizes import tracing

T = TypeVar("T")

_FINALIZE = weakref.finalize.__call__.__code__


def is_interruption() -> bool:
    """Whether Python itself called the caller's caller after the trace began: a handler, finalizer or callback."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith("traced_program.py"):
        if _is_pythons(frame):
            return True
        frame = frame.f_back
    return False


def _is_pythons(frame: FrameType) -> bool:
    """Whether Python called a frame: handlers and trace functions get its outer frame, callbacks a dead reference."""
    code = frame.f_code
    if code is _FINALIZE or code.co_name == "__del__":
        return True
    count = code.co_argcount + bool(code.co_flags & 4)  # with *args
    if not count:
        return False
    values = [
        frame.f_locals.get(name) for name in code.co_varnames[: count + code.co_kwonlyargcount]
    ]
    given = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return any(
        (one is frame.f_back and one is not None)
        or (isinstance(one, weakref.ref) and one() is None)
        for one in given
    )


def outside(call: Callable[[], T]) -> T:
    """Make a call that is part of no traced program.

    Its context is its own: it may interrupt the setting of a variable of the other one.
    """

    def made() -> T:
        tracing.set(None)
        return call()

    return copy_context().run(made)
