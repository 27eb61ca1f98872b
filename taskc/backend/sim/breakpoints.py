"""`breakpoint()`: where a run stops, and the state that can be inspected there."""

from __future__ import annotations

import _thread
import ast
import bdb
import os
import sys
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import field
from functools import partial
from keyword import iskeyword
from math import prod
from operator import methodcaller
from types import CodeType
from typing import Any, Literal, TypeAlias

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Storage, physical
from taskc.backend.sim.recording import memory_of
from taskc.backend.sim.report import Enough
from taskc.backend.sim.statements import NOTHING, Code, StatementCompiler
from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk_statements

Chosen: TypeAlias = "tuple[int, int] | Literal['all'] | None"
"""Whose breakpoints stop: (block, worker), everybody's, or those of whom they name, who comes first."""

After: TypeAlias = "Literal['next'] | frozenset[tuple[str, int]] | None"
"""Where the worker that stands at a stop stops again: at its next line, at one of some lines, or nowhere."""

Elements: TypeAlias = "np.ma.MaskedArray[Any, np.dtype[Any]]"

_VISIBLE = frozenset({ir.GLOBAL, ir.SHARED, ir.TILE, ir.LOCAL, ir.REGISTER})


@dataclass(frozen=True, slots=True)
class Stop:
    """A worker at a `breakpoint()`.

    task     its task in the innermost mapping loop; None outside of any, and from stage scalar on
    scalars  the names in scope that stand for a number: parameters, lets, loop variables, and
             mutable scalars that have a value

    Memory is looked at when it is asked for: while the run stands here.
    """

    location: Location
    block: int
    worker: int
    task: tuple[int, ...] | None
    scalars: dict[str, bool | int | float]
    kernel: ir.Kernel = field(repr=False, compare=False)
    _look: dict[str, Callable[[], Elements]] = field(repr=False, compare=False)

    def names(self) -> dict[str, Any]:
        """The variables that the worker sees, by name: numbers, and read-only arrays, masked where elements are
        hidden.
        """
        seen: dict[str, Any] = {
            name: value for name, value in self.scalars.items() if _is_a_name(name)
        }
        for name in [name for name in self._look if _is_a_name(name) and name not in seen]:
            elements = self.tensor(name)
            seen[name] = elements if np.ma.getmaskarray(elements).any() else elements.data
            seen[name].flags.writeable = False
        return seen

    def tensor(self, name: str) -> Elements:
        """A tensor in scope as the worker sees it.

        Masked is what has not been written, and what other workers hold.
        """
        if name not in self._look:
            raise KeyError(f"no tensor {name!r} is in scope; there is {', '.join(self._look)}")
        return self._look[name]()

    def element(self, name: str, *index: int) -> bool | int | float | None:
        """An element of a tensor; None where it is masked."""
        elements = self.tensor(name)
        if len(index) != elements.ndim:
            raise IndexError(f"{name} takes {elements.ndim} indices, not {len(index)}")
        for i, extent in zip(index, elements.shape, strict=True):
            if not 0 <= i < extent:
                raise IndexError(f"{i} is outside 0..{extent - 1} in {name}")
        if np.ma.getmaskarray(elements)[index]:
            return None
        return _plain(elements.data[index])


class UnattendedError(Exception):
    """There is no user to ask."""


@dataclass(slots=True)
class _SingleStep:
    """The worker that steps from a stop at `line`, to another statement or to the same one again."""

    block: int
    worker: int
    line: int
    node: ir.Statement
    lines: frozenset[tuple[str, int]] | None  # lines to stop at; None for any

    def is_over_at(self, node: ir.Statement) -> bool:
        loc = node.loc
        if not loc.line or (loc.line == self.line and node is not self.node):
            return False
        if self.lines is None:
            return True
        is_file = not loc.file.startswith("<")
        return ((os.path.abspath(loc.file) if is_file else loc.file), loc.line) in self.lines


