"""Conditions that choose between the stores of a whole kernel.

    if m <= 8:
        c[i, col + j] = ...          one case: these stores, and m <= 8 is known
    else:
        c[row + i, col + j] = ...    the other case: those, and m > 8 is known

A condition on sizes and scalars alone is the same for every block, so each case can be proved for
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Variable
from taskc.ir.rewrite import walk
from taskc.passes.proofs.paths import Guard
from taskc.passes.proofs.program import Access, Program, used_variables
from taskc.passes.proofs.wording import spelled


@dataclass(frozen=True, slots=True)
class Case:
    """The stores that happen, where `known` holds; paths have its conditions as promises."""

    stores: tuple[Access, ...]
    known: tuple[Guard, ...] = ()

    def explained(self, error: CompileError) -> CompileError:
        notes = tuple(
            (
                f"this is where `{spelled(g.condition)}` {'holds' if g.holds else 'does not hold'}",
                g.condition.loc,
            )
            for g in self.known
        )
        return CompileError(error.message, error.location, error.hint, (*error.notes, *notes))


def cases(case: Case, program: Program) -> Iterator[Case]:
    """The case itself, or what it falls apart into."""
    guards = [frame for store in case.stores for frame in store.path if isinstance(frame, Guard)]
    open_guards = [guard for guard in guards if not guard.asserted]
    for chosen in open_guards:
        same = [guard for guard in open_guards if guard.condition is chosen.condition]
        if len({guard.holds for guard in same}) == 2 and is_computed_from(
            (), chosen.condition, program
        ):
            for holds in (True, False):
                known = Guard(chosen.condition, holds, asserted=True)
                stores = tuple(
                    _known(store, known) for store in case.stores if _happens(store, known)
                )
                yield from cases(Case(stores, (*case.known, known)), program)
            return
    yield case


def _happens(store: Access, known: Guard) -> bool:
    return not any(
        isinstance(frame, Guard)
        and frame.condition is known.condition
        and frame.holds != known.holds
        for frame in store.path
    )


def _known(store: Access, known: Guard) -> Access:
    path = tuple(
        known if isinstance(frame, Guard) and frame.condition is known.condition else frame
        for frame in store.path
    )
    return replace(store, path=path)


def is_computed_from(
    variables: tuple[Variable, ...], condition: Expression, program: Program
) -> bool:
    """Whether it is about these, sizes and scalars alone."""
    given = {*program.kernel.parameters, *program.kernel.dimensions, *variables}
    used = used_variables(program, [condition])
    values = [condition, *(program.lets[v][0] for v in used if v in program.lets)]
    reads = any(isinstance(node, ir.Read) for value in values for node in walk(value))
    return not reads and all(v in given or v in program.lets for v in used)
