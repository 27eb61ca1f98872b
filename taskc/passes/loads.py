"""The loads of a pipelined loop that can run earlier than its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import GLOBAL, Statement, Tensor, Variable
from taskc.ir.rewrite import walk


@dataclass(frozen=True, slots=True)
class Loads:
    """The part of a pipelined body that fetches, and the rest of it.

    `scalars` are the uniform Lets that the moves need; they stay in the work too, as do the loads that
    depend on it: `refusals` say why.
    """

    tensors: tuple[Tensor, ...]
    scalars: tuple[ir.Let, ...]
    moves: tuple[ir.Move, ...]
    work: tuple[Statement, ...]
    refusals: tuple[tuple[ir.Move, str], ...]

    def notes(self, refused: str = "is not pipelined") -> list[tuple[str, Location]]:
        """A note for each load that stays in the work, saying that it is `refused`, and why."""
        return [
            (f"`{move.tensor.name}` {refused}: its load {reason}", move.loc)
            for move, reason in self.refusals
        ]


def split_loads(
    pipeline: ir.Pipeline, concurrent: Sequence[Statement] = (), before: Sequence[Statement] = ()
) -> Loads:
    """The block values at the top of the body whose loads don't depend on the work.

    If loads overlap more than the loop, `concurrent` are those other statements. Scalars that come `before`
    the loop then have to be computed again by the loads.
    """
    body = pipeline.body
    statements = body.statements if isinstance(body, ir.Sequence) else (body,)
    work_around = Work.of((body, *concurrent))
    known = {s.variable: s for s in before if isinstance(s, ir.Let)}
    scalars: dict[Variable, ir.Let] = {}
    tensors: list[Tensor] = []
    moves: list[ir.Move] = []
    work: list[Statement] = []
    refusals: list[tuple[ir.Move, str]] = []
    needed: set[Variable] = set()
    block_values = {
        s.tensor for s in statements if isinstance(s, ir.Allocate) and s.tensor.constant
    }
    for statement in statements:
        match statement:
            case ir.Allocate(tensor=tensor) if tensor in block_values:
                continue
            case ir.Move(tensor=tensor) if tensor in block_values:
                lets = _closure(_free_variables(statement), {**known, **scalars})
                reason = work_around.needed_by((statement, *lets))
                if reason is None:
                    tensors.append(tensor)
                    moves.append(statement)
                    needed |= _free_variables(statement)
                else:
                    refusals.append((statement, reason))
                    work += [ir.Allocate(tensor, loc=statement.loc), statement]
                continue
            case ir.Let():
                scalars[statement.variable] = statement
            case _:
                pass  # it is work
        work.append(statement)
    needed_lets = _closure(needed, scalars)
    return Loads(tuple(tensors), needed_lets, tuple(moves), tuple(work), tuple(refusals))


@dataclass(frozen=True, slots=True)
class Work:
    """The tensors that statements overlapped by loads write, and the variables that they compute, except by Lets."""

    written: frozenset[Tensor]
    computed: frozenset[Variable]

    @staticmethod
    def of(parts: Sequence[Statement]) -> Work:
        written: set[Tensor] = set()
        computed: set[Variable] = set()
        for part in parts:
            for node in walk(part):
                if isinstance(node, (ir.Store, ir.Atomic, ir.Move)):
                    written.add(node.tensor)
                if isinstance(node, (ir.Atomic, ir.Do)) and node.result is not None:
                    computed.add(node.result)
        return Work(frozenset(written), frozenset(computed))

    def needed_by(self, parts: Sequence[Statement]) -> str | None:
        """The reason why these can't run before the work, or None."""
        for node in (node for part in parts for node in walk(part)):
            if isinstance(node, ir.Read):
                if node.tensor in self.written:
                    return f"reads `{node.tensor.name}`, which the work writes"
                if node.tensor.scope != GLOBAL:
                    return f"reads `{node.tensor.name}`, which isn't in global memory"
            elif isinstance(node, Variable) and node in self.computed:
                return f"needs `{node.name}`, which the work computes"
        return None


def _free_variables(node: ir.Statement) -> set[Variable]:
    return {v for v in walk(node) if isinstance(v, Variable)}


def _closure(needed: set[Variable], scalars: dict[Variable, ir.Let]) -> tuple[ir.Let, ...]:
    """The Lets that `needed` depends on, in program order."""
    for variable in reversed(scalars):
        if variable in needed:
            needed |= _free_variables(scalars[variable])
    return tuple(let for variable, let in scalars.items() if variable in needed)


def needed_scalars(before: Sequence[Statement], users: Sequence[Statement]) -> tuple[ir.Let, ...]:
    """The Lets of `before` that the users depend on."""
    needed = {v for user in users for v in _free_variables(user)}
    return _closure(needed, {s.variable: s for s in before if isinstance(s, ir.Let)})
