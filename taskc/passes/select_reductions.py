"""Reductions and scans over a tile's owners, as phases.

    reduce t = + over x axis=1                              x: f32[4, 64] by spatial(4, 16).repeat(1, 4)
->
    tile partial: f32[4, 16] by spatial(4, 16) = -0.0
    each (i, j) in x.owners:
        partial[i, j // 4] = partial[i, j // 4] + x[i, j]
    shared parts: f32[4, 16]
    move parts[i, r] = partial[i, r] for (i, r) in (4, 16) by spatial(4, 16)
    each (i, r) in spatial(4, 16):
        partial[i, r] = ((parts[i, 0] + parts[i, 8]) + ...) + ...
    each (i, r) in spatial(4, 16):
        t[i] = partial[i, r]

The second axis of `partial` is a worker's position among those that share an element of the target. The
fills are exact identities: -0.0 + x is x for every x. Where there is a power of two of positions, the last
levels of the tree pair lanes of one warp, and the target can exchange registers, those are shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, floor_divide, index, modulo, multiply, total
from taskc.ir.mapping import Mapping, Mode, auto_map
from taskc.ir.nodes import LOCAL, SHARED, TILE, Constant, Expression, Statement, Tensor, Variable
from taskc.ir.target import Target
from taskc.ir.types import DType

T = TypeVar("T")


def identity(operator: str, dtype: DType) -> Constant:
    """The value e with e operator x == x for every x, bit for bit."""
    is_float, is_bool = dtype.is_float, dtype.kind == "bool"
    match operator:
        case "+":
            return Constant(-0.0 if is_float else 0, dtype)
        case "*":
            return Constant(1.0 if is_float else 1, dtype)
        case "min":
            return Constant(float("inf") if is_float else dtype.maximum, dtype)
        case "max":
            return Constant(float("-inf") if is_float else dtype.minimum, dtype)
        case "&":
            return Constant(True if is_bool else -1 if dtype.is_signed else dtype.maximum, dtype)
        case "|" | "^":
            return Constant(False if is_bool else 0, dtype)
    raise AssertionError(f"no reduction {operator!r}")


def reduction(reduce: ir.Reduce, target: Target) -> Statement:
    source, axis, loc = reduce.source, reduce.axis, reduce.loc
    owners = _composed(source, "tc.reduce", loc)
    assert owners.worker_modes is not None
    # Ascending position is ascending coordinate: the digit with the largest stride counts most.
    along = sorted((m for m in owners.worker_modes if m.dimension == axis), key=lambda m: -m.stride)
    count = prod(mode.size for mode in along)
    rest_shape = _without(_shape(source), axis) or (1,)
    part_owners = _position_owners(owners, axis, along, rest_shape)
    partial = Tensor(
        f"{reduce.target.name}_partial", source.dtype, part_owners.shape, TILE,
        owners=part_owners, loc=loc,
    )  # fmt: skip

    variables = _variables(source.shape)
    rest: tuple[Expression, ...] = _without(variables, axis) or (ZERO,)
    place = (*rest, _position(variables[axis], along))
    folded = ir.Binary(
        reduce.operator, ir.Read(partial, place), ir.Read(source, variables), loc=loc
    )
    statements: list[Statement] = [
        ir.Allocate(partial, identity(reduce.operator, source.dtype), loc=loc),
        ir.Each(variables, owners, None, ir.Store(partial, place, folded, loc=loc), loc=loc),
    ]
    lanes = _lane_masks(owners, along, target)
    if 1 << len(lanes) < count:
        statements += _through_shared(reduce, partial, count, 1 << len(lanes), target)
    statements += [_shuffle(reduce, partial, mask) for mask in reversed(lanes)]
    variables = _variables(partial.shape)
    deliver = ir.Store(reduce.target, variables[:-1], ir.Read(partial, variables), loc=loc)
    statements.append(ir.Each(variables, part_owners, None, deliver, loc=loc))
    return ir.Sequence(tuple(statements), loc=loc)


def scan(scan: ir.Scan, workers: int) -> Statement:
    """One worker walks each line of a copy in shared memory."""
    source, axis, loc = scan.source, scan.axis, scan.loc
    owners = source.owners
    assert owners is not None
    line = Tensor(f"{scan.target.name}_line", source.dtype, source.shape, SHARED, loc=loc)
    running = Tensor("running", source.dtype, (), LOCAL, loc=loc)
    rest_shape = _without(_shape(source), axis) or (1,)
    rest, position = _variables(rest_shape), Variable("p", loc=loc)
    place = list(rest) if len(source.shape) > 1 else []
    place.insert(axis, position)
    here = tuple(place)
    take = ir.Store(
        running, (),
        ir.Binary(scan.operator, ir.Read(running, ()), ir.Read(line, here), loc=loc), loc=loc,
    )  # fmt: skip
    steps: tuple[Statement, ...]
    if scan.exclusive:
        old = Variable("before", source.dtype, loc=loc)
        steps = (ir.Let(old, ir.Read(running, ())), take, ir.Store(line, here, old, loc=loc))
    else:
        steps = (take, ir.Store(line, here, ir.Read(running, ()), loc=loc))
    walk = ir.Sequence(
        (
            ir.Allocate(running, identity(scan.operator, source.dtype), loc=loc),
            ir.For(position, ZERO, index(_shape(source)[axis]), 1, ir.Sequence(steps), loc=loc),
        )
    )
    lines = auto_map(rest_shape, workers=workers)
    return ir.Sequence(
        (
            ir.Allocate(line, loc=loc),
            _move(line, source, owners, loc),
            ir.Each(rest, lines, None, walk, loc=loc),
            _move(scan.target, line, owners, loc),
        ),
        loc=loc,
    )


def _composed(source: Tensor, what: str, loc: Location) -> Mapping:
    owners = source.owners
    assert owners is not None
    if not owners.is_composed or owners.limit is not None:
        raise CompileError(
            f"{what} needs a tile whose mapping is composed and unmasked",
            loc,
            hint=f"`{source.name}` is laid out by {owners}",
        )
    return owners


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in tensor.shape)  # type: ignore[arg-type]


def _without(items: Sequence[T], axis: int) -> tuple[T, ...]:
    return (*items[:axis], *items[axis + 1 :])


def _variables(shape: Sequence[object]) -> tuple[Variable, ...]:
    return tuple(Variable("ijklmnop"[d]) for d in range(len(shape)))


def _move(target: Tensor, source: Tensor, by: Mapping, loc: Location) -> ir.Move:
    variables = _variables(source.shape)
    return ir.Move(
        target, variables, variables, _shape(source), ir.Read(source, variables), by=by, loc=loc
    )


def _position_owners(
    owners: Mapping, axis: int, along: Sequence[Mode], rest_shape: tuple[int, ...]
) -> Mapping:
    """Each of the same workers holds its part of the rest, and of the last dimension its position."""
    last = len(rest_shape)
    strides = {mode: prod(m.size for m in along[k + 1 :]) for k, mode in enumerate(along)}

    def renumbered(mode: Mode) -> Mode:
        if mode.dimension == axis:
            return Mode(last, mode.size, strides[mode])
        if mode.dimension is not None and mode.dimension > axis:
            return mode._replace(dimension=mode.dimension - 1)
        return mode

    assert owners.worker_modes is not None
    assert owners.slot_modes is not None
    return Mapping.from_modes(
        (*rest_shape, prod(mode.size for mode in along)),
        [renumbered(mode) for mode in owners.worker_modes],
        [renumbered(mode) for mode in owners.slot_modes if mode.dimension != axis],
    )


def _position(coordinate: Expression, along: Sequence[Mode]) -> Expression:
    """A worker's position along the axis, from any coordinate that it owns."""
    return total(
        multiply(
            modulo(floor_divide(coordinate, mode.stride), mode.size),
            prod(m.size for m in along[k + 1 :]),
        )
        for k, mode in enumerate(along)
    )


