"""A kernel at stage lean as a function of LLVM IR that runs one block.

    for i: i32 in unroll(2):                     %a = load <16 x float>, ptr %x.0
        c[worker + i * 16] = x[worker] * 2       %b = fmul <16 x float> %a, splat (float 2.0)
                                                 store <16 x float> %b, ptr %c.0
                                                 store <16 x float> %b, ptr %c.1

Worker w is lane w % n of vector w // n. Lanes run in lockstep under a mask, so barriers of a warp are
nothing; a wider one ends a loop over the block's vectors, and the next begins another one.
"""

from __future__ import annotations

from collections.abc import Callable

from taskc.backend.cpu.atomics import Atomics
from taskc.backend.cpu.builder import (
    SCALAR,
    TooLongError,
    Value,
    constant,
    constants,
    type_of,
)
from taskc.backend.cpu.dots import Dots
from taskc.backend.cpu.flow import Flow, is_small
from taskc.backend.cpu.groups import is_pure
from taskc.backend.cpu.memory import Place, Private
from taskc.backend.cpu.processor import Processor
from taskc.backend.cpu.tiles import TileRegisters
from taskc.backend.cpu.values import Math
from taskc.errors import InternalError, assert_never
from taskc.ir import nodes as ir
from taskc.ir.nodes import SHARED, Expression, Statement, Tensor, Variable
from taskc.ir.operations import DOTS, PACK, TILED
from taskc.ir.rewrite import walk
from taskc.ir.types import i64

# LLVM's time grows with the square of straight-line code: so many instructions of a loop are written out,
# and fewer where the whole would be larger than MOST, unless registers may be picked by it.
LONGEST = (4000, 250, 30)
MOST = 8000


# Without instructions for it, which come with vectors of so many bits, LLVM takes an access to scattered
# elements apart: two instructions for each of 16.
_SCATTERED_BITS, _PIECES = 512, 32


def emitted(kernel: ir.Kernel, processor: Processor, math: Math) -> tuple[str, Emitter]:
    """The function, and what its emitter has learnt."""
    for longest in LONGEST:
        emitter = Emitter(kernel, processor.lanes, processor.register, math, longest)
        emitter.builder.pieces = 1 if processor.vector_bits >= _SCATTERED_BITS else _PIECES
        is_last = longest == LONGEST[-1]
        emitter.builder.most = None if is_last else MOST
        try:
            text = emitter.emit()
        except TooLongError:
            continue
        if is_last or emitter.builder.weight(0) <= MOST:
            return text, emitter
    raise AssertionError("the last one is given up by nothing")


