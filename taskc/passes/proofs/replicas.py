"""Proves that the owners of a replicated tile element all write it, with the same value.

Every owner has its own copy, and readers take any of them. So all owners must execute the store equally
often, and the variables that the value depends on must agree among them, in the order in which each owner
writes the element.

A value may also depend on earlier actions of an owner: through a cell that lives longer than the task,
or one that a loop nested in the task has filled. Then the owners must proceed in lockstep: all loops
involved give them the same tasks in the same order.

A store to memory is done by the first owner, and the others' values are dropped: that is an error if the
value comes from an earlier mapping loop, in which the owners had different tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from taskc.analysis.touches import seen_through
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import LOCAL, TILE, Expression, Tensor, Variable
from taskc.ir.rewrite import expressions
from taskc.passes.proofs.accesses import (
    ATOMIC,
    WRITE,
    Guard,
    GuardedAccess,
    KernelAccesses,
    Path,
    Phase,
)
from taskc.passes.proofs.enumeration import Enumerator, element, task_text

HINT = "combine the values of several workers with tc.reduce"


def replica_findings(access: GuardedAccess, enumerator: Enumerator) -> CompileError | None:
    """Check a store to a tile in a mapping loop, whose ownership is proved already."""
    owners = access.tensor.owners
    if owners is None or not owners.is_replicated or access.phase is None:
        return None
    name = access.tensor.name
    if access.kind == ATOMIC:
        return CompileError(f"`{name}` is replicated: no atomic can update all copies", access.loc)
    statement = access.statement
    assert isinstance(statement, ir.Store)
    collected = enumerator.collected
    loops = [frame for frame in access.path if isinstance(frame, ir.Each)]
    dependencies = _Dependencies(collected, loops, access.phase)
    needed = dependencies.of(statement.value) | dependencies.of_path(access.path)
    needed -= set(access.indices)
    bound = {variable for loop in loops for variable in loop.variables}
    earlier = (needed - bound - {collected.kernel.worker}) | dependencies.carried
    asked = earlier | bound | needed if earlier or dependencies.in_order else set()
    for variable in sorted(asked, key=lambda variable: (variable in bound, variable.name)):
        if not _in_lockstep(variable, owners, enumerator):
            return CompileError(
                f"the copies of `{name}` may get different values: each worker has its own"
                f" `{variable.name}`",
                access.loc,
                hint=HINT,
            )
    needed -= earlier
    ordered = sorted(needed, key=lambda variable: variable.name)
    runs = _Runs(access, owners, enumerator, ordered)
    return runs.uneven() or runs.disagreement(ordered)


def _in_lockstep(variable: Variable, owners: Mapping, enumerator: Enumerator) -> bool:
    """Whether workers with a common element see the same values of a loop's variable, in the same order."""
    collected = enumerator.collected
    binder = collected.binders.get(variable)
    if binder is None or not isinstance(binder.loop, ir.Each):
        return False
    around = [*collected.above[id(binder.loop)], binder.loop]
    live = enumerator.path(frame for frame in around if isinstance(frame, ir.Each))
    form = enumerator.index(variable)
    if form is None or live.must is not live.may:
        return False
    values, taken, _ = np.broadcast_arrays(form.base, live.must, enumerator.workers)
    histories = np.where(taken, values, -1).reshape(-1, owners.workers)
    kind = np.unique(histories, axis=1, return_inverse=True)[1].reshape(-1)
    return not _different(kind, owners).any()


def _different(kind: Any, owners: Mapping) -> Any:
    """Mask [worker, slot] where a worker's kind differs from that of the element's first owner."""
    first = owners.owner_table()[0][tuple(owners.tasks[..., d] for d in range(owners.rank))]
    return (kind[first] != kind[:, None]) & owners.valid


def dropped_findings(collected: KernelAccesses) -> Iterator[CompileError]:
    """Errors of stores to memory in replicated loops that drop differing values."""
    dependencies = _Dependencies(collected)
    for access in collected.accesses:
        loops = [frame for frame in access.path if isinstance(frame, ir.Each)]
        if access.kind != WRITE or access.tensor.scope not in (ir.GLOBAL, ir.SHARED):
            continue
        if len(loops) == 1 and loops[0].worker is None and loops[0].mapping.is_replicated:
            error = _dropped(access, loops[0], dependencies)
            if error is not None:
                yield error


