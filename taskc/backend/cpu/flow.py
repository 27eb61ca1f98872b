"""Branches and loops: one jump for all lanes where they agree, a mask over them where they don't.

if worker < n: ...         %a = icmp slt <16 x i32> %workers, %n
                           %b = icmp ne i16 (bitcast %a), 0        whether any lane goes in
                           br i1 %b, label %then, label %end       what is inside runs under the mask %a
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import islice
from math import prod

from taskc.backend.cpu.builder import Value, constant
from taskc.backend.cpu.groups import is_pure
from taskc.backend.cpu.values import Values
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import tensors_of, walk
from taskc.ir.types import boolean, i32, i64

_MOST_REGISTERS = 128  # of each lane: a larger array is memory

# Of a loop, so many accesses to scattered elements are written out: each costs more than going round, and
# LLVM orders it behind all before it that may be the same.
_MOST_SCATTERED = 100


class Flow(Values, ABC):
    """`longest`: instructions of a loop that are written out; `most`, where registers may be picked by it."""

    longest: int
    most: int

    @abstractmethod
    def _statement(self, statement: Statement) -> None:
        """What runs inside: written where the builder has come to."""

    # Branches.

    def _if_statement(self, node: ir.If) -> None:
        condition, then, otherwise = node.condition, node.then, node.otherwise
        if isinstance(condition, ir.Binary) and condition.operator == "and" and otherwise is None:
            # What is uniform of it branches, only the rest is a mask.
            inner = ir.If(condition.right, then, loc=node.loc)
            self._if_statement(ir.If(condition.left, inner, loc=node.loc))
            return
        if self.forms.is_uniform(condition):
            self._branch(
                self.scalar(condition),
                lambda: self._statement(then),
                None if otherwise is None else lambda: self._statement(otherwise),
            )
            return
        whole = self._holds_everywhere(condition)
        if whole is not None and otherwise is None and self._active() is None:
            # Edges are rare: what is inside of them needs no mask.
            self._branch(
                whole,
                lambda: self._statement(then),
                lambda: self._masked(self.spread(condition), then),
            )
            return
        holds = self.spread(condition)
        self._masked(holds, then)
        if otherwise is not None:
            self._masked(self.elementwise.unary("not", holds), otherwise)

    def _holds_everywhere(self, condition: Expression) -> Value | None:
        """Whether `place < end` holds on all lanes, told by lane 0's; the lanes' offsets don't wrap then."""
        if isinstance(condition, Variable):
            condition = self.definitions.get(condition, condition)
            if not is_pure(condition):
                return None
        if not isinstance(condition, ir.Binary) or condition.operator != "<":
            return None
        place, end = self.forms.form(condition.left), self.forms.form(condition.right)
        if place.offsets is None or min(place.offsets) < 0 or not end.is_uniform:
            return None
        if condition.left.dtype not in (i32, i64):
            return None
        first, last = self.scalar(condition.left), self.scalar(condition.right)
        reach = constant(max(place.offsets), first.dtype)
        return self.elementwise.binary(
            "<", first, self.elementwise.saturating_difference(last, reach)
        )

    def _masked(self, holds: Value, body: Statement) -> None:
        mask = self._both(self.mask, holds)

        def run() -> None:
            with self._under(self.guard, mask):
                self._statement(body)

        if _is_short(body):
            with self._nested():
                run()
        else:
            self._branch(self.elementwise.any(mask), run, None)

    def _branch(
        self, holds: Value, then: Callable[[], None], otherwise: Callable[[], None] | None
    ) -> None:
        builder = self.builder
        if holds.number is not None:
            if holds.number:
                then()
            elif otherwise is not None:
                otherwise()
            return
        labels = builder.label("then"), builder.label("else"), builder.label("end")
        builder.branch(holds, labels[0], labels[1] if otherwise is not None else labels[2])
        for label, arm in zip(labels, (then, otherwise), strict=False):
            if arm is not None:
                builder.start(label)
                with self._nested(), self._under(None, self.mask):
                    arm()
                builder.jump(labels[2])
        builder.start(labels[2])

    # Loops.

    def _for(self, loop: ir.For) -> None:
        if not (self.forms.is_uniform(loop.start) and self.forms.is_uniform(loop.stop)):
            self._masked_for(loop)
        elif loop.kind != "serial":
            self._unrolled(loop)
        else:
            self._loop(loop, self._statement)

    def _unrolled(self, loop: ir.For) -> None:
        """Each iteration written out; where that gets too long, all behind the second in a loop.

        The first one computes what others have in common, so the second says how long each is.
        """
        start, stop = self.scalar(loop.start), self.scalar(loop.stop)
        assert start.number is not None
        assert stop.number is not None
        numbers = range(int(start.number), int(stop.number), loop.step)
        longest = self.most if _picks_registers(loop.body) else self.longest
        before = 0

        def run(number: Value) -> None:
            self.scopes.append({})
            self._bind(loop.variable, number)
            self._statement(loop.body)
            self.scopes.pop()

        for done, number in enumerate(numbers):
            value = constant(number, loop.variable.dtype)
            if done == 2:
                each, scattered = self.builder.weight(before), self.builder.scattered(before)
                left = len(numbers) - done
                if each * left > longest or scattered * left > _MOST_SCATTERED:
                    self._count(value, stop, loop.step, run)
                    break
            before = len(self.builder.lines)
            run(value)

    def _loop(self, loop: ir.For, body: Callable[[Statement], None]) -> None:
        with self._nested():
            start, stop = self.scalar(loop.start), self.scalar(loop.stop)

        def run(value: Value) -> None:
            self._bind(loop.variable, value)
            body(loop.body)

        self._count(start, stop, loop.step, run)

    def _count(self, start: Value, stop: Value, step: int, body: Callable[[Value], None]) -> None:
        """A loop over a scalar, which doesn't wrap however near its end is to its type's.

        Only what is left of a loop tells that: a larger step than 1 may come out on its other side.
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
        with self._nested(), self._under(None, self.mask):
            body(Value(variable, start.dtype))
        builder.emit(f"{following} = add {kind} {variable}, {step}")
        builder.lines[phi] = (
            f"  {variable} = phi {kind} [ {start.text}, %{before} ], [ {following}, %{builder.block} ]"
        )
        if is_exact:
            builder.jump(head)
        else:
            ends = (stop.text, variable) if step > 0 else (variable, stop.text)
            left = builder.impure(f"sub {kind} {ends[0]}, {ends[1]}")
            test = builder.impure(f"icmp ugt {kind} {left}, {abs(step)}")
            builder.emit(f"br i1 {test}, label %{head}, label %{end}")
        builder.start(end)

    def _while(self, condition: Callable[[], Value], body: Callable[[], None]) -> None:
        builder = self.builder
        head, inside, end = builder.label("while"), builder.label("body"), builder.label("end")
        builder.jump(head)
        builder.start(head)
        with self._nested(), self._under(None, self.mask):
            builder.branch(condition(), inside, end)
            builder.start(inside)
            with self._nested():
                body()
            builder.jump(head)
        builder.start(end)

    def _masked_while(self, condition: Callable[[], Value], body: Callable[[], None]) -> None:
        """As long as any lane goes on; the others wait."""
        flags = Tensor("going", boolean, (), ir.LOCAL)
        going = self.privates.allocate(flags, self.lanes, 1)
        zero = constant(0, i64)
        mask = self._active()
        if mask is None:
            mask = constant(True, boolean, self.lanes)
        self.privates.store(going, zero, zero, mask, None)

        def goes_on() -> Value:
            now = self.privates.load(going, zero, zero)
            with self._under(None, now):
                now = self.elementwise.binary("and", now, condition())
            self.privates.store(going, zero, zero, now, None)
            return self.elementwise.any(now)

        def run() -> None:
            with self._under(None, self.privates.load(going, zero, zero)):
                body()

        self._while(goes_on, run)

    def _masked_for(self, loop: ir.For) -> None:
        variable = loop.variable
        counter = Tensor(variable.name, variable.dtype, (), ir.LOCAL)
        private = self.privates.allocate(counter, self.lanes, 1)
        zero = constant(0, i64)
        self.privates.store(private, zero, zero, self.spread(loop.start), None)
        stop = self.spread(loop.stop)
        step = constant(loop.step, variable.dtype, self.lanes)

        def condition() -> Value:
            now = self.privates.load(private, zero, zero)
            return self.elementwise.binary("<" if loop.step > 0 else ">", now, stop)

        def body() -> None:
            now = self.privates.load(private, zero, zero)
            form = self.forms.form(variable)
            self.scopes.append(
                {variable: now if form.offsets is None else self.elementwise.first(now)}
            )
            self._statement(loop.body)
            self.scopes.pop()
            now = self.privates.load(private, zero, zero)
            after = self.elementwise.saturating_sum(now, step)  # past any end, and never wrapped
            self.privates.store(private, zero, zero, after, None)

        self._masked_while(condition, body)


def _stays_within(stop: Value, step: int) -> bool:
    """Whether what follows the last number before `stop` is a number of its type, too."""
    if abs(step) == 1:
        return True
    if stop.number is None:
        return False
    last = int(stop.number) + (step - 1 if step > 0 else step + 1)
    return int(stop.dtype.minimum) <= last <= int(stop.dtype.maximum)


def _picks_registers(body: Statement) -> bool:
    """Whether it has to do with arrays that may be held in registers."""
    return any(
        tensor.scope in (ir.REGISTER, ir.LOCAL) and is_small(tensor)
        for node in walk(body)
        for tensor in tensors_of(node)
    )


def is_small(tensor: Tensor) -> bool:
    return prod(int(extent) for extent in tensor.shape) <= _MOST_REGISTERS  # type: ignore[misc, arg-type]


def _is_short(body: Statement) -> bool:
    """Cheap enough to run for no lane at all."""
    nodes = list(islice(walk(body), 64))
    kinds = (ir.For, ir.While, ir.Atomic, ir.If)
    return len(nodes) < 64 and not any(isinstance(node, kinds) for node in nodes)
