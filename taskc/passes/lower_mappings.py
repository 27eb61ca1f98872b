"""Mapping loops become index arithmetic on the worker's number, loops over slots, and registers; edges are predicated.

    tile acc: f32[32, 32] by spatial(4, 8).repeat(8, 4)
    each (i, j) in spatial(4, 8).repeat(8, 4):
        acc[i, j] = fma(sa[i, q], sb[q, j], acc[i, j])
->
    register acc: f32[32]
    for s in range(0, 8) unroll:
        for t in range(0, 4) unroll:
            let i = worker // 8 * 8 + s
            let j = worker % 8 * 4 + t
            acc[s * 4 + t] = fma(sa[i, q], sb[q, j], acc[s * 4 + t])

A worker's number is split into the digits of the mapping's worker modes, and each slot mode is a loop.
Tasks outside a mapping's limit are masked; an enumerated mapping is read from a table. A move is
the mapping loop of its `by`. Of several workers that share a task only the first stores to memory. A tile's
element becomes the slot in which its owner holds it: the same slot for every worker, as a linear form of the
loops over slots, or else as an entry of a table indexed by those loops.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field, replace
from itertools import chain

import numpy as np

from taskc.analysis.coalescing import facts_of_names
from taskc.analysis.facts import Facts
from taskc.analysis.touches import reads_memory
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.build import (
    guarded,
    index,
    subtract,
)
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import (
    GLOBAL,
    REGISTER,
    SHARED,
    TILE,
    Expression,
    Statement,
    Tensor,
    Variable,
)
from taskc.ir.reentry import cached_property
from taskc.ir.rewrite import (
    expressions,
    map_children,
    map_expressions,
    map_statements,
    statements,
    substitute,
    walk,
)
from taskc.ir.target import (
    MATRIX_MOVES,
    TARGETS,
    DotInstruction,
    MatrixMove,
    TileInstruction,
    WarpgroupInstruction,
    WarpInstruction,
)
from taskc.passes.computed_tiles import in_memory
from taskc.passes.lower_instructions import (
    asynchronous_copy,
    asynchronous_product,
    column_sums,
    dot_products,
    invariant_products,
    matrix_instruction,
    matrix_move,
    packed_store,
    tile_products,
)
from taskc.passes.register_slots import (
    composed_tasks,
    enumerated_tasks,
    first_owner,
    linear_form,
    slot_table,
    trip_number,
    within_limit,
)

# For a mapping with more slots the loops stay loops, unless their variables pick registers.
UNROLLED_SLOTS = 64


def lower_mappings(kernel: ir.Kernel) -> ir.Kernel:
    lowering = _Lowering(kernel)
    body = lowering.statement(kernel.body, _Surroundings(kernel.worker))
    return replace(kernel, body=body, stage="scalar")


Trips = tuple[tuple[Variable, range], ...]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The surroundings of a statement.

    number     the worker's number in its group, whose first worker is `offset`
    trips      the enclosing loops with constant bounds, and what they range over
    lets       scalars that stand for expressions of those and of the worker
    first      what makes a worker the first of those that share its task; None: it always is
    loop       the mapping loop around, with its own trips
    masks      conditions under which the mapping loops around have a task
    """

    number: Expression
    offset: int = 0
    trips: Trips = ()
    lets: dict[Variable, Expression] = field(default_factory=dict)
    first: Expression | None = None
    loop: tuple[ir.Each, Trips] | None = None
    masks: tuple[Expression, ...] = ()