def _dropped(
    access: GuardedAccess, each: ir.Each, dependencies: _Dependencies
) -> CompileError | None:
    statement = access.statement
    assert isinstance(statement, ir.Store)
    parts = [statement.value, *access.indices]
    parts += [frame.condition for frame in access.path if isinstance(frame, Guard)]
    cells = {
        node.tensor: None
        for node in seen_through(parts, dependencies.collected.lets)
        if isinstance(node, ir.Read) and node.tensor.scope == LOCAL
    }
    for cell in cells:
        for variable in dependencies.of_cell(cell) - set(each.variables):
            pair = _apart(each.mapping, variable, dependencies.collected)
            if pair is not None:
                first, other, task = pair
                return CompileError(
                    f"workers {first} and {other} both have task {task_text(task)}, and each has"
                    f" its own `{cell.name}`: only that of worker {first} would be stored",
                    access.loc,
                    hint=HINT,
                )
    return None


def _apart(
    mapping: Mapping, variable: Variable, collected: KernelAccesses
) -> tuple[int, int, tuple[int, ...]] | None:
    """Two workers with a common task for which a variable took different values, and the task."""
    binder = collected.binders.get(variable)
    if binder is None or not isinstance(binder.loop, ir.Each) or binder.loop.worker is not None:
        return None
    earlier = binder.loop.mapping
    taken = np.where(earlier.valid, earlier.tasks[..., binder.position], -1)
    kind = np.unique(taken, axis=0, return_inverse=True)[1].reshape(-1)
    different = _different(kind, mapping)
    if not different.any():
        return None
    worker, slot = (int(place) for place in np.argwhere(different)[0])
    task = tuple(int(place) for place in mapping.tasks[worker, slot])
    return mapping.owner(task)[0], worker, task


