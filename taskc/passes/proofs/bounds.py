"""Proves that every index of every access is within its tensor, for all sizes.

Premises are the ranges of the enclosing loops, the conditions on the path (If, Select,
a lazy `and` or `or`, the guard of a Move) and the Asserts before it in the same scope. Linear
reasoning proves most accesses; if that fails and everything that the index depends on has a constant
range, all combinations are tried. Tiles are not checked: an owned element exists.
"""

from __future__ import annotations

from math import inf

import numpy as np

from taskc.analysis.facts import Facts
from taskc.analysis.touches import Touch
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.linear import WRAPPED, Affine, Opaque
from taskc.ir.nodes import TILE, Expression
from taskc.ir.rewrite import map_children, walk
from taskc.passes.proofs.accesses import (
    Guard,
    Indices,
    KernelAccesses,
    State,
    is_dead,
    used_variables,
    visit_states,
)
from taskc.passes.proofs.enumeration import (
    LIMIT,
    Enumerator,
    all_blocks,
    at,
    first_true,
    is_short,
    size_of,
    spelled,
    task_of,
    task_text,
)
from taskc.passes.proofs.folding import resolved


def bounds_findings(collected: KernelAccesses, most: float = inf) -> list[CompileError]:
    """The accesses that aren't proved, the first `most` of them."""
    errors: list[CompileError] = []

    def visit(touch: Touch[State], indices: Indices) -> None:
        tensor = touch.node.tensor
        if tensor.scope == TILE or len(errors) >= most:
            return
        for index, extent in zip(indices, tensor.shape, strict=True):
            error = _index(touch, index, extent, collected)
            if error is not None:
                errors.append(error)
                break

    visit_states(collected.kernel, Facts.empty(collected.kernel, collected.ranges), visit)
    return errors


def _index(
    touch: Touch[State], index: Expression, extent: int | Expression, collected: KernelAccesses
) -> CompileError | None:
    tensor, state, loc = touch.node.tensor, touch.known, touch.loc
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
    if _by_choice(resolved(index, collected), end, state.now):
        return None
    if _by_parts(index, end, state, collected) or _never_runs(state, collected):
        return None
    conclusion = _enumerate(index, end, state, collected)
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


_MOST_CHOICES = 5  # Selects in an index: each doubles the work


def _by_choice(index: Expression, end: Expression, now: Facts, most: int = _MOST_CHOICES) -> bool:
    """Whether both values of a select are in bounds, each where it is taken."""
    choice = next((part for part in walk(index) if isinstance(part, ir.Select)), None)
    if choice is None:
        form = now.affine(index)
        return now.nonpositive(-form) and now.nonpositive(form - now.affine(end) + 1)
    if not most:
        return False
    for holds, value in ((True, choice.then), (False, choice.otherwise)):
        known = now.assume(choice.condition, holds=holds)
        if not _by_choice(_replaced(index, choice, value), end, known, most - 1):
            return False
    return True


def _replaced(node: Expression, old: Expression, new: Expression) -> Expression:
    return new if node is old else map_children(node, lambda part: _replaced(part, old, new))


def _by_parts(index: Expression, end: Expression, state: State, collected: KernelAccesses) -> bool:
    """Whether the index's values over all workers and slots are in bounds, with a linear uniform part."""
    enumerator = Enumerator(collected, "unrolled")
    form = enumerator.index(index)
    if form is None or form.is_uniform or any(type(k) is not int for k in form.terms.values()):
        return False
    live = enumerator.path(state.path).may
    if size_of(form.base, live) > LIMIT:
        return False
    base, mask = np.broadcast_arrays(form.base, live)
    values = base[mask]
    if not values.size:
        return True
    total = Affine(0, {}, 0)
    for atom, factor in form.terms.items():
        total = total + state.now.affine(atom).scaled(int(factor))
    above = total + (int(values.max()) + 1) - state.now.affine(end)
    return state.now.nonpositive(-total - int(values.min())) and state.now.nonpositive(above)


def _never_runs(state: State, collected: KernelAccesses) -> bool:
    """Whether the enclosing conditions contradict each other, or the ranges of the loops."""
    return any(
        is_dead(state.path[:position], frame.condition, frame.holds, collected)
        for position, frame in enumerate(state.path)
        if isinstance(frame, Guard)
    )


def _enumerate(
    index: Expression, end: Expression, state: State, collected: KernelAccesses
) -> bool | str | None:
    """All combinations: True if they are in bounds, a description of one that isn't, or None."""
    guards = [frame.condition for frame in state.path if isinstance(frame, Guard)]
    variables = used_variables(collected, (index, end, *guards))
    blocks = all_blocks(collected, used_variables(collected, (index, end)))
    if blocks is None:
        return None
    for variable in variables - blocks.keys():
        blocks |= all_blocks(collected, [variable]) or {}
    enumerator = Enumerator(collected, "unrolled", blocks)
    form, extent = enumerator.index(index), enumerator.index(end)
    if form is None or extent is None or form.terms or extent.terms:
        return None
    live = enumerator.path(state.path)
    if size_of(form.base, live.may, live.must) > LIMIT:
        return None
    outside = np.logical_or(form.base < 0, form.base >= extent.base)
    if not (outside & live.may).any():
        return is_short(collected, blocks) or None
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
    """A hint for a sum with one unbounded number: the range of it for which the index is in bounds."""
    atoms = [atom for atom in form.terms if isinstance(atom, Opaque) and atom.kind == WRAPPED]
    if len(atoms) != 1 or form.terms != {atoms[0]: 1}:
        return None
    form_before_wrap = atoms[0].parts[0] + form.constant
    wide = [
        a for a in form_before_wrap.terms if facts.interval_of(facts.scope.atom_form(a)).is_wide
    ]
    if len(wide) != 1 or form_before_wrap.terms[wide[0]] != 1:
        return None
    low, high = facts.interval_of(form_before_wrap.without(wide[0]))
    if low is None or high is None:
        return None
    size = facts.affine(end) - (high + 1)
    if size.is_constant and size.constant < -low:
        return None
    name = spelled(wide[0].expression if isinstance(wide[0], Opaque) else wide[0])
    guard = f"{-low} <= {name} <= {spelled(size.to_expression())}"
    return f"`{name}` may be any {atoms[0].parts[1]}, and so the sum may wrap; state before: `assert {guard}`"
