"""A kernel at stage lean as an LLVM function that runs one block.

    for i: i32 in unroll(2):                     %a = load <16 x float>, ptr %x.0
        c[worker + i * 16] = x[worker] * 2       %b = fmul <16 x float> %a, splat (float 2.0)
                                                 store <16 x float> %b, ptr %c.0
                                                 store <16 x float> %b, ptr %c.1

Worker w is lane w % n of vector w // n. Lanes run in lockstep under a mask, so a warp's barrier is
nothing; a wider one ends a loop over the block's vectors, and another loop begins after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from taskc.analysis.touches import exit_condition
from taskc.backend.cpu.flow import Flow, turns_between_looks
from taskc.backend.cpu.instructions import (
    SCALAR,
    LaneValue,
    TooLongError,
    constant,
    constants,
    stored_type,
    type_of,
)
from taskc.backend.cpu.memory import Atomics, LaneAddress, Private
from taskc.backend.cpu.operations import OperationEmitter
from taskc.backend.cpu.processor import Processor
from taskc.backend.cpu.values import LaneValues, Math, is_pure
from taskc.errors import InternalError, assert_never
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.extents import size_in_elements
from taskc.ir.nodes import SHARED, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import all_below, tensors_of, walk, walk_statements
from taskc.ir.types import boolean, i32, i64

# LLVM's time grows with the square of straight-line code, so that the number of instructions unrolled from one loop is
# limited. The limit is tightened where the whole function exceeds MOST.
LONGEST = (4000, 250, 30)
MOST = 8000

# In quick code no loop is written out: without optimization each line takes its time to compile, and a register tile is
# in memory either way.
_QUICK = 0

# Vectors of at least so many bits have gathers and scatters. Without these, LLVM scalarizes them: two instructions for
# each of 16 lanes.
_SCATTERED_BITS, _PIECES = 512, 32

# The callback of a `tc.print`, and the Python function that it receives, with the print's number and its values.
PRINT, PRINTER = "taskc_print", "taskc_printer"

_MOST_OF_A_FOLD = 40  # nodes

_MOST_REGISTERS = 128  # elements of each lane: a larger array is in memory

# Gathers and scatters that are unrolled from one loop: each costs more than the loop's jump, and LLVM orders it after
# all earlier ones that may alias.
_MOST_SCATTERED = 100


def emitted(
    kernel: ir.Kernel, processor: Processor, math: Math, *, is_quick: bool = False
) -> tuple[str, Emitter]:
    """The text of the function, and its emitter."""
    limits = (_QUICK,) if is_quick else LONGEST
    for longest in limits:
        emitter = Emitter(kernel, processor.lanes, processor.register, math, longest)
        emitter.builder.pieces = 1 if processor.vector_bits >= _SCATTERED_BITS else _PIECES
        emitter.builder.permutes_bytes = processor.permutes_bytes
        is_last = longest == limits[-1]
        emitter.builder.most = None if is_last else MOST
        try:
            text = emitter.emit()
        except TooLongError:
            continue
        if is_last or emitter.builder.weight(0) <= MOST:
            return text, emitter
    raise AssertionError("the last one is given up by nothing")


class Emitter:
    """Writes the function `block(i64 block, arguments..., ptr scratch, ptr status)`."""

    def __init__(
        self,
        kernel: ir.Kernel,
        most_lanes: int,
        register: str,
        math: Math,
        longest: int = LONGEST[0],
    ) -> None:
        self.kernel = kernel
        self.longest = longest  # instructions of a loop that are written out
        self.values = LaneValues(kernel, most_lanes, register, math)
        self.builder = self.values.builder
        self.elementwise = self.values.elementwise
        self.memory = self.values.memory
        self.privates = self.values.privates
        self.forms = self.values.forms
        self.flow = Flow(self.values)
        self.operations = OperationEmitter(
            self.values, self.flow.count if longest == _QUICK else None
        )
        # Vectors are unrolled by their authors, as registers allow; scalar sums by LLVM.
        self.unrolls = not self.values.lanes
        self.turns_between_looks = turns_between_looks(kernel, self.values.vectors)
        self.is_apart = False  # what is being written becomes a function of its own
        self.spilled = 0  # bytes that a worker keeps in memory across barriers
        # Their numbers are those of the kernel, whatever is unrolled: quick and full code share them.
        self.asserts = [*all_below(kernel.body, ir.Assert)]
        self.prints = [*all_below(kernel.body, ir.Print)]

    # The function.

    def emit(self) -> str:
        kernel = self.kernel
        listed = ["i64 %block"]
        self.values.bind(
            kernel.block, self.elementwise.convert(LaneValue("%block", i64), kernel.block.dtype)
        )
        for number, parameter in enumerate(kernel.parameters):
            name = f"%p{number}"
            if isinstance(parameter, Tensor):
                self.values.bases[parameter] = name
                listed.append(f"ptr noalias {name}")
            else:
                listed.append(f"{type_of(parameter.dtype)} {name}")
                self.values.bind(parameter, LaneValue(name, parameter.dtype))
        for number, dimension in enumerate(kernel.dimensions):
            listed.append(f"i64 %d{number}")
            self.values.bind(dimension, LaneValue(f"%d{number}", dimension.dtype))
        listed += ["ptr noalias align 64 %scratch", "ptr %status"]
        self._at_barriers(kernel.body)
        self.builder.jump("exit")
        self.builder.start("exit")
        self.operations.tiles.give_back()
        self.builder.emit("ret void")
        tables = [
            f"{name} = private constant [{table.values.size} x i64]"
            f" [{', '.join(f'i64 {n}' for n in table.values.tolist())}]"
            for table, name in self.values.tables.items()
        ]
        return "\n".join(
            [
                *tables,
                *([f"@{PRINTER} = external global i8"] if self.prints else []),
                *self.builder.declared.values(),
                f"define internal void @block({', '.join(listed)}) #0 {{",
                "entry:",
                *self.builder.allocations,
                *self.builder.lines,
                "}",
                *self.builder.loops,
            ]
        )

    # Statements.

    def _at_barriers(self, statement: Statement) -> None:
        """Emit a statement that contains barriers: every vector runs up to the next barrier before any goes on."""
        if not self.values.groups.has_barrier(statement) or self.values.vectors == 1:
            self._vectors((statement,))
            return
        match statement:
            case ir.Sequence(statements=items):
                group: list[Statement] = []
                for item in items:
                    if self.values.groups.has_barrier(item):
                        self._vectors(tuple(group))
                        group = []
                        self._at_barriers(item)
                    else:
                        group.append(item)
                self._vectors(tuple(group))
            case ir.Barrier():
                pass
            case ir.If(condition=condition, then=then, otherwise=otherwise):
                with self.values.nested():
                    holds = self.values.scalar(condition)
                self.flow.branch(
                    holds,
                    lambda: self._at_barriers(then),
                    None if otherwise is None else lambda: self._at_barriers(otherwise),
                )
            case ir.For():
                self._loop(statement, self._at_barriers)
            case ir.While(condition=condition, body=body):
                self.flow.repeat(
                    partial(self.flow.decide, condition), lambda: self._at_barriers(body)
                )
            case _:
                raise InternalError(f"a barrier inside {type(statement).__name__}")

    def _vectors(self, statements: tuple[Statement, ...]) -> None:
        """Run all vectors of the block, one after the other, through a group of statements."""
        if not statements:
            return
        for statement in statements:
            self._note_definitions(statement)

        def run(number: LaneValue) -> None:
            self._set_vector(number)
            for statement in statements:
                self._statement(statement)

        if self.values.vectors > 1:
            self.flow.count(constant(0, i64), constant(self.values.vectors, i64), 1, run)
            self._set_vector(constant(0, i64))
        else:
            run(constant(0, i64))

    def _set_vector(self, number: LaneValue) -> None:
        self.values.vector = number
        self.values.exists = None
        if self.kernel.workers % (self.values.lanes or 1):
            left = self.elementwise.binary(
                "-",
                constant(self.kernel.workers, i64),
                self.elementwise.binary("*", number, self.values.lanes),
            )
            lane = constants(range(self.values.lanes))
            self.values.exists = self.elementwise.binary(
                "<", lane, self.elementwise.splat(left, self.values.lanes)
            )

    def _note_definitions(self, statement: Statement) -> None:
        for node in all_below(statement, ir.Let):
            self.values.definitions[node.variable] = node.value

    def _statement(self, statement: Statement) -> None:
        match statement:
            case ir.Sequence(statements=items):
                # Variables bound inside end here; instructions stay known.
                with self.values.scoped():
                    for item in items:
                        self._statement(item)
            case ir.Let(variable=variable, value=value):
                self._let(variable, value)
            case ir.Allocate(tensor=tensor, fill=fill):
                self._allocate(tensor, fill)
            case ir.Store(tensor=tensor, indices=indices, value=value):
                self._store(tensor, indices, value)
            case ir.If():
                self._if_statement(statement)
            case ir.For():
                self._for(statement)
            case ir.While(condition=condition, body=body):
                if self.forms.is_uniform(condition):
                    self.flow.repeat(
                        partial(self.flow.decide, condition), lambda: self._statement(body)
                    )
                else:
                    self.flow.masked_while(
                        lambda: self.values.spread(condition), lambda: self._statement(body)
                    )
            case ir.Atomic():
                self._atomic(statement)
            case ir.Do(operation=operation) if operation in self.operations.makers:
                self.operations.makers[operation](statement)
            case ir.Assert():
                self._assert(statement)
            case ir.Print():
                self._print(statement)
            case ir.Barrier() | ir.Breakpoint():
                pass
            case (
                ir.Grid() | ir.Pipeline() | ir.Each() | ir.Move() | ir.Mma() | ir.Reduce() | ir.Scan()
                | ir.RingStep() | ir.Roles() | ir.Peer() | ir.Do()
            ):  # fmt: skip
                raise InternalError(f"no code for {type(statement).__name__}")
            case _:
                assert_never(statement)

    def _assert(self, node: ir.Assert) -> None:
        """Emit an assertion: if it fails on any lane, store its number in the status and end the block."""
        condition = node.condition
        is_uniform = self.forms.is_uniform(condition)
        holds = self.values.scalar(condition) if is_uniform else self.values.spread(condition)
        wrong = self.elementwise.unary("not", holds)
        active = self.values.active()
        if active is not None:
            wrong = self.values.both(active, self.elementwise.splat(wrong, self.values.lanes))
        number = 1 + _place(self.asserts, node)

        def give_up() -> None:
            self.builder.emit(f"store i64 {number}, ptr %status")
            self.builder.jump("exit")
            self.builder.start(self.builder.label("never"))

        self.flow.branch(self.elementwise.any(wrong), give_up, None)

    def _print(self, node: ir.Print) -> None:
        """Pass each active lane's values to Python, a word each with the bits they have in memory."""
        values = [self.values.spread(value) for value in node.values]
        active = self.values.active()
        words = self.builder.allocate(f"[{max(1, len(values))} x i64]", "printed")
        number = _place(self.prints, node)
        self.builder.declare("void", PRINT, "ptr", "i64", "ptr")

        def hand_over(lane: LaneValue) -> None:
            for place, value in enumerate(values):
                one = self.elementwise.lane(value, lane)
                kind, text = stored_type(one.dtype), one.text
                if one.dtype is boolean:
                    text = self.builder.pure(f"zext i1 {text} to i8")
                to = self.builder.pure(f"getelementptr i64, ptr {words}, i64 {place}")
                self.builder.emit(f"store {kind} {text}, ptr {to}")
            self.builder.emit(f"call void @{PRINT}(ptr @{PRINTER}, i64 {number}, ptr {words})")

        def each(lane: LaneValue) -> None:
            if active is None:
                hand_over(lane)
            else:
                holds = self.elementwise.lane(active, lane)
                self.flow.branch(holds, lambda: hand_over(lane), None)

        if self.values.lanes:
            self.flow.count(constant(0, i64), constant(self.values.lanes, i64), 1, each)
        else:
            each(constant(0, i64))

    def _let(self, variable: Variable, value: Expression) -> None:
        result = self.values.let_value(value)
        if self.values.is_kept(variable) and not is_pure(value):
            self._keep(variable, result)
        self.values.bind(variable, result)

    def _keep(self, variable: Variable, value: LaneValue) -> None:
        if variable not in self.values.kept:
            tensor = Tensor(variable.name, variable.dtype, (), ir.LOCAL)
            self.values.kept[variable] = self.privates.allocate(
                tensor, value.lanes, self.values.vectors
            )
            self.spilled += variable.dtype.nbytes
        self.privates.store(
            self.values.kept[variable], self.values.vector, constant(0, i64), value, None
        )

    def _allocate(self, tensor: Tensor, fill: ir.Constant | None) -> None:
        if tensor.scope == SHARED:
            if fill is not None:
                raise InternalError(f"shared memory, {tensor.name}, is filled by an allocation")
            return
        lanes = self.values.lanes if self.forms.is_varying(tensor) else SCALAR
        if tensor not in self.values.stored:
            is_kept = self.values.is_kept(tensor)
            private = self.privates.allocate(tensor, lanes, self.values.vectors if is_kept else 1)
            self.values.stored[tensor] = private
            self.spilled += private.size * tensor.dtype.nbytes if is_kept else 0
        if fill is not None:
            self._fill(self.values.stored[tensor], self.values.copy_of(tensor), fill)

    def _fill(self, private: Private, copy: LaneValue, fill: ir.Constant) -> None:
        value = constant(fill.value, private.tensor.dtype, private.lanes)

        def store(place: LaneValue) -> None:
            self.privates.store(private, copy, place, value, None)

        if not _is_small(private.tensor) or (self.longest == _QUICK and private.size > 1):
            self.flow.count(constant(0, i64), constant(private.size, i64), 1, store)
            return
        for k in range(private.size):
            store(constant(k, i64))

    def _store(self, tensor: Tensor, indices: tuple[Expression, ...], value: Expression) -> None:
        if tensor in self.values.stored:
            private = self.values.stored[tensor]
            stored = self.values.spread(value) if private.lanes else self.values.scalar(value)
            index = self.values.private_index(indices)
            self.privates.store(
                private, self.values.copy_of(tensor), index, stored, self.values.mask
            )
            return
        place = self.values.place(tensor, indices)
        if place.offsets is not None and not any(place.offsets):
            self._store_one(place, value)
        else:
            self.memory.store(place, self.values.spread(value), self.values.active())

    def _store_one(self, place: LaneAddress, value: Expression) -> None:
        """Store to one address for all active lanes, with the value of the first active lane."""
        active = self.values.active()
        if self.forms.is_uniform(value):
            stored = self.values.scalar(value)
        else:
            stored = self.elementwise.first(self.values.spread(value), active)
        if active is None:
            self.memory.store(place, stored, None)
            return
        self.flow.branch(
            self.elementwise.any(active), lambda: self.memory.store(place, stored, None), None
        )

    # Branches and loops.

    def _if_statement(self, node: ir.If) -> None:
        condition, then, otherwise = node.condition, node.then, node.otherwise
        if isinstance(condition, ir.Binary) and condition.operator == "and" and otherwise is None:
            # The uniform operand of an `and` branches; only the other one is a mask.
            inner = ir.If(condition.right, then, loc=node.loc)
            self._if_statement(ir.If(condition.left, inner, loc=node.loc))
            return
        if self.forms.is_uniform(condition):
            self.flow.branch_by(
                condition,
                lambda: self._statement(then),
                None if otherwise is None else lambda: self._statement(otherwise),
            )
            return
        whole = self._holds_everywhere(condition)
        if whole is not None and otherwise is None and self.values.active() is None:
            # Edges are rare: the usual case runs the body without a mask.
            self.flow.branch(
                whole,
                lambda: self._statement(then),
                lambda: self._masked(self.values.spread(condition), then),
            )
            return
        holds = self.values.spread(condition)
        self._masked(holds, then)
        if otherwise is not None:
            self._masked(self.elementwise.unary("not", holds), otherwise)

    def _holds_everywhere(self, condition: Expression) -> LaneValue | None:
        """Whether `place < end` holds on all lanes, computed from lane 0; where it holds, the lanes' offsets don't
        wrap.
        """
        if isinstance(condition, Variable):
            condition = self.values.definitions.get(condition, condition)
            if not is_pure(condition):
                return None
        if not isinstance(condition, ir.Binary) or condition.operator != "<":
            return None
        place, end = self.forms.form(condition.left), self.forms.form(condition.right)
        if place.offsets is None or min(place.offsets) < 0 or not end.is_uniform:
            return None
        if condition.left.dtype not in (i32, i64):
            return None
        first, last = self.values.scalar(condition.left), self.values.scalar(condition.right)
        reach = constant(max(place.offsets), first.dtype)
        return self.elementwise.binary(
            "<", first, self.elementwise.saturating_difference(last, reach)
        )

    def _masked(self, holds: LaneValue, body: Statement) -> None:
        mask = self.values.both(self.values.mask, holds)

        def run() -> None:
            with self.values.under(self.values.guard, mask):
                self._statement(body)

        if _is_short(body):
            with self.values.nested():
                run()
        else:
            self.flow.branch(self.elementwise.any(mask), run, None)

    def _for(self, loop: ir.For) -> None:
        if not (self.forms.is_uniform(loop.start) and self.forms.is_uniform(loop.stop)):
            self._masked_for(loop)
        elif loop.kind != "serial":
            self._unrolled(loop)
        else:
            self._loop(loop, self._statement)

    def _unrolled(self, loop: ir.For) -> None:
        """Unroll a loop; where that gets too long, the iterations after the second become a loop.

        The first iteration also computes what all have in common, so the length of the second is measured.
        """
        start, stop = self.values.scalar(loop.start), self.values.scalar(loop.stop)
        assert start.number is not None
        assert stop.number is not None
        numbers = range(int(start.number), int(stop.number), loop.step)
        longest = LONGEST[0] if _picks_registers(loop.body) else self.longest
        before = 0

        def run(number: LaneValue) -> None:
            with self.values.scoped():
                self.values.bind(loop.variable, number)
                self._statement(loop.body)

        if self.longest == _QUICK and len(numbers) > 1:
            self._count(loop, start, stop, run)
            return
        for done, number in enumerate(numbers):
            value = constant(number, loop.variable.dtype)
            if done == 2:
                each, scattered = self.builder.weight(before), self.builder.scattered(before)
                left = len(numbers) - done
                if each * left > longest or scattered * left > _MOST_SCATTERED:
                    self._count(loop, value, stop, run)
                    break
            before = len(self.builder.lines)
            run(value)

    def _loop(self, loop: ir.For, body: Callable[[Statement], None]) -> None:
        with self.values.nested():
            start, stop = self.values.scalar(loop.start), self.values.scalar(loop.stop)

        def run(value: LaneValue) -> None:
            self.values.bind(loop.variable, value)
            body(loop.body)

        condition = exit_condition(loop)
        is_same = self.values.groups.has_barrier(loop)  # the condition is then uniform
        goes_on = None if condition is None else lambda: self._anywhere(condition, is_same)
        self._count(loop, start, stop, run, goes_on)

    def _count(
        self,
        loop: ir.For,
        start: LaneValue,
        stop: LaneValue,
        run: Callable[[LaneValue], None],
        goes_on: Callable[[], LaneValue] | None = None,
    ) -> None:
        if not self.is_apart and _computes_a_tile(loop.body):
            # LLVM moves constants out of all loops, and spills sums of a tile's main loop to have registers for them.
            self.is_apart = True
            with self.values.apart():
                self._count(loop, start, stop, run, goes_on)
            self.is_apart = False
            return
        turns = self.turns_between_looks.get(loop.variable)
        is_whole = self.unrolls and not _is_fold(loop.body)
        if turns is None:
            self.flow.count(start, stop, loop.step, run, goes_on, is_whole=is_whole)
        else:
            self.flow.count_in_parts(start, stop, loop.step, run, goes_on, turns, is_whole=is_whole)

    def _anywhere(self, condition: Expression, is_same: bool) -> LaneValue:
        """Whether a condition holds on any active lane."""
        if is_same or self.forms.is_uniform(condition):
            return self.values.scalar(condition)
        active = self.values.active()
        holds = self.values.spread(condition)
        return self.elementwise.any(holds if active is None else self.values.both(active, holds))

    def _masked_for(self, loop: ir.For) -> None:
        variable = loop.variable
        counter = Tensor(variable.name, variable.dtype, (), ir.LOCAL)
        private = self.privates.allocate(counter, self.values.lanes, 1)
        zero = constant(0, i64)
        self.privates.store(private, zero, zero, self.values.spread(loop.start), None)
        stop, goes_on = self.values.spread(loop.stop), exit_condition(loop)
        step = constant(loop.step, variable.dtype, self.values.lanes)

        def condition() -> LaneValue:
            now = self.privates.load(private, zero, zero)
            more = self.elementwise.binary("<" if loop.step > 0 else ">", now, stop)
            if goes_on is None:
                return more
            return self.elementwise.binary("and", more, self.values.spread(goes_on))

        def body() -> None:
            now = self.privates.load(private, zero, zero)
            form = self.forms.form(variable)
            with self.values.scoped():
                first = now if form.offsets is None else self.elementwise.first(now)
                self.values.bind(variable, first)
                self._statement(loop.body)
            now = self.privates.load(private, zero, zero)
            after = self.elementwise.saturating_sum(now, step)  # past any end, and never wrapped
            self.privates.store(private, zero, zero, after, None)

        self.flow.masked_while(condition, body)

    def _atomic(self, node: ir.Atomic) -> None:
        place = self.values.place(node.tensor, node.indices)
        old = Atomics(self.memory, self.flow.count).run(
            node, place, self.values.spread(node.value), self.values.active()
        )
        if node.result is not None:
            self.values.bind(node.result, old)
            if self.values.is_kept(node.result):
                self._keep(node.result, old)


