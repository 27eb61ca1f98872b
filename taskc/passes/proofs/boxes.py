"""The box of a tensor that one store statement writes, each element once.

A box is an interval for each dimension. The index in a dimension is a sum of digits: variables
of block-wide loops, and the enumerated values of all workers and slots of the mapping loops.
The values of a dimension's digits fill an interval exactly once if, sorted by stride, each
stride is the previous one times its count. So block-wide loops may be symbolic: the slowest digit
of each dimension may have any count.

    c[row + i, col]    row in 0, 64, ... < m; i in 0..63      digits (1, 64), (64, ...): [0, m)

An element's digits determine the iterations that would store it. That these run is proved frame by frame, from
the kernel's body down: each loop has the iteration, and each condition holds, given that the enclosing frames
were passed. Facts that only inner frames imply, for example that an inner loop runs,
are not used. Any dimension may be 0, except that there is an element to store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NoReturn

import numpy as np

from taskc.analysis.facts import Facts
from taskc.analysis.indices import Array, Index
from taskc.analysis.touches import Loop
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.nodes import Binary, Expression, Variable
from taskc.ir.rewrite import expressions
from taskc.passes.proofs.accesses import (
    Frame,
    Guard,
    GuardedAccess,
    KernelAccesses,
    Path,
    conjuncts,
    is_dead,
    used_variables,
)
from taskc.passes.proofs.enumeration import LIMIT, Enumerator, size_of, spelled
from taskc.passes.proofs.folding import Row, folded, is_opaque

_COMPARED = {
    "==": np.equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


class NoBoxError(Exception):
    """The reason why a store's elements are unknown; `gap` if the reason is a condition."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Digit:
    """`count` values, `stride` apart. A symbolic count (None) is the number of the loop's steps up to
    `stop`, under the facts `known` at its place."""

    stride: int
    count: int | None
    stop: Expression | None = None
    step: int = 1
    known: Facts | None = None

    def reaches(self, end: Expression, offset: int) -> bool:
        """Whether the values, from the offset on, reach at least the end."""
        assert self.stop is not None
        assert self.known is not None
        needed, stop = self.known.affine(end) - offset, self.known.affine(self.stop)
        if self.known.nonpositive(needed.scaled(self.step) - stop.scaled(self.stride)):
            return True
        above = Binary("+", self.stop, ir.constant(self.step - 1))
        count = self.known.affine(Binary("//", above, ir.constant(self.step)))
        return self.known.nonpositive(needed - count.scaled(self.stride))


# Half open; None is the tensor's extent, or beyond.
Interval = tuple[int, "int | None"]
Box = tuple[Interval, ...]


def corners(boxes: Iterable[Box], rank: int) -> Iterator[tuple[int, ...]]:
    """Points of which at least one is in each part that the boxes' edges cut a tensor into."""
    cuts: list[set[int]] = [{0} for _ in range(rank)]
    for box in boxes:
        for places, interval in zip(cuts, box, strict=True):
            places.update(end for end in interval if end is not None)
    return product(*map(sorted, cuts))


def contains(box: Box, corner: tuple[int, ...]) -> bool:
    return all(
        low <= place and (high is None or place < high)
        for place, (low, high) in zip(corner, box, strict=True)
    )


def box_of(
    access: GuardedAccess, collected: KernelAccesses, enumerator: Enumerator, row: Row | None = None
) -> Box | None:
    """The box that a store fills once; None if the store never happens. Raises NoBoxError.

    `row` has the indices and extents to look at, if not the access's own.
    """
    return _Store(access, collected, enumerator, row).box()


