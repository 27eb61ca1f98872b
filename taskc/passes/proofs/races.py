"""Proves that no two workers access one element of shared or global memory, one of them writing
it.

Within a phase all workers and slots are enumerated, with block-wide symbols left free: the uniform
parts of two indices cancel if they are the same, and are unknown otherwise. Dimensions
in which two accesses can be compared may already keep them apart; if they don't, and block-wide
loop variables have few values, each of those is tried. Accesses that are still open are rejected.

Atomics race neither with each other nor with reads. They may not be in a loop whose mapping
replicates tasks, or outside of all mapping loops: every replica would execute them.

Between blocks, which are never ordered, see taskc/passes/proofs/blocks.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from taskc.analysis.accesses import element_numbers, example
from taskc.analysis.indices import Array, Index
from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.linear import EVERYTHING
from taskc.ir.nodes import GLOBAL, SHARED, Expression, Tensor, Variable
from taskc.passes.proofs.accesses import (
    ATOMIC,
    WRITE,
    Guard,
    GuardedAccess,
    KernelAccesses,
    Phase,
    tensors_read,
    used_variables,
)
from taskc.passes.proofs.blocks import block_findings, kept_apart
from taskc.passes.proofs.enumeration import (
    LIMIT,
    Enumerator,
    all_blocks,
    along,
    at,
    element,
    index_text,
    scatter_hint,
    size_of,
    task_of,
    task_text,
)
from taskc.passes.proofs.folding import folded_alike, unfolded_alike

HINT = "give each element to one worker, use tc.atomic_add and its like, or end the loop in between"
TRIED_VALUES = 256  # of block-wide loop variables


def race_findings(collected: KernelAccesses) -> Iterator[CompileError]:
    yield from _atomics(collected)
    phases: dict[int, list[GuardedAccess]] = {}
    for access in collected.accesses:
        if access.phase is not None and access.tensor.scope in (SHARED, GLOBAL):
            phases.setdefault(id(access.phase), []).append(access)
    enumerator = Enumerator(collected, "phase")
    for accesses in phases.values():
        tensors = {id(access.tensor): access.tensor for access in accesses if access.kind == WRITE}
        for tensor in tensors.values():
            touching = [access for access in accesses if access.tensor is tensor]
            error = _phase(touching, enumerator)
            if error is not None:
                yield error
    yield from block_findings(collected)


def _atomics(collected: KernelAccesses) -> Iterator[CompileError]:
    for access in collected.accesses:
        if access.kind != ATOMIC or access.tensor.scope not in (SHARED, GLOBAL):
            continue
        loops = [frame for frame in access.path if isinstance(frame, ir.Each)]
        replicated = next((loop for loop in loops if loop.mapping.is_replicated), None)
        if replicated is not None:
            yield CompileError(
                f"several workers have each task of {replicated.mapping}:"
                f" all of them would update `{access.tensor.name}`",
                access.loc,
                hint="loop over a mapping without replicas",
            )
        elif not loops and collected.kernel.workers > 1:
            yield CompileError(
                f"all {collected.kernel.workers} workers would update `{access.tensor.name}`:"
                " this atomic is in no mapping loop",
                access.loc,
                hint="loop over a mapping whose tasks say who does it",
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Touch:
    """An access with its indices, and its agents: workers, or the tasks of a Move."""

    access: GuardedAccess
    forms: tuple[Index | None, ...]
    agents: Array
    must: Any
    may: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Meeting:
    """Two touches of one element, at their places in the enumeration."""

    first: _Touch
    here: tuple[int, ...]
    second: _Touch
    there: tuple[int, ...]
    definite: bool


def _phase(accesses: list[GuardedAccess], enumerator: Enumerator) -> CompileError | None:
    """Check one phase and one tensor."""
    meeting = _search(accesses, enumerator)
    if meeting is not None and not meeting.definite:
        for alike in (folded_alike, unfolded_alike):
            changed = alike(accesses, enumerator.collected)
            if changed is not None and _search(changed, enumerator) is None:
                return None
    if meeting is None:
        return None
    if not meeting.definite:
        tried = _try_values(accesses, enumerator.collected)
        if tried is None:
            return None
        if isinstance(tried, tuple):
            return _report(tried[0], tried[1])
    return _report(meeting, enumerator)


def _search(accesses: list[GuardedAccess], enumerator: Enumerator) -> _Meeting | None:
    """Two accesses that meet, or may meet: a definite meeting if there is one."""
    possible = None
    touches = [_touch(access, enumerator) for access in accesses]
    writes = [touch for touch in touches if touch.access.kind == WRITE]
    others = touches
    if writes and _is_output(writes[0].access.tensor):
        # Stored once per element: coverage.py
        others = [touch for touch in touches if touch.access.kind != WRITE]
    for first in writes:
        for second in others:
            if second.access.kind == WRITE and second.access.order < first.access.order:
                continue
            meeting = _meet(first, second)
            if meeting is not None and meeting.definite:
                return meeting
            if possible is None and meeting is not None:
                phase = second.access.phase
                assert phase is not None
                if not kept_apart(first.access, second.access, enumerator.collected, phase):
                    possible = meeting
    return possible


def _touch(access: GuardedAccess, enumerator: Enumerator) -> _Touch:
    forms = tuple(enumerator.index(index) for index in access.indices)
    phase = access.phase
    if isinstance(phase, ir.Move):
        axis = enumerator.collected.axis(phase)
        agents = along(np.arange(prod(phase.shape)), axis)
    else:
        agents = enumerator.workers
    live = enumerator.path(access.path, stores=access.kind == WRITE)
    return _Touch(access, forms, agents, live.must, live.may)


def _meet(first: _Touch, second: _Touch) -> _Meeting | None:
    """A meeting of two different agents at one element. Dimensions that can't be compared may be equal."""
    known = [
        (a.base, b.base)
        for a, b in zip(first.forms, second.forms, strict=True)
        if a is not None and b is not None and a.terms == b.terms
    ]
    exact = len(known) == len(first.forms)
    own = [pair[0] for pair in known]
    other = [pair[1] for pair in known]
    if first is not second and exact and all(_apart(a, b) for a, b in known):
        return None
    sizes = size_of(first.may, first.agents, *own), size_of(second.may, second.agents, *other)
    if max(sizes) > LIMIT:
        return _Meeting(first, (0,), second, (0,), False)
    if exact:
        places = _collide(first, first.must, own, second, second.must, other)
        if places is not None:
            return _Meeting(first, places[0], second, places[1], True)
        if first.must is first.may and second.must is second.may:
            return None
    places = _collide(first, first.may, own, second, second.may, other)
    return None if places is None else _Meeting(first, places[0], second, places[1], False)


