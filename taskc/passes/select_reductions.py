"""Reductions over a tile's owners, as phases.

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
fills are exact identities: -0.0 + x is x for every x. A function has none: there the first slot begins.
Where there is a power of two of positions, the last levels of the tree pair lanes of one warp, and the
target can exchange registers, those are shuffles.

`combined` and its neighbours apply an operator, or a combine function, to two tuples of elements; scans use them, too.

    combine larger(a, i, b, j) = let first = a >= b, select(first, a, b), select(first, i, j)
    larger of (x[k], k) and (best[0], place[0])
->
    let a = x[k]
    let b = best[0]
    let first = a >= b
    best[0] = select(first, a, b)
    place[0] = select(first, k, place[0])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, floor_divide, index, modulo, multiply, total
from taskc.ir.mapping import Mapping
from taskc.ir.mapping_forms import Mode
from taskc.ir.nodes import SHARED, TILE, Combine, Constant, Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import located, substitute
from taskc.ir.target import Target
from taskc.ir.types import DType


def combined(
    operator: str | Combine, left: Sequence[Expression], right: Sequence[Expression]
) -> tuple[list[Statement], list[Expression]]:
    """The statements before the values, and the values."""
    if isinstance(operator, str):
        pairs = zip(left, right, strict=True)
        return [], [ir.Binary(operator, a, b) for a, b in pairs]
    statements: list[Statement] = []
    bindings: dict[Variable, Expression] = {}

    def name(variable: Variable, value: Expression) -> None:
        if isinstance(value, ir.Variable | ir.Constant):
            bindings[variable] = value
            return
        bindings[variable] = fresh = replace(variable)
        statements.append(ir.Let(fresh, value))

    for variable, value in zip((*operator.left, *operator.right), (*left, *right), strict=True):
        name(variable, value)
    for let in operator.lets:
        name(let.variable, substitute(let.value, bindings))
    return statements, [substitute(value, bindings) for value in operator.values]


def named(
    names: Iterable[str], values: Sequence[Expression]
) -> tuple[list[Statement], list[Expression]]:
    """Lets of several values, and their variables."""
    pairs = zip(names, values, strict=False)
    lets = [ir.Let(Variable(name, it.dtype), it) for name, it in pairs]
    return [*lets], [let.variable for let in lets]


def fold_into(
    operator: str | Combine,
    targets: Sequence[Tensor],
    place: tuple[Expression, ...],
    left: Sequence[Expression],
    right: Sequence[Expression],
) -> Statement:
    """Store at `place` the fold of left with right."""
    statements, values = combined(operator, left, right)
    return stored(statements, targets, place, values)


def stored(
    before: Sequence[Statement],
    targets: Sequence[Tensor],
    place: tuple[Expression, ...],
    values: Sequence[Expression],
) -> Statement:
    """Store several values. All are evaluated before the first store, as they may read the other targets."""
    statements = list(before)
    if len(values) > 1:
        lets, values = named([target.name for target in targets], values)
        statements += lets
    statements += [
        ir.Store(target, place, value) for target, value in zip(targets, values, strict=True)
    ]
    return statements[0] if len(statements) == 1 else ir.Sequence(tuple(statements))


def read(tensors: Sequence[Tensor], place: tuple[Expression, ...]) -> list[Expression]:
    return [ir.Read(tensor, place) for tensor in tensors]


def alike(
    tiles: Sequence[Tensor],
    what: str,
    shape: tuple[int, ...],
    scope: str,
    owners: Mapping | None = None,
) -> list[Tensor]:
    """Tensors for other elements of the tiles' types."""
    return [Tensor(f"{t.name}_{what}", t.dtype, shape, scope, owners=owners) for t in tiles]


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
    source, axis = reduce.sources[0], reduce.axis
    owners = _composed(source, "tc.reduce", reduce.loc)
    assert owners.worker_modes is not None
    # Ascending position is ascending coordinate: the digit with the largest stride is the most significant.
    along = sorted((m for m in owners.worker_modes if m.dimension == axis), key=lambda m: -m.stride)
    count = prod(mode.size for mode in along)
    rest_shape = _without(shape_of(source), axis) or (1,)
    part_owners = _position_owners(owners, axis, along, rest_shape)
    partials = alike(reduce.targets, "partial", part_owners.shape, TILE, part_owners)
    statements = _own_slots(reduce, owners, partials, along)
    # With another number of positions than a power of two, the last levels of the tree don't pair neighbouring bits.
    lanes = lane_bits(owners, along, target) if count & (count - 1) == 0 else []
    if 1 << len(lanes) < count:
        statements += _through_shared(reduce, partials, count, 1 << len(lanes), target)
    levels = reversed([*enumerate(lanes)])
    statements += [_shuffle(reduce, partials, mask, level) for level, mask in levels]
    variables = variables_of(part_owners.shape)
    values = read(partials, variables)
    deliver = stored((), reduce.targets, variables[:-1], values)
    statements.append(ir.Each(variables, part_owners, None, deliver))
    return located(ir.Sequence(tuple(statements)), reduce.loc)