class Emitter(Flow):
    """Writes the function `block(i64 block, arguments..., ptr scratch, ptr status)`."""

    def __init__(
        self,
        kernel: ir.Kernel,
        most_lanes: int,
        register: str,
        math: Math,
        longest: int = LONGEST[0],
    ) -> None:
        super().__init__(kernel, most_lanes, register, math)
        self.longest = longest
        self.most = LONGEST[0]
        self.dots = Dots(self.builder, self.elementwise, self.memory)
        self.tiles = TileRegisters(self.builder)
        self.operations: dict[str, Callable[[ir.Do], None]] = {
            "shuffle.xor": self._shuffle,
            PACK: self._store_pack,
            **dict.fromkeys(DOTS, self._dot),
            **dict.fromkeys(TILED, self._tile),
        }
        self.spilled = 0  # bytes a worker keeps across barriers
        self.asserts: list[ir.Assert] = []

    # The function.

    def emit(self) -> str:
        kernel = self.kernel
        listed = ["i64 %block"]
        self._bind(kernel.block, self.elementwise.convert(Value("%block", i64), kernel.block.dtype))
        for number, parameter in enumerate(kernel.parameters):
            name = f"%p{number}"
            if isinstance(parameter, Tensor):
                self.bases[parameter] = name
                listed.append(f"ptr noalias {name}")
            else:
                listed.append(f"{type_of(parameter.dtype)} {name}")
                self._bind(parameter, Value(name, parameter.dtype))
        for number, dimension in enumerate(kernel.dimensions):
            listed.append(f"i64 %d{number}")
            self._bind(dimension, Value(f"%d{number}", dimension.dtype))
        listed += ["ptr noalias align 64 %scratch", "ptr %status"]
        self._at_barriers(kernel.body)
        self.builder.jump("exit")
        self.builder.start("exit")
        self.tiles.give_back()
        self.builder.emit("ret void")
        tables = [
            f"{name} = private constant [{table.values.size} x i64]"
            f" [{', '.join(f'i64 {n}' for n in table.values.tolist())}]"
            for table, name in self.tables.items()
        ]
        return "\n".join(
            [
                *tables,
                *self.builder.declared.values(),
                f"define internal void @block({', '.join(listed)}) #0 {{",
                "entry:",
                *self.builder.allocations,
                *self.builder.lines,
                "}",
            ]
        )

    # Statements.

    def _at_barriers(self, statement: Statement) -> None:
        """A statement with barriers inside: every vector goes as far as the next one, then waits."""
        if not self.groups.has_barrier(statement) or self.vectors == 1:
            self._vectors((statement,))
            return
        match statement:
            case ir.Sequence(statements=items):
                group: list[Statement] = []
                for item in items:
                    if self.groups.has_barrier(item):
                        self._vectors(tuple(group))
                        group = []
                        self._at_barriers(item)
                    else:
                        group.append(item)
                self._vectors(tuple(group))
            case ir.Barrier():
                pass
            case ir.If(condition=condition, then=then, otherwise=otherwise):
                with self._nested():
                    holds = self.scalar(condition)
                self._branch(
                    holds,
                    lambda: self._at_barriers(then),
                    None if otherwise is None else lambda: self._at_barriers(otherwise),
                )
            case ir.For():
                self._loop(statement, self._at_barriers)
            case ir.While(condition=condition, body=body):
                self._while(lambda: self.scalar(condition), lambda: self._at_barriers(body))
            case _:
                raise InternalError(f"a barrier inside {type(statement).__name__}")

    def _vectors(self, statements: tuple[Statement, ...]) -> None:
        """All vectors of the block, one after the other, run through a group."""
        if not statements:
            return
        for statement in statements:
            self._note_definitions(statement)

        def run(number: Value) -> None:
            self._set_vector(number)
            for statement in statements:
                self._statement(statement)

        if self.vectors > 1:
            self._count(constant(0, i64), constant(self.vectors, i64), 1, run)
            self._set_vector(constant(0, i64))
        else:
            run(constant(0, i64))

    def _set_vector(self, number: Value) -> None:
        self.vector = number
        self.exists = None
        if self.kernel.workers % (self.lanes or 1):
            left = self.elementwise.binary(
                "-",
                constant(self.kernel.workers, i64),
                self.elementwise.binary("*", number, constant(self.lanes, i64)),
            )
            lane = constants(range(self.lanes))
            self.exists = self.elementwise.binary(
                "<", lane, self.elementwise.splat(left, self.lanes)
            )

    def _note_definitions(self, statement: Statement) -> None:
        for node in walk(statement):
            if isinstance(node, ir.Let):
                self.definitions[node.variable] = node.value

    def _statement(self, statement: Statement) -> None:
        match statement:
            case ir.Sequence(statements=items):
                # Names bound inside end here, instructions stay known.
                self.scopes.append({})
                for item in items:
                    self._statement(item)
                self.scopes.pop()
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
                    self._while(lambda: self.scalar(condition), lambda: self._statement(body))
                else:
                    self._masked_while(
                        lambda: self.spread(condition), lambda: self._statement(body)
                    )
            case ir.Atomic():
                self._atomic(statement)
            case ir.Do(operation=operation) if operation in self.operations:
                self.operations[operation](statement)
            case ir.Assert():
                self._assert(statement)
            case ir.Barrier() | ir.Print() | ir.Breakpoint():
                pass
            case (
                ir.Grid() | ir.Pipeline() | ir.Each() | ir.Move() | ir.Mma() | ir.Reduce() | ir.Scan()
                | ir.RingStep() | ir.Roles() | ir.Peer() | ir.Do()
            ):  # fmt: skip
                raise InternalError(f"no code for {type(statement).__name__}")
            case _:
                assert_never(statement)

    def _assert(self, node: ir.Assert) -> None:
        """Where it doesn't hold its number is left for the caller, and the block ends."""
        self.asserts.append(node)
        condition = node.condition
        is_uniform = self.forms.is_uniform(condition)
        holds = self.scalar(condition) if is_uniform else self.spread(condition)
        wrong = self.elementwise.unary("not", holds)
        active = self._active()
        if active is not None:
            wrong = self._both(active, self.elementwise.splat(wrong, self.lanes))
        number = len(self.asserts)

        def give_up() -> None:
            self.builder.emit(f"store i64 {number}, ptr %status")
            self.builder.jump("exit")
            self.builder.start(self.builder.label("never"))

        self._branch(self.elementwise.any(wrong), give_up, None)

    def _let(self, variable: Variable, value: Expression) -> None:
        made = self._let_value(value)
        if self._is_kept(variable) and not is_pure(value):
            self._keep(variable, made)
        self._bind(variable, made)

    def _keep(self, variable: Variable, value: Value) -> None:
        if variable not in self.kept:
            tensor = Tensor(variable.name, variable.dtype, (), ir.LOCAL)
            self.kept[variable] = self.privates.allocate(tensor, value.lanes, self.vectors)
            self.spilled += variable.dtype.nbytes
        self.privates.store(self.kept[variable], self.vector, constant(0, i64), value, None)

    def _allocate(self, tensor: Tensor, fill: ir.Constant | None) -> None:
        if tensor.scope == SHARED:
            if fill is not None:
                raise InternalError(f"shared memory, {tensor.name}, is filled by an allocation")
            return
        lanes = self.lanes if self.forms.is_varying(tensor) else SCALAR
        if tensor not in self.stored:
            is_kept = self._is_kept(tensor)
            private = self.privates.allocate(tensor, lanes, self.vectors if is_kept else 1)
            self.stored[tensor] = private
            self.spilled += private.size * tensor.dtype.nbytes if is_kept else 0
        if fill is not None:
            self._fill(self.stored[tensor], self._copy_of(tensor), fill)

    def _fill(self, private: Private, copy: Value, fill: ir.Constant) -> None:
        value = constant(fill.value, private.tensor.dtype, private.lanes)

        def store(place: Value) -> None:
            self.privates.store(private, copy, place, value, None)

        if not is_small(private.tensor):
            self._count(constant(0, i64), constant(private.size, i64), 1, store)
            return
        for k in range(private.size):
            store(constant(k, i64))

    def _store(self, tensor: Tensor, indices: tuple[Expression, ...], value: Expression) -> None:
        if tensor in self.stored:
            private = self.stored[tensor]
            made = self.spread(value) if private.lanes else self.scalar(value)
            index = self._private_index(indices)
            self.privates.store(private, self._copy_of(tensor), index, made, self.mask)
            return
        place = self._place(tensor, indices)
        if place.offsets is not None and not any(place.offsets):
            self._store_one(place, value)
        else:
            self.memory.store(place, self.spread(value), self._active())

    def _store_one(self, place: Place, value: Expression) -> None:
        """All lanes that take part write one place, and so one value: the first such lane's."""
        active = self._active()
        if self.forms.is_uniform(value):
            made = self.scalar(value)
        else:
            made = self.elementwise.first(self.spread(value), active)
        if active is None:
            self.memory.store(place, made, None)
            return
        self._branch(
            self.elementwise.any(active), lambda: self.memory.store(place, made, None), None
        )

    # Exchanges and atomics.

    def _store_pack(self, node: ir.Do) -> None:
        part, _, *values = node.operands
        assert isinstance(part, ir.Address)
        place = self._place(part.tensor, part.indices)
        self.dots.store(place, [self.spread(v) for v in values], self._active())

    def _shuffle(self, node: ir.Do) -> None:
        value, distance = node.operands
        assert node.result is not None
        number = self.scalar(distance).number
        assert number is not None
        made = self.spread(value)
        picks = [lane ^ int(number) for lane in range(self.lanes)]
        self._bind(node.result, self.elementwise.shuffled(made, picks))

    def _dot(self, node: ir.Do) -> None:
        into, *places = (part for part in node.operands if isinstance(part, ir.Address))
        private, copy = self.stored[into.tensor], self._copy_of(into.tensor)
        index = self._private_index(into.indices)
        packs = []
        for part in places:
            place = self._place(part.tensor, part.indices)
            packs.append(self.dots.load(place, self._active()))
        left = packs[0] if len(packs) > 1 else None
        total = self.privates.load(private, copy, index)
        total = self.dots.product(DOTS[node.operation], total, left, packs[-1])
        self.privates.store(private, copy, index, total, self.mask)

    def _tile(self, node: ir.Do) -> None:
        row = TILED[node.operation]
        numbers = tuple(int(part.value) for part in node.operands if isinstance(part, ir.Constant))
        places = [part for part in node.operands if isinstance(part, ir.Address)]
        if not places:
            self.tiles.multiply(row, numbers)
            return
        kind = node.operation.removeprefix(row.name)
        (part,) = places
        if part.tensor in self.stored:
            # Registers of neighbouring workers are neighbours: a fragment is a tile as it lies.
            slot = self.scalar(part.indices[0])
            private = self.stored[part.tensor]
            address = self.privates.address(private, self._copy_of(part.tensor), slot)
            pitch = self.lanes * part.tensor.dtype.nbytes
        else:
            place = self._place(part.tensor, part.indices)
            address = self.memory.address(place)
            pitch = numbers[1] * part.tensor.dtype.nbytes
        self.tiles.move(row, kind, numbers[0], address, pitch)

    def _atomic(self, node: ir.Atomic) -> None:
        place = self._place(node.tensor, node.indices)
        old = Atomics(self.memory, self._count).run(
            node, place, self.spread(node.value), self._active()
        )
        if node.result is not None:
            self._bind(node.result, old)
            if self._is_kept(node.result):
                self._keep(node.result, old)