class _Store:
    def __init__(
        self,
        access: GuardedAccess,
        collected: KernelAccesses,
        enumerator: Enumerator,
        row: Row | None,
    ) -> None:
        self.access = access
        self.collected = collected
        self.enumerator = enumerator
        self.known: dict[int, Facts] = {}
        indices, extents = access.indices, access.tensor.shape
        if row is not None:
            indices, extents = row.indices, row.extents
        self.rank = len(indices)
        self.forms = [enumerator.index(index) for index in indices]
        if any(map(is_opaque, self.forms)):
            row = folded(Row(indices, extents), collected, collected.facts(access.path))
            indices, extents = row.indices, row.extents
            self.forms = [enumerator.index(index) for index in indices]
        self.indices, self.extents = indices, extents
        self.name = access.tensor.name
        on_path = [
            part
            for frame in access.path
            for part in ([frame.condition] if isinstance(frame, Guard) else expressions(frame))
        ]
        ends = [_end(extent) for extent in (*access.tensor.shape, *extents)]
        # Most names of a kernel are parts of its values, of which nothing has to be known.
        self.names = used_variables(collected, [*access.indices, *indices, *ends, *on_path])
        self.reversed_dimensions: set[int] = set()
        for d, extent in enumerate(extents):
            self._reverse(
                d, Index({}, extent) if isinstance(extent, int) else enumerator.index(extent)
            )

    def _reverse(self, d: int, end: Index | None) -> None:
        """Count an index that falls as block-wide loops proceed from the tensor's end."""
        form = self.forms[d]
        if form is None or end is None:
            return
        factors = [factor for v, factor in form.terms.items() if v in self.collected.binders]
        if factors and max(factors) < 0:
            self.reversed_dimensions.add(d)
            self.forms[d] = end.plus(Index({}, 1), -1).plus(form, -1)

    def box(self) -> Box | None:
        live, symbolic = self._conditions()
        pinned = self._harmless(symbolic)
        if pinned is None:
            return None
        forms = []
        for index, form in zip(self.indices, self.forms, strict=True):
            if form is None:
                self._unknown(f"index `{spelled(index)}` is not a sum of loop variables")
            forms.append(form)
        digits, offsets = self._loops(forms, pinned)
        if not self._local(forms, live, digits, offsets):
            return None
        # Where the first element is stored, the whole path was passed; elsewhere only the sizes are known.
        is_first = all(offset <= 0 for offset in offsets)
        known = self._known_at(len(self.access.path) if is_first else 0)
        intervals = [self._interval(d, digits[d], offsets[d], known) for d in range(len(forms))]
        for d in self.reversed_dimensions:
            intervals[d] = self._reversed(d, intervals[d])
        if len(intervals) == self.rank:
            return tuple(intervals)
        if any(interval != (0, None) for interval in intervals):
            self._unknown("its division into rows does not cover whole rows")
        return ((0, None),) * self.rank

    def _unknown(self, reason: str) -> NoReturn:
        raise NoBoxError(reason)

    # Facts at a frame.

    def _known_at(self, position: int) -> Facts:
        """The facts that the outer frames were passed, and that some element would be stored through the inner ones."""
        while position and not self._tells(self.access.path[position - 1]):
            position -= 1
        if position not in self.known:
            self.known[position] = self._facts(position)
        return self.known[position]

    def _tells(self, frame: Frame) -> bool:
        """Whether more is known after a frame than before it."""
        return not isinstance(frame, Guard) or frame.asserted

    def _facts(self, position: int) -> Facts:
        path = self.access.path
        before = {id(frame) for frame in path[:position]}
        after = {id(frame) for frame in path[position:]}
        facts = Facts.empty(self.collected.kernel, self.collected.ranges)
        for name in self.collected.names:
            if isinstance(name, ir.Let):
                if name.variable in self.names:
                    facts.enter(name)
            elif id(name) in before:
                facts = facts.enter(name)
            elif id(name) in after:
                self._would_enter(name, facts)
        for n, frame in enumerate(path):
            if isinstance(frame, Guard) and (frame.of_sizes or (frame.asserted and n < position)):
                facts = facts.assume(frame.condition, holds=frame.holds)
        for extent in (*self.access.tensor.shape, *self.extents):
            facts = facts.assume(Binary(">", _end(extent), ir.constant(0)))
        return facts

    def _would_enter(self, loop: Loop, facts: Facts) -> None:
        """Bind variables to values that an element's digits determine: from their start on, in steps."""
        if isinstance(loop, (ir.Each, ir.Move)):
            facts.enter(loop)
            return
        for variable, start, stop, step in _ranges(loop):
            first = facts.affine(start)
            distance = facts.affine(stop) - first
            last = None
            if distance.is_constant:
                last = first + max(distance.constant - 1, 0) // abs(step) * step
            low, high = (first, last) if step > 0 else (last, first)
            facts.scope.bind(variable, low, high, first, abs(step))

    # Conditions.

    def _conditions(self) -> tuple[Any, list[tuple[int, Expression, bool]]]:
        """The mask where enumeration shows that the store happens, and the conditions it can't decide, with the
        positions of their frames.
        """
        live: Any = True
        symbolic: list[tuple[int, Expression, bool]] = []
        names = self.collected.conditions()
        for position, frame in enumerate(self.access.path):
            if isinstance(frame, Guard):
                if frame.asserted:
                    continue
                for condition, holds in conjuncts(frame.condition, frame.holds, names):
                    truth = self.enumerator.frame(Guard(condition, holds))
                    if truth.must is truth.may:
                        live = live & truth.must
                    else:
                        symbolic.append((position, condition, holds))
                continue
            if isinstance(frame, ir.While):
                self._unknown("it is in a while loop")
            truth = self.enumerator.frame(frame, stores=True)
            if truth.must is not truth.may:
                self._unknown("the workers of its loop are known only at run time")
            live = live & truth.must
        return live, symbolic

    def _harmless(self, symbolic: list[tuple[int, Expression, bool]]) -> dict[Variable, int] | None:
        """Check that conditions hold for every existing element; returns the values of those that pin a loop's
        variable, or None if one never holds.
        """
        pinned: dict[Variable, int] = {}
        facts, place = None, -1
        for position, condition, holds in symbolic:
            if facts is None or position != place:
                facts, place = self._inside(self._known_at(position)), position
            if facts.prove(condition) is holds:
                continue
            if is_dead(self.access.path[:position], condition, holds, self.collected):
                return None
            pin = self._pin(condition, holds)
            if pin is None:
                text = spelled(condition)
                negation = "does not hold" if holds else "holds"
                self._unknown(f"elements where `{text}` {negation} are not stored")
            pinned[pin[0]] = pin[1]
        return pinned

    def _inside(self, facts: Facts) -> Facts:
        """The facts that the index is that of an element, also after divided indices are folded."""
        given = zip(self.access.indices, self.access.tensor.shape, strict=True)
        whole = folded(Row(self.indices, self.extents), self.collected, facts)
        seen = zip(self.indices, self.extents, strict=True)
        for index, extent in (*given, *seen, *zip(whole.indices, whole.extents, strict=True)):
            facts = facts.assume(Binary(">=", index, ir.constant(0)))
            facts = facts.assume(Binary("<", index, _end(extent)))
        return facts

    def _pin(self, condition: Expression, holds: bool) -> tuple[Variable, int] | None:
        """(v, n) if a condition leaves one value for a loop's variable: v == n, or not v + 4 < 16 of 0, 4, 8, 12."""
        if not isinstance(condition, Binary) or condition.operator not in _COMPARED:
            return None
        left = self.enumerator.index(condition.left)
        right = self.enumerator.index(condition.right)
        if left is None or right is None:
            return None
        difference = left.plus(right, -1)
        if len(difference.terms) != 1 or not difference.is_uniform:
            return None
        ((variable, factor),) = difference.terms.items()
        if not isinstance(variable, Variable):
            return None
        if condition.operator == "==" and holds and abs(factor) == 1:
            return variable, -difference.base * factor
        values = self._values(variable)
        truth = _COMPARED[condition.operator](factor * values + difference.base, 0)
        left_over = values[truth == holds]
        return (variable, int(left_over[0])) if len(left_over) == 1 else None

    def _values(self, variable: Variable) -> Array:
        """The values of a block-wide loop's variable of constant range; empty for others."""
        for _, found, start, stop, step in self._variables():
            if found is not variable:
                continue
            first, last = self.enumerator.index(start), self.enumerator.index(stop)
            if first is None or last is None or first.terms or last.terms:
                break
            low, high = int(np.min(first.base)), int(np.max(last.base))
            if first.is_uniform and last.is_uniform and high - low <= LIMIT:
                return np.arange(low, high, step)
        return np.arange(0)

    # Loops that all workers run together, one digit each.

    def _loops(
        self, forms: list[Index], pinned: dict[Variable, int]
    ) -> tuple[list[list[Digit]], list[int]]:
        digits: list[list[Digit]] = [[] for _ in forms]
        offsets = [0] * len(forms)
        terms = [dict(form.terms) for form in forms]
        for position, variable, start, stop, step in reversed(list(self._variables())):
            users = [d for d in range(len(forms)) if variable in terms[d]]
            first, last = map(_one_value, map(self.enumerator.index, (start, stop)))
            if first is None or last is None:
                self._unknown(f"the range of `{variable.name}` differs between workers")
            span = last.plus(first, -1)
            count = None if span.terms else max(0, -(-span.base // step))
            if variable in pinned and not users:
                if not self._takes(position, pinned[variable], first, stop, count, step):
                    self._unknown(f"`{variable.name}` may never be {pinned[variable]}")
                continue
            if variable in pinned:
                self._unknown(f"only one value of `{variable.name}` stores")
            if not users:
                if count == 1 or (count is None and self._runs_once(position, first, stop, step)):
                    continue
                for index in self.indices:
                    if variable in used_variables(self.collected, [index]):
                        self._unknown(f"index `{spelled(index)}` is not a sum of loop variables")
                self._unknown(f"it is stored again for each `{variable.name}`")
            if len(users) > 1:
                self._unknown(f"`{variable.name}` is in two dimensions of its index")
            d = users[0]
            factor = terms[d].pop(variable)
            if factor < 0 or step < 0:
                self._unknown(f"`{variable.name}` counts down")
            if factor * step % 1 or factor * first.base % 1:
                self._unknown(f"index `{spelled(self.indices[d])}` is not a sum of loop variables")
            for atom, value in first.terms.items():
                terms[d][atom] = terms[d].get(atom, 0) + factor * value
                if not terms[d][atom]:
                    del terms[d][atom]
            offsets[d] += int(factor * first.base)
            if count is None and first.terms:
                self._unknown(f"the range of `{variable.name}` has no constant length")
            if count is None:
                stop = Binary("-", stop, ir.constant(first.base)) if first.base else stop
            known = self._known_at(position) if count is None else None
            digits[d].append(Digit(int(factor * step), count, stop, step, known))
        for d, rest in enumerate(terms):
            if rest:
                self._unknown(f"index `{spelled(self.indices[d])}` is not a sum of loop variables")
        return digits, offsets

    def _takes(
        self,
        position: int,
        value: int,
        first: Index,
        stop: Expression,
        count: int | None,
        step: int,
    ) -> bool:
        """Whether a loop has an iteration with this value."""
        if first.terms or (value - first.base) % step:
            return False
        if count is not None:
            return value in range(first.base, first.base + count * step, step)
        below = Binary("<", ir.constant(value), stop)
        return value >= first.base and self._known_at(position).prove(below) is True

    def _runs_once(self, position: int, first: Index, stop: Expression, step: int) -> bool:
        if first.terms or step < 0:
            return False
        start, second = ir.constant(first.base), ir.constant(first.base + step)
        known = self._known_at(position)
        return (
            known.prove(Binary("<", start, stop)) is True
            and known.prove(Binary("<=", stop, second)) is True
        )

    def _variables(self) -> Iterable[tuple[int, Variable, Expression, Expression, int]]:
        """The variables of the loops that are not enumerated, with the positions of these."""
        for position, frame in enumerate(self.access.path):
            if isinstance(frame, ir.For):
                form = self.enumerator.index(frame.variable)
                if form is None or frame.variable not in form.terms:
                    continue
            for found in _ranges(frame):
                yield position, *found

    # Enumerated parts: mapping loops, moves, and constant loops inside.

    def _local(
        self, forms: list[Index], live: Any, digits: list[list[Digit]], offsets: list[int]
    ) -> bool:
        """Add the digits of everything enumerated; False if nothing is ever stored."""
        bases = [form.base for form in forms]
        loops = enumerated_loops(self.access.path, self.enumerator)
        if not loops and live is True and all(isinstance(base, int) for base in bases):
            for d, base in enumerate(bases):
                offsets[d] += base
            return True
        if size_of(live, *bases, *loops) > LIMIT:
            self._unknown("it has too many combinations of loop variables")
        arrays = np.broadcast_arrays(live, *bases, *loops)[: len(bases) + 1]
        mask = arrays[0]
        whole = bool(mask.all())
        values = [a.ravel() if whole else a[mask] for a in arrays[1:]]
        if not values:
            if np.count_nonzero(mask) > 1:
                self._unknown("several workers store it")
            return bool(mask.any())
        count = values[0].size
        if count == 0:
            return False
        key: Any = 0
        total = 1
        for d, value in enumerate(values):
            low = int(value.min())
            present = np.zeros(int(value.max()) - low + 1, dtype=np.int64)
            present[value - low] = 1
            distinct = np.flatnonzero(present)
            key = key * distinct.size + (np.cumsum(present) - 1)[value - low]
            total *= distinct.size
            digits[d] += _factored(distinct)
            offsets[d] += low
        if total > count:
            self._unknown("what the workers of a block store is no whole rectangle")
        if total < count or int(np.bincount(key, minlength=total).max()) > 1:
            self._unknown("workers of one block store some elements twice")
        return True

    # Intervals.

    def _reversed(self, d: int, interval: Interval) -> Interval:
        """An interval counted from the other end of its dimension."""
        low, high = interval
        extent = self.extents[d]
        if isinstance(extent, int):
            return (0 if high is None else max(extent - high, 0)), (extent - low if low else None)
        if interval != (0, None):
            self._unknown(f"index `{spelled(self.indices[d])}` does not count down from end to end")
        return interval

    def _interval(self, d: int, digits: list[Digit], offset: int, known: Facts) -> Interval:
        extent = self.extents[d]
        end = _end(extent)
        reach = 1
        for position, digit in enumerate(sorted(digits, key=lambda digit: digit.stride)):
            if digit.count == 1:
                continue
            if digit.count == 0:
                self._unknown("one of its loops never runs")
            what = f"{reach} of every {digit.stride} indices in dimension {d} of `{self.name}`"
            if digit.stride > reach:
                self._unknown(f"its steps store {what}, and leave out the others")
            if digit.stride < reach:
                self._unknown(
                    f"its steps of {digit.stride} in dimension {d} of `{self.name}`"
                    f" store {reach} indices each, and so overlap"
                )
            if digit.count is None:
                if position != len(digits) - 1:
                    self._unknown(f"two of its loops in dimension {d} have symbolic lengths")
                assert digit.stop is not None
                if not digit.reaches(end, offset):
                    self._unknown(
                        f"its loop up to `{spelled(digit.stop)}` may not reach the extent"
                        f" `{spelled(end)}` of dimension {d}"
                    )
                return max(offset, 0), None
            reach *= digit.count
        high = offset + reach
        if known.nonpositive(known.affine(end) - high):
            return max(offset, 0), None
        return max(offset, 0), high


def _one_value(index: Index | None) -> Index | None:
    """The index, if all workers have one value of it, perhaps because there is one worker."""
    if index is None or index.is_uniform:
        return index
    return Index(index.terms, int(index.base.item())) if np.size(index.base) == 1 else None


def _ranges(frame: Frame) -> Iterator[tuple[Variable, Expression, Expression, int]]:
    """The variables of a loop that all workers run together, with start, stop and step."""
    zero = ir.constant(0)
    match frame:
        case ir.Grid():
            for variable, extent, by in zip(frame.variables, frame.shape, frame.by, strict=True):
                yield variable, zero, _end(extent), by
        case ir.Pipeline():
            yield frame.variable, zero, frame.extent, frame.by
        case ir.For():
            yield frame.variable, frame.start, frame.stop, frame.step
        case _:
            pass  # each worker runs it on its own, or it has no bounds


def _end(extent: int | Expression) -> Expression:
    return ir.constant(extent) if isinstance(extent, int) else extent


def enumerated_loops(path: Path, enumerator: Enumerator) -> list[Array]:
    """One array for each enumerated loop of a path: together they have all its iterations."""
    arrays = []
    for frame in path:
        match frame:
            case ir.Each() | ir.Move() | ir.Grid():
                forms = [enumerator.index(variable) for variable in frame.variables]
            case ir.For() | ir.Pipeline():
                forms = [enumerator.index(frame.variable)]
            case _:
                continue
        arrays += [form.base for form in forms if form is not None and not form.is_uniform]
    return arrays


def _factored(values: Array) -> list[Digit]:
    """Ascending numbers as digits: 0 1 2 3 16 17 18 19 is (1, 4), (16, 2)."""
    digits = []
    while values.size > 1:
        gaps = np.diff(values)
        stride = int(gaps[0])
        breaks = np.flatnonzero(gaps != stride)
        count = int(breaks[0]) + 1 if breaks.size else values.size
        if values.size % count:
            raise NoBoxError("the indices that its workers take have no regular pattern")
        rows = values.reshape(-1, count)
        if (rows - rows[:, :1] != rows[0] - rows[0, 0]).any():
            raise NoBoxError("the indices that its workers take have no regular pattern")
        digits.append(Digit(stride, count))
        values = rows[:, 0]
    return digits
