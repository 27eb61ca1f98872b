"""Scans over a tile's owners, as phases: one level of digits after another (taskc/ir/scan_order.py).

    scan s = + over x axis=0                                x: f32[256] by spatial(32).repeat(8)
->
    each i in x.owners:
        s[i] = x[i]
    each i in spatial(32).repeat(1) of s:                                       8 slots of each worker
        for slot in range(1, 8):
            s[i + slot] = s[i + slot - 1] + s[i + slot]
    each i in spatial(32).repeat(1) of s:                                       32 workers
        let total = s[i + 7]
        let lower = shuffle.bits(total, ~1, 0)                  of the lane of which the last bit isn't set
        let total_1 = select(i // 8 % 2 == 1, lower + total, total)
        ...
        let before = shuffle.up(total_5, 1)
        for slot in range(0, 8):
            s[i + slot] = select(i // 8 % 32 != 0, before + s[i + slot], s[i + slot])

Totals of workers beyond a warp (or a vector, on processors) go through shared memory: those of the
warps' blocks, of which each worker folds the ones that it needs. If the mapping isn't composed, or the
target's lanes can't exchange registers, all totals do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from math import prod

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, floor_divide, index, modulo, multiply, subtract
from taskc.ir.mapping import Mapping, auto_map
from taskc.ir.mapping_forms import Mode
from taskc.ir.nodes import LOCAL, SHARED, TILE, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import copy, located
from taskc.ir.scan_order import Level, scan_levels
from taskc.ir.target import Target
from taskc.passes.select_reductions import (
    alike,
    combined,
    fold_into,
    identity,
    is_odd,
    lane_bits,
    move,
    named,
    read,
    select_each,
    shape_of,
    slot_offset,
    stored,
    variables_of,
    with_axis,
    without_slots,
)

_TOTALS = repeat("total")  # names of a block's values


def scan(scan: ir.Scan, target: Target, workers: int) -> Statement:
    owners = scan.sources[0].owners
    assert owners is not None
    if not owners.is_composed or owners.limit is not None:
        return located(_walk(scan, owners, workers), scan.loc)
    variables = variables_of(owners.shape)
    values = read(scan.sources, variables)
    copied = stored((), scan.targets, variables, values)
    levels = scan_levels(owners, scan.axis)
    statements: list[Statement] = [ir.Each(variables, owners, None, copied)]
    for number, level in enumerate(levels):
        step = _Step(scan, owners, level, levels[:number], target)
        statements += step.workers() if level.is_workers else step.slots()
    if scan.exclusive:
        statements += _shifted(scan, owners)
    return located(ir.Sequence(tuple(statements)), scan.loc)


class _Step:
    """One level: the blocks below it have their prefixes, in the targets."""

    def __init__(
        self,
        scan: ir.Scan,
        owners: Mapping,
        level: Level,
        below: Sequence[Level],
        target: Target,
    ) -> None:
        self.operator, self.axis = scan.operator, scan.axis
        self.tiles = scan.targets
        self.owners, self.level = owners, level
        self.target = target
        self.inner = [mode for it in reversed(below) if not it.is_workers for mode in it.modes]
        self.others = [mode for it in reversed(below) if it.is_workers for mode in it.modes]
        own_modes = [] if level.is_workers else [*level.modes]
        self.mapping, coordinate = without_slots(owners, scan.axis, [*own_modes, *self.inner])
        self.variables = variables_of(owners.shape)
        self.first = coordinate(self.variables[self.axis])

    # --- slots ---

    def slots(self) -> list[Statement]:
        """Fold the last prefix of each block into the next block."""
        if not self.others:
            return [self.each(self.chain())]
        lanes = self.lanes(self.others)
        if lanes is not None:
            return [self.each(*self.carried(lanes, None))]
        stride, slot = self.level.stride, Variable("slot")
        parts = self.parts(stride)
        end = add(add(self.first, self.offset(slot)), self.ends)
        values = read(self.tiles, with_axis(self.variables, self.axis, end))
        hand_on = stored((), parts, self.at_block(floor_divide(end, stride)), values)
        is_last = ir.Binary("==", modulo(add(end, 1), stride), ZERO)
        write = ir.If(is_last, hand_on)
        return [
            *[ir.Allocate(part) for part in parts],
            self.each(ir.For(slot, ZERO, index(self.level.size), 1, write)),
            self.each(*self.carried(None, parts)),
        ]

    def chain(self) -> Statement:
        """Fold each element into the next one, both the worker's own."""
        slot = Variable("slot")
        before = read(self.tiles, self.at(self.offset(add(slot, -1))))
        here = self.at(self.offset(slot))
        own = read(self.tiles, here)
        fold = fold_into(self.operator, self.tiles, here, before, own)
        return ir.For(slot, index(1), index(self.level.size), 1, fold)

    def carried(
        self, lanes: Sequence[int] | None, parts: Sequence[Tensor] | None
    ) -> list[Statement]:
        """Fold a carry with the blocks' totals, separately from the elements: a chain of one fold a block."""
        slot = Variable("slot")
        carries = [Tensor("carry", tile.dtype, (), LOCAL) for tile in self.tiles]

        def total(number: Expression) -> tuple[list[Statement], list[Expression]]:
            if lanes is not None:
                return self.last(self.offset(number), lanes)
            assert parts is not None
            block = floor_divide(add(self.first, self.offset(number)), self.level.stride)
            return [], read(parts, self.at_block(block))

        before, first = total(ZERO)
        start = stored(before, carries, (), first)
        lets, totals = total(slot)
        more, totals = named(_TOTALS, totals)
        carry = read(carries, ())
        body = [
            *lets,
            *more,
            self.taken_in(self.offset(slot), carry, None),
            fold_into(self.operator, carries, (), carry, totals),
        ]
        return [
            *[ir.Allocate(it) for it in carries],
            start,
            ir.For(slot, index(1), index(self.level.size), 1, ir.Sequence(tuple(body))),
        ]

    # --- workers ---

    def workers(self) -> list[Statement]:
        """Scan the blocks' totals as a tree, and fold the preceding prefix into the elements."""
        below = self.lanes(self.others) if self.others else []
        masks = self.masks() if below is not None else []
        statements, totals = self.last(ZERO, below or [])
        more, totals = self.tree(totals, masks)
        statements += more
        if 1 << len(masks) < self.level.size:
            return self.through_shared(statements, totals, masks)
        if self.level.stride == 1:
            return [self.each(*statements, stored((), self.tiles, self.at(ZERO), totals))]
        more, before = self.up(totals, masks)
        there = self.position(self.level.size)
        return [self.each(*statements, *more, self.taken_in(ZERO, before, there))]

    def through_shared(
        self, statements: list[Statement], totals: list[Expression], masks: Sequence[int]
    ) -> list[Statement]:
        """The upper levels of the tree: its nodes are blocks of as many workers as there are lanes.

        Where a block takes in another's total, that one takes in none: so one phase is a level.
        """
        low, is_run = 1 << len(masks), self.level.stride > 1
        size = self.level.stride * low
        block = floor_divide(self.first, size)
        held, parts = self.held(), self.parts(size)
        end = add(self.first, self.ends)
        is_last = ir.Binary("==", modulo(add(end, 1), size), ZERO)

        def hand_on(values: Sequence[Expression]) -> Statement:
            hands = stored((), parts, self.at_block(block), values)
            return ir.If(is_last, hands)

        first = stored((), held, self.variables, totals)
        phases = [
            *[ir.Allocate(tile) for tile in (*parts, *(held if is_run else ()))],
            self.each(*statements, first, hand_on(totals)),
        ]
        count = self.level.size // low
        number = modulo(block, count)  # on this level
        start = subtract(block, number)
        levels = range((count - 1).bit_length())
        for level in levels:
            pair = floor_divide(number, 1 << level)
            before = self.at_block(add(start, add(multiply(pair, 1 << level), -1)))
            lower, own_total = read(parts, before), read(held, self.variables)
            lets, values = combined(self.operator, lower, own_total)
            more, values = named(_TOTALS, values)
            body = [*lets, *more, stored((), held, self.variables, values)]
            if is_run or level != levels[-1]:
                body.append(hand_on(values))
            taken = ir.If(is_odd(pair), ir.Sequence(tuple(body)))
            phases.append(self.each(taken))
        if is_run:
            phases.append(self.each(*self.from_shared(held, parts, block, masks)))
        return phases

    def from_shared(
        self,
        held: Sequence[Tensor],
        parts: Sequence[Tensor],
        block: Expression,
        masks: Sequence[int],
    ) -> list[Statement]:
        """Fold the previous worker's prefix into the elements, or for a block's first worker the previous block's."""
        values = read(parts, self.at_block(add(block, -1)))
        there = self.position(self.level.size)
        if not masks:
            return [ir.If(there, self.taken_in(ZERO, values, None))]
        cells = [Tensor("before", tile.dtype, (), LOCAL) for tile in self.tiles]
        statements, before = self.up(read(held, self.variables), masks)
        is_first = ir.Unary("not", self.position(1 << len(masks)))
        across = ir.Binary("and", there, is_first)
        return [
            *statements,
            *[ir.Allocate(cell) for cell in cells],
            stored((), cells, (), before),
            ir.If(across, stored((), cells, (), values)),
            self.taken_in(ZERO, read(cells, ()), there),
        ]

    def tree(
        self, values: list[Expression], masks: Sequence[int]
    ) -> tuple[list[Statement], list[Expression]]:
        """The prefixes of totals among the lanes."""
        statements: list[Statement] = []
        for level, mask in enumerate(masks):
            bits = ~(2 * mask - masks[0]), mask - masks[0]
            exchange, lower = self.exchanged("shuffle.bits", "lower", values, *bits)
            takes = is_odd(floor_divide(self.first, self.level.stride << level))
            before, folded = self.folded_where(takes, lower, values)
            lets, values = named(_TOTALS, folded)
            statements += [*exchange, *before, *lets]
        return statements, values

    def folded_where(
        self, takes: Expression, before: Sequence[Expression], own: Sequence[Expression]
    ) -> tuple[list[Statement], list[Expression]]:
        """Fold `before` into own values where `takes` holds; an operator folds its identity elsewhere."""
        if isinstance(self.operator, str):
            none = identity(self.operator, own[0].dtype)
            before = [ir.Select(takes, before[0], none)]
            return combined(self.operator, before, own)
        statements, folded = combined(self.operator, before, own)
        return statements, select_each(takes, folded, own)

    def position(self, period: int) -> Expression:
        """Whether a worker has others before it, in groups of `period` consecutive workers."""
        number = floor_divide(self.first, self.level.stride)
        return ir.Binary("!=", modulo(number, period), ZERO)

    # --- parts ---

    def each(self, *body: Statement) -> Statement:
        """A phase over the level's blocks, with new names."""
        inside = ir.Sequence(body)
        return copy(ir.Each(self.variables, self.mapping, None, inside))

    def offset(self, number: Expression) -> Expression:
        """The offset of a slot's number on this level."""
        return slot_offset(number, self.level.modes)

    def at(self, offset: Expression) -> tuple[Expression, ...]:
        return with_axis(self.variables, self.axis, add(self.first, offset))

    def at_block(self, block: Expression) -> tuple[Expression, ...]:
        return with_axis(self.variables, self.axis, block)

    @property
    def ends(self) -> int:
        """The offset of a block's last slot from its first coordinate."""
        return sum((mode.size - 1) * mode.stride for mode in self.inner)

    def last(
        self, offset: Expression, lanes: Sequence[int]
    ) -> tuple[list[Statement], list[Expression]]:
        """The last prefix of a block; of several workers the last one has it."""
        ends = read(self.tiles, self.at(add(offset, self.ends)))
        lets, totals = named(_TOTALS, ends)
        if not lanes:
            return lets, totals
        bits = ~sum(lanes), sum(lanes)
        exchange, totals = self.exchanged("shuffle.bits", "total", totals, *bits)
        return [*lets, *exchange], totals

    def up(
        self, values: Sequence[Expression], masks: Sequence[int]
    ) -> tuple[list[Statement], list[Expression]]:
        """The previous worker's values, among neighbouring lanes."""
        return self.exchanged("shuffle.up", "before", values, masks[0])

    def exchanged(
        self, shuffle: str, name: str, values: Sequence[Expression], *bits: int
    ) -> tuple[list[Statement], list[Expression]]:
        """The shuffles of several values, and the variables of their results."""
        results = [Variable(name, value.dtype) for value in values]
        pairs = zip(values, results, strict=True)
        operands = tuple(map(index, bits))
        return [ir.Do(shuffle, (value, *operands), it) for value, it in pairs], [*results]

    def taken_in(
        self, offset: Expression, before: Sequence[Expression], there: Expression | None
    ) -> Statement:
        """Fold the preceding prefix into all elements of a block, if there is one."""
        slot = Variable("slot")
        count = prod(mode.size for mode in self.inner)
        more = slot_offset(slot, self.inner) if count > 1 else ZERO
        here = self.at(add(offset, more))
        own = read(self.tiles, here)
        lets, values = combined(self.operator, before, own)
        if there is not None:
            values = select_each(there, values, own)
        taken = stored(lets, self.tiles, here, values)
        if count == 1:
            return taken
        return ir.For(slot, ZERO, index(count), 1, taken)

    def held(self) -> Sequence[Tensor]:
        """Tiles for the prefixes of totals; for blocks of one element, their own place."""
        by = self.mapping
        if self.level.stride == 1:
            return self.tiles
        return alike(self.tiles, "totals", by.shape, TILE, by)

    def parts(self, block: int) -> list[Tensor]:
        """Shared memory for an element of each block of so many elements."""
        shape = [*shape_of(self.tiles[0])]
        shape[self.axis] //= block
        return alike(self.tiles, "parts", tuple(shape), SHARED)

    # --- lanes ---

    def lanes(self, modes: Sequence[Mode]) -> list[int] | None:
        """The bits of the lane's number that equal these digits; None if they are not all lane bits."""
        masks = lane_bits(self.owners, modes, self.target)
        return masks if 1 << len(masks) == prod(mode.size for mode in modes) else None

    def masks(self) -> list[int]:
        """The lowest bits of the position that are neighbouring bits of the lane's number."""
        masks = lane_bits(self.owners, self.level.modes, self.target)
        neighbours = [masks[0] << k for k in range(len(masks))] if masks else []
        return [
            mask for mask, neighbour in zip(masks, neighbours, strict=True) if mask == neighbour
        ]