def _lane_masks(owners: Mapping, along: Sequence[Mode], target: Target) -> list[int]:
    """The bits of the lane number that the lowest bits of the position are, as far as they are."""
    assert owners.worker_modes is not None
    weights: dict[Mode, int] = {}
    weight = 1
    for mode in reversed(owners.worker_modes):
        weights[mode] = weight
        weight *= mode.size
    masks: list[int] = []
    # Of a tree over another number of positions the last levels don't pair neighbouring bits.
    is_power = all(mode.size & (mode.size - 1) == 0 for mode in along)
    if not target.shuffles or weight % target.warp or not is_power:
        return masks
    for mode in reversed(along):
        if weights[mode] & (weights[mode] - 1):
            break
        bits = [weights[mode] << bit for bit in range(mode.size.bit_length() - 1)]
        masks += [mask for mask in bits if mask < target.warp]
        if bits[-1] >= target.warp:
            break
    return masks


def _tree(operator: str, values: list[Expression], loc: Location) -> Expression:
    while len(values) > 1:
        half = (len(values) + 1) // 2
        values = [
            ir.Binary(operator, value, values[k + half], loc=loc)
            if k + half < len(values)
            else value
            for k, value in enumerate(values[:half])
        ]
    return values[0]


def _through_shared(
    reduce: ir.Reduce, partial: Tensor, count: int, low: int, target: Target
) -> list[Statement]:
    """The upper levels of the tree: every worker folds those positions that agree with its own mod `low`."""
    loc, owners = reduce.loc, partial.owners
    assert owners is not None
    variables = _variables(partial.shape)
    *rest, position = variables
    is_first = not target.is_processor and _has_neighbours(owners)

    def place(position: Expression, rest: Sequence[Expression]) -> tuple[Expression, ...]:
        return (position, *rest) if is_first else (*rest, position)

    *extents, positions = _shape(partial)
    shape = (positions, *extents) if is_first else (*extents, positions)
    parts = Tensor(f"{reduce.target.name}_parts", partial.dtype, shape, SHARED, loc=loc)
    own = modulo(position, low) if low > 1 else ZERO
    values: list[Expression] = [
        ir.Read(parts, place(add(own, high * low), rest), loc=loc) for high in range(count // low)
    ]
    fold = ir.Store(partial, variables, _tree(reduce.operator, values, loc), loc=loc)
    writers = _variables(partial.shape)
    write = ir.Store(parts, place(writers[-1], writers[:-1]), ir.Read(partial, writers), loc=loc)
    return [
        ir.Allocate(parts, loc=loc),
        ir.Each(writers, owners, None, write, loc=loc)
        if is_first
        else _move(parts, partial, owners, loc),
        ir.Each(variables, owners, None, fold, loc=loc),
    ]


def _has_neighbours(owners: Mapping) -> bool:
    """Whether workers have elements side by side, which are one access where they lie side by side."""
    assert owners.worker_modes is not None
    assert owners.slot_modes is not None
    last = len(owners.shape) - 2
    is_spread = any(mode.dimension == last for mode in owners.worker_modes)
    return is_spread and any(m.dimension == last and m.stride == 1 for m in owners.slot_modes)


def _shuffle(reduce: ir.Reduce, partial: Tensor, mask: int) -> Statement:
    """One level: both partners end with the same value, since every operator commutes."""
    loc, owners = reduce.loc, partial.owners
    assert owners is not None
    variables = _variables(partial.shape)
    other = Variable("other", partial.dtype, loc=loc)
    own = ir.Read(partial, variables, loc=loc)
    exchange = ir.Do("shuffle.xor", (own, index(mask)), other, loc=loc)
    store = ir.Store(partial, variables, ir.Binary(reduce.operator, own, other, loc=loc), loc=loc)
    return ir.Each(variables, owners, None, ir.Sequence((exchange, store)), loc=loc)
