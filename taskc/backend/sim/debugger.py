"""Python's debugger at a `breakpoint()`: it opens in a frame that is the kernel's.

> kernels.py(12)scale()
-> breakpoint()
(Pdb) p i, twice
(4, 8.0)

The frame has one line of code, made for it, with the kernel's file, name and line; what the worker sees is its local
names. It runs in a thread, so that nothing of the simulator lies around it, and calls `sys.breakpointhook`: whichever
debugger Python is told to open looks at a frame like any other.
"""

from __future__ import annotations

import _thread
import ast
import bdb
import os
import sys
import time
from contextvars import copy_context
from functools import partial
from operator import methodcaller
from types import CodeType
from typing import Any

from taskc.backend.sim.breakpoints import After, Stop, UnattendedError

_LOOK = 0.01  # seconds

# A debugger that was opened in a loop stops at its next turn, which is the same line, and shows that. The last turn
# ends its tracing. All that is called besides the hook is compiled code, into which nobody can step.
_LINE = ast.parse("""
try:
    for __turn__[0] in __turn__[1]:
        __turn__.append(__turn__[0]())
except BaseException:
    __turn__.append(__raised__())
finally:
    __over__()
""")


def open_debugger(stop: Stop) -> After:
    """Opens what `sys.breakpointhook` names, and returns what its user wants next, as far as pdb tells.

    Raises what the debugger raised to end the run: pdb's `q` raises `bdb.BdbQuit`.
    """
    _require_input()
    over = _thread.allocate_lock()
    end = map(methodcaller("__call__"), (sys.gettrace, partial(sys.settrace, None)))
    turn: list[Any] = [None, iter((sys.breakpointhook, partial(list, end)))]
    names = stop.names()
    around = _module_of(stop.location.file) | names
    around |= {"__turn__": turn, "__raised__": sys.exc_info, "__over__": over.release}
    around.setdefault("stop", stop)
    over.acquire()
    _thread.start_new_thread(copy_context().run, (exec, _code(stop), around, names))
    _wait(over)
    outcome = turn[-1]
    if isinstance(outcome, tuple):
        raise outcome[1]
    return _wanted(outcome[0])


def _wait(over: Any) -> None:
    """Until it is released. Ctrl-C is not for the run, which stands still, and the debugger's thread gets none.

    An interrupt may come when a lock was just taken, so nothing is taken here.
    """
    while True:
        try:
            while over.locked():
                time.sleep(_LOOK)
        except KeyboardInterrupt:
            continue
        return


def _code(stop: Stop) -> CodeType:
    """The line on which a worker stands, in the kernel's function or in a helper's."""
    first, line = stop.kernel.loc, stop.location.line
    is_inside = first.file == stop.location.file and first.line <= line
    start = first.line if is_inside else line
    for node in ast.walk(_LINE):
        if isinstance(node, ast.stmt | ast.expr | ast.excepthandler):
            node.lineno = node.end_lineno = line - start + 1
            node.col_offset = node.end_col_offset = 0
    code = compile(_LINE, stop.location.file, "exec")
    return code.replace(co_name=stop.kernel.name, co_firstlineno=start)


def _module_of(file: str) -> dict[str, Any]:
    """The names of the module that the kernel stands in, such as `np`."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return dict(vars(module))
    return {}


def _wanted(tracer: Any) -> After:
    """What a debugger goes on tracing for, when its frame ends."""
    if tracer is None:
        return None
    debugger = getattr(tracer, "__self__", None)
    if (
        isinstance(debugger, bdb.Bdb) and debugger.stoplineno == -1
    ):  # goes on to lines that were set
        return frozenset(bdb.Breakpoint.bplist)
    return "next"


def _require_input() -> None:
    named = os.environ.get("PYTHONBREAKPOINT", "")
    is_pdb = sys.breakpointhook is sys.__breakpointhook__ and named in ("", "pdb.set_trace")
    if is_pdb and (sys.stdin is None or sys.stdin.closed):
        raise UnattendedError