class _Runs:
    """All executions of a store: worker, register and element of each, with each worker's in order."""

    def __init__(
        self, access: GuardedAccess, owners: Mapping, enumerator: Enumerator, needed: list[Variable]
    ) -> None:
        self.access = access
        self.owners = owners
        self.enumerator = enumerator
        forms = [enumerator.index(index) for index in access.indices]
        indices = [form.base for form in forms if form is not None]
        live = enumerator.path(access.path).may
        others = [enumerator.index(variable) for variable in needed]
        bases = [form.base for form in others if form is not None]
        arrays = np.broadcast_arrays(live, enumerator.workers, *indices, *bases)
        arrays = arrays[: 2 + len(indices)]
        # Reversed axes: workers slowest, then the loops from the outside in.
        self.live = arrays[0].T.ravel()
        self.shape = arrays[0].shape
        self.worker = arrays[1].T.ravel()[self.live]
        self.task = np.stack([array.T.ravel()[self.live] for array in arrays[2:]], axis=-1)
        self.slot = owners.find(self.worker, self.task)

    def uneven(self) -> CompileError | None:
        """The error of an owner that writes an element more or less often than the first one."""
        owners = self.owners
        registers = self.worker * owners.slots + self.slot
        counts = np.bincount(registers, minlength=owners.workers * owners.slots)
        counts = counts.reshape(owners.workers, owners.slots)
        coordinates = tuple(owners.tasks[..., d] for d in range(owners.rank))
        worker, slot = (table[coordinates] for table in owners.owner_table())
        different = (counts != counts[worker, slot]) & owners.valid
        if not different.any():
            return None
        w, s = (int(p) for p in np.argwhere(different)[0])
        first, task = int(worker[w, s]), owners.tasks[w, s]
        name = element(self.access.tensor, task)
        mine, theirs = int(counts[w, s]), int(counts[first, slot[w, s]])
        if mine and theirs:
            text = f"worker {w} writes its copy of {name} {mine} times,"
            text += f" worker {first} {theirs} times"
        else:
            writes, idle = (w, first) if mine else (first, w)
            text = f"worker {writes} writes {name}, but worker {idle}, which has a copy, does not"
        return CompileError(text, self.access.loc, hint=HINT)

    def disagreement(self, needed: list[Variable]) -> CompileError | None:
        """The error of two owners whose variables differ when they write the same element."""
        if not needed:
            return None
        elements = np.ravel_multi_index(tuple(self.task.T), self.owners.shape)
        order = np.argsort(elements, kind="stable")
        elements, worker = elements[order], self.worker[order]
        begins = np.searchsorted(elements, elements)
        total = np.searchsorted(elements, elements, side="right") - begins
        replicas = self.owners.multiplicity().ravel()[elements]
        runs = np.maximum(total // replicas, 1)
        position = np.arange(len(elements))
        reference = begins + (position - begins) % runs
        for variable in needed:
            values = self._values(variable)[order]
            different = values != values[reference]
            if different.any():
                here = int(np.argmax(different))
                there = int(reference[here])
                name = element(self.access.tensor, self.task[order[here]])
                return CompileError(
                    f"workers {worker[there]} and {worker[here]} both have a copy of {name},"
                    f" but their values may differ: they depend on `{variable.name}`",
                    self.access.loc,
                    hint=HINT,
                )
        return None

    def _values(self, variable: Variable) -> Any:
        form = self.enumerator.index(variable)
        assert form is not None
        return np.broadcast_to(form.base, self.shape).T.ravel()[self.live]


class _Dependencies:
    """The variables that differ between workers and that a value depends on.

    loops    around the value: what a cell made in the last of them holds is of this one task
    carried  the variables that decide what other cells hold, and what loops within the task do
    in_order it depends on elements of a tile that other tasks of the phase write
    """

    def __init__(
        self, collected: KernelAccesses, loops: Sequence[ir.Each] = (), phase: Phase | None = None
    ) -> None:
        self.collected = collected
        self.loops = loops
        self.phase = phase
        self.carried: set[Variable] = set()
        self.in_order = False
        self.cells: dict[Tensor, frozenset[Variable]] = {}

    def of(self, node: Expression) -> frozenset[Variable]:
        if isinstance(node, Variable):
            return self._variable(node)
        result = frozenset[Variable]()
        for below in expressions(node):
            result |= self.of(below)
        if isinstance(node, ir.Read) and node.tensor.scope == LOCAL:
            result |= self.of_cell(node.tensor)
        if isinstance(node, ir.Read) and node.tensor.scope == TILE:
            self.in_order = self.in_order or self._is_of_other_tasks(node)
        return result

    def _is_of_other_tasks(self, read: ir.Read) -> bool:
        for access in self.collected.on(read.tensor):
            if access.kind == WRITE and access.phase is self.phase is not None:
                innermost = [frame for frame in access.path if isinstance(frame, ir.Each)][-1:]
                if access.indices != read.indices or innermost[0] is not self.loops[-1]:
                    return True
        return False

    def of_path(self, path: Path) -> frozenset[Variable]:
        """The variables that decide whether, and how often, something runs."""
        result = frozenset[Variable]()
        for frame in path:
            if isinstance(frame, (Guard, ir.While)):
                result |= self.of(frame.condition)
            elif isinstance(frame, ir.For):
                result |= self.of(frame.start) | self.of(frame.stop)
        return result

    def _variable(self, node: Variable) -> frozenset[Variable]:
        collected = self.collected
        if node in collected.lets:
            return self.of(collected.lets[node])
        if node in collected.results or node is collected.kernel.worker:
            return frozenset({node})
        binder = collected.binders.get(node)
        if binder is not None and isinstance(binder.loop, ir.Each):
            return frozenset({node})
        if binder is not None and isinstance(binder.loop, ir.For):
            return self.of(binder.loop.start) | self.of(binder.loop.stop)
        return frozenset()

    def of_cell(self, tensor: Tensor) -> frozenset[Variable]:
        """The variables that all values stored to a LOCAL depend on."""
        if tensor not in self.cells:
            self.cells[tensor] = frozenset()
            result = frozenset[Variable]()
            for access in self.collected.on(tensor):
                if access.kind == WRITE and isinstance(access.statement, ir.Store):
                    result |= self.of(access.statement.value) | self.of_path(access.path)
                    self._carry(tensor, access.path, result)
            self.cells[tensor] = result
        return self.cells[tensor]

    def _carry(self, cell: Tensor, path: Path, needed: frozenset[Variable]) -> None:
        """Record a store at `path` to a cell, of a value that depends on `needed`."""
        home = self.collected.homes.get(cell, ())
        is_fresh = bool(self.loops) and any(frame is self.loops[-1] for frame in home)
        for frame in path:
            around = any(frame is loop for loop in self.loops)
            if isinstance(frame, ir.Each) and not (is_fresh and around):
                self.carried.update(frame.variables)
        if not is_fresh:
            self.carried |= needed