def _shifted(scan: ir.Scan, owners: Mapping) -> list[Statement]:
    """Shift each element by one place, through shared memory."""
    (tile,), axis = scan.targets, scan.axis
    (line,) = alike(scan.targets, "line", shape_of(tile), SHARED)
    variables = variables_of(owners.shape)
    before = ir.Read(line, with_axis(variables, axis, add(variables[axis], -1)))
    is_first = ir.Binary("==", variables[axis], ZERO)
    value = ir.Select(is_first, identity(str(scan.operator), tile.dtype), before)
    return [
        ir.Allocate(line),
        move(line, tile, owners),
        ir.Each(variables, owners, None, ir.Store(tile, variables, value)),
    ]


def _walk(scan: ir.Scan, owners: Mapping, workers: int) -> Statement:
    """One worker walks each line of a copy in shared memory."""
    axis, shape = scan.axis, shape_of(scan.sources[0])
    lines = alike(scan.targets, "line", shape, SHARED)
    rest_shape = (*shape[:axis], *shape[axis + 1 :]) or (1,)
    other_variables, position = variables_of(rest_shape), Variable("p")
    others = other_variables if len(shape) > 1 else ()

    def place(coordinate: Expression) -> tuple[Expression, ...]:
        return (*others[:axis], coordinate, *others[axis:])

    here = place(position)
    before, own_values = read(lines, place(add(position, -1))), read(lines, here)
    fold = fold_into(scan.operator, lines, here, before, own_values)
    walk = ir.For(position, index(1), index(shape[axis]), 1, fold)
    by = auto_map(rest_shape, workers=workers)
    shifted = _shifted(scan, owners) if scan.exclusive else []
    pairs = [*zip(lines, scan.sources, strict=True)]
    return ir.Sequence(
        (
            *[ir.Allocate(line) for line in lines],
            *[move(line, source, owners) for line, source in pairs],
            ir.Each(other_variables, by, None, walk),
            *[move(target, line, owners) for target, line in zip(scan.targets, lines, strict=True)],
            *shifted,
        ),
    )
