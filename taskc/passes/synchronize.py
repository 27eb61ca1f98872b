"""Barrier insertion: places the barriers that preserve the result of the phases, and no others.

    move sa[i, q] = a[row + i, q] for (i, q) in (64, 8) by ...
    each (i, j) in own: acc[i, j] = ... sa[i, q] ...
->
    move sa[i, q] = a[row + i, q] for (i, q) in (64, 8) by ...
    barrier block orders "write of sa in line 12, read of sa in line 14"
    each (i, j) in own: acc[i, j] = ... sa[i, q] ...

A traversal in program order keeps the accesses that no barrier has ordered yet. A statement that conflicts with
one of them gets the narrowest sufficient barrier before it. A loop's body is traversed once by
itself, and again after the accesses of an earlier iteration; if it conflicts with accesses before the
loop, a barrier goes before the loop. A loop's bounds are read before it, a while's condition also
after each iteration. Then every barrier is removed once: if all conflicts stay
ordered without it, it stays removed. So the result is irredundant, and each barrier names a conflict
that only it orders. A barrier that the very next statement needs is not tried.

The write of an asynchronous copy counts twice: when it is issued, by which time earlier readers must have
finished, and when its step is waited for, after which its writers' next barrier lets others read. A copy that
an mbarrier counts is ordered by that for everyone who waits. A bulk copy to global memory goes on reading after
it is issued: its reads count when it is waited for, and a barrier after that lets
others write. A ring between roles orders more than its slots: a worker that has waited for step k + s knows that all
readers have released step k, if each of them releases for itself. Mbarriers are set up after the allocation
of their ring, with a barrier that orders everything else, too; they are set up again after all have waited for the
last step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType

from taskc.analysis.accesses import Access, Crew, conflict_scope
from taskc.analysis.phases import (
    Phases,
    rings_between_roles,
    rings_sent_on,
    shared_memory,
    shared_tensors,
    surely_runs,
)
from taskc.analysis.touches import decides_by_cells, reads_memory
from taskc.dataclass import dataclass
from taskc.errors import assert_never
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import (
    EFFECT_FIELDS,
    all_below,
    bound_by,
    expressions,
    map_statements,
    sequence,
    statements,
    walk,
    walk_statements,
)
from taskc.ir.target import TARGETS, Target
from taskc.passes.lower_rings import released_by_each

Loop = ir.For | ir.While | ir.Grid
Lets = dict[Variable, Expression]


@dataclass(eq=False, frozen=True, slots=True)
class Open:
    """An access that no sufficiently wide barrier has ordered yet.

    ordered_in  the widest barrier after it: it happens before later actions of workers of that scope
    goes_on     it is a bulk copy's that nobody has waited for: no barrier orders it so far
    """

    access: Access
    ordered_in: str | None = None
    goes_on: bool = False


State = tuple[Open, ...]

WIDTH = {None: 0, "warp": 1, "warpgroup": 2, "role": 3, "block": 4}


def ordered(state: State, scope: str) -> State:
    """The accesses that stay open after a barrier."""
    if WIDTH[scope] >= WIDTH["role"]:
        return going_on(state)
    return tuple(
        [
            replace(item, ordered_in=scope)
            if WIDTH[scope] > WIDTH[item.ordered_in] and not item.goes_on
            else item
            for item in state
        ]
    )


def going_on(state: State) -> State:
    return tuple([item for item in state if item.goes_on])


def awaited(state: State, under_way: int = 0) -> State:
    """The accesses that stay open after the wait for all bulk copies except the last `under_way`.

    Where some go on, each may be one of these, or have ended: a barrier orders what ended.
    """
    ended = tuple([Open(item.access) for item in state if item.goes_on])
    still_open = state if under_way else tuple([item for item in state if not item.goes_on])
    return union(still_open, ended)


def union(a: State, b: State) -> State:
    seen = {(id(item.access), item.goes_on): item for item in a}
    for item in b:
        key = id(item.access), item.goes_on
        old = seen.get(key)
        if old is None or WIDTH[old.ordered_in] > WIDTH[item.ordered_in]:
            seen[key] = item
    return tuple(seen.values())


class Conflicts:
    """The conflicts of one crew's workers. Accesses are created once, so that they can be compared by identity."""

    def __init__(self, phases: Phases, groups: dict[str, int]) -> None:
        self.phases = phases
        self.groups = groups
        self._accesses: dict[int, tuple[Statement | Expression, tuple[Access, ...]]] = {}
        self._elsewhere: dict[tuple[int, int, str], Access] = {}
        self._elsewhen: dict[tuple[int, str], Lets] = {}
        self._keys: dict[int, tuple[Access, int]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._scopes: dict[tuple[int, int], str | None] = {}
        self._known: list[Access] = []  # keeps the keys' objects alive

    def of(self, statement: Statement, lets: Lets) -> tuple[Access, ...]:
        return self._once(statement, lambda: self.phases.of(statement, lets))

    def of_expression(self, expression: Expression, lets: Lets) -> tuple[Access, ...]:
        return self._once(expression, lambda: self.phases.of_expression(expression, lets))

    def of_arrivals(self, step: ir.RingStep, lets: Lets) -> tuple[Access, ...]:
        return self._once(step, lambda: self.phases.arrivals(step, lets))

    def of_look(self, step: ir.RingStep) -> tuple[Access, ...]:
        return self._once(step, lambda: (self.phases.look(step),))

    def of_set_up(self, allocated: ir.Allocate, ring: Ring) -> tuple[Access, ...]:
        return self._once(allocated, lambda: (self.phases.set_up(ring, allocated.loc),))

    def _once(
        self, node: Statement | Expression, accesses: Callable[[], tuple[Access, ...]]
    ) -> tuple[Access, ...]:
        found = self._accesses.get(id(node))
        if found is None:
            found = self._accesses[id(node)] = node, accesses()
        return found[1]

    def scope(self, a: Access, b: Access) -> str | None:
        """The scope that needs a barrier between two accesses: a group or all workers; None without a conflict."""
        if not (a.writes or b.writes):
            return None
        key = self._key(a), self._key(b)
        if key not in self._scopes:
            self._scopes[key] = conflict_scope(a, b, self.groups)
        return self._scopes[key]

    def opened(self, state: State, accesses: Iterable[Open]) -> State:
        """The state with more open accesses, each once.

        Who does again what is open already conflicts with nothing else; where a group's barrier had
        ordered it, it counts as it is now.
        """
        known = {(self._key(old.access), old.goes_on) for old in state if old.ordered_in is None}
        new: dict[tuple[int, bool], Open] = {}
        for item in accesses:
            key = self._key(item.access), item.goes_on
            if key not in known:
                new.setdefault(key, item)
        still_valid = [old for old in state if (self._key(old.access), old.goes_on) not in new]
        return (*still_valid, *new.values())

    def _key(self, access: Access) -> int:
        """A number that is the same for accesses of the same workers to the same elements."""
        entry = self._keys.get(id(access))
        if entry is None:
            number = self._numbers.setdefault(access.key, len(self._numbers))
            entry = self._keys[id(access)] = access, number
        return entry[1]

    def in_iteration(self, loop: Loop, state: State, when: str) -> State:
        """The open accesses of another iteration, in which the loop's variables have other values."""
        if not state:
            return state
        place_of_loop = _identity(loop)
        values = self._elsewhen.get((place_of_loop, when))
        if values is None:
            values = {
                v: replace(v, name=f"{v.name}_{when}")
                for node in walk_statements(loop)
                if type(node) in EFFECT_FIELDS[ir.Effect.BINDS]
                for v in bound_by(node)
            }
            if when == "previous" and isinstance(loop, ir.For):
                values[loop.variable] = ir.Binary("-", loop.variable, ir.Constant(loop.step))
            self._elsewhen[place_of_loop, when] = values
        result: list[Open] = []
        for item in state:
            place = id(item.access), place_of_loop, when
            if place not in self._elsewhere:
                self._known.append(item.access)
                self._elsewhere[place] = item.access.substituted(values)
            moved = self._elsewhere[place]
            result.append(item if moved is item.access else replace(item, access=moved))
        return tuple(result)


def _identity(loop: Loop) -> int:
    """The identity of a loop that survives replacing its body."""
    match loop:
        case ir.For():
            return id(loop.variable)
        case ir.While():
            return id(loop.condition)
        case ir.Grid():
            return id(loop.variables)
        case _:
            return assert_never(loop)


def synchronize(kernel: ir.Kernel) -> ir.Kernel:
    if _only_stores_outputs(kernel.body):
        return kernel
    return replace(kernel, body=_placer_for(kernel).place(kernel.body))


def is_synchronized(kernel: ir.Kernel) -> bool:
    """Whether the existing barriers order every conflict; ring steps must not be lowered yet."""
    walked, _ = _placer_for(kernel).walk(kernel.body, (), {})
    return walked is kernel.body


def _only_stores_outputs(body: Statement) -> bool:
    """Whether workers share no memory but outputs, of which each element is proved to be stored once and not read."""
    ordered = (ir.RingStep, ir.Barrier, ir.Roles, ir.Atomic, ir.Do)
    if shared_memory(body) or any(all_below(body, kind) for kind in ordered):
        return False
    return all(tensor.role == "out" for tensor in shared_tensors(body))


def _placer_for(kernel: ir.Kernel) -> _Placer:
    between_roles = rings_between_roles(kernel.body)
    # Mbarriers order the slots of these rings, except readers' actions before they send slots on.
    sent_on = rings_sent_on(kernel.body)
    by_mbarriers = between_roles - sent_on
    shared = shared_tensors(kernel.body) - {t for ring in by_mbarriers for t in ring.tensors}
    phases = Phases(kernel.worker, Crew.everyone(kernel.workers), shared, _copies(kernel.body))
    set_up = _set_up_with_barriers(kernel.body, between_roles)
    target = TARGETS[kernel.target]
    each = released_by_each(kernel, between_roles)
    widest = "warp" if kernel.workers + kernel.helpers <= target.warp else "block"
    return _Placer(phases, target, widest, set_up, each, sent_on)


def _groups(target: Target, crew: Crew) -> dict[str, int]:
    """The groups of workers with barriers of their own, smallest first, of which the crew has more than one."""
    groups = {"warp": target.warp}
    count, first = len(crew.workers), int(crew.workers.min())
    if target.group and count > target.group and not (count % target.group or first % target.group):
        groups["warpgroup"] = target.group
    return groups


def _set_up_with_barriers(body: Statement, between_roles: frozenset[Ring]) -> dict[Tensor, Ring]:
    """The rings that mbarriers count, by their last tensors: `lower_rings` puts a barrier after those."""
    return {
        step.ring.tensors[-1]: step.ring
        for step in all_below(body, ir.RingStep)
        if step.ring.transport == "tma" or step.ring in between_roles
    }


def _copies(body: Statement) -> dict[Tensor, ir.Move]:
    return {move.tensor: move for move in all_below(body, ir.Move) if move.how == "cp.async"}


Seen = tuple[tuple[int, str | None, bool], ...]


class _Placer:
    def __init__(
        self,
        phases: Phases,
        target: Target,
        widest: str,
        set_up_with_barriers: Mapping[Tensor, Ring] = MappingProxyType({}),
        released_by_each: frozenset[Ring] = frozenset(),
        sent_on: frozenset[Ring] = frozenset(),
        *,
        is_role: bool = False,
    ) -> None:
        self.conflicts = Conflicts(phases, _groups(target, phases.crew))
        self.released_by_each = released_by_each
        self.sent_on = sent_on
        self.set_up_with_barriers = set_up_with_barriers
        self.target = target
        self.widest = widest
        self.is_role = is_role
        self.crossed: list[tuple[ir.Barrier, State, Lets, Statement]] = []
        self.walked: dict[tuple[int, Seen], tuple[Statement, tuple[Statement, State]]] = {}

    def place(self, body: Statement) -> Statement:
        placed, _ = self.walk(body, (), {})
        if any(isinstance(node, ir.Barrier) for node in walk_statements(body)):
            self.walked.clear()  # otherwise crossed barriers wouldn't be noted again
        needed = self.needed(placed)
        for barrier in [node for node in _outside_roles(placed) if isinstance(node, ir.Barrier)]:
            if id(barrier) in needed:
                continue
            fewer = _without(placed, barrier)
            again, _ = self.walk(fewer, (), {})
            if again is fewer:
                placed = fewer
        return placed

    def needed(self, placed: Statement) -> set[int]:
        """The barriers without which the very next statement would get one.

        With any other barrier gone, too, no less is open in front of them.
        """
        self.crossed.clear()
        self.walk(placed, (), {})
        return {
            id(barrier)
            for barrier, state, lets, behind in tuple(self.crossed)
            if self.walk(behind, state, lets)[0] is not behind
        }

    # The traversal: it returns the statement, with missing barriers added.

    def walk(self, statement: Statement, state: State, lets: Lets) -> tuple[Statement, State]:
        """Traverse a statement; cached by state, as loops are traversed repeatedly."""
        seen = [(id(item.access), item.ordered_in, item.goes_on) for item in state]
        key = id(statement), tuple(seen)
        cached = self.walked.get(key)
        if cached is None:
            cached = self.walked[key] = statement, self.walk_first(statement, state, lets)
        return cached[1]

    def walk_first(self, statement: Statement, state: State, lets: Lets) -> tuple[Statement, State]:
        match statement:
            case ir.Sequence():
                return self.sequence(statement, state, lets)
            case ir.If():
                return self.branches(statement, state, lets)
            case ir.For() | ir.While() | ir.Grid():
                return self.loop(statement, state, lets)
            case ir.Roles():
                return self.roles(statement, state, lets)
            case ir.Barrier():
                return statement, self.ordered(state, statement.scope)
            case ir.Do(operation="tma.wait", operands=(ir.Constant(value=under_way),)):
                return statement, awaited(state, int(under_way))
            case ir.Allocate() if statement.tensor in self.set_up_with_barriers:
                # If that is repeated, all workers have seen the last step of the previous time.
                set_up = self.conflicts.of_set_up(
                    statement, self.set_up_with_barriers[statement.tensor]
                )
                barrier, state = self.order(state, set_up, statement)
                return _behind(barrier, statement), self.ordered(state, "block")
            case ir.RingStep(operation="wait", ring=ring):
                seen: tuple[Access, ...] = ()
                if ring.transport == "cp.async":
                    seen = self.conflicts.of_arrivals(statement, lets)
                elif ring.tensors[-1] in self.set_up_with_barriers:
                    seen = self.conflicts.of_look(statement)
                elif (
                    ring in self.sent_on
                ):  # all earlier accesses to a slot came before it was filled
                    state = tuple([o for o in state if o.access.tensor not in ring.tensors])
                return statement, (*state, *map(Open, seen))
            case ir.RingStep():
                return statement, state
        accesses = self.conflicts.of(statement, lets)
        barrier, state = self.order(state, accesses, statement)
        how = statement.how if isinstance(statement, ir.Move) else None
        if how in ("cp.async", "tma"):
            # Its write arrives when its step is waited for.
            accesses = tuple([access for access in accesses if not access.writes])
        opened = [Open(access, goes_on=how == "tma") for access in accesses]
        state = self.conflicts.opened(state, opened)
        return _behind(barrier, statement), state

    def sequence(self, statement: ir.Sequence, state: State, lets: Lets) -> tuple[Statement, State]:
        parts: list[Statement] = []
        changed = False
        for inner, behind in zip_longest(statement.statements, statement.statements[1:]):
            if isinstance(inner, ir.Barrier) and behind is not None:
                self.crossed.append((inner, state, lets, behind))
            new, state = self.walk(inner, state, lets)
            if isinstance(inner, ir.Let) and not reads_memory(inner.value):
                lets = {**lets, inner.variable: inner.value}
            if new is inner:
                parts.append(inner)
                continue
            changed = True
            # A barrier and its statement are spliced, so that the statement's bindings stay in scope.
            is_pair = isinstance(new, ir.Sequence) and not isinstance(inner, ir.Sequence)
            parts.extend(new.statements if is_pair and isinstance(new, ir.Sequence) else (new,))
        return (replace(statement, statements=tuple(parts)) if changed else statement), state

    def branches(self, statement: ir.If, state: State, lets: Lets) -> tuple[Statement, State]:
        """Traverse an If; a barrier before a branch's first statement moves before the If."""
        accesses = self.conflicts.of_expression(statement.condition, lets)
        barrier, state = self.order(state, accesses, statement)
        conditions = tuple(map(Open, accesses))
        if decides_by_cells(statement):  # a loop that ends here is left before its barriers
            then, after = self.walk(statement.then, state, lets)
            if then is not statement.then:
                statement = replace(statement, then=then)
            return statement, union(after, state)
        then, _ = self.walk(statement.then, conditions, lets)
        otherwise = None
        if statement.otherwise is not None:
            otherwise, _ = self.walk(statement.otherwise, conditions, lets)
        if then is not statement.then or otherwise is not statement.otherwise:
            statement = replace(statement, then=then, otherwise=otherwise)
        for branch in (then, otherwise):
            if branch is None or (barrier is not None and barrier.scope == self.widest):
                continue
            probe, _ = self.walk(branch, (*state, *conditions), lets)
            if probe is not branch:
                scope = _widest_new(branch, probe, barrier)
                barrier = ir.Barrier(scope, _first_new(branch, probe), loc=statement.loc)
                state = self.ordered(state, scope)
        state = (*state, *conditions)
        _, after = self.walk(then, state, lets)
        _, after_otherwise = (
            (None, state) if otherwise is None else self.walk(otherwise, state, lets)
        )
        after = union(after, after_otherwise)
        return _behind(barrier, statement), after

    def loop(self, statement: Loop, state: State, lets: Lets) -> tuple[Statement, State]:
        accesses = tuple(
            access
            for expression in expressions(statement)
            for access in self.conflicts.of_expression(expression, lets)
        )
        barrier, state = self.order(state, accesses, statement)
        asked = tuple(map(Open, accesses))
        body = statement.body
        while True:
            body, body_state = self.walk(body, asked, lets)
            if isinstance(statement, ir.While):  # its condition is evaluated again after the body
                late, body_state = self.order(body_state, accesses, statement)
                if late is not None:
                    body = sequence(body, late)
            again, _ = self.walk(body, self.carried(statement, body, body_state), lets)
            if again is body:
                break
            body = again
        before = (*state, *asked)
        probe, after = self.walk(
            body, union(before, self.carried(statement, body, body_state)), lets
        )
        if probe is not body and (barrier is None or barrier.scope != self.widest):
            scope = _widest_new(body, probe, barrier)
            barrier = ir.Barrier(scope, _first_new(body, probe), loc=statement.loc)
            before = (*self.ordered(state, barrier.scope), *asked)
            _, after = self.walk(
                body, union(before, self.carried(statement, body, body_state)), lets
            )
        if body is not statement.body:
            statement = replace(statement, body=body)
        if self.goes_round_a_ring(statement):
            passed = (*going_on(state), *asked)
            _, after = self.walk(
                body, union(passed, self.carried(statement, body, body_state)), lets
            )
        after = union(
            asked if surely_runs(statement) else before,
            self.conflicts.in_iteration(statement, after, "exit"),
        )
        return _behind(barrier, statement), after

    def goes_round_a_ring(self, loop: Statement) -> bool:
        """Whether leaving the loop implies a wait for a slot that everyone released after all earlier accesses."""
        match loop:
            case ir.For(
                start=ir.Constant(value=start),
                stop=ir.Constant(value=stop),
                body=ir.Sequence() as body,
            ):
                return any(
                    isinstance(step, ir.RingStep)
                    and step.operation == "release"
                    and step.ring in self.released_by_each
                    and stop - start > step.ring.stages
                    for step in body.statements
                )
        return False

    def roles(self, statement: ir.Roles, state: State, lets: Lets) -> tuple[Statement, State]:
        after: State = ()
        roles: list[ir.Role] = []
        barrier = None
        for role in statement.roles:
            crew = Crew.everyone(role.workers, role.first)
            widest = "warp" if role.workers <= self.target.warp else "role"
            placer = _Placer(
                replace(self.conflicts.phases, crew=crew),
                self.target,
                widest,
                released_by_each=self.released_by_each,
                sent_on=self.sent_on,
                is_role=True,
            )
            body = placer.place(role.body)
            probe, out = placer.walk(body, state, lets)
            if probe is not body and barrier is None:
                barrier = ir.Barrier(self.widest, _first_new(body, probe), loc=statement.loc)
            roles.append(role if body is role.body else replace(role, body=body))
            after = union(after, out)
        if any(new is not old for new, old in zip(roles, statement.roles, strict=True)):
            statement = replace(statement, roles=tuple(roles))
        return _behind(barrier, statement), after

    # Conflicts.

    def ordered(self, state: State, scope: str) -> State:
        """The accesses that stay open after a barrier. A barrier of all workers leaves none open, whatever its scope's
        name.
        """
        is_for_all = scope == self.widest and not self.is_role
        return ordered(state, "block" if is_for_all else scope)

    def order(
        self, state: State, accesses: tuple[Access, ...], statement: Statement
    ) -> tuple[ir.Barrier | None, State]:
        """The barrier that is needed between `state` and `accesses`, if any."""
        needed: str | None = None
        reason = ""
        for open_access in state:
            if open_access.goes_on:
                continue
            for access in accesses:
                if needed == self.widest:  # no other one can be wider
                    break
                scope = self.conflicts.scope(open_access.access, access)
                scope = self.widest if scope == "block" else scope
                if WIDTH[scope] <= WIDTH[open_access.ordered_in]:
                    continue
                if WIDTH[scope] > WIDTH[needed]:
                    needed = scope
                    reason = f"{open_access.access.describe()}, {access.describe()}"
        if needed is None:
            return None, state
        return ir.Barrier(needed, reason, loc=statement.loc), self.ordered(state, needed)

    # Iterations.

    def carried(self, loop: Loop, body: Statement, state: State) -> State:
        if isinstance(loop, ir.Grid):
            return ()
        exact = isinstance(loop, ir.For) and _always_synchronizes(body, self.widest)
        if not exact:
            return self.conflicts.in_iteration(loop, state, "earlier")
        # A barrier orders all earlier accesses except copies that go on: those of any iteration.
        settled = tuple([item for item in state if not item.goes_on])
        previous = self.conflicts.in_iteration(loop, settled, "previous")
        return (*previous, *self.conflicts.in_iteration(loop, going_on(state), "earlier"))


def _behind(barrier: ir.Barrier | None, statement: Statement) -> Statement:
    return statement if barrier is None else sequence(barrier, statement)


def _always_synchronizes(body: Statement, widest: str) -> bool:
    """Whether every execution passes a barrier of the whole group."""
    match body:
        case ir.Barrier():
            return body.scope == widest
        case ir.Sequence():
            return any(_always_synchronizes(inner, widest) for inner in body.statements)
        case ir.For():
            return surely_runs(body) and _always_synchronizes(body.body, widest)
    return False


def _outside_roles(body: Statement) -> Iterator[Statement]:
    """All statements outside of roles, whose barriers belong to their own traversal."""
    stack = [body]
    while stack:
        current = stack.pop()
        yield current
        if not isinstance(current, ir.Roles):
            stack += [*statements(current)][::-1]


def _without(body: Statement, barrier: ir.Barrier) -> Statement:
    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Sequence) and any(s is barrier for s in statement.statements):
            kept = tuple(s for s in statement.statements if s is not barrier)
            return replace(statement, statements=kept)
        return map_statements(statement, visit)

    return visit(body)


def _widest_new(old: Statement, new: Statement, other: ir.Barrier | None) -> str:
    """The scope of one barrier that replaces `other` and those of `new` that `old` does not have."""
    before = {id(node) for node in walk(old)}
    added = [n for n in walk(new) if isinstance(n, ir.Barrier) and id(n) not in before]
    return max([*added, other or added[0]], key=lambda barrier: WIDTH[barrier.scope]).scope


def _first_new(old: Statement, new: Statement) -> str:
    """The conflict that the first barrier of `new` orders that `old` doesn't have."""
    before = {id(node) for node in walk(old) if isinstance(node, ir.Barrier)}
    return next(
        node.orders for node in walk(new) if isinstance(node, ir.Barrier) and id(node) not in before
    )
