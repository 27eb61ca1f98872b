"""Analyses of a program before the simulator runs it.

Loops that wait for others: what their condition depends on, and turns that change nothing.

A turn depends on memory that others see, and on private memory that it carries over from the turn before. Where
neither has changed from one turn to the next, each further turn does the same, until somebody changes memory:
the workers sleep until then, and where nobody is left to do so, that is found in two turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from taskc.analysis.prover import addends
from taskc.backend.sim.expressions import ExpressionCompiler
from taskc.backend.sim.machine import Frame
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.operations import OPERATIONS, written
from taskc.ir.rewrite import EXPRESSION_TYPES, expressions, statements, walk, walk_statements

_IN_ORDER = ("exchange", "acquire", "release")  # atomics whose result depends on the order of turns


def writes(body: ir.Statement) -> Iterator[ir.Tensor]:
    """The tensors that `body` stores to or updates, once for each such place."""
    return writes_among(walk_statements(body))


def writes_among(nodes: Iterable[ir.Statement]) -> Iterator[ir.Tensor]:
    return (tensor for node in nodes for tensor in written(node))


def divergent_locals(body: ir.Statement) -> frozenset[ir.Tensor]:
    """LOCAL tensors stored to in a mapping loop, which may therefore differ among workers."""
    return frozenset(
        tensor
        for node in walk_statements(body)
        if isinstance(node, ir.Each)
        for tensor in writes(node.body)
        if tensor.scope == ir.LOCAL
    )


def tasks_are_independent(each: ir.Each) -> bool:
    """Whether a worker's tasks may run at once with the same effect as one after another."""
    mapping = each.mapping
    distinct = mapping.is_composed or not mapping.is_replicated
    extents = dict(zip(each.variables, mapping.shape, strict=True))
    return _are_independent(each.body, extents, distinct)


def turns_are_independent(loop: ir.For, count: int) -> bool:
    """Whether a loop's turns may run at once with the same effect."""
    return _are_independent(loop.body, {loop.variable: count}, True)


def _are_independent(body: ir.Statement, extents: dict[ir.Variable, int], distinct: bool) -> bool:
    """Whether no turn touches an element that another turn writes.

    That is so where every access to a tensor that is written has the same indices, and those tell
    the turn. A tensor in memory that is only stored to, at one place outside inner loops, may have
    any indices, since stores take effect in the order of the turns.
    """
    turn = _Turn(_LoopNames(dict(extents), {}))
    if not all(map(turn.takes, walk(body))):
        return False
    stored = [tensor for tensor in turn.stores if tensor not in turn.private]
    if any(_overlaid(tensor, other) for tensor in stored for other in turn.accesses):
        return False
    varying = {variable for variable, extent in extents.items() if extent > 1}
    determined = [
        turn.determined_by(tensor) for tensor in stored if not turn.only_stores_once(tensor)
    ]
    return not determined or (distinct and all(varying <= variables for variables in determined))


@dataclass(slots=True)
class _Turn:
    """The accesses of one turn.

    accesses  the indices of each tensor's
    stores    how many each tensor's are
    inner     what is written in loops inside
    """

    scope: _LoopNames
    private: set[ir.Tensor] = field(default_factory=set)
    accesses: dict[ir.Tensor, list[tuple[ir.Expression, ...]]] = field(default_factory=dict)
    stores: Counter[ir.Tensor] = field(default_factory=Counter)
    reads: set[ir.Tensor] = field(default_factory=set)
    inner: set[ir.Tensor] = field(default_factory=set)

    def takes(self, node: ir.Statement | ir.Expression) -> bool:
        """Note a node's accesses; False if turns with such a node can't be independent."""
        match node:
            case ir.Allocate(tensor=tensor):
                self.private.add(tensor)
                # A tile or a buffer exists once, for all turns.
                return tensor.scope in (ir.LOCAL, ir.REGISTER)
            case ir.Read(tensor=tensor, indices=indices):
                self.reads.add(tensor)
                self.accesses.setdefault(tensor, []).append(indices)
            case ir.Store(tensor=tensor, indices=indices):
                self.stores[tensor] += 1
                self.accesses.setdefault(tensor, []).append(indices)
            case ir.Atomic(tensor=tensor, indices=indices, result=result, operator=operator):
                self.stores[tensor] += 1
                self.reads.add(tensor)
                self.accesses.setdefault(tensor, []).append(indices)
                return result is None and operator not in _IN_ORDER and not tensor.dtype.is_float
            case ir.Let(variable=variable, value=value):
                self.scope.values[variable] = value
            case ir.For(variable=variable, body=inside):
                self.scope.extents[variable] = trip_count(node)
                self.inner.update(writes(inside))
            case ir.Each(variables=variables, mapping=mapping, body=inside):
                self.scope.extents.update(zip(variables, mapping.shape, strict=True))
                self.inner.update(writes(inside))
            case ir.While(body=inside):
                self.inner.update(writes(inside))
            case ir.Sequence() | ir.If() | ir.Assert():
                pass  # nested nodes are visited, too
            case _:
                return (
                    type(node) in EXPRESSION_TYPES
                )  # expressions, which consist of the nodes above
        return True

    def only_stores_once(self, tensor: ir.Tensor) -> bool:
        """Whether a tensor in memory is stored to at one place outside inner loops, and not read."""
        in_memory = tensor.scope in (ir.GLOBAL, ir.SHARED, ir.TILE)
        is_stored_to = tensor not in self.reads and tensor not in self.inner
        return in_memory and is_stored_to and self.stores[tensor] == 1

    def determined_by(self, tensor: ir.Tensor) -> set[ir.Variable]:
        """The variables whose values follow from the indices that all of a tensor's accesses share."""
        first, *rest = self.accesses[tensor]
        determined: set[ir.Variable] = set()
        for i, index in enumerate(first):
            if all(other[i] is index or other[i] == index for other in rest):
                determined |= self.scope.determined_by(index)
        return determined