def _own_slots(
    reduce: ir.Reduce, owners: Mapping, partials: Sequence[Tensor], along: Sequence[Mode]
) -> list[Statement]:
    """Each worker folds its own slots, in order."""
    operator, axis = reduce.operator, reduce.axis
    variables = variables_of(owners.shape)
    other_variables: tuple[Expression, ...] = _without(variables, axis) or (ZERO,)
    if isinstance(operator, str):
        place = (*other_variables, _position(variables[axis], along))
        (partial,), (source,) = partials, reduce.sources
        fill = identity(operator, source.dtype)
        values = read(partials, place), read(reduce.sources, variables)
        fold = fold_into(operator, partials, place, *values)
        return [
            ir.Allocate(partial, fill),
            ir.Each(variables, owners, None, fold),
        ]
    slots = [mode for mode in owners.slot_modes or () if mode.dimension == axis]
    by, coordinate = without_slots(owners, axis, slots)
    begin = coordinate(variables[axis])
    place = (*other_variables, _position(begin, along))
    first = read(reduce.sources, with_axis(variables, axis, begin))
    statements = [stored((), partials, place, first)]
    count = prod(mode.size for mode in slots)
    if count > 1:
        slot = Variable("slot")
        here = with_axis(variables, axis, add(begin, slot_offset(slot, slots)))
        left, right = read(partials, place), read(reduce.sources, here)
        fold = fold_into(operator, partials, place, left, right)
        statements.append(ir.For(slot, index(1), index(count), 1, fold))
    return [
        *[ir.Allocate(partial) for partial in partials],
        ir.Each(variables, by, None, ir.Sequence(tuple(statements))),
    ]


def without_slots(
    owners: Mapping, axis: int, dropped: Sequence[Mode]
) -> tuple[Mapping, Callable[[Expression], Expression]]:
    """A mapping without these slots of an axis, and a function from its coordinate to the axis's, with these slots at
    0.
    """
    assert owners.worker_modes is not None
    assert owners.slot_modes is not None
    slots = [mode for mode in owners.slot_modes if mode not in dropped]
    kept_modes = [mode for mode in (*owners.worker_modes, *slots) if mode.dimension == axis]
    places: dict[Mode, int] = {}
    extent = 1
    for mode in sorted(kept_modes, key=lambda mode: mode.stride):
        places[mode] = extent
        extent *= mode.size

    def renumbered(modes: Sequence[Mode]) -> list[Mode]:
        return [mode._replace(stride=places.get(mode, mode.stride)) for mode in modes]

    shape = (*owners.shape[:axis], extent, *owners.shape[axis + 1 :])

    def coordinate(number: Expression) -> Expression:
        terms: list[Expression] = []
        faster_mode: Mode | None = None  # the next faster digit
        spans: list[tuple[int, int, int]] = []  # of consecutive digits: place, size, stride
        for mode, place in places.items():
            if faster_mode is not None and faster_mode.stride * faster_mode.size == mode.stride:
                first, size, stride = spans.pop()
                spans.append((first, size * mode.size, stride))
            else:
                spans.append((place, mode.size, mode.stride))
            faster_mode = mode
        for first, size, stride in spans:
            digits = floor_divide(number, first)
            is_top = first * size == extent
            terms.append(multiply(digits if is_top else modulo(digits, size), stride))
        return total(terms)

    return Mapping.from_modes(shape, renumbered(owners.worker_modes), renumbered(slots)), coordinate


def slot_offset(number: Expression, slots: Sequence[Mode]) -> Expression:
    """The contribution to the coordinate of a number with these digits, slowest first."""
    terms: list[Expression] = []
    for k, mode in enumerate(slots):
        digit = floor_divide(number, prod(m.size for m in slots[k + 1 :]))
        terms.append(multiply(modulo(digit, mode.size) if k else digit, mode.stride))
    return total(terms)


def with_axis(
    place: Sequence[Expression], axis: int, coordinate: Expression
) -> tuple[Expression, ...]:
    return (*place[:axis], coordinate, *place[axis + 1 :])


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


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(n) for n in tensor.shape)  # type: ignore[arg-type]


def _without(items: Sequence[T], axis: int) -> tuple[T, ...]:
    return (*items[:axis], *items[axis + 1 :])


def variables_of(shape: Sequence[object]) -> tuple[Variable, ...]:
    return tuple(Variable("ijklmnop"[d]) for d in range(len(shape)))