def _place(nodes: Sequence[Statement], node: Statement) -> int:
    """The place of a node in a list that has it; equal nodes may have different locations."""
    return next(place for place, other in enumerate(nodes) if other is node)


def _picks_registers(body: Statement) -> bool:
    """Whether the body uses arrays that may be held in registers."""
    return any(
        tensor.scope in (ir.REGISTER, ir.LOCAL) and _is_small(tensor)
        for node in walk(body)
        for tensor in tensors_of(node)
    )


def _computes_a_tile(body: Statement) -> bool:
    """Whether a body computes math functions of the elements of a tile that was made before it, and nothing else."""
    nodes = [*walk(body)]
    kinds = (ir.Sequence, ir.Let, ir.Allocate, ir.Store, ir.If, ir.For)
    stored = {node.tensor for node in nodes if isinstance(node, ir.Store)}
    return (
        all(isinstance(node, kinds) for node in walk_statements(body))
        and any(getattr(node, "operator", None) in MATH_FUNCTIONS for node in nodes)
        and any(
            isinstance(node, ir.Read)
            and node.tensor.scope == ir.LOCAL
            and node.tensor not in stored
            for node in nodes
        )
    )


def _is_small(tensor: Tensor) -> bool:
    return size_in_elements(tensor) <= _MOST_REGISTERS


def _is_fold(body: Statement) -> bool:
    """Whether a body only updates private scalars, in so few steps that counting and jumping would double them."""
    nodes = list(islice(walk(body), _MOST_OF_A_FOLD))
    kinds = (ir.Let, ir.Store, ir.Sequence)
    return len(nodes) < _MOST_OF_A_FOLD and all(
        isinstance(node, kinds) and (type(node) is not ir.Store or node.tensor.scope == ir.LOCAL)
        for node in walk_statements(body)
    )


def _is_short(body: Statement) -> bool:
    """Whether a body is cheap enough to run even when no lane is active."""
    nodes = list(islice(walk(body), 64))
    kinds = (ir.For, ir.While, ir.Atomic, ir.If)
    return len(nodes) < 64 and not any(isinstance(node, kinds) for node in nodes)