class Breakpoints:
    """Compiles breakpoints and single steps; without `on_stop` both do nothing."""

    def __init__(
        self,
        statements: StatementCompiler,
        chosen: Chosen,
        on_stop: Callable[[Stop], object] | None,
    ) -> None:
        self.statements = statements
        self.chosen = chosen
        self.on_stop = on_stop
        self.first: dict[object, tuple[int, int]] = {}  # the first worker at each breakpoint
        self.step: _SingleStep | None = None
        statements.makers[ir.Breakpoint] = lambda _, node: self._breakpoint(node)
        body = statements.run.kernel.body
        if on_stop and any(isinstance(node, ir.Breakpoint) for node in walk_statements(body)):
            statements.before = self._before

    def _breakpoint(self, node: ir.Breakpoint) -> Code:
        if self.on_stop is None:
            return NOTHING
        stand = self._stand(node)
        key: object = node.loc if node.loc.line else id(node)

        def run(frame: Frame) -> None:
            for position, column in self._who(frame, key, node):
                stand(frame, position, column)

        return Code(run)

    def _before(self, node: ir.Statement) -> Callable[[Frame], None] | None:
        """A function that stops a stepping worker before a statement."""
        if isinstance(node, ir.Sequence | ir.Grid | ir.Breakpoint):
            return None
        stand = self._stand(node)

        def run(frame: Frame) -> None:
            step = self.step
            if step is None or frame.axes or frame.anonymous or not step.is_over_at(node):
                return
            active = frame.active & _places(frame, step.block, step.worker)
            for position, column in np.argwhere(active).tolist():
                stand(frame, position, column)

        return run

    def _stand(self, node: ir.Statement) -> Callable[[Frame, int, int], None]:
        """A function that stops a worker before a statement, in the scope being compiled."""
        tasks: tuple[ir.Variable, ...] | None = None
        named: dict[str, ir.Variable | ir.Tensor] = {}
        kernel = self.statements.run.kernel
        for item in (*kernel.dimensions, *kernel.parameters, *self.statements.scope):
            if isinstance(item, ir.Each):
                tasks = item.variables
                named.update((variable.name, variable) for variable in tasks)
            else:
                named.pop(item.name, None)  # an inner name hides an outer one, and comes last
                named[item.name] = item

        def stand(frame: Frame, position: int, column: int) -> None:
            stop = _stop(kernel, node.loc, frame, (position, column), named, tasks)
            assert self.on_stop is not None
            try:
                after = self.on_stop(stop)
            except (bdb.BdbQuit, UnattendedError) as error:
                self._end(stop, error)
                raise Enough from None
            self.step = None
            if after is not None:
                lines = after if isinstance(after, frozenset) else None
                self.step = _SingleStep(stop.block, stop.worker, node.loc.line, node, lines)

        return stand

    def _end(self, stop: Stop, error: Exception) -> None:
        message = "the run was ended here, in the debugger"
        if isinstance(error, UnattendedError):
            message = (
                "there is no standard input for a debugger to read (PYTHONBREAKPOINT=0 leaves"
                " breakpoints out)"
            )
        details = (("block", stop.block), ("worker", stop.worker))
        self.statements.run.findings.add("breakpoint", message, stop.location, details=details)

    def _who(self, frame: Frame, key: object, node: ir.Breakpoint) -> list[list[int]]:
        """The workers that stop: their positions among the frame's blocks and workers."""
        active = frame.active
        if self.chosen is None:
            mine = active & _places(frame, node.block, node.worker)
            if mine.any() and key not in self.first:
                position, column = np.argwhere(mine)[0]
                first = int(frame.group.blocks[position]), int(frame.numbers[column])
                self.first[key] = first
            active = mine & _places(frame, *self.first.get(key, (-1, -1)))
        elif self.chosen != "all":
            active = active & _places(frame, *self.chosen)
        stopping: list[list[int]] = np.argwhere(active).tolist()
        return stopping


def _places(frame: Frame, block: int | None, worker: int | None) -> Array:
    """Mask of the positions of a block and a worker, None for any, [blocks, workers]."""
    blocks, numbers = frame.group.blocks[:, None], frame.numbers
    return (True if block is None else blocks == block) & (
        np.ones(numbers.shape, np.bool_) if worker is None else numbers == worker
    )


def _stop(
    kernel: ir.Kernel,
    loc: Location,
    frame: Frame,
    at: tuple[int, int],
    named: dict[str, ir.Variable | ir.Tensor],
    tasks: tuple[ir.Variable, ...] | None,
) -> Stop:
    """The state seen from a position of the frame."""
    position, column = at

    def value(variable: ir.Variable) -> Any:
        return _plain(np.broadcast_to(frame.env[variable], (frame.count, frame.width))[at])

    look = {
        name: _looker(frame, item, position, column)
        for name, item in named.items()
        if isinstance(item, ir.Tensor) and item.scope in _VISIBLE
    }
    scalars = {}
    for name, item in named.items():
        if isinstance(item, ir.Variable):
            scalars[name] = value(item)
        elif item.scope == ir.LOCAL and not item.shape:
            elements = look[name]()
            if not np.ma.getmaskarray(elements)[()]:
                scalars[name] = _plain(elements.data[()])
    task = None if tasks is None else tuple([value(task) for task in tasks])
    block, worker = int(frame.group.blocks[position]), int(frame.numbers[column])
    return Stop(loc, block, worker, task, scalars, kernel, look)


