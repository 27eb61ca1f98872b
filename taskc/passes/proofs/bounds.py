"""Proves that every index of every access lies within its tensor, for all sizes.

What may be used: the ranges of the loops around the access, the conditions on its path (If, Select,
a lazy `and` or `or`, the guard of a Move) and the Asserts before it in the same scope. Linear
reasoning does most of it; where that fails and everything that the index depends on has a constant
range, all combinations are tried. Tiles are not asked: owning an element implies that it exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.bounds import Facts
from taskc.ir.build import add
from taskc.ir.linear import WRAPPED, Affine, Opaque
from taskc.ir.nodes import TILE, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, tensors_of, walk
from taskc.passes.proofs.enumeration import LIMIT, Enumerator, all_blocks, size_of
from taskc.passes.proofs.program import Guard, Path, Program, collect, used_variables
from taskc.passes.proofs.wording import at, first_true, spelled, task_of, task_text


def prove_bounds(kernel: ir.Kernel) -> ir.Kernel:
    for error in bounds_findings(collect(kernel)):
        raise error
    return kernel


def bounds_findings(program: Program) -> list[CompileError]:
    prover = _Prover(program)
    facts = Facts.empty(program.kernel)
    prover.statement(program.kernel.body, _State(facts, facts, frozenset(), ()))
    return prover.errors


@dataclass(frozen=True, slots=True)
class _State:
    """What is known at a point.

    `now` includes conditions on memory that may change: the tensors in `reads`. As soon as one of
    them is written, only `lasting` is still true.
    """

    now: Facts
    lasting: Facts
    reads: frozenset[Tensor]
    path: Path

    def enter(self, statement: Statement) -> _State:
        lasting = self.lasting.enter(statement)
        now = self.now.enter(statement) if self.reads else lasting
        return replace(self, now=now, lasting=lasting)

    def under(self, loop: Any) -> _State:
        return replace(self.enter(loop), path=(*self.path, loop))

    def assume(self, condition: Expression, holds: bool = True) -> _State:
        reads = self.reads | {node.tensor for node in walk(condition) if isinstance(node, ir.Read)}
        lasting = self.lasting.assume(condition, holds=holds)
        now = self.now.assume(condition, holds=holds, lasting=False) if reads else lasting
        path = (*self.path, Guard(condition, holds))
        return _State(now, lasting, reads, path)

    def after(self, written: frozenset[Tensor]) -> _State:
        if self.reads.isdisjoint(written):
            return self
        path = tuple(
            frame
            for frame in self.path
            if not isinstance(frame, Guard) or _reads(frame.condition).isdisjoint(written)
        )
        return _State(self.lasting, self.lasting, frozenset(), path)


class _Prover:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.errors: list[CompileError] = []

    def statement(self, node: Statement, state: _State) -> _State:
        """Checks a statement; the result is what is known behind it."""
        match node:
            case ir.Sequence():
                inside = state
                for statement in node.statements:
                    inside = self.statement(statement, inside)
                return state.after(_written(node)) if state.reads else state
            case ir.Let():
                self.expression(node.value, state, node)
                return state.enter(node)
            case ir.Assert():
                self.expression(node.condition, state, node)
                return state.assume(node.condition)
            case ir.If():
                self.expression(node.condition, state, node)
                self.statement(node.then, state.assume(node.condition))
                if node.otherwise is not None:
                    self.statement(node.otherwise, state.assume(node.condition, False))
            case ir.While():
                again = state.after(_written(node)) if state.reads else state
                self.expression(node.condition, again, node)
                inside = again.assume(node.condition)
                self.statement(node.body, replace(inside, path=(*inside.path, node)))
            case ir.For() | ir.Grid() | ir.Pipeline() | ir.Each():
                for expression in expressions(node):
                    self.expression(expression, state, node)
                again = state.after(_written(node)) if state.reads else state
                self.statement(node.body, again.under(node))
            case ir.Move():
                self.move(node, state)
            case ir.Store() | ir.Atomic():
                for expression in (*node.indices, node.value):
                    self.expression(expression, state, node)
                self.access(node.tensor, node.indices, state, node.loc)
            case ir.Roles():
                for role in node.roles:
                    worker = self.program.kernel.worker
                    now, lasting = state.now, state.lasting
                    inside = replace(
                        state,
                        now=now.enter_role(role, worker),
                        lasting=lasting.enter_role(role, worker),
                    )
                    self.statement(role.body, inside)
            case ir.Mma():
                self.operand(node.left, state, node.loc)
                self.operand(node.right, state, node.loc)
            case _:
                for expression in expressions(node):
                    self.expression(expression, state, node)
        return state.after(_written(node)) if state.reads else state

    def move(self, node: ir.Move, state: _State) -> None:
        state = state.under(node)
        if node.guard is not None:
            self.expression(node.guard, state, node)
            state = state.assume(node.guard)
        for expression in (*node.indices, node.value):
            self.expression(expression, state, node)
        self.access(node.tensor, node.indices, state, node.loc)

    def operand(self, operand: ir.Operand, state: _State, loc: Location) -> None:
        """The matrix of a product: its first and its last row and column."""
        rows, columns = reversed(operand.shape) if operand.transposed else operand.shape
        *leading, row, column = operand.origin
        for expression in operand.origin:
            for node in walk(expression):
                if isinstance(node, ir.Read):
                    self.access(node.tensor, node.indices, state, node.loc)
        last = (*leading, add(row, rows - 1), add(column, columns - 1))
        for indices in (operand.origin, last):
            self.access(operand.tensor, indices, state, loc)

    def expression(self, node: Expression, state: _State, statement: Statement) -> None:
        match node:
            case ir.Constant() | Variable():
                return
            case ir.Read() | ir.Address():
                for index in node.indices:
                    self.expression(index, state, statement)
                loc = statement.loc if node.loc == NOWHERE else node.loc
                self.access(node.tensor, node.indices, state, loc)
            case ir.Select():
                self.expression(node.condition, state, statement)
                self.expression(node.then, state.assume(node.condition), statement)
                self.expression(node.otherwise, state.assume(node.condition, False), statement)
            case ir.Binary(operator="and" | "or"):
                self.expression(node.left, state, statement)
                right = state.assume(node.left, node.operator == "and")
                self.expression(node.right, right, statement)
            case _:
                for expression in expressions(node):
                    self.expression(expression, state, statement)

    def access(
        self, tensor: Tensor, indices: Sequence[Expression], state: _State, loc: Location
    ) -> None:
        if tensor.scope == TILE:
            return
        for index, extent in zip(indices, tensor.shape, strict=True):
            error = self.index(tensor, index, extent, state, loc)
            if error is not None:
                self.errors.append(error)
                return

    def index(
        self,
        tensor: Tensor,
        index: Expression,
        extent: int | Expression,
        state: _State,
        loc: Location,
    ) -> CompileError | None:
        form = state.now.affine(index)
        if isinstance(extent, int):
            end = ir.constant(extent)
            above = form + (1 - extent)
        else:
            end = extent  # type: ignore[assignment]
            above = form - state.now.affine(extent) + 1
        lower, upper = state.now.nonpositive(-form), state.now.nonpositive(above)
        if lower and upper:
            return None
        conclusion = self._enumerate(index, end, state)
        if conclusion is True:
            return None
        name, size = spelled(index), spelled(end)
        if lower:
            claim, guard = f"below its extent {size}", f"{name} < {size}"
        elif upper:
            claim, guard = "at least 0", f"{name} >= 0"
        else:
            claim, guard = f"in [0, {size})", f"0 <= {name} < {size}"
        if isinstance(conclusion, str):
            message = conclusion.format(tensor.name)
            return CompileError(message, loc, hint=f"guard the access with `if {guard}:`")
        hint = f"guard the access with `if {guard}:`, or state it before: `assert {guard}`"
        return CompileError(
            f"can't prove that index `{name}` of `{tensor.name}` is {claim}",
            loc,
            hint=_wrapping_hint(form, end, state.now) or hint,
        )

    def _enumerate(self, index: Expression, end: Expression, state: _State) -> bool | str | None:
        """All combinations: True where they are in bounds, words for one that is not, or None."""
        guards = [frame.condition for frame in state.path if isinstance(frame, Guard)]
        variables = used_variables(self.program, (index, end, *guards))
        blocks = all_blocks(self.program, used_variables(self.program, (index, end)))
        if blocks is None:
            return None
        for variable in variables - blocks.keys():
            blocks |= all_blocks(self.program, [variable]) or {}
        enumerator = Enumerator(self.program, "unrolled", blocks)
        form, extent = enumerator.form(index), enumerator.form(end)
        if form is None or extent is None or form.terms or extent.terms:
            return None
        live = enumerator.path(state.path)
        if size_of(form.base, live.may, live.must) > LIMIT:
            return None
        outside = np.logical_or(form.base < 0, form.base >= extent.base)
        if not (outside & live.may).any():
            return True
        wrong = outside & live.must
        if not wrong.any():
            return None
        wrong = np.broadcast_to(wrong, np.broadcast_shapes(wrong.shape, (1,)))
        position = first_true(wrong)
        place = [f"worker {position[-1]}"] if wrong.shape[-1] > 1 else []
        task = task_of(enumerator, state.path, position)
        if task is not None:
            place.append(f"task {task_text(task)}")
        elif not place:
            place += [f"{v.name} = {at(a, position)}" for v, a in blocks.items() if v in variables]
        where = f" at {', '.join(place)}" if place else ""
        number, size = at(form.base, position), at(extent.base, position)
        return f"index {number} is outside `{{}}` (extent {size}){where}"


def _wrapping_hint(form: Affine, end: Expression, facts: Facts) -> str | None:
    """For a sum with one number that may be any: the range in which the index is in bounds."""
    atoms = [atom for atom in form.terms if isinstance(atom, Opaque) and atom.kind == WRAPPED]
    if len(atoms) != 1 or form.terms != {atoms[0]: 1}:
        return None
    whole = atoms[0].parts[0] + form.constant
    wide = [a for a in whole.terms if facts.interval_of(facts.scope.atom_form(a)).is_wide]
    if len(wide) != 1 or whole.terms[wide[0]] != 1:
        return None
    low, high = facts.interval_of(whole.without(wide[0]))
    if low is None or high is None:
        return None
    size = facts.affine(end) - (high + 1)
    if size.is_constant and size.constant < -low:
        return None
    name = spelled(wide[0].expression if isinstance(wide[0], Opaque) else wide[0])
    guard = f"{-low} <= {name} <= {spelled(size.to_expression())}"
    return f"`{name}` may be any {atoms[0].parts[1]}, and so the sum may wrap; state before: `assert {guard}`"


def _reads(condition: Expression) -> frozenset[Tensor]:
    return frozenset(node.tensor for node in walk(condition) if isinstance(node, ir.Read))


def _written(node: Statement) -> frozenset[Tensor]:
    """What a statement stores to, in whatever is below it."""
    return frozenset(_stored(node))


def _stored(node: Statement) -> Iterator[Tensor]:
    for below in walk(node):
        match below:
            case ir.Store() | ir.Atomic() | ir.Move():
                yield below.tensor
            case ir.Mma():
                yield below.accumulator
            case ir.Reduce() | ir.Scan():
                yield below.target
            case ir.Do():
                for operand in below.operands:
                    yield from tensors_of(operand)
