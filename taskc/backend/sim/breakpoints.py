"""`breakpoint()`: where a run stops, and what can be looked at there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

from taskc.backend.sim.binding import addresses_of
from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Memory
from taskc.backend.sim.recording import memory_of
from taskc.backend.sim.statements import Code, Statements
from taskc.backend.sim.statistics import physical
from taskc.errors import Location
from taskc.ir import nodes as ir

Chosen: TypeAlias = "tuple[int, int] | Literal['all'] | None"
"""Whose breakpoints stop: (block, worker), everybody's, or who comes first in block 0."""

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
    _look: dict[str, Callable[[], Elements]] = field(repr=False, compare=False)

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


def open_debugger(stop: Stop) -> None:
    """Python's own breakpoint hook, for a person: `stop` is what there is to look at."""
    sys.breakpointhook()


def is_attended() -> bool:
    """Somebody sits at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


class Breakpoints:
    """Compiles breakpoints; without `on_stop` they are nothing."""

    def __init__(
        self, statements: Statements, chosen: Chosen, on_stop: Callable[[Stop], object] | None
    ) -> None:
        self.statements = statements
        self.chosen = chosen
        self.on_stop = on_stop
        self.first: dict[object, int] = {}  # who came to each breakpoint first, in block 0
        statements.makers[ir.Breakpoint] = self

    def __call__(self, node: ir.Breakpoint) -> Code:
        on_stop = self.on_stop
        if on_stop is None:
            return Code(lambda frame: None)
        tasks: tuple[ir.Variable, ...] | None = None
        named: dict[str, ir.Variable | ir.Tensor] = {}
        state = self.statements.state
        for item in (*state.kernel.dimensions, *state.kernel.parameters, *self.statements.scope):
            if isinstance(item, ir.Each):
                tasks = item.variables
                named.update((variable.name, variable) for variable in tasks)
            else:
                named.pop(item.name, None)  # an inner name hides an outer one, and comes last
                named[item.name] = item
        key: object = node.loc if node.loc.line else id(node)

        def run(frame: Frame) -> None:
            for position, column in self._who(frame, key):

                def value(variable: ir.Variable, at: tuple[int, int] = (position, column)) -> Any:
                    lanes = (frame.count, frame.width)
                    return _plain(np.broadcast_to(frame.env[variable], lanes)[at])

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
                on_stop(
                    Stop(
                        node.loc,
                        int(frame.group.blocks[position]),
                        int(frame.numbers[column]),
                        None if tasks is None else tuple([value(task) for task in tasks]),
                        scalars,
                        look,
                    )
                )

        return Code(run)

    def _who(self, frame: Frame, key: object) -> list[tuple[int, int]]:
        """The workers that stop: their places among the frame's blocks and workers."""
        active = np.ones((frame.count, frame.width), np.bool_)
        if frame.mask is not None:
            active = np.broadcast_to(frame.mask, active.shape)
        if self.chosen is None:
            mine = active & (frame.group.blocks == 0)[:, None]
            if mine.any() and key not in self.first:
                self.first[key] = int(frame.numbers[np.argmax(mine.any(axis=0))])
            active = mine & (frame.numbers == self.first.get(key, -1))
        elif self.chosen != "all":
            block, worker = self.chosen
            active = active & (frame.group.blocks == block)[:, None] & (frame.numbers == worker)
        return [(int(position), int(column)) for position, column in np.argwhere(active)]


def _plain(value: Any) -> bool | int | float:
    """A storage type's value as Python's."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def _looker(frame: Frame, tensor: ir.Tensor, position: int, column: int) -> Callable[[], Elements]:
    """What gives the elements of a tensor as one worker sees them."""

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
                at = addresses_of(tensor, memory.shape)
        if tensor.scope == ir.SHARED:
            at = at + np.broadcast_to(memory.rows, (frame.count, 1))[position]
        return np.ma.array(memory.data[at], mask=memory.lacks(at)).reshape(memory.shape)

    return look


def _registers_of_tile(frame: Frame, memory: Memory, position: int, column: int) -> Elements:
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