def _is_a_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


def _plain(value: Any) -> bool | int | float:
    """A storage type's value as a Python number."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def _looker(frame: Frame, tensor: ir.Tensor, position: int, column: int) -> Callable[[], Elements]:
    """A function that returns the elements of a tensor as one worker sees them."""

    def look() -> Elements:
        memory = memory_of(frame, tensor)
        match tensor.scope:
            case ir.TILE:
                return _registers_of_tile(frame, memory, position, column)
            case ir.LOCAL | ir.REGISTER:
                lane = (position, column if memory.lanes[-1] > 1 else 0)
                values, written = (
                    memory.data[:, lane[0], lane[1]],
                    memory.written[:, lane[0], lane[1]],
                )
                return np.ma.array(values, mask=written == 0).reshape(memory.shape)
        at: Any = np.arange(prod(memory.shape))
        if frame.run.is_flat:
            if tensor.scope == ir.SHARED:
                at = physical(tensor, memory.shape, at)
            elif tensor.layout is not None:
                at = frame.run.places(tensor, memory.shape)
        if tensor.scope == ir.SHARED:
            at = at + np.broadcast_to(memory.rows, (frame.count, 1))[position]
        return np.ma.array(memory.data[at], mask=memory.lacks(at)).reshape(memory.shape)

    return look


def _registers_of_tile(frame: Frame, memory: Storage, position: int, column: int) -> Elements:
    owners = memory.tensor.owners
    assert owners is not None
    worker = int(frame.worker_row[column]) - frame.first
    lane = column if frame.width == memory.lanes[-1] else int(frame.columns[column])
    elements = np.zeros(memory.shape, memory.data.dtype)
    hidden = np.ones(memory.shape, np.bool_)
    tasks = owners.tasks[worker]
    held = owners.valid[worker] & (tasks < memory.shape).all(axis=-1)
    where = tuple(tasks[held].T)
    elements[where] = memory.data[held, position, lane]
    hidden[where] = memory.written[held, position, lane] == 0
    return np.ma.array(elements, mask=hidden)


# --- Python's debugger at a `breakpoint()`, opened in a frame that stands for the kernel's -------
# > kernels.py(12)scale()
# -> breakpoint()
# (Pdb) p i, twice
# (4, 8.0)
#
# The frame has one line of generated code, with the kernel's file, name and line; the variables that the worker sees
# are its locals. It runs in a thread, so that no frames of the simulator surround it, and calls `sys.breakpointhook`:
# any debugger inspects it like any other frame.


_LOOK = 0.01  # seconds

# A debugger that was opened in a loop stops at its next turn, which is the same line, and shows that. The last turn
# ends its tracing. Besides the hook, only compiled code is called, which can't be stepped into.
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
    """Open the debugger that `sys.breakpointhook` names; returns what its user wants next, as far as pdb tells.

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
    """Wait until the lock is released. Ctrl-C is ignored, as the run stands still and the debugger's thread gets none.

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
    """The code for the worker's line, in the kernel's function or in a helper's."""
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
    """The globals of the module that contains the kernel, such as `np`."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return dict(vars(module))
    return {}


def _wanted(tracer: Any) -> After:
    """The place where a debugger wants to stop next, when its frame ends."""
    if tracer is None:
        return None
    debugger = getattr(tracer, "__self__", None)
    if (
        isinstance(debugger, bdb.Bdb) and debugger.stoplineno == -1
    ):  # continues to the lines that have breakpoints
        return frozenset(bdb.Breakpoint.bplist)
    return "next"


def _require_input() -> None:
    named = os.environ.get("PYTHONBREAKPOINT", "")
    is_pdb = sys.breakpointhook is sys.__breakpointhook__ and named in ("", "pdb.set_trace")
    if is_pdb and (sys.stdin is None or sys.stdin.closed):
        raise UnattendedError