def move(target: Tensor, source: Tensor, by: Mapping) -> ir.Move:
    variables, shape = variables_of(source.shape), shape_of(source)
    return ir.Move(target, variables, variables, shape, ir.Read(source, variables), by=by)


def _position_owners(
    owners: Mapping, axis: int, along: Sequence[Mode], rest_shape: tuple[int, ...]
) -> Mapping:
    """The owners of partial results: the same workers, with their position as the last dimension."""
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


def lane_bits(owners: Mapping, modes: Sequence[Mode], target: Target) -> list[int]:
    """The lowest bits of a number with these digits, as far as they are bits of the lane's number; each as a mask."""
    assert owners.worker_modes is not None
    weights: dict[Mode, int] = {}
    weight = 1
    for mode in reversed(owners.worker_modes):
        weights[mode] = weight
        weight *= mode.size
    masks: list[int] = []
    if not target.shuffles or weight % target.warp:
        return masks
    for mode in reversed(modes):
        twos = mode.size & -mode.size
        if weights[mode] & (weights[mode] - 1):
            break
        bits = [weights[mode] << bit for bit in range(twos.bit_length() - 1)]
        masks += [mask for mask in bits if mask < target.warp]
        if twos != mode.size or (bits and bits[-1] >= target.warp):
            break
    return masks


def _tree(
    operator: str | ir.Combine, values: list[list[Expression]]
) -> tuple[list[Statement], list[Expression]]:
    statements: list[Statement] = []
    while len(values) > 1:
        half = (len(values) + 1) // 2
        for k in range(len(values) - half):
            before, values[k] = combined(operator, values[k], values[k + half])
            statements += before
        del values[half:]
    return statements, values[0]


def _through_shared(
    reduce: ir.Reduce, partials: Sequence[Tensor], count: int, low: int, target: Target
) -> list[Statement]:
    """The upper levels of the tree: every worker folds the positions that agree with its own mod `low`."""
    partial = partials[0]
    owners = partial.owners
    assert owners is not None
    variables = variables_of(partial.shape)
    *rest, position = variables
    is_first = not target.is_processor and _has_neighbours(owners)

    def place(position: Expression, rest: Sequence[Expression]) -> tuple[Expression, ...]:
        return (position, *rest) if is_first else (*rest, position)

    *extents, positions = shape_of(partial)
    shape = (positions, *extents) if is_first else (*extents, positions)
    parts = alike(reduce.targets, "parts", shape, SHARED)
    own_residue = modulo(position, low) if low > 1 else ZERO
    values = [
        read(parts, place(add(own_residue, high * low), rest)) for high in range(count // low)
    ]
    before, folded = _tree(reduce.operator, values)
    fold = stored(before, partials, variables, folded)
    statements: list[Statement] = [ir.Allocate(part) for part in parts]
    for part, tile in zip(parts, partials, strict=True):
        writers = variables_of(partial.shape)
        write = ir.Store(part, place(writers[-1], writers[:-1]), ir.Read(tile, writers))
        statements.append(
            ir.Each(writers, owners, None, write) if is_first else move(part, tile, owners)
        )
    return [*statements, ir.Each(variables, owners, None, fold)]


def _has_neighbours(owners: Mapping) -> bool:
    """Whether workers have contiguous elements, which are one access if they are contiguous in memory."""
    assert owners.worker_modes is not None
    assert owners.slot_modes is not None
    last = len(owners.shape) - 2
    is_spread = any(mode.dimension == last for mode in owners.worker_modes)
    return is_spread and any(m.dimension == last and m.stride == 1 for m in owners.slot_modes)


def _shuffle(reduce: ir.Reduce, partials: Sequence[Tensor], mask: int, level: int) -> Statement:
    """One level: both partners end with the same value."""
    owners = partials[0].owners
    assert owners is not None
    variables = variables_of(partials[0].shape)
    own_values = read(partials, variables)
    others = [Variable("other", value.dtype) for value in own_values]
    exchange = [
        ir.Do("shuffle.xor", (value, index(mask)), other)
        for value, other in zip(own_values, others, strict=True)
    ]
    left: list[Expression] = own_values
    right: list[Expression] = [*others]
    if isinstance(reduce.operator, ir.Combine):  # an operator commutes bit for bit
        is_upper = is_odd(floor_divide(variables[-1], 1 << level))
        left, right = select_each(is_upper, right, left), select_each(is_upper, left, right)
    fold = fold_into(reduce.operator, partials, variables, left, right)
    return ir.Each(variables, owners, None, ir.Sequence((*exchange, fold)))


def select_each(
    condition: Expression, then: Sequence[Expression], otherwise: Sequence[Expression]
) -> list[Expression]:
    return [ir.Select(condition, a, b) for a, b in zip(then, otherwise, strict=True)]


def is_odd(number: Expression) -> Expression:
    return ir.Binary("==", modulo(number, 2), index(1))
