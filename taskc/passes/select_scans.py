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
from math import prod

from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, floor_divide, index, modulo, multiply, subtract
from taskc.ir.mapping import Mapping, auto_map
from taskc.ir.mapping_forms import Mode
from taskc.ir.nodes import LOCAL, SHARED, TILE, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import copy
from taskc.ir.scan_order import Level, scan_levels
from taskc.ir.target import Target
from taskc.passes.select_reductions import (
    combined,
    fold_into,
    identity,
    is_odd,
    let,
    move,
    read,
    shape_of,
    slot_offset,
    stored,
    variables_of,
    with_axis,
    without_slots,
)


def scan(scan: ir.Scan, target: Target, workers: int) -> Statement:
    owners = scan.sources[0].owners
    assert owners is not None
    if not owners.is_composed or owners.limit is not None:
        return _walk(scan, owners, workers)
    loc, variables = scan.loc, variables_of(owners.shape)
    values = read(scan.sources, variables, loc)
    copied = stored((), scan.targets, variables, values, loc)
    levels = scan_levels(owners, scan.axis)
    statements: list[Statement] = [ir.Each(variables, owners, None, copied, loc=loc)]
    for number, level in enumerate(levels):
        step = _Step(scan, owners, level, levels[:number], target)
        statements += step.workers() if level.is_workers else step.slots()
    if scan.exclusive:
        statements += _shifted(scan, owners)
    return ir.Sequence(tuple(statements), loc=loc)


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
        self.operator = scan.operator
        self.axis, self.loc = scan.axis, scan.loc
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
        loc, stride, slot = self.loc, self.level.stride, Variable("slot", loc=self.loc)
        parts = self.parts(stride)
        end = add(add(self.first, self.offset(slot)), self.ends)
        values = read(self.tiles, with_axis(self.variables, self.axis, end), loc)
        hand_on = stored((), parts, self.at_block(floor_divide(end, stride)), values, loc)
        is_last = ir.Binary("==", modulo(add(end, 1), stride), ZERO)
        write = ir.If(is_last, hand_on, loc=loc)
        return [
            *[ir.Allocate(part, loc=loc) for part in parts],
            self.each(ir.For(slot, ZERO, index(self.level.size), 1, write, loc=loc)),
            self.each(*self.carried(None, parts)),
        ]

    def chain(self) -> Statement:
        """Fold each element into the next one, both the worker's own."""
        slot = Variable("slot", loc=self.loc)
        before = read(self.tiles, self.at(self.offset(add(slot, -1))), self.loc)
        here = self.at(self.offset(slot))
        own = read(self.tiles, here, self.loc)
        fold = fold_into(self.operator, self.tiles, here, before, own, self.loc)
        return ir.For(slot, index(1), index(self.level.size), 1, fold, loc=self.loc)

    def carried(
        self, lanes: Sequence[int] | None, parts: Sequence[Tensor] | None
    ) -> list[Statement]:
        """Fold a carry with the blocks' totals, separately from the elements: a chain of one fold a block."""
        loc, slot = self.loc, Variable("slot", loc=self.loc)
        carries = [Tensor("carry", tile.dtype, (), LOCAL, loc=loc) for tile in self.tiles]

        def total(number: Expression) -> tuple[list[Statement], list[Expression]]:
            if lanes is not None:
                return self.last(self.offset(number), lanes)
            assert parts is not None
            block = floor_divide(add(self.first, self.offset(number)), self.level.stride)
            return [], read(parts, self.at_block(block), loc)

        before, first = total(ZERO)
        start = stored(before, carries, (), first, loc)
        lets, totals = total(slot)
        named = [let("total", value, loc) for value in totals]
        carry = read(carries, (), loc)
        body = [
            *lets,
            *[statement for statement, _ in named],
            self.taken_in(self.offset(slot), carry, None),
            fold_into(self.operator, carries, (), carry, [it for _, it in named], loc),
        ]
        return [
            *[ir.Allocate(it, loc=loc) for it in carries],
            start,
            ir.For(slot, index(1), index(self.level.size), 1, ir.Sequence(tuple(body)), loc=loc),
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
            return [self.each(*statements, stored((), self.tiles, self.at(ZERO), totals, self.loc))]
        more, before = self.up(totals, masks)
        there = self.position(self.level.size)
        return [self.each(*statements, *more, self.taken_in(ZERO, before, there))]

    def through_shared(
        self, statements: list[Statement], totals: list[Expression], masks: Sequence[int]
    ) -> list[Statement]:
        """The upper levels of the tree: its nodes are blocks of as many workers as there are lanes.

        Where a block takes in another's total, that one takes in none: so one phase is a level.
        """
        loc, low, is_run = self.loc, 1 << len(masks), self.level.stride > 1
        size = self.level.stride * low
        block = floor_divide(self.first, size)
        held, parts = self.held(), self.parts(size)
        end = add(self.first, self.ends)
        is_last = ir.Binary("==", modulo(add(end, 1), size), ZERO)

        def hand_on(values: Sequence[Expression]) -> Statement:
            hands = stored((), parts, self.at_block(block), values, loc)
            return ir.If(is_last, hands, loc=loc)

        first = stored((), held, self.variables, totals, loc)
        phases = [
            *[ir.Allocate(tile, loc=loc) for tile in (*parts, *(held if is_run else ()))],
            self.each(*statements, first, hand_on(totals)),
        ]
        count = self.level.size // low
        number = modulo(block, count)  # on this level
        start = subtract(block, number)
        levels = range((count - 1).bit_length())
        for level in levels:
            pair = floor_divide(number, 1 << level)
            before = self.at_block(add(start, add(multiply(pair, 1 << level), -1)))
            lower, own_total = read(parts, before, loc), read(held, self.variables, loc)
            lets, values = combined(self.operator, lower, own_total, loc)
            named = [let("total", value, loc) for value in values]
            values = [it for _, it in named]
            body = [*lets, *[it for it, _ in named], stored((), held, self.variables, values, loc)]
            if is_run or level != levels[-1]:
                body.append(hand_on(values))
            taken = ir.If(is_odd(pair), ir.Sequence(tuple(body)), loc=loc)
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
        loc = self.loc
        values = read(parts, self.at_block(add(block, -1)), loc)
        there = self.position(self.level.size)
        if not masks:
            return [ir.If(there, self.taken_in(ZERO, values, None), loc=loc)]
        cells = [Tensor("before", tile.dtype, (), LOCAL, loc=loc) for tile in self.tiles]
        statements, before = self.up(read(held, self.variables, loc), masks)
        is_first = ir.Unary("not", self.position(1 << len(masks)), loc=loc)
        across = ir.Binary("and", there, is_first, loc=loc)
        return [
            *statements,
            *[ir.Allocate(cell, loc=loc) for cell in cells],
            stored((), cells, (), before, loc),
            ir.If(across, stored((), cells, (), values, loc), loc=loc),
            self.taken_in(ZERO, read(cells, (), loc), there),
        ]

    def tree(
        self, values: list[Expression], masks: Sequence[int]
    ) -> tuple[list[Statement], list[Expression]]:
        """The prefixes of totals among the lanes."""
        loc = self.loc
        statements: list[Statement] = []
        for level, mask in enumerate(masks):
            lower = [Variable("lower", value.dtype, loc=loc) for value in values]
            bits = index(~(2 * mask - masks[0])), index(mask - masks[0])
            statements += [
                ir.Do("shuffle.bits", (value, *bits), it, loc=loc)
                for value, it in zip(values, lower, strict=True)
            ]
            takes = is_odd(floor_divide(self.first, self.level.stride << level))
            folded = self.folded_where(takes, lower, values)
            statements += folded[0]
            chosen = [let("total", value, loc) for value in folded[1]]
            statements += [statement for statement, _ in chosen]
            values = [variable for _, variable in chosen]
        return statements, values

    def folded_where(
        self, takes: Expression, before: Sequence[Expression], own: Sequence[Expression]
    ) -> tuple[list[Statement], list[Expression]]:
        """Fold `before` into own values where `takes` holds; an operator folds its identity elsewhere."""
        loc = self.loc
        if isinstance(self.operator, str):
            none = identity(self.operator, own[0].dtype)
            before = [ir.Select(takes, before[0], none, loc=loc)]
            return combined(self.operator, before, own, loc)
        statements, folded = combined(self.operator, before, own, loc)
        pairs = zip(folded, own, strict=True)
        return statements, [ir.Select(takes, new, old, loc=loc) for new, old in pairs]

    def position(self, period: int) -> Expression:
        """Whether a worker has others before it, in groups of `period` consecutive workers."""
        number = floor_divide(self.first, self.level.stride)
        return ir.Binary("!=", modulo(number, period), ZERO)

    # --- parts ---

    def each(self, *body: Statement) -> Statement:
        """A phase over the level's blocks, with new names."""
        inside = ir.Sequence(body, loc=self.loc)
        return copy(ir.Each(self.variables, self.mapping, None, inside, loc=self.loc))

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
        loc = self.loc
        named = [
            let("total", value, loc)
            for value in read(self.tiles, self.at(add(offset, self.ends)), loc)
        ]
        statements = [statement for statement, _ in named]
        if not lanes:
            return statements, [it for _, it in named]
        totals: list[Expression] = []
        bits = index(~sum(lanes)), index(sum(lanes))
        for _, it in named:
            exchanged = Variable("total", it.dtype, loc=loc)
            statements.append(ir.Do("shuffle.bits", (it, *bits), exchanged, loc=loc))
            totals.append(exchanged)
        return statements, totals

    def up(
        self, values: Sequence[Expression], masks: Sequence[int]
    ) -> tuple[list[Statement], list[Expression]]:
        """The previous worker's values, among neighbouring lanes."""
        loc = self.loc
        named = [Variable("before", value.dtype, loc=loc) for value in values]
        exchange: list[Statement] = [
            ir.Do("shuffle.up", (value, index(masks[0])), it, loc=loc)
            for value, it in zip(values, named, strict=True)
        ]
        return exchange, [*named]

    def taken_in(
        self, offset: Expression, before: Sequence[Expression], there: Expression | None
    ) -> Statement:
        """Fold the preceding prefix into all elements of a block, if there is one."""
        loc, slot = self.loc, Variable("slot", loc=self.loc)
        count = prod(mode.size for mode in self.inner)
        more = slot_offset(slot, self.inner) if count > 1 else ZERO
        here = self.at(add(offset, more))
        own = read(self.tiles, here, loc)
        lets, values = combined(self.operator, before, own, loc)
        if there is not None:
            pairs = zip(values, own, strict=True)
            values = [ir.Select(there, new, old, loc=loc) for new, old in pairs]
        taken = stored(lets, self.tiles, here, values, loc)
        if count == 1:
            return taken
        return ir.For(slot, ZERO, index(count), 1, taken, loc=loc)

    def held(self) -> Sequence[Tensor]:
        """Tiles for the prefixes of totals; for blocks of one element, their own place."""
        by = self.mapping
        if self.level.stride == 1:
            return self.tiles
        return [
            Tensor(f"{t.name}_totals", t.dtype, by.shape, TILE, owners=by, loc=self.loc)
            for t in self.tiles
        ]

    def parts(self, block: int) -> list[Tensor]:
        """Shared memory for an element of each block of so many elements."""
        shape = [*shape_of(self.tiles[0])]
        shape[self.axis] //= block
        return [
            Tensor(f"{tile.name}_parts", tile.dtype, tuple(shape), SHARED, loc=self.loc)
            for tile in self.tiles
        ]

    # --- lanes ---

    def lanes(self, modes: Sequence[Mode]) -> list[int] | None:
        """The bits of the lane's number that equal these digits; None if they are not all lane bits."""
        masks = self.lane_bits(modes)
        return masks if 1 << len(masks) == prod(mode.size for mode in modes) else None

    def masks(self) -> list[int]:
        """The lowest bits of the position that are neighbouring bits of the lane's number."""
        masks = self.lane_bits(self.level.modes)
        neighbours = [masks[0] << k for k in range(len(masks))] if masks else []
        return [
            mask for mask, neighbour in zip(masks, neighbours, strict=True) if mask == neighbour
        ]

    def lane_bits(self, modes: Sequence[Mode]) -> list[int]:
        """The lowest bits of these digits, as far as they are bits of the lane's number."""
        assert self.owners.worker_modes is not None
        weights: dict[Mode, int] = {}
        weight = 1
        for mode in reversed(self.owners.worker_modes):
            weights[mode] = weight
            weight *= mode.size
        masks: list[int] = []
        if not self.target.shuffles or weight % self.target.warp:
            return masks
        for mode in reversed(modes):
            twos = mode.size & -mode.size
            if weights[mode] & (weights[mode] - 1):
                break
            bits = [weights[mode] << bit for bit in range(twos.bit_length() - 1)]
            masks += [mask for mask in bits if mask < self.target.warp]
            if twos != mode.size or (bits and bits[-1] >= self.target.warp):
                break
        return masks


def _shifted(scan: ir.Scan, owners: Mapping) -> list[Statement]:
    """Shift each element by one place, through shared memory."""
    (tile,), loc, axis = scan.targets, scan.loc, scan.axis
    line = Tensor(f"{tile.name}_line", tile.dtype, tile.shape, SHARED, loc=loc)
    variables = variables_of(owners.shape)
    before = ir.Read(line, with_axis(variables, axis, add(variables[axis], -1)), loc=loc)
    is_first = ir.Binary("==", variables[axis], ZERO)
    value = ir.Select(is_first, identity(str(scan.operator), tile.dtype), before, loc=loc)
    return [
        ir.Allocate(line, loc=loc),
        move(line, tile, owners, loc),
        ir.Each(variables, owners, None, ir.Store(tile, variables, value, loc=loc), loc=loc),
    ]


def _walk(scan: ir.Scan, owners: Mapping, workers: int) -> Statement:
    """One worker walks each line of a copy in shared memory."""
    axis, loc = scan.axis, scan.loc
    lines = [
        Tensor(f"{tile.name}_line", tile.dtype, tile.shape, SHARED, loc=loc)
        for tile in scan.targets
    ]
    shape = shape_of(scan.sources[0])
    rest_shape = (*shape[:axis], *shape[axis + 1 :]) or (1,)
    other_variables, position = variables_of(rest_shape), Variable("p", loc=loc)
    others = other_variables if len(shape) > 1 else ()

    def place(coordinate: Expression) -> tuple[Expression, ...]:
        return (*others[:axis], coordinate, *others[axis:])

    here = place(position)
    before, own_values = read(lines, place(add(position, -1)), loc), read(lines, here, loc)
    fold = fold_into(scan.operator, lines, here, before, own_values, loc)
    walk = ir.For(position, index(1), index(shape[axis]), 1, fold, loc=loc)
    by = auto_map(rest_shape, workers=workers)
    shifted = _shifted(scan, owners) if scan.exclusive else []
    pairs = [*zip(lines, scan.sources, strict=True)]
    return ir.Sequence(
        (
            *[ir.Allocate(line, loc=loc) for line in lines],
            *[move(line, source, owners, loc) for line, source in pairs],
            ir.Each(other_variables, by, None, walk, loc=loc),
            *[
                move(target, line, owners, loc)
                for target, line in zip(scan.targets, lines, strict=True)
            ],
            *shifted,
        ),
        loc=loc,
    )