class _Lowering:
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.target = TARGETS[kernel.target]
        self.registers: dict[Tensor, Tensor] = {}
        self.offsets = {
            row.name: row
            for row in self.target.products
            if isinstance(row, DotInstruction) and row.offset
        }
        self.sums: dict[int, Tensor] = {}  # of products whose sums are computed before them
        self.picking: dict[int, tuple[Statement, frozenset[Variable]]] = {}
        # Slots by tile, names or constants as indices, and surroundings; with the masks of those.
        self.slots: dict[Hashable, tuple[Sequence[Expression], Expression]] = {}
        self.known = facts_of_names(kernel)

    def register(self, tile: Tensor) -> Tensor:
        """The registers of one worker that hold its part of a tile."""
        if tile not in self.registers:
            assert tile.owners is not None
            self.registers[tile] = replace(
                tile, shape=(tile.owners.slots,), scope=REGISTER, owners=None
            )
        return self.registers[tile]

    def statement(self, statement: Statement, scope: _Surroundings) -> Statement:
        match statement:
            case ir.Sequence():
                return self.sequence(statement, scope)
            case ir.Each():
                return self.each(statement, scope)
            case ir.Move(how="cp.async"):
                loop, run = asynchronous_copy(statement, self.target, self.known)
                return self.each(loop, scope, run)
            case ir.Move(how="store.pack"):
                loop, run = packed_store(statement)
                return self.each(loop, scope, run)
            case ir.Move(how=str(name)) if name in MATRIX_MOVES:
                return self.matrix_move(statement, MATRIX_MOVES[name], scope)
            case ir.Move():
                return self.each(_loop_of(statement), scope)
            case ir.Mma():
                return self.mma(statement, scope)
            case ir.Allocate(tensor=Tensor(scope="tile")):
                return replace(statement, tensor=self.register(statement.tensor))
            case ir.Roles():
                roles = tuple(
                    replace(
                        role,
                        body=self.statement(
                            role.body,
                            _Surroundings(subtract(self.kernel.worker, role.first), role.first),
                        ),
                    )
                    for role in statement.roles
                )
                return replace(statement, roles=roles)
            case ir.For():
                before = self.column_sums(statement)
                if not before:
                    return self.loop(statement, scope)
                lowered = [self.statement(part, scope) for part in before]
                return ir.Sequence((*lowered, self.loop(statement, scope)), loc=statement.loc)
            case ir.Store() if scope.first is not None and statement.tensor.scope in (
                SHARED,
                GLOBAL,
            ):
                return ir.If(scope.first, self.rewritten(statement, scope), loc=statement.loc)
        statement = self.rewritten(statement, scope)
        return map_statements(statement, lambda inner: self.statement(inner, scope))

    def sequence(self, statement: ir.Sequence, scope: _Surroundings) -> Statement:
        parts: list[Statement] = []
        for inner in statement.statements:
            parts.append(self.statement(inner, scope))
            if not isinstance(inner, ir.Let) or scope.loop is None:
                continue
            if not reads_memory(inner.value):
                value = substitute(inner.value, scope.lets)
                scope = replace(scope, lets={**scope.lets, inner.variable: value})
        return replace(statement, statements=tuple(parts))

    def loop(self, loop: ir.For, scope: _Surroundings) -> Statement:
        """A loop; with constant bounds and a variable that picks a register it has to be unrolled."""
        bounds = (loop.start, loop.stop)
        if all(isinstance(bound, ir.Constant) for bound in bounds):
            start, stop = (int(bound.value) for bound in bounds)  # type: ignore[union-attr]
            inner = replace(
                scope, trips=(*scope.trips, (loop.variable, range(start, stop, loop.step)))
            )
            kind = "unroll" if loop.variable in self.picking_registers(loop.body) else loop.kind
            return replace(loop, body=self.statement(loop.body, inner), kind=kind)
        loop = replace(
            loop, start=self.expression(loop.start, scope), stop=self.expression(loop.stop, scope)
        )
        return replace(loop, body=self.statement(loop.body, scope))

    def picking_registers(self, statement: Statement) -> frozenset[Variable]:
        """The variables in indices of tiles; loops over them have to be unrolled."""
        known = self.picking.get(id(statement))
        if known is None:
            accesses = [
                node
                for node in (statement, *chain(*map(walk, expressions(statement))))
                if isinstance(node, ir.Read | ir.Store) and node.tensor.scope == TILE
            ]
            used = {part for node in accesses for index in node.indices for part in walk(index)}
            own = frozenset([part for part in used if isinstance(part, Variable)])
            variables = own.union(*map(self.picking_registers, statements(statement)))
            known = self.picking[id(statement)] = statement, variables
        return known[1]

    def column_sums(self, loop: ir.For) -> list[Statement]:
        """The column sums that products in a loop need of loop-invariant right operands."""
        if not self.offsets:
            return []
        before: list[Statement] = []
        sums: dict[tuple[ir.Operand, Mapping], Tensor] = {}
        for mma in invariant_products(loop, self.offsets, self.facts):
            assert mma.accumulator.owners is not None
            key = mma.right, mma.accumulator.owners
            if id(mma) in self.sums:
                continue
            if key not in sums:
                sums[key], statements = column_sums(mma, self.offsets[str(mma.how)])
                if mma.right.tensor.scope == SHARED:
                    # The barrier after the operand's writes may be inside the loop.
                    orders = f"write of {mma.right.tensor}, read of it before the loop"
                    before.append(ir.Barrier("block", orders, loc=mma.loc))
                before += statements
            self.sums[id(mma)] = sums[key]
        return before

    @cached_property
    def facts(self) -> Facts:
        """The ranges of all names, regardless of conditions."""
        facts = Facts.empty(self.kernel)
        for node in walk(self.kernel.body):
            if isinstance(node, ir.Let | ir.For):
                facts.enter(node)
        return facts

    def mma(self, mma: ir.Mma, scope: _Surroundings) -> Statement:
        row = self.target.matrix_instruction(str(mma.how))
        match row:
            case DotInstruction():
                return self.statement(dot_products(mma, row, self.sums.get(id(mma))), scope)
            case TileInstruction():
                lowered = map_expressions(mma, lambda e: self.expression(e, scope))
                assert isinstance(lowered, ir.Mma)
                return tile_products(lowered, row, scope.number, self.register(mma.accumulator))
            case WarpInstruction():
                return matrix_instruction(mma, row, *map(self.register, _mma_tensors(mma)))
            case WarpgroupInstruction():
                return self.product(mma, row, scope)
            case _:
                return assert_never(row)

    def product(self, mma: ir.Mma, row: WarpgroupInstruction, scope: _Surroundings) -> Statement:
        left = self.register(mma.left.tensor) if mma.left.tensor.scope == TILE else None
        given = map_expressions(mma, lambda e: self.expression(e, scope))
        assert isinstance(given, ir.Mma)
        return asynchronous_product(given, row, scope.number, self.register(mma.accumulator), left)

    def matrix_move(self, move: ir.Move, row: MatrixMove, scope: _Surroundings) -> Statement:
        tile = move.tensor
        if not row.is_load:
            assert isinstance(move.value, ir.Read)
            tile = move.value.tensor
        lowered = matrix_move(move, row, scope.number, self.register(tile))
        return self.statement(lowered, scope)

    # Mapping loops.

    def each(self, loop: ir.Each, scope: _Surroundings, run: int = 1) -> Statement:
        """A mapping loop; `run` consecutive slots are one execution of the body."""
        mapping = loop.mapping
        number = scope.number if loop.worker is None else self.expression(loop.worker, scope)
        if mapping.is_composed:
            trips, tasks, guard = composed_tasks(mapping, number)
        else:
            trips, tasks, guard = enumerated_tasks(mapping, number)
        if run > 1:
            trips[-1] = trips[-1][0], range(0, len(trips[-1][1]), run)
        first = scope.first if loop.worker is not None else first_owner(mapping, number, tasks)
        lets = {
            v: substitute(task, scope.lets) for v, task in zip(loop.variables, tasks, strict=True)
        }
        inner = replace(
            scope,
            trips=(*scope.trips, *trips),
            lets={**scope.lets, **lets},
            first=first,
            loop=(loop, tuple(trips)),
            masks=scope.masks if guard is None else (*scope.masks, guard),
        )
        body = self.statement(loop.body, inner)
        kind = "unroll" if mapping.slots <= UNROLLED_SLOTS else "serial"
        copies: list[Statement] = []
        if self.target.is_processor and kind == "unroll":
            copies, body = in_memory(body, [variable for variable, _ in trips])
            kind = "serial" if copies else kind
        statements = body.statements if isinstance(body, ir.Sequence) else (body,)
        bound = [
            ir.Let(v, task, loc=loop.loc) for v, task in zip(loop.variables, tasks, strict=True)
        ]
        limit = within_limit(mapping, loop.variables)
        if limit is not None:
            statements = (ir.If(limit, ir.Sequence(tuple(statements)), loc=loop.loc),)
        result: Statement = ir.Sequence((*bound, *statements), loc=loop.loc)
        result = guarded(guard, result)
        for variable, trip in reversed(trips):
            result = ir.For(
                variable,
                index(trip.start),
                index(trip.stop),
                trip.step,
                result,
                kind,
                loc=loop.loc,
            )
        return ir.Sequence((*copies, result), loc=loop.loc) if copies else result

    # Tiles.

    def rewritten(self, statement: Statement, scope: _Surroundings) -> Statement:
        """The statement with its own expressions and target in terms of registers."""
        changed = map_expressions(statement, lambda e: self.expression(e, scope))
        if isinstance(changed, ir.Store) and changed.tensor.scope == TILE:
            slot = self.slot(changed.tensor, changed.indices, scope, changed.loc)
            return replace(changed, tensor=self.register(changed.tensor), indices=(slot,))
        return changed

    def expression(self, expression: Expression, scope: _Surroundings) -> Expression:
        def visit(node: Expression) -> Expression:
            node = map_children(node, visit)
            if isinstance(node, ir.Read | ir.Address) and node.tensor.scope == TILE:
                slot = self.slot(node.tensor, node.indices, scope, node.loc)
                return replace(node, tensor=self.register(node.tensor), indices=(slot,))
            return node

        return visit(expression)

    def slot(
        self, tile: Tensor, indices: Sequence[Expression], scope: _Surroundings, loc: Location
    ) -> Expression:
        """The register that holds an element: a form of the loops over slots, found by enumeration."""
        owners = tile.owners
        assert owners is not None
        if scope.loop is not None:
            loop, own_trips = scope.loop
            # The usual case: the loop runs over the tile's own mapping.
            if (
                owners.is_composed
                and loop.worker is None
                and loop.mapping == owners
                and all(i is v for i, v in zip(indices, loop.variables, strict=True))
            ):
                return trip_number(own_trips)
        if not all(isinstance(i, ir.Constant | Variable) for i in indices):
            return self.slot_by_enumeration(tile, indices, scope, loc)
        # Straight-line code names an element many times.
        key = tile, tuple(indices), scope.offset, scope.trips, tuple(map(id, scope.masks))
        known = self.slots.get(key)
        if known is None:
            slot = self.slot_by_enumeration(tile, indices, scope, loc)
            known = self.slots[key] = scope.masks, slot
        return known[1]

    def slot_by_enumeration(
        self, tile: Tensor, indices: Sequence[Expression], scope: _Surroundings, loc: Location
    ) -> Expression:
        owners = tile.owners
        assert owners is not None
        resolved = [substitute(i, scope.lets) for i in indices]
        masks = (
            scope.masks if any(isinstance(n, ir.Lookup) for i in resolved for n in walk(i)) else ()
        )
        used = {v for i in (*resolved, *masks) for v in walk(i) if isinstance(v, Variable)}
        trips = [(v, trip) for v, trip in scope.trips if v in used]
        unknown = used - {v for v, _ in trips} - {self.kernel.worker}
        if unknown:
            names = ", ".join(f"`{v.name}`" for v in sorted(unknown, key=lambda v: v.name))
            raise CompileError(
                f"an index into the tile `{tile.name}` depends on {names}, known only at run time",
                loc,
                hint="a tile is registers: index it by mapping variables and loops with constant bounds",
            )
        workers = np.arange(owners.workers) + scope.offset
        table = slot_table(owners, resolved, masks, {self.kernel.worker: workers}, trips)
        if table is None:
            raise CompileError(
                f"the register that holds this element of `{tile.name}` differs between workers",
                loc,
            )
        return linear_form(table, trips)


def _loop_of(move: ir.Move) -> ir.Each:
    assert move.by is not None
    store = ir.Store(move.tensor, move.indices, move.value, loc=move.loc)
    return ir.Each(move.variables, move.by, None, guarded(move.guard, store), loc=move.loc)


def _mma_tensors(mma: ir.Mma) -> tuple[Tensor, Tensor, Tensor]:
    return mma.accumulator, mma.left.tensor, mma.right.tensor