def _is_output(tensor: Tensor) -> bool:
    return tensor.scope == GLOBAL and tensor.role == "out"


def _apart(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def _collide(
    first: _Touch, live: Any, own: list[Any], second: _Touch, also: Any, other: list[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Places of the two touches where the indices agree and the agents differ."""
    if not (np.any(live) and np.any(also) and all(map(np.size, (*own, *other)))):
        return None  # no agent reaches one of them
    numbers, numbers_too, count = element_numbers(own, other)
    agents, keys, place = _flat(first.agents, numbers, live)
    agents_too, keys_too, place_too = agents, keys, place
    if first is not second:
        agents_too, keys_too, place_too = _flat(second.agents, numbers_too, also)
    collision = example(keys, agents, keys_too, agents_too, count)
    return None if collision is None else (place(collision[0]), place_too(collision[1]))


def _flat(agents: Array, key: Array, live: Any) -> Any:
    """Live agents and the numbers of their elements, flat, by agent; and a map back to places."""
    arrays = np.broadcast_arrays(agents, key, live)
    shape = arrays[0].shape
    who, key, mask = (array.T.ravel() for array in arrays)
    if mask.all():
        chosen = None
    else:
        chosen = np.flatnonzero(mask)
        who, key = who[chosen], key[chosen]

    def place(number: int) -> tuple[int, ...]:
        flat = number if chosen is None else int(chosen[number])
        return tuple(int(p) for p in reversed(np.unravel_index(flat, shape[::-1])))

    return who, key, place


def _try_values(
    accesses: list[GuardedAccess], collected: KernelAccesses
) -> tuple[_Meeting, Enumerator] | bool | None:
    """Try each value of the block-wide loop variables.

    None where no agents ever meet, a definite meeting where they do, False where that stays open.
    """
    nodes = [index for access in accesses for index in access.indices]
    guards = [f.condition for a in accesses for f in a.path if isinstance(f, Guard)]
    variables = _loop_variables(collected, used_variables(collected, nodes))
    ranges = all_blocks(collected, variables)
    cells = _cell_values(collected, nodes)
    if ranges is None or not (ranges or cells):
        return False
    guard_variables = _loop_variables(collected, used_variables(collected, guards)) - variables
    for variable in guard_variables:
        ranges |= all_blocks(collected, [variable]) or {}
    choices = [values.ravel().tolist() for values in ranges.values()]
    choices += [list(numbers) for numbers in cells.values()]
    if prod(map(len, choices)) > TRIED_VALUES:
        return False
    for values in product(*choices):
        fixed = dict(zip(ranges, values[: len(ranges)], strict=True))
        held = dict(zip(cells, values[len(ranges) :], strict=True))
        enumerator = Enumerator(collected, "phase", fixed, cells=held)
        meeting = _search(accesses, enumerator)
        if meeting is not None:
            # A cell may never have this very value.
            return (meeting, enumerator) if meeting.definite and not held else False
    return None


def _cell_values(collected: KernelAccesses, nodes: Iterable[Expression]) -> dict[Tensor, range]:
    """The values of the block-wide cells that expressions read, for cells with few values."""
    read = {tensor: None for node in nodes for tensor in tensors_read(node, collected.lets)}
    result = {}
    for tensor in read:
        low, high = collected.ranges.get(tensor, EVERYTHING)
        is_within = any(isinstance(f, (ir.Each, ir.Move)) for f in collected.homes.get(tensor, ()))
        is_held = tensor not in collected.written and not is_within and not tensor.shape
        if is_held and low is not None and high is not None and high - low < TRIED_VALUES:
            result[tensor] = range(low, high + 1)
    return result


def _loop_variables(collected: KernelAccesses, variables: set[Variable]) -> set[Variable]:
    return {v for v in variables if v in collected.binders and collected.binders[v].shared}


def _report(meeting: _Meeting, enumerator: Enumerator) -> CompileError:
    first, second = (meeting.first, meeting.here), (meeting.second, meeting.there)
    if second[0].access.order < first[0].access.order:
        first, second = second, first
    (early, here), (late, there) = first, second
    tensor = late.access.tensor
    same = early.access is late.access
    phase: Phase | None = late.access.phase
    if not meeting.definite:
        what = "two tasks of this move" if isinstance(phase, ir.Move) else "two workers"
        notes = () if same else ((f"and this {early.access.verb}", early.access.loc),)
        return CompileError(
            f"can't prove that {what} never meet at one element of `{tensor.name}`,"
            f" which this {late.access.verb}",
            late.access.loc,
            hint=scatter_hint(late.access, enumerator.collected) or HINT,
            notes=notes,
        )
    forms = [form for form in late.forms if form is not None]
    name = f"{tensor.name}[{', '.join(index_text(form, there) for form in forms)}]"
    if all(not form.terms for form in forms):
        name = element(tensor, [at(form.base, there) for form in forms])
    a, b = _agent(early, here, enumerator), _agent(late, there, enumerator)
    if same:
        text = f"race: {a} and {b} both write {name} in one phase"
        return CompileError(text, late.access.loc, hint=HINT)
    text = f"race: {b} {late.access.verb} {name}, which {a} {early.access.verb} in the same phase"
    note = (f"{a} {early.access.verb} {name} here", early.access.loc)
    return CompileError(text, late.access.loc, hint=HINT, notes=(note,))


def _agent(touch: _Touch, place: tuple[int, ...], enumerator: Enumerator) -> str:
    task = task_of(enumerator, touch.access.path, place)
    if isinstance(touch.access.phase, ir.Move):
        return f"task {task_text(task or ())}"
    doing = "" if task is None else f" (task {task_text(task)})"
    return f"worker {at(touch.agents, place)}{doing}"
