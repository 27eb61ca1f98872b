"""Proves that no two blocks access one element of global memory, one of them writing it.

Blocks are never ordered, so only their indices keep them apart. For a written tensor each
variable of the grid needs a dimension whose index contains it, while the rest of that index
stays within one step of it: then blocks that differ in that variable touch different elements.
If this does not apply and everything has a constant range, all accesses of all blocks are
enumerated.

An "out" parameter is stored once per element (taskc/passes/proofs/coverage.py), so only its reads
are checked.

The conditions on two accesses may keep them apart, between blocks and between workers:

    if i < s: buf[i] = buf[i] + buf[i + s]

Worker j reads buf[j + s] where j < s, and worker i writes buf[i] where i < s: as j is not negative,
i < s <= j + s. So both accesses are copied with new names: variables that differ
between tasks are renamed in the second one, and uniform ones are shared. Then linear
reasoning decides whether the indices can be equal, for each way in which the two tasks may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from taskc.analysis.accesses import element_numbers, example
from taskc.analysis.facts import Facts
from taskc.analysis.indices import Array, Factor, Index
from taskc.analysis.touches import reads_memory
from taskc.errors import CompileError, assert_never
from taskc.ir import nodes as ir
from taskc.ir.linear import range_of
from taskc.ir.nodes import GLOBAL, LOCAL, SHARED, Binary, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import bound_by, substitute, walk
from taskc.ir.types import boolean, i64
from taskc.passes.proofs.accesses import (
    ATOMIC,
    READ,
    WRITE,
    Guard,
    GuardedAccess,
    KernelAccesses,
    Path,
    conjuncts,
    tensors_read,
    used_variables,
)
from taskc.passes.proofs.enumeration import (
    LIMIT,
    Enumerator,
    all_blocks,
    block_range,
    is_short,
    scatter_hint,
    size_of,
)
from taskc.passes.proofs.folding import folded_alike, is_opaque, unfolded_alike

Agents = ir.Grid | ir.Each | ir.Move


def kept_apart(
    first: GuardedAccess, second: GuardedAccess, collected: KernelAccesses, agents: Agents
) -> bool:
    """Whether different tasks of the loop that both accesses are in surely access different elements."""
    if not all(any(frame is agents for frame in access.path) for access in (first, second)):
        return False
    own, other = (_Copy(access, collected, agents, n) for n, access in enumerate((first, second)))
    if own.indices is None or other.indices is None:
        return False
    outside = first.path[: _position(first.path, agents)]
    facts = other.assume(own.assume(collected.facts(outside)))
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

    def __init__(
        self, access: GuardedAccess, collected: KernelAccesses, agents: Agents, number: int
    ) -> None:
        self.collected = collected
        self.within = agents
        # The definition of a name of the block may have been read before the phase.
        self.lets = {
            variable: value
            for variable, value in collected.lets.items()
            if variable in collected.private or isinstance(agents, ir.Grid)
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
        worker = self.collected.kernel.worker
        names = {v: value for v, value in self.lets.items() if v.dtype is boolean}
        if worker in self.names:
            last = ir.constant(self.collected.kernel.workers)
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
            return tensor not in self.collected.written and not self._is_made_within(tensor)
        touching = self.collected.on(tensor)
        return all(access.kind == READ or access.phase is not self.phase for access in touching)

    def _is_made_within(self, tensor: Tensor) -> bool:
        return any(frame is self.within for frame in self.collected.homes.get(tensor, ()))

    def _renamed(self, node: Expression) -> Expression:
        """The node with Lets expanded; results of atomics, and the worker, are renamed for each copy."""
        for variable in used_variables(self.collected, [node]):
            own = variable in self.collected.results or variable is self.collected.kernel.worker
            if own and variable not in self.names:
                self.names[variable] = self._fresh(variable)
        while any(below in self.lets for below in walk(node) if isinstance(below, Variable)):
            node = substitute(node, self.lets)
        return substitute(node, self.names)


HINT = "index it with the variables of tc.tiles, or use tc.atomic_add and its like"

Reach = tuple[int, int]


def block_findings(collected: KernelAccesses) -> Iterator[CompileError]:
    grid = collected.grid
    if grid is None:
        return
    varying = [
        variable
        for variable, extent, by in zip(grid.variables, grid.shape, grid.by, strict=True)
        if not (isinstance(extent, int) and extent <= by)
    ]
    touched: dict[int, list[GuardedAccess]] = {}
    for access in collected.accesses:
        if access.tensor.scope == GLOBAL:
            touched.setdefault(id(access.tensor), []).append(access)
    for accesses in touched.values():
        error = _tensor(accesses, collected, varying) if varying else None
        if error is not None:
            yield error
    written = {id(access.tensor) for access in collected.accesses if access.kind != READ}
    for product in collected.whole if varying else ():
        operands = (product.left, product.right) if isinstance(product, ir.Mma) else ()
        for operand in operands:
            if operand.tensor.scope == GLOBAL and id(operand.tensor) in written:
                text = "can't prove that no other block writes what this product reads of"
                yield CompileError(f"{text} `{operand.tensor.name}`", product.loc)


def _tensor(
    accesses: list[GuardedAccess], collected: KernelAccesses, varying: list[Variable]
) -> CompileError | None:
    tensor = accesses[0].tensor
    enumerator = Enumerator(collected, "iterations")
    if all(access.kind != WRITE for access in accesses):
        return None
    if any(is_opaque(enumerator.index(index)) for a in accesses for index in a.indices):
        changed = folded_alike(accesses, collected) or unfolded_alike(accesses, collected)
        accesses = changed or accesses
    for first in accesses:
        if first.kind != WRITE:
            continue
        for second in accesses:
            if tensor.role == "out" and second.kind != READ:
                continue
            if second.kind == WRITE and second.order < first.order:
                continue
            if _apart(first, second, enumerator, varying):
                continue
            if collected.grid is not None and kept_apart(first, second, collected, collected.grid):
                continue
            conclusion = _enumerate(first, second, collected)
            if conclusion is None and is_short(collected, varying):
                continue
            return _report(first, second, collected, True if conclusion is None else conclusion)
    return None


def _apart(
    first: GuardedAccess, second: GuardedAccess, enumerator: Enumerator, varying: list[Variable]
) -> bool:
    """Whether blocks that differ in a grid variable differ in a dimension.

    Grid variables one after another: those that are known to be equal don't blur the others.
    """
    pairs = list(zip(*(_forms(access, enumerator) for access in (first, second)), strict=True))
    left = list(varying)
    equal: set[Variable] = set()
    while left:
        found = next(
            (v for v in left if any(_separates(v, a, b, equal, enumerator) for a, b in pairs)), None
        )
        if found is None:
            return False
        left.remove(found)
        equal.add(found)
    return True


def _forms(access: GuardedAccess, enumerator: Enumerator) -> list[Index | None]:
    """The indices, restricted to workers and slots that reach the access."""
    forms = [enumerator.index(index) for index in access.indices]
    live = enumerator.path(access.path).may
    if live is True or any(f is not None and size_of(f.base, live) > LIMIT for f in forms):
        return forms
    return [form and Index(form.terms, _where(form.base, live)) for form in forms]


def _where(base: Any, live: Any) -> Any:
    values, mask = np.broadcast_arrays(base, live)
    return values[mask]


def _separates(
    variable: Variable,
    a: Index | None,
    b: Index | None,
    equal: set[Variable],
    enumerator: Enumerator,
) -> bool:
    if a is None or b is None:
        return False
    factor = a.terms.get(variable, 0)
    if factor == 0 or b.terms.get(variable, 0) != factor:
        return False
    collected = enumerator.collected
    own, other = _reach(a, variable, equal, collected), _reach(b, variable, equal, collected)
    if own is None or other is None or own[1] != other[1]:
        return False
    (low, high), (low_too, high_too) = own[0], other[0]
    step = collected.grid.by[collected.binders[variable].position] if collected.grid else 1
    return max(high, high_too) - min(low, low_too) < max(factor, -factor) * step


def _reach(
    form: Index, variable: Variable, equal: set[Variable], collected: KernelAccesses
) -> tuple[Reach, dict[Expression, Factor]] | None:
    """The range of the rest of an index, and the part that is the same for all blocks."""
    if np.size(form.base) == 0:
        return (0, 0), {}
    low, high = int(np.min(form.base)), int(np.max(form.base))
    common: dict[Expression, Factor] = {}
    for atom, factor in form.terms.items():
        if atom is variable:
            continue
        if _is_fixed(atom, equal, collected):
            common[atom] = factor
            continue
        values = block_range(collected, atom) if isinstance(atom, Variable) else None
        if values is None:
            return None
        ends = [int(factor * end) for end in (values[0], values[-1])] if values else [0]
        low, high = low + min(ends), high + max(ends)
    return (low, high), common


def _is_fixed(atom: Expression, equal: set[Variable], collected: KernelAccesses) -> bool:
    """Whether it consists of parameters and of grid variables that two blocks share."""
    if reads_memory(atom):
        return False
    variables = used_variables(collected, [atom])
    return all(
        v in equal or (v not in collected.binders and v not in collected.lets) for v in variables
    )


def _enumerate(
    first: GuardedAccess, second: GuardedAccess, collected: KernelAccesses
) -> tuple[list[int], tuple[int, ...], tuple[int, ...]] | bool | None:
    """None if blocks stay apart; an element and the two blocks; True if that is unknown."""
    numbers = [_numbers(access, collected) for access in (first, second)]
    if numbers[0] is None or numbers[1] is None:
        return True
    (index, block, certain), (index_too, block_too, certain_too) = numbers[0], numbers[1]
    if not index[0].size or not index_too[0].size:
        return None
    key, key_too, count = element_numbers(index, index_too)
    found = example(key, block, key_too, block_too, count)
    if found is None:
        return None
    if not (certain and certain_too):
        return True
    here, there = found
    blocks = sorted((int(block[here]), int(block_too[there])))
    origins = [_block_name(number, collected) for number in blocks]
    return [int(a[there]) for a in index_too], origins[0], origins[1]


def _numbers(
    access: GuardedAccess, collected: KernelAccesses
) -> tuple[list[Array], Array, bool] | None:
    """The indices and the blocks of all executions of an access, flat; and whether all of them happen."""
    guards = [frame.condition for frame in access.path if isinstance(frame, Guard)]
    grid = collected.grid
    assert grid is not None
    needed = used_variables(collected, access.indices) | set(grid.variables)
    ranges = all_blocks(collected, needed)
    if ranges is None:
        return None
    for variable in used_variables(collected, guards) - needed:
        ranges |= all_blocks(collected, [variable]) or {}
    enumerator = Enumerator(collected, "unrolled", ranges)
    forms = [enumerator.index(index) for index in access.indices]
    if any(form is None or form.terms for form in forms):
        return None
    number: Any = np.zeros((), dtype=np.int64)
    for variable, by in zip(grid.variables, grid.by, strict=True):
        values = ranges[variable]
        number = number * max(values.size, 1) + values // by
    live = enumerator.path(access.path, stores=access.kind in (WRITE, ATOMIC))
    bases = [form.base for form in forms if form is not None]
    if size_of(number, live.may, *bases) > LIMIT:
        return None
    mask, block, *indices = np.broadcast_arrays(live.may, number, *bases)
    return [index[mask] for index in indices], block[mask], live.must is live.may


def _block_name(number: Any, collected: KernelAccesses) -> tuple[int, ...]:
    grid = collected.grid
    assert grid is not None
    counts = []
    for extent, by in zip(grid.shape, grid.by, strict=True):
        size = extent.value if isinstance(extent, ir.Constant) else extent
        assert isinstance(size, int)
        counts.append(-(-size // by))
    return tuple(int(p) for p in np.unravel_index(int(number), counts))


def _report(
    first: GuardedAccess, second: GuardedAccess, collected: KernelAccesses, conclusion: Any
) -> CompileError:
    tensor = first.tensor
    early, late = sorted((first, second), key=lambda access: access.order)
    notes = () if early is late else ((f"the other access {early.verb} it", early.loc),)
    if conclusion is True:
        text = f"can't prove that no two blocks meet at one element of `{tensor.name}`"
        if early is not late:
            text += f", which this {late.verb}"
        hint = scatter_hint(late, collected) or HINT
        return CompileError(text, late.loc, hint=hint, notes=notes)
    place, block, block_too = conclusion
    name = f"{tensor.name}[{', '.join(map(str, place))}]"
    if early is late:
        text = f"race: blocks {block} and {block_too} both write {name}"
    else:
        text = f"race: blocks {block} and {block_too} touch {name}, and no order holds between them"
    return CompileError(text, late.loc, hint=HINT, notes=notes)
