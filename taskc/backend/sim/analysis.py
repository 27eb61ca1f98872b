"""Analyses of a program before the simulator runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from taskc.analysis.sums import addends
from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.effects import written
from taskc.ir.fields import EXPRESSION_TYPES
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import walk, walk_statements

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
