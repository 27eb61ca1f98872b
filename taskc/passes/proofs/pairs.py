"""Whether the conditions on two accesses keep them apart.

    if i < s: buf[i] = buf[i] + buf[i + s]

Worker j reads buf[j + s] where j < s, and worker i writes buf[i] where i < s: as j is not negative,
i < s <= j + s. So both accesses are copied with new names: variables that differ
between tasks are renamed in the second one, and uniform ones are shared. Then linear
reasoning decides whether the indices can be equal, for each way in which the two tasks may differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from taskc.analysis.facts import Facts
from taskc.errors import assert_never
from taskc.ir import nodes as ir
from taskc.ir.interval import range_of
from taskc.ir.nodes import GLOBAL, LOCAL, SHARED, Binary, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import bound_by, substitute, walk
from taskc.ir.types import boolean, i64
from taskc.passes.proofs.accesses import (
    READ,
    Access,
    Guard,
    Path,
    Program,
    conjuncts,
    tensors_read,
    used_variables,
)

Agents = ir.Grid | ir.Each | ir.Move


def kept_apart(first: Access, second: Access, program: Program, agents: Agents) -> bool:
    """Whether different tasks of the loop that both accesses are in surely access different elements."""
    if not all(any(frame is agents for frame in access.path) for access in (first, second)):
        return False
    own, other = (_Copy(access, program, agents, n) for n, access in enumerate((first, second)))
    if own.indices is None or other.indices is None:
        return False
    outside = first.path[: _position(first.path, agents)]
    facts = other.assume(own.assume(program.facts(outside)))
    pairs = list(zip(own.indices, other.indices, strict=True))
    variables = list(zip(own.agents, other.agents, strict=True))
    return all(
        any(_different(facts, case, pairs, d) for d in range(len(pairs)))
        for case in _cases(variables, agents, first is second)
    )


def _position(path: Path, frame: Agents) -> int:
    return next(n for n, other in enumerate(path) if other is frame)


def _cases(
    variables: list[tuple[Expression, Expression]], agents: Agents, alike: bool
) -> Iterator[list[Expression]]:
    """The ways in which two tasks differ. For two copies of one access, the first copy may be assumed to be of the
    earlier task.
    """
    is_known = not isinstance(agents, ir.Each) or (
        agents.worker is None and not agents.mapping.is_replicated
    )
    if not is_known:
        yield []
        return
    before: list[Expression] = []
    for d, (own, other) in enumerate(variables):
        step = agents.by[d] if isinstance(agents, ir.Grid) else 1
        yield [*before, _ordered(own, other, step)]
        if not alike:
            yield [*before, _ordered(other, own, step)]
        before.append(Binary("==", own, other))


def _ordered(low: Expression, high: Expression, step: int) -> Expression:
    return Binary("<=", Binary("+", low, ir.constant(step)), high)


def _different(
    facts: Facts, case: list[Expression], pairs: list[tuple[Expression, Expression]], d: int
) -> bool:
    """Whether the indices in dimension d differ if all others are equal."""
    for condition in case:
        if facts.prove(condition) is False:
            return True  # conditions of the two accesses exclude this case
        facts = facts.assume(condition, lasting=False)
    for other, (own, its) in enumerate(pairs):
        if other != d:
            facts = facts.assume(Binary("==", own, its), lasting=False)
    return facts.prove(Binary("==", *pairs[d])) is False


class _Copy:
    """An access with names of its own; `indices` is None if renaming doesn't suffice."""

    def __init__(self, access: Access, program: Program, agents: Agents, number: int) -> None:
        self.program = program
        self.within = agents
        # The definition of a name of the block may have been read before the phase.
        self.lets = {
            variable: value
            for variable, value in program.lets.items()
            if variable in program.private or isinstance(agents, ir.Grid)
        }
        self.names: dict[Variable, Expression] = {}
        self.is_second = number == 1
        self.path = access.path[_position(access.path, agents) :]
        self.phase = access.phase
        for frame in self.path:
            for variable in () if isinstance(frame, Guard) else bound_by(frame):
                self.names[variable] = self._fresh(variable)
        self.indices: tuple[Expression, ...] | None = None
        if all(self._is_fixed(index) for index in access.indices):
            self.indices = tuple(self._renamed(index) for index in access.indices)
        self.agents = [self.names[variable] for variable in agents.variables]

    def assume(self, facts: Facts) -> Facts:
        worker = self.program.kernel.worker
        names = {v: value for v, value in self.lets.items() if v.dtype is boolean}
        if worker in self.names:
            last = ir.constant(self.program.kernel.workers)
            facts = facts.assume(Binary("<", self.names[worker], last))
            facts = facts.assume(Binary(">=", self.names[worker], ir.constant(0)))
        for frame in self.path:
            if isinstance(frame, Guard):
                for condition, holds in conjuncts(frame.condition, frame.holds, names):
                    if self._is_fixed(condition):
                        renamed = self._renamed(condition)
                        facts = facts.assume(renamed, holds=holds, lasting=False)
            elif not isinstance(frame, ir.While):
                loop = self._loop(frame)
                if loop is None:
                    for variable in bound_by(frame):
                        facts.scope.bind_within(self._name(variable), range_of(i64))
                else:
                    facts = facts.enter(loop)
        return facts

    def _loop(self, frame: ir.Grid | ir.For | ir.Pipeline | ir.Each | ir.Move) -> Statement | None:
        """The loop over the copy's own names, without its body; None if its bounds may differ."""
        nothing = ir.Sequence(())
        if isinstance(frame, ir.For) and not (
            self._is_fixed(frame.start) and self._is_fixed(frame.stop)
        ):
            return None
        variables = tuple(self._name(variable) for variable in bound_by(frame))
        match frame:
            case ir.Grid():
                return ir.Grid(variables, frame.shape, frame.by, nothing)
            case ir.For():
                start, stop = self._renamed(frame.start), self._renamed(frame.stop)
                return ir.For(variables[0], start, stop, frame.step, nothing)
            case ir.Pipeline():
                if not self._is_fixed(frame.extent):
                    return None
                return ir.Pipeline(variables[0], self._renamed(frame.extent), frame.by, 1, nothing)
            case ir.Each():
                return ir.Each(variables, frame.mapping, None, nothing)
            case ir.Move():
                zero = ir.constant(0)
                return ir.Move(frame.tensor, (), variables, frame.shape, zero)
            case _:
                return assert_never(frame)

    def _name(self, variable: Variable) -> Variable:
        name = self.names[variable]
        assert isinstance(name, Variable)
        return name

    def _fresh(self, variable: Variable) -> Variable:
        if not self.is_second:
            return variable
        return Variable(variable.name, variable.dtype, variable.multiple)

    def _is_fixed(self, node: Expression) -> bool:
        """Whether its operands are the same for both accesses, and don't change in between."""
        return all(self._is_constant(tensor) for tensor in tensors_read(node, self.lets))

    def _is_constant(self, tensor: Tensor) -> bool:
        if tensor.scope == GLOBAL and tensor.role == "in":
            return True
        if isinstance(self.within, ir.Grid) or tensor.scope not in (GLOBAL, SHARED, LOCAL):
            return False
        if tensor.scope == LOCAL:
            return tensor not in self.program.written and not self._is_made_within(tensor)
        touching = self.program.on(tensor)
        return all(access.kind == READ or access.phase is not self.phase for access in touching)

    def _is_made_within(self, tensor: Tensor) -> bool:
        return any(frame is self.within for frame in self.program.homes.get(tensor, ()))

    def _renamed(self, node: Expression) -> Expression:
        """The node with Lets expanded; results of atomics, and the worker, are renamed for each copy."""
        for variable in used_variables(self.program, [node]):
            own = variable in self.program.results or variable is self.program.kernel.worker
            if own and variable not in self.names:
                self.names[variable] = self._fresh(variable)
        while any(below in self.lets for below in walk(node) if isinstance(below, Variable)):
            node = substitute(node, self.lets)
        return substitute(node, self.names)
