"""Accesses that no barrier has ordered yet, and the conflicts between them: the state of `synchronize`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

from taskc.analysis.accesses import Access, conflict_scope
from taskc.analysis.phases import Phases
from taskc.errors import assert_never
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Ring, Statement, Variable
from taskc.ir.rewrite import bound_by, walk_statements

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
