"""Places the barriers that preserve the result of the phases, and no others.

    move sa[i, q] = a[row + i, q] for (i, q) in (64, 8) by ...
    each (i, j) in own: acc[i, j] = ... sa[i, q] ...
->
    move sa[i, q] = a[row + i, q] for (i, q) in (64, 8) by ...
    barrier block orders "write of sa in line 12, read of sa in line 14"
    each (i, j) in own: acc[i, j] = ... sa[i, q] ...

A walk in program order keeps the accesses that no barrier has ordered yet. A statement that conflicts with
one of them gets the narrowest barrier that is enough in front of it. A loop's body is walked once for
itself, again behind the accesses of an earlier iteration, and where it conflicts with what came before the
loop, a barrier goes in front of the loop. What its bounds read is read before it, what a while asks also
behind each iteration. Then every barrier is taken away once: where all conflicts stay
ordered without it, it is gone for good. So the result is irredundant, and each barrier names a conflict
that it alone orders.

What an asynchronous copy writes counts twice: when it is issued, by which time earlier readers must be
done, and when its step is waited for, from when on its writers' next barrier lets others read. A copy that
an mbarrier counts is ordered by that for everyone who waits. A ring between roles orders more than its
slots: who has waited for step k + s knows that all readers have released step k. Mbarriers are set up behind
the allocation of their ring, with a barrier that orders everything else, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import map_statements, sequence, walk
from taskc.ir.target import TARGETS
from taskc.passes.accesses import Access, Crew, conflict_scope
from taskc.passes.phases import Phases, rings_between_roles, shared_tensors, surely_runs

WIDTH = {None: 0, "warp": 1, "role": 2, "block": 3}


def synchronize(kernel: ir.Kernel) -> ir.Kernel:
    body = _placer_for(kernel).place(kernel.body)
    return replace(kernel, body=body)


def is_synchronized(kernel: ir.Kernel) -> bool:
    """Whether the barriers that stand order every conflict; ring steps must not be lowered yet."""
    walked, _ = _placer_for(kernel).walk(kernel.body, (), {})
    return walked is kernel.body


def _placer_for(kernel: ir.Kernel) -> _Placer:
    between_roles = rings_between_roles(kernel.body)
    # The slots of these rings are ordered by mbarriers.
    shared = shared_tensors(kernel.body) - {t for ring in between_roles for t in ring.tensors}
    phases = Phases(kernel.worker, Crew.everyone(kernel.workers), shared, _copies(kernel.body))
    set_up = _set_up_with_barriers(kernel.body, between_roles)
    return _Placer(phases, TARGETS[kernel.target].warp, "block", set_up, between_roles)


def _set_up_with_barriers(body: Statement, between_roles: frozenset[Ring]) -> frozenset[Tensor]:
    """The last tensors of rings that mbarriers count: `lower_rings` puts a barrier behind them."""
    return frozenset(
        step.ring.tensors[-1]
        for step in walk(body)
        if isinstance(step, ir.RingStep)
        and (step.ring.transport == "tma" or step.ring in between_roles)
    )


def _copies(body: Statement) -> dict[Tensor, ir.Move]:
    return {
        move.tensor: move
        for move in walk(body)
        if isinstance(move, ir.Move) and move.how == "cp.async"
    }


@dataclass(eq=False, frozen=True, slots=True)
class _Open:
    """An access that no barrier of its kind has ordered yet."""

    access: Access
    ordered_in_warp: bool = False


State = tuple[_Open, ...]
Seen = tuple[tuple[int, bool], ...]
Lets = dict[Variable, Expression]


class _Placer:
    def __init__(
        self,
        phases: Phases,
        warp: int,
        widest: str,
        set_up_with_barriers: frozenset[Tensor] = frozenset(),
        between_roles: frozenset[Ring] = frozenset(),
    ) -> None:
        self.phases = phases
        self.between_roles = between_roles
        self.set_up_with_barriers = set_up_with_barriers
        self.warp = warp
        self.widest = widest
        self.accesses: dict[int, tuple[Statement | Expression, tuple[Access, ...]]] = {}
        self.elsewhere: dict[tuple[int, int, str], Access] = {}
        self.scopes: dict[tuple[int, int], str | None] = {}
        self.elsewhen: dict[tuple[int, str], Lets] = {}
        self.known: list[Access] = []
        self.walked: dict[tuple[int, Seen], tuple[Statement, tuple[Statement, State]]] = {}

    def place(self, body: Statement) -> Statement:
        placed, _ = self.walk(body, (), {})
        for barrier in [node for node in walk(placed) if isinstance(node, ir.Barrier)]:
            fewer = _without(placed, barrier)
            again, _ = self.walk(fewer, (), {})
            if again is fewer:
                placed = fewer
        return placed

    # The walk: it returns the statement, with barriers added where some were missing.

    def walk(self, statement: Statement, state: State, lets: Lets) -> tuple[Statement, State]:
        """The same in the same state, however often a loop around it is walked."""
        key = id(statement), tuple([(id(item.access), item.ordered_in_warp) for item in state])
        found = self.walked.get(key)
        if found is None:
            found = self.walked[key] = statement, self.walk_first(statement, state, lets)
        return found[1]

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
                return statement, _ordered(state, statement.scope)
            case ir.Allocate() if statement.tensor in self.set_up_with_barriers:
                return statement, _ordered(state, "block")
            case ir.RingStep():
                return statement, self.ring_step(statement, state, lets)
        accesses = self.accesses_of(statement, lets)
        barrier, state = self.order(state, accesses, statement)
        if not (isinstance(statement, ir.Move) and statement.how in ("cp.async", "tma")):
            state = (*state, *(_Open(access) for access in accesses))
        else:
            state = (*state, *(_Open(a) for a in accesses if not a.writes))
        return (statement if barrier is None else sequence(barrier, statement)), state

    def sequence(self, statement: ir.Sequence, state: State, lets: Lets) -> tuple[Statement, State]:
        parts: list[Statement] = []
        changed = False
        for inner in statement.statements:
            new, state = self.walk(inner, state, lets)
            if isinstance(inner, ir.Let) and not _reads(inner.value):
                lets = {**lets, inner.variable: inner.value}
            if new is inner:
                parts.append(inner)
                continue
            changed = True
            # A barrier and its statement are spliced: what the statement binds stays in scope.
            is_pair = isinstance(new, ir.Sequence) and not isinstance(inner, ir.Sequence)
            parts.extend(new.statements if is_pair and isinstance(new, ir.Sequence) else (new,))
        return (replace(statement, statements=tuple(parts)) if changed else statement), state

    def branches(self, statement: ir.If, state: State, lets: Lets) -> tuple[Statement, State]:
        """What a branch needs before its first statement goes in front of the whole."""
        accesses = self.accesses_of(statement.condition, lets)
        barrier, state = self.order(state, accesses, statement)
        conditions = tuple(_Open(access) for access in accesses)
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
                barrier = ir.Barrier(self.widest, _first_new(branch, probe), loc=statement.loc)
                state = ()
        state = (*state, *conditions)
        _, after = self.walk(then, state, lets)
        _, after_otherwise = (
            (None, state) if otherwise is None else self.walk(otherwise, state, lets)
        )
        after = _union(after, after_otherwise)
        return (statement if barrier is None else sequence(barrier, statement)), after

    def loop(
        self, statement: ir.For | ir.While | ir.Grid, state: State, lets: Lets
    ) -> tuple[Statement, State]:
        accesses = tuple(
            access
            for expression in _bounds(statement)
            for access in self.accesses_of(expression, lets)
        )
        barrier, state = self.order(state, accesses, statement)
        asked = tuple(map(_Open, accesses))
        body = statement.body
        while True:
            body, own = self.walk(body, asked, lets)
            if isinstance(statement, ir.While):  # its condition is asked again behind the body
                late, own = self.order(own, accesses, statement)
                if late is not None:
                    body = sequence(body, late)
            again, _ = self.walk(body, self.carried(statement, body, own), lets)
            if again is body:
                break
            body = again
        before = (*state, *asked)
        probe, after = self.walk(body, _union(before, self.carried(statement, body, own)), lets)
        if probe is not body and (barrier is None or barrier.scope != self.widest):
            barrier = ir.Barrier(self.widest, _first_new(body, probe), loc=statement.loc)
            state = ()
            before = asked
            _, after = self.walk(body, _union(before, self.carried(statement, body, own)), lets)
        if body is not statement.body:
            statement = replace(statement, body=body)
        if self.goes_round_a_ring(statement):
            _, after = self.walk(body, _union(asked, self.carried(statement, body, own)), lets)
        after = _union(
            asked if surely_runs(statement) else before, self.moved(statement, after, "exit")
        )
        return (statement if barrier is None else sequence(barrier, statement)), after

    def goes_round_a_ring(self, loop: Statement) -> bool:
        """Whoever leaves it has waited for a slot that everyone released behind what came before it."""
        match loop:
            case ir.For(
                start=ir.Constant(value=start),
                stop=ir.Constant(value=stop),
                body=ir.Sequence() as body,
            ):
                return any(
                    isinstance(step, ir.RingStep)
                    and step.operation == "release"
                    and step.ring in self.between_roles
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
            widest = "warp" if role.workers <= self.warp else "role"
            placer = _Placer(
                replace(self.phases, crew=crew), self.warp, widest, between_roles=self.between_roles
            )
            body = placer.place(role.body)
            probe, out = placer.walk(body, state, lets)
            if probe is not body and barrier is None:
                barrier = ir.Barrier(self.widest, _first_new(body, probe), loc=statement.loc)
            roles.append(role if body is role.body else replace(role, body=body))
            after = _union(after, out)
        if any(new is not old for new, old in zip(roles, statement.roles, strict=True)):
            statement = replace(statement, roles=tuple(roles))
        return (statement if barrier is None else sequence(barrier, statement)), after

    def ring_step(self, step: ir.RingStep, state: State, lets: Lets) -> State:
        if step.operation != "wait" or step.ring.transport != "cp.async":
            return state
        key = id(step)
        if key not in self.accesses:
            self.accesses[key] = step, self.phases.arrivals(step, lets)
        return (*state, *map(_Open, self.accesses[key][1]))

    # Conflicts.

    def accesses_of(self, node: Statement | Expression, lets: Lets) -> tuple[Access, ...]:
        found = self.accesses.get(id(node))
        if found is None:
            accesses = (
                self.phases.of(node, lets)
                if isinstance(node, _STATEMENTS)
                else self.phases.of_expression(node, lets)  # type: ignore[arg-type]
            )
            found = self.accesses[id(node)] = (node, accesses)
        return found[1]

    def order(
        self, state: State, accesses: tuple[Access, ...], statement: Statement
    ) -> tuple[ir.Barrier | None, State]:
        """The barrier that has to stand between `state` and `accesses`, if any."""
        needed: str | None = None
        reason = ""
        for open_access in state:
            for access in accesses:
                scope = self.conflict(open_access.access, access)
                scope = self.widest if scope == "block" else scope
                if scope == "warp" and open_access.ordered_in_warp:
                    continue
                if WIDTH[scope] > WIDTH[needed]:
                    needed = scope
                    reason = f"{open_access.access.describe()}, {access.describe()}"
        if needed is None:
            return None, state
        return ir.Barrier(needed, reason, loc=statement.loc), _ordered(state, needed)

    def conflict(self, a: Access, b: Access) -> str | None:
        if not (a.writes or b.writes):
            return None
        key = id(a), id(b)
        if key not in self.scopes:
            self.known += [a, b]  # what a key stands for must stay alive
            self.scopes[key] = conflict_scope(a, b, self.warp)
        return self.scopes[key]

    # Iterations.

    def carried(self, loop: ir.For | ir.While | ir.Grid, body: Statement, state: State) -> State:
        if isinstance(loop, ir.Grid):
            return ()
        exact = isinstance(loop, ir.For) and _always_synchronizes(body, self.widest)
        return self.moved(loop, state, "previous" if exact else "earlier")

    def moved(self, loop: ir.For | ir.While | ir.Grid, state: State, when: str) -> State:
        """The open accesses of another iteration: what the loop binds has other values there."""
        if not state:
            return state
        place_of_loop = _identity(loop)
        values = self.elsewhen.get((place_of_loop, when))
        if values is None:
            values = {v: replace(v, name=f"{v.name}_{when}") for v in _bound_in(loop)}
            if when == "previous" and isinstance(loop, ir.For):
                values[loop.variable] = ir.Binary("-", loop.variable, ir.Constant(loop.step))
            self.elsewhen[place_of_loop, when] = values
        result: list[_Open] = []
        for item in state:
            place = id(item.access), place_of_loop, when
            if place not in self.elsewhere:
                self.known.append(item.access)
                self.elsewhere[place] = item.access.moved(values)
            result.append(_Open(self.elsewhere[place], item.ordered_in_warp))
        return tuple(result)


_STATEMENTS = (
    ir.Sequence, ir.Let, ir.Allocate, ir.Store, ir.Atomic, ir.If, ir.While, ir.For, ir.Grid,
    ir.Each, ir.Move, ir.Mma, ir.Print, ir.Assert, ir.Breakpoint, ir.RingStep, ir.Barrier, ir.Roles,
    ir.Do,
)  # fmt: skip


def _identity(loop: ir.For | ir.While | ir.Grid) -> int:
    """What stays of a loop when its body is replaced."""
    match loop:
        case ir.For():
            return id(loop.variable)
        case ir.While():
            return id(loop.condition)
        case ir.Grid():
            return id(loop.variables)


def _ordered(state: State, scope: str) -> State:
    if scope == "warp":
        return tuple([_Open(item.access, True) for item in state])
    return ()


def _union(a: State, b: State) -> State:
    seen = {id(item.access): item for item in a}
    for item in b:
        old = seen.get(id(item.access))
        if old is None or (old.ordered_in_warp and not item.ordered_in_warp):
            seen[id(item.access)] = item
    return tuple(seen.values())


def _bounds(loop: ir.For | ir.While | ir.Grid) -> Iterator[Expression]:
    match loop:
        case ir.For():
            yield from (loop.start, loop.stop)
        case ir.While():
            yield loop.condition
        case ir.Grid():
            yield from (extent for extent in loop.shape if not isinstance(extent, int))


def _bound_in(loop: ir.For | ir.While | ir.Grid) -> Iterator[Variable]:
    if isinstance(loop, ir.For):
        yield loop.variable
    elif isinstance(loop, ir.Grid):
        yield from loop.variables
    for node in walk(loop.body):
        match node:
            case ir.Let() | ir.For():
                yield node.variable
            case ir.Each() | ir.Move():
                yield from node.variables


def _always_synchronizes(body: Statement, widest: str) -> bool:
    """Every execution passes a barrier of the whole group."""
    match body:
        case ir.Barrier():
            return body.scope == widest
        case ir.Sequence():
            return any(_always_synchronizes(inner, widest) for inner in body.statements)
        case ir.For():
            return surely_runs(body) and _always_synchronizes(body.body, widest)
    return False


def _without(body: Statement, barrier: ir.Barrier) -> Statement:
    def visit(statement: Statement) -> Statement:
        if isinstance(statement, ir.Sequence) and any(s is barrier for s in statement.statements):
            kept = tuple(s for s in statement.statements if s is not barrier)
            return replace(statement, statements=kept)
        return map_statements(statement, visit)

    return visit(body)


def _first_new(old: Statement, new: Statement) -> str:
    """What the first barrier of `new` that `old` does not have is there for."""
    before = {id(node) for node in walk(old) if isinstance(node, ir.Barrier)}
    return next(
        node.orders for node in walk(new) if isinstance(node, ir.Barrier) and id(node) not in before
    )


def _reads(expression: Expression) -> bool:
    return any(isinstance(node, ir.Read) for node in walk(expression))