@dataclass(frozen=True, slots=True)
class _LoopNames:
    """Variables bound within a loop: those with a known number of values, and those that are defined by a value."""

    extents: dict[ir.Variable, int | None]
    values: dict[ir.Variable, ir.Expression]

    def determined_by(self, index: ir.Expression) -> set[ir.Variable]:
        """The variables whose values follow from the index: its terms have to be digits of one number."""
        terms = self.linear(index)
        if not terms:
            return set()
        reach = 0
        for variable, factor in sorted(terms.items(), key=lambda term: abs(term[1])):
            extent = self.extents[variable]
            if abs(factor) <= reach or (extent is None and len(terms) > 1):
                return set()
            reach += abs(factor) * ((extent or 1) - 1)
        return set(terms)

    def linear(self, node: ir.Expression) -> Counter[ir.Variable] | None:
        """The factors of the bound variables in a linear form; None if it isn't one."""
        total: Counter[ir.Variable] = Counter()
        for term, factor in addends(node, self.values):
            if isinstance(term, ir.Variable) and term in self.extents:
                total[term] += factor
            elif isinstance(term, ir.Cast) and term.operand.dtype.is_integer:
                inside = self.linear(term.operand)
                if inside is None:
                    return None
                total.update({v: n * factor for v, n in inside.items()})
            elif not self._is_fixed(term):
                return None
        return Counter({variable: factor for variable, factor in total.items() if factor})

    def _is_fixed(self, node: ir.Expression) -> bool:
        """Whether it is the same for all turns: it uses no variable bound inside, and reads no memory."""
        for part in walk(node):
            if isinstance(part, (ir.Read, ir.Lookup)):
                return False
            if isinstance(part, ir.Variable):
                if part in self.extents:
                    return False
                value = self.values.get(part)
                if value is not None and not self._is_fixed(value):
                    return False
        return True


def _overlaid(tensor: ir.Tensor, other: ir.Tensor) -> bool:
    """Whether both have offsets in shared memory, and so may overlap."""
    return tensor is not other and tensor.offset is not None and other.offset is not None


def is_cluster_at_work(nodes: Iterable[object]) -> bool:
    """Whether blocks of a cluster communicate; otherwise each block runs for itself."""
    return any(
        isinstance(node, ir.Peer)
        or (isinstance(node, ir.Do) and OPERATIONS[node.operation].participants == "cluster")
        for node in nodes
    )


def waits_for_grid(nodes: Iterable[object]) -> bool:
    """Whether blocks wait for each other, so that all of them run at the same time."""
    return any(isinstance(node, ir.Barrier) and node.scope == "grid" for node in nodes)


def remote_tensors(nodes: Iterable[object]) -> set[ir.Tensor]:
    """The tensors that other blocks of the cluster access."""
    remote: set[ir.Tensor] = set()
    for node in nodes:
        match node:
            case ir.Peer(of=tensor):
                remote.add(tensor)
            case ir.Do(operation="tma.load.multicast", operands=(ir.Address(tensor=tensor), *_)):
                remote.add(tensor)
            case _:
                pass  # accesses only its own block
    return remote


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


class TurnWatch:
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


def named_source(source: Source, expressions: ExpressionCompiler) -> Callable[[Frame], str]:
    """A function for the displayed name of the element that the first active worker waits for."""
    evaluates = [expressions.index(index) for index in source.indices]

    def name(frame: Frame) -> str:
        _, _, position = frame.someone(frame.mask)
        indices = []
        for evaluate in evaluates:
            value = np.asarray(evaluate(frame))
            spot = position[len(position) - value.ndim :]
            clipped = tuple(min(i, n - 1) for i, n in zip(spot, value.shape, strict=True))
            indices.append(str(int(value[clipped] if value.ndim else value)))
        return f"{source.tensor.name}[{', '.join(indices)}]" if indices else source.tensor.name

    return name
