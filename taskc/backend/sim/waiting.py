"""Loops that wait for others: what their condition depends on, and turns that change nothing.

A turn depends on memory that others see, and on private memory that it carries over from the turn before. Where
neither has changed from one turn to the next, each further turn does the same, until somebody changes memory:
the workers sleep until then, and where nobody is left to do so, that is found in two turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.expressions import Expressions
from taskc.backend.sim.machine import Frame
from taskc.ir import nodes as ir
from taskc.ir.rewrite import expressions, statements, walk

Source: TypeAlias = "ir.Read | ir.Atomic"
_VISIBLE = (ir.GLOBAL, ir.SHARED)
_PLAIN = (ir.Sequence, ir.Allocate, ir.Assert, ir.Print)
_SELDOM = 64


@dataclass(slots=True)
class Turns:
    """The dependencies of a loop's turns.

    sources  where its condition comes from memory that others may change
    carried  private tensors that a turn finds as the one before has left them, if that matters
    is_known whether a turn has no effects but on memory
    """

    sources: tuple[Source, ...]
    carried: tuple[ir.Tensor, ...]
    is_known: bool

    @staticmethod
    def of(loop: ir.While, written: frozenset[ir.Tensor]) -> Turns:
        flow = _Flow(written)
        flow.take([loop.condition], _ASKED)
        flow.visit(loop.body, frozenset())
        asked, everything = flow.closure([_ASKED]), flow.closure([_ASKED, _EFFECT])
        sources = [source for name in asked for source in flow.sources.get(name, ())]
        carried = [name for name in everything if isinstance(name, ir.Tensor)]
        inside = {node.tensor for node in walk(loop.body) if isinstance(node, ir.Allocate)}
        outside = tuple(tensor for tensor in carried if tensor not in inside)
        return Turns(tuple(sources), outside, flow.is_known)

    @property
    def updates(self) -> bool:
        """Whether it waits by atomic updates, which see simultaneous changes by others."""
        return any(isinstance(source, ir.Atomic) for source in self.sources)


_ASKED, _EFFECT = "the condition", "what others see"
Name: TypeAlias = "ir.Variable | ir.Tensor | str"


@dataclass(slots=True)
class _Flow:
    """The names that each name's value depends on, by data and by branches."""

    written: frozenset[ir.Tensor]
    uses: dict[Name, set[Name]] = field(default_factory=dict)
    sources: dict[Name, list[Source]] = field(default_factory=dict)
    is_known: bool = True

    def take(
        self, values: Iterable[ir.Expression], name: Name, branches: frozenset[Name] = frozenset()
    ) -> None:
        used = self.uses.setdefault(name, set())
        used |= branches
        for node in (node for value in values for node in walk(value)):
            if isinstance(node, ir.Variable):
                used.add(node)
            elif isinstance(node, ir.Read) and node.tensor.scope not in _VISIBLE:
                used.add(node.tensor)
            elif isinstance(node, ir.Read) and node.tensor in self.written:
                self.sources.setdefault(name, []).append(node)

    def visit(self, node: ir.Statement, branches: frozenset[Name]) -> None:
        match node:
            case ir.Let(variable=variable, value=value):
                self.take([value], variable, branches)
            case ir.Store(tensor=tensor, indices=indices, value=value):
                name = _EFFECT if tensor.scope in _VISIBLE else tensor
                self.take([*indices, value], name, branches)
            case ir.Atomic(indices=indices, value=value, result=result):
                self.take([*indices, value], _EFFECT, branches)
                if result is not None:
                    self.take([*indices, value], result, branches)
                    self.sources.setdefault(result, []).append(node)
            case ir.If() | ir.While() | ir.For() | ir.Each():
                # A name for the branch itself, for everything that decides it, also through memory.
                branch = f"branch {len(self.uses)}"
                self.take(expressions(node), branch, branches)
                if isinstance(node, ir.For):
                    self.take([node.start, node.stop], node.variable, branches)
                for inner in statements(node):
                    self.visit(inner, branches | {branch})
            case ir.Do(operation=operation) if operation.startswith("fence."):
                pass
            case _ if isinstance(node, _PLAIN):
                self.take(expressions(node), _EFFECT, branches)
                for inner in statements(node):
                    self.visit(inner, branches)
            case _:
                self.is_known = False

    def closure(self, names: Iterable[Name]) -> list[Name]:
        reached = dict.fromkeys(names)
        pending = list(reached)
        while pending:
            for name in self.uses.get(pending.pop(), ()):
                if name not in reached:
                    reached[name] = None
                    pending.append(name)
        return list(reached)


class Watch:
    """Watches one execution of a loop: whether the last turn left everything as it was."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.last: tuple[Any, ...] | None = None
        self.changes = 0  # number of changes of memory when the next turn began

    def stays(self, frame: Frame, turn: int) -> bool:
        """Whether nothing has changed since the last call; called before each turn."""
        self.changes = frame.run.changes
        if not self.turns.is_known or not (self.turns.sources or turn % _SELDOM < 2):
            return False
        mask = None if frame.mask is None else np.asarray(frame.mask).tobytes()
        memories = [
            frame.memories[t].data.tobytes() for t in self.turns.carried if t in frame.memories
        ]
        now = (self.changes, mask, *memories)
        is_same = self.last == now
        self.last = now
        return is_same


def watched(kernel: ir.Kernel, written: frozenset[ir.Tensor]) -> bool:
    """Whether a loop of the program waits by atomic updates."""
    return any(
        Turns.of(node, written).updates for node in walk(kernel.body) if isinstance(node, ir.While)
    )


def named_source(source: Source, expressions: Expressions) -> Callable[[Frame], str]:
    """A function for the displayed name of the element that the first active worker waits for."""
    evaluates = [expressions.index(index) for index in source.indices]

    def name(frame: Frame) -> str:
        where = np.ones((1, 1), np.bool_) if frame.mask is None else frame.mask
        _, _, position = frame.someone(where)
        indices = []
        for evaluate in evaluates:
            value = np.asarray(evaluate(frame))
            spot = position[len(position) - value.ndim :]
            clipped = tuple(min(i, n - 1) for i, n in zip(spot, value.shape, strict=True))
            indices.append(str(int(value[clipped] if value.ndim else value)))
        return f"{source.tensor.name}[{', '.join(indices)}]" if indices else source.tensor.name

    return name
