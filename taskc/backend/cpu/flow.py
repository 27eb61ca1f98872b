"""Branches and loops: one jump where all lanes agree, a mask over them (predication) where they don't.

    if worker < n: ...         %a = icmp slt <16 x i32> %workers, %n
                               %b = icmp ne i16 (bitcast %a), 0        does any lane enter?
                               br i1 %b, label %then, label %end       the body runs under the mask %a

A loop that may run long checks for signals now and then, so that Ctrl-C ends a block inside it:

    for q in range(n):         for first in range(0, n, 2**15):
        s += x[q]                  for q in range(first, min(first + 2**15, n)):
                                       s += x[q]
                                   if more is left: check for signals
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from taskc.analysis.facts import Facts
from taskc.backend.cpu.block_count import own_cost
from taskc.backend.cpu.instructions import LaneValue, constant
from taskc.backend.cpu.module import look_text
from taskc.backend.cpu.values import LaneValues
from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.operations import TILED
from taskc.ir.rewrite import all_below, statements, walk, walk_statements
from taskc.ir.types import boolean, i64

# Operations of a block: a loop of at most so many doesn't check, such as a GEMM's over k.
SHORT = 1 << 20

# Operations between two checks in an innermost loop, and in any loop: microseconds, and milliseconds, unless they wait
# for memory. A loop around one that may be long checks after a few turns.
APART, MOST = 1 << 16, 1 << 22
FEW = 16

# Turns of a `while` between two checks: in a tight loop that checked at each turn, the check took a third of the time.
TURNS = 8


def turns_between_looks(kernel: ir.Kernel, vectors: int) -> dict[Variable, int]:
    """For each loop that checks for signals, by its variable: the number of turns between two checks."""
    loops = [node for node in walk_statements(kernel.body) if isinstance(node, ir.For)]
    if not loops:
        return {}
    is_known = all(trip_count(loop) is not None for loop in loops)
    looks = _Looks(vectors)
    looks.cost(kernel.body, None if is_known else Facts.empty(kernel))
    return looks.turns


class _Looks:
    def __init__(self, vectors: int) -> None:
        self.vectors = vectors
        self.turns: dict[Variable, int] = {}

    def cost(self, statement: Statement, facts: Facts | None) -> int:
        """The most operations that pass without a check, for all vectors of the block."""
        if isinstance(statement, ir.For):
            return self._cost_of_loop(statement, facts)
        below = sum([self.cost(inner, facts) for inner in statements(statement)])
        if facts is not None and isinstance(statement, ir.Let):
            facts.enter(statement)
        turns = TURNS if isinstance(statement, ir.While) else 1
        return turns * (own_cost(statement) * self.vectors + below)

    def _cost_of_loop(self, loop: ir.For, facts: Facts | None) -> int:
        trips = _most_trips(loop, facts)
        turn = self.vectors + self.cost(loop.body, None if facts is None else facts.enter(loop))
        if trips * turn > SHORT:
            trips = self.turns[loop.variable] = max(APART // turn, min(FEW, MOST // turn), 1)
        return own_cost(loop) * self.vectors + trips * turn


def _most_trips(loop: ir.For, facts: Facts | None) -> int:
    """An upper bound of a loop's trip count, from its bounds and their type."""
    trips = trip_count(loop)
    if trips is not None:
        return trips
    assert facts is not None
    dtype = loop.variable.dtype
    far = int(dtype.maximum) - int(dtype.minimum)
    distances = [
        facts.interval(
            ir.Binary("-", *((stop, loop.start) if loop.step > 0 else (loop.start, stop)))
        )
        for stop in _ends(loop.stop, "min" if loop.step > 0 else "max")
    ]
    most = min([far if distance.high is None else distance.high for distance in distances])
    return -(-max(0, most) // abs(loop.step))


def _ends(stop: Expression, nearest: str) -> tuple[Expression, ...]:
    """The bounds that a loop doesn't pass: both operands of min(a, b)."""
    if isinstance(stop, ir.Binary) and stop.operator == nearest:
        return *_ends(stop.left, nearest), *_ends(stop.right, nearest)
    return (stop,)


class Flow:
    """Writes branches and loops at the builder's position, around code that callbacks write."""

    def __init__(self, values: LaneValues) -> None:
        self.values = values
        self.builder = values.builder
        self.elementwise = values.elementwise
        self.privates = values.privates
        # A signal handler may run a kernel that uses the same tile registers.
        nodes = all_below(values.kernel.body, ir.Do)
        self.looks = not any(node.operation in TILED for node in nodes)

    def branch(
        self, holds: LaneValue, then: Callable[[], None], otherwise: Callable[[], None] | None
    ) -> None:
        """Write two arms, of which one runs."""
        if holds.number is not None:
            if holds.number:
                then()
            elif otherwise is not None:
                otherwise()
            return
        self._arms(partial(self.builder.branch, holds), then, otherwise)

    def branch_by(
        self, condition: Expression, then: Callable[[], None], otherwise: Callable[[], None] | None
    ) -> None:
        """Write two arms for a condition that is the same on all lanes."""
        if _reads_arrays(condition):
            self._arms(partial(self.decide, condition), then, otherwise)
        else:
            self.branch(self.values.scalar(condition), then, otherwise)

    def decide(self, condition: Expression, yes: str, no: str) -> None:
        """Jump by a uniform condition, and over reads that don't decide it.

        A read under a condition is one of another place where that doesn't hold, which costs each of a loop's turns
        more than a jump that goes the same way as before.
        """
        builder = self.builder
        match condition:
            case ir.Binary(operator="and" | "or") if _reads_arrays(condition.right):
                more = builder.label("more")
                self.decide(
                    condition.left, *((more, no) if condition.operator == "and" else (yes, more))
                )
                builder.start(more)
                with self.values.nested():
                    self.decide(condition.right, yes, no)
            case ir.Unary(operator="not") if _reads_arrays(condition):
                self.decide(condition.operand, no, yes)
            case _:
                builder.branch(self.values.scalar(condition), yes, no)

    def _arms(
        self,
        decide: Callable[[str, str], None],
        then: Callable[[], None],
        otherwise: Callable[[], None] | None,
    ) -> None:
        builder = self.builder
        labels = builder.label("then"), builder.label("else"), builder.label("end")
        decide(labels[0], labels[1] if otherwise is not None else labels[2])
        for label, arm in zip(labels, (then, otherwise), strict=False):
            if arm is not None:
                builder.start(label)
                with self.values.nested(), self.values.under(None, self.values.mask):
                    arm()
                builder.jump(labels[2])
        builder.start(labels[2])

    def count(
        self,
        start: LaneValue,
        stop: LaneValue,
        step: int,
        body: Callable[[LaneValue], None],
        goes_on: Callable[[], LaneValue] | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        """Write a loop over a scalar that never wraps, however near its end is to the limit of its type.

        Only what is left of a loop tells that: a larger step than 1 may come out on its other side. Where
        `goes_on` doesn't hold at the beginning of an iteration, it ends there.
        """
        builder = self.builder
        inside, end = builder.label("body"), builder.label("end")
        kind, variable, following = start.type, builder.name("i"), builder.name("n")
        compare = "slt" if step > 0 else "sgt"
        is_exact = _stays_within(stop, step)
        head = builder.label("loop") if is_exact else inside
        first = "" if is_exact else builder.impure(f"icmp {compare} {start.typed}, {stop.text}")
        before = builder.block
        builder.emit(
            f"br label %{head}" if is_exact else f"br i1 {first}, label %{head}, label %{end}"
        )
        builder.start(head)
        phi = len(builder.lines)
        builder.emit("")
        if is_exact:
            test = builder.impure(f"icmp {compare} {kind} {variable}, {stop.text}")
            builder.emit(f"br i1 {test}, label %{inside}, label %{end}")
            builder.start(inside)
        with self.values.nested(), self.values.under(None, self.values.mask):
            if goes_on is not None:
                label = builder.label("on")
                builder.branch(goes_on(), label, end)
                builder.start(label)
            body(LaneValue(variable, start.dtype))
        builder.emit(f"{following} = add {kind} {variable}, {step}")
        how = builder.kept_whole() if is_whole else ""
        builder.lines[phi] = (
            f"  {variable} = phi {kind} [ {start.text}, %{before} ], [ {following}, %{builder.block} ]"
        )
        if is_exact:
            builder.emit(f"br label %{head}{how}")
        else:
            ends = (stop.text, variable) if step > 0 else (variable, stop.text)
            left = builder.impure(f"sub {kind} {ends[0]}, {ends[1]}")
            test = builder.impure(f"icmp ugt {kind} {left}, {abs(step)}")
            builder.emit(f"br i1 {test}, label %{head}, label %{end}{how}")
        builder.start(end)

    def count_in_parts(
        self,
        start: LaneValue,
        stop: LaneValue,
        step: int,
        body: Callable[[LaneValue], None],
        goes_on: Callable[[], LaneValue] | None,
        turns: int,
        *,
        is_whole: bool = False,
    ) -> None:
        """Write a loop that checks for signals every `turns` iterations: an outer loop over parts of the range.

        Whether more than a part is left is told by how far its beginning is from the end, so that nothing wraps.
        """
        if not self.looks:
            self.count(start, stop, step, body, goes_on, is_whole=is_whole)
            return
        builder = self.builder
        part, again, end = builder.label("part"), builder.label("again"), builder.label("end")
        reach = step * max(1, min(turns, int(start.dtype.maximum) // abs(step)))
        least = self.elementwise.saturating_difference(stop, constant(reach, stop.dtype))
        kind, first = start.type, builder.name("i")
        before = builder.block
        builder.jump(part)
        builder.start(part)
        phi = len(builder.lines)
        builder.emit("")
        compare = "slt" if step > 0 else "sgt"
        more = builder.impure(f"icmp {compare} {kind} {first}, {least.text}")
        far = builder.impure(f"add {kind} {first}, {reach}")
        last = builder.impure(f"select i1 {more}, {kind} {far}, {stop.typed}")
        with self.values.nested():
            ends = LaneValue(first, start.dtype), LaneValue(last, stop.dtype)
            self.count(*ends, step, body, goes_on, is_whole=is_whole)
        look = builder.label("look")
        builder.emit(f"br i1 {more}, label %{look}.if, label %{end}")
        builder.start(f"{look}.if")
        builder.lines += look_text(look, again, "exit")
        builder.start(again)
        if goes_on is None:
            builder.jump(part)
        else:
            with self.values.nested(), self.values.under(None, self.values.mask):
                builder.branch(goes_on(), part, end)
        builder.lines[phi] = (
            f"  {first} = phi {kind} [ {start.text}, %{before} ], [ {last}, %{builder.block} ]"
        )
        builder.start(end)

    def repeat(self, decide: Callable[[str, str], None], body: Callable[[], None]) -> None:
        """Write a loop that runs as long as `decide`, which is uniform, jumps to its first label.

        It may never end, so signals are looked for after every few turns. LLVM writes these out one after another,
        and then counts none, unless they are long.
        """
        builder = self.builder
        part, head, inside, end = map(builder.label, ("part", "while", "body", "end"))
        turn, following = builder.name("turn"), builder.name("turn")
        builder.jump(part)
        builder.start(part)
        builder.jump(head)
        builder.start(head)
        phi = len(builder.lines)
        builder.emit("")
        with self.values.nested(), self.values.under(None, self.values.mask):
            decide(inside, end)
            builder.start(inside)
            with self.values.nested():
                body()
        builder.lines[phi] = f"  {turn} = phi i64 [ 0, %{part} ], [ {following}, %{builder.block} ]"
        builder.emit(f"{following} = add nuw nsw i64 {turn}, 1")
        more, last = builder.impure(f"icmp ult i64 {following}, {TURNS}"), builder.label("last")
        builder.emit(f"br i1 {more}, label %{head}, label %{last}")
        builder.start(last)
        if self.looks:
            builder.lines += look_text(builder.label("look"), part, "exit")
        else:
            builder.jump(part)
        builder.start(end)

    def masked_while(self, condition: Callable[[], LaneValue], body: Callable[[], None]) -> None:
        """Write a loop that runs while any lane is active; finished lanes are masked off."""
        flags = Tensor("going", boolean, (), ir.LOCAL)
        going = self.privates.allocate(flags, self.values.lanes, 1)
        zero = constant(0, i64)
        mask = self.values.active()
        if mask is None:
            mask = constant(True, boolean, self.values.lanes)
        self.privates.store(going, zero, zero, mask, None)

        def goes_on(yes: str, no: str) -> None:
            now = self.privates.load(going, zero, zero)
            with self.values.under(None, now):
                now = self.elementwise.binary("and", now, condition())
            self.privates.store(going, zero, zero, now, None)
            self.builder.branch(self.elementwise.any(now), yes, no)

        def run() -> None:
            with self.values.under(None, self.privates.load(going, zero, zero)):
                body()

        self.repeat(goes_on, run)


def _reads_arrays(condition: Expression) -> bool:
    return any(
        isinstance(node, ir.Read) and node.tensor.scope in (ir.GLOBAL, ir.SHARED)
        for node in walk(condition)
    )


def _stays_within(stop: LaneValue, step: int) -> bool:
    """Whether the number one step past the last one before `stop` still fits the type."""
    if abs(step) == 1:
        return True
    if stop.number is None:
        return False
    last = int(stop.number) + (step - 1 if step > 0 else step + 1)
    return int(stop.dtype.minimum) <= last <= int(stop.dtype.maximum)
