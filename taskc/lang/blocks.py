"""Whole-block operations: tc.load, tc.store and tc.copy move, tc.mma, tc.reduce and tc.scan compute."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BINARY_OPERATORS
from taskc.ir.build import conjunction
from taskc.ir.mapping import Mapping, replicate
from taskc.ir.rewrite import walk
from taskc.ir.types import DType, boolean, i8, u8
from taskc.lang.calls import handles
from taskc.lang.combines import callback, combine_function
from taskc.lang.context import Context, Located
from taskc.lang.conversions import constant_integer, flag, scalar, typed
from taskc.lang.expressions import readable
from taskc.lang.functions import FunctionDefinition
from taskc.lang.memory import allocate, constant_fill, require_writable
from taskc.lang.values import (
    NOTHING,
    Nothing,
    Slice,
    TensorView,
    Transposed,
    Value,
    counted,
    describe,
)
from taskc.lang.views import block_variables, elements, read_guard, view_guard, view_of


@handles("load")
def _load(
    context: Context,
    node: ast.Call,
    what: ast.expr,
    value: ast.expr | None = None,
    fill: ast.expr | None = None,
) -> ir.Tensor | Transposed:
    """`tc.load(a[r : r + 8, :], fill=0)` and `tc.load((32, 8), lambda i, j: ..., fill=0)`

    Of `a.T[...]` the slice of `a` is loaded, as it lies, and transposed is how it is seen.
    """
    if context.is_cuda_kernel:
        raise context.error(
            "a tc.cuda kernel has no block values: tc.load is for kernels without barriers",
            node,
            "use tc.shared, copy into it, and tc.sync()",
        )
    context.require_phase("tc.load", node)
    name, loc = context.name_for(node, "block"), context.locate(node)
    is_transposed = False
    if value is not None:
        shape = _block_shape(context, what)
        variables = block_variables(context, shape)
        computed, variables = _element(context, value, variables)
        element: ir.Expression = scalar(context, computed, value)
        inside = read_guard(context, _global_reads(element)) if fill is not None else None
    else:
        source = _sliced(context, what, "tc.load")
        if source.tensor.scope == ir.TILE:
            raise context.error(
                "tc.load takes memory, and this is a tile", what, "use tc.copy or tc.shared"
            )
        is_transposed = source.is_transposed
        source = source.T if is_transposed else source
        shape = source.shape
        variables = block_variables(context, shape)
        element, inside = _read(context, source, variables, what)
    filled = _load_fill(context, fill, element.dtype)
    element = element if inside is None else ir.Select(inside, element, filled, loc=loc)
    block = ir.Tensor(name, element.dtype, shape, ir.SHARED, constant=True, loc=loc)
    allocate(context, block)
    if 0 not in shape:
        context.emit(ir.Move(block, variables, variables, shape, element, loc=loc))
    return Transposed(block) if is_transposed else block


def _load_fill(context: Context, node: ast.expr | None, dtype: DType) -> ir.Constant:
    fill = constant_fill(context, node, dtype)
    if fill is None:
        fill = ir.Constant(False if dtype is boolean else 0.0 if dtype.is_float else 0, dtype)
    return fill


def _block_shape(context: Context, node: ast.expr) -> tuple[int, ...]:
    value = context.evaluate(node)
    parts = value if isinstance(value, tuple) else (value,)
    what = "an extent of a block value"
    shape = tuple([constant_integer(context, part, node, what) for part in parts])
    if not shape or min(shape) < 0:
        raise context.error(f"the extents of a block value can't be negative: {shape}", node)
    return shape


def _sliced(context: Context, node: ast.expr, what: str) -> TensorView:
    value = context.evaluate(node)
    view = view_of(context, value, node, f"what {what} takes")
    if not view.shape:
        raise context.error(f"{what} needs a slice, and this is one element", node)
    return view


def _read(
    context: Context, source: TensorView, variables: tuple[ir.Variable, ...], node: Located
) -> tuple[ir.Expression, ir.Expression | None]:
    """The element of a slice, and where it is in bounds."""
    if source.tensor.scope == ir.BARRIER:
        raise context.error("an mbarrier has no value", node)
    indices, pairs = elements(source, variables)
    return readable(context, source.tensor, indices, node), view_guard(context, source, pairs)


def _element(
    context: Context, node: ast.expr, variables: tuple[ir.Variable, ...]
) -> tuple[Value, tuple[ir.Variable, ...]]:
    """The value of `lambda i, j: ...` for an element, and its variables, named as the lambda's parameters."""
    written = callback(context, node, "the value")
    if not written.takes(len(variables)):
        dimensions = counted(len(variables), "dimension")
        raise context.error(
            f"the block has {dimensions}, and the function {written.parameters}", node
        )
    loc = context.locate(node)
    named = tuple([ir.Variable(name, loc=loc) for name in written.named(len(variables))])
    context.nonnegative.update(named)
    before, context.in_move = context.in_move, True
    try:
        return written.value(context, named, "a lambda"), named
    finally:
        context.in_move = before


def _global_reads(value: ir.Expression) -> Iterator[ir.Read]:
    """The reads of GLOBAL memory, each after the reads in its indices."""
    reads = [part for part in walk(value) if type(part) is ir.Read]
    return (read for read in reversed(reads) if read.tensor.scope == ir.GLOBAL)


@handles("store", as_phase=True)
def _store(context: Context, node: ast.Call, target: ast.expr, value: ast.expr) -> Nothing:
    """`tc.store(c[r : r + 32, :], tile)` and `tc.store(c[...], lambda i, j: ...)`"""
    to = _target(context, target, "tc.store")
    variables = block_variables(context, to.shape)
    is_lambda = isinstance(value, ast.Lambda)
    stored = None if is_lambda else context.evaluate(value)
    element: ir.Expression
    guard = None
    if is_lambda or isinstance(stored, FunctionDefinition):
        element, variables = _element(context, value, variables)
    else:
        source = view_of(context, stored, value, "what tc.store stores")
        _same_shape(context, to.shape, source.shape, value)
        element, guard = _read(context, source, variables, value)
    _move(context, to, variables, element, guard, None, node, value)
    return NOTHING


@handles("copy", as_phase=True)
def _copy(
    context: Context,
    node: ast.Call,
    target: ast.expr,
    source: ast.expr,
    by: ast.expr | None = None,
) -> Nothing:
    """`tc.copy(target, source, by=mapping)`"""
    to = _target(context, target, "tc.copy")
    view = _sliced(context, source, "tc.copy")
    _same_shape(context, to.shape, view.shape, source)
    copiers = _copiers(context, by, to)
    variables = block_variables(context, to.shape)
    value, guard = _read(context, view, variables, source)
    _move(context, to, variables, value, guard, copiers, node, source)
    return NOTHING


def _target(context: Context, node: ast.expr, what: str) -> TensorView:
    target = _sliced(context, node, what)
    require_writable(context, target.tensor, node)
    if target.tensor.scope == ir.LOCAL:
        raise context.error(f"{what} writes memory of the block, and this is a private array", node)
    return target


def _same_shape(
    context: Context, target: tuple[int, ...], source: tuple[int, ...], node: Located
) -> None:
    if target != source:
        raise context.error(f"the target is {list(target)}, and the source is {list(source)}", node)


def _copiers(context: Context, node: ast.expr | None, target: TensorView) -> Mapping | None:
    """The mapping that assigns elements of the target's slice to workers, in the order of its tensor's dimensions."""
    shape = target.shape
    value = None if node is None else context.evaluate(node)
    if node is None or value is None:
        return None
    mapping = context.expect(Mapping, value, node, "'by' is a mapping")
    if mapping.workers != context.group:
        raise context.error(
            f"this mapping has {mapping.workers} workers, and the kernel has {context.group}", node
        )
    if mapping.rank != len(shape) or not mapping.covers(shape):
        raise context.error(f"the mapping {mapping} doesn't cover {list(shape)}", node)
    return mapping.project(target.ordered(range(mapping.rank))) if target.is_transposed else mapping


def _move(
    context: Context,
    target: TensorView,
    variables: tuple[ir.Variable, ...],
    value: Value,
    guard: ir.Expression | None,
    by: Mapping | None,
    node: ast.Call,
    value_node: ast.expr,
) -> None:
    tensor = target.tensor
    what, hint = f"'{tensor.name}' is {tensor.dtype}", None
    if isinstance(value, ir.Read) and isinstance(value_node, ast.Name):
        names = ", ".join(variable.name for variable in variables)
        hint = f"lambda {names}: {value_node.id}[{names}].to({tensor.dtype})"
    element = typed(context, value, tensor.dtype, value_node, what, hint)
    if 0 in target.shape:
        return
    indices, pairs = elements(target, variables)
    for part in (ir.Read(tensor, indices), *walk(element)):
        if isinstance(part, ir.Read) and part.tensor in context.peers:
            raise context.error(
                f"a whole-block operation takes memory of its own block, and '{part.tensor.name}'"
                " is a peer's",
                node,
                "copy it element by element: for i in mapping: ...",
            )
    inside = conjunction((view_guard(context, target, pairs), guard))
    variables, shape = target.ordered(variables), target.ordered(target.shape)
    if by is None and tensor.scope != ir.TILE and _reads_a_transposed_tile(element, variables):
        variables, shape = variables[::-1], shape[::-1]
    loc = context.locate(node)
    context.emit(ir.Move(tensor, indices, variables, shape, element, inside, by, loc=loc))


def _reads_a_transposed_tile(value: ir.Expression, variables: tuple[ir.Variable, ...]) -> bool:
    """Whether some tile is read with reversed indices, and none with them in order: its owners then do the move."""
    places = [
        part.indices
        for part in walk(value)
        if isinstance(part, ir.Read) and part.tensor.scope == ir.TILE
    ]
    return variables[::-1] in places and variables not in places


_MIXED = (u8, i8)  # what processors multiply fastest
_ACCUMULATOR = "acc = tc.tile(f32, mapping, 0), over a mapping of rows and columns"


@handles("mma")
def _mma(
    context: Context,
    node: ast.Call,
    acc: ast.expr,
    a: ast.expr,
    b: ast.expr,
    by: ast.expr | None = None,
) -> Nothing:
    """`tc.mma(acc, a, b, by=tf32)`"""
    mma = product(context, acc, (a, b), "tc.mma", node)
    if by is not None:
        mma = replace(mma, by=_rounded_to(context, mma, by))
    if 0 not in (*mma.accumulator.shape, *mma.left.shape):
        context.emit(mma)
    return NOTHING


def _rounded_to(context: Context, mma: ir.Mma, node: ast.expr) -> DType | None:
    by, dtype = context.evaluate(node), mma.left.tensor.dtype
    if by is None:
        return None
    if not isinstance(by, DType) or not by.is_float:
        raise context.error(f"operands are rounded to a float type, not {describe(by)}", node)
    if not dtype.is_float:
        raise context.error(f"operands of {dtype} can't be rounded to {by}", node)
    return by


def product(
    context: Context,
    acc: ast.expr,
    operands: tuple[ast.expr, ast.expr],
    what: str,
    node: ast.Call,
) -> ir.Mma:
    """The product of the operands, added to `acc`."""
    context.require_phase(what, node)
    accumulator = context.evaluate(acc)
    if not isinstance(accumulator, ir.Tensor) or accumulator.scope != ir.TILE:
        raise context.error(
            f"the accumulator of {what} is a tile, and this is {describe(accumulator)}",
            acc,
            _ACCUMULATOR,
        )
    if len(accumulator.shape) != 2:
        raise context.error(
            f"the accumulator of {what} is a matrix, and this is {describe(accumulator)}",
            acc,
            _ACCUMULATOR,
        )
    left, right = (_operand(context, side, accumulator.dtype, what) for side in operands)
    mixed = left.tensor.dtype, right.tensor.dtype
    if mixed[0] is not mixed[1] and mixed != _MIXED:
        types = f"{left.tensor.dtype} and {right.tensor.dtype}"
        raise context.error(f"the operands of {what} have different types: {types}", node)
    (m, k), (k2, n) = left.shape, right.shape
    if k != k2 or accumulator.shape != (m, n):
        raise context.error(
            f"the shapes don't fit: {list(accumulator.shape)} += {list(left.shape)} @ {list(right.shape)}",
            node,
            "[m, n] += [m, k] @ [k, n]; x.T transposes",
        )
    return ir.Mma(accumulator, left, right, loc=context.locate(node))


def _operand(context: Context, node: ast.expr, accumulator: DType, what: str) -> ir.Operand:
    value = context.evaluate(node)
    view = view_of(context, value, node, f"an operand of {what}")
    tensor = view.tensor
    is_input = tensor.scope == ir.GLOBAL and tensor.role == "in" and not context.is_cuda_kernel
    if tensor.scope not in (ir.SHARED, ir.TILE) and not is_input:
        raise context.error(
            f"an operand of {what} is a block value, a tile or shared memory"
            + ("" if context.is_cuda_kernel else ", or a parameter that is only read"),
            node,
            "copy it to tc.shared first" if context.is_cuda_kernel else "use tc.load",
        )
    if tensor in context.peers:
        raise context.error(
            f"{what} takes memory of its own block, and '{tensor.name}' is a peer's", node
        )
    row, column = (None, None, *view.dimensions)[-2:]
    ranges = [part for part in view.dimensions if isinstance(part, Slice)]
    if len(ranges) != 2 or not isinstance(row, Slice) or not isinstance(column, Slice):
        raise context.error(
            f"an operand of {what} is a matrix in the last two dimensions, and this is"
            f" {describe(value)}",
            node,
        )
    dtype = tensor.dtype
    if dtype.is_sub_byte:
        raise context.error(
            f"an operand of {what} has whole bytes, and '{tensor.name}' is {dtype}",
            node,
            f"load it, as {dtype.loaded} or as what its elements stand for: tc.load(shape, lambda ...)",
        )
    if dtype.is_float != accumulator.is_float or dtype is boolean or dtype.bits > accumulator.bits:
        raise context.error(f"a product of {dtype} can't be accumulated in {accumulator}", node)
    origin = tuple([part.start if isinstance(part, Slice) else part for part in view.dimensions])
    rows, columns = view.shape
    return ir.Operand(tensor, origin, (rows, columns), view.is_transposed)


_REDUCTIONS = ("+", "*", "min", "max", "&", "|", "^")


def _fold_arguments(
    context: Context, tile: ast.expr, axis: ast.expr, op: ast.expr, what: str, node: ast.Call
) -> tuple[tuple[ir.Tensor, ...], int, str | ir.Combine, bool]:
    """The tiles, the axis, the operator, and whether the tiles are a tuple."""
    if context.is_cuda_kernel:
        raise context.error(
            f"a tc.cuda kernel has no {what}, which needs barriers of its own",
            node,
            "fold each worker's part, then exchange with tc.cuda.shuffle_xor or shared memory",
        )
    context.require_phase(what, node)
    value = context.evaluate(tile)
    value = tuple(value) if isinstance(value, list) else value
    sources = _tiles(context, value, tile, what)
    source = sources[0]
    number = constant_integer(context, context.evaluate(axis), axis, "an axis")
    rank = len(source.shape)
    if not -rank <= number < rank:
        raise context.error(f"there is no axis {number} in {describe(source)}", axis)
    operator = None if isinstance(op, ast.Lambda) else context.evaluate(op)
    is_tuple = isinstance(value, tuple)
    if isinstance(operator, FunctionDefinition):
        dtypes = tuple([source.dtype for source in sources])
        operands = dtypes if is_tuple else dtypes[0]
        combine = combine_function(context, operator, operands, op)
        return sources, number % rank, combine, is_tuple
    if not isinstance(operator, str) or operator not in _REDUCTIONS:
        allowed = ", ".join(f'"{symbol}"' for symbol in _REDUCTIONS)
        raise context.error(
            f"the operators of {what} are {allowed}",
            op,
            "anything else is a @tc.function of two elements",
        )
    if is_tuple:
        raise context.error(
            f"'{operator}' folds one tile, and these are {len(sources)}",
            op,
            "a tuple of tiles takes a @tc.function of two tuples",
        )
    kinds = BINARY_OPERATORS[operator].kinds
    dtype = source.dtype
    if dtype.kind not in kinds or (dtype.is_float and dtype.bits < 16):
        raise context.error(f"'{operator}' is not defined on {dtype}", node)
    return sources, number % rank, operator, False


def _tiles(context: Context, value: Value, node: ast.expr, what: str) -> tuple[ir.Tensor, ...]:
    """The tile or the tuple of tiles of an argument, all with one mapping."""
    parts: Sequence[Value] = value if isinstance(value, tuple) else (value,)
    written = node.elts if isinstance(node, ast.Tuple | ast.List) else [node] * len(parts)
    if not parts:
        raise context.error(f"{what} takes a tile or several, and this is an empty tuple", node)
    first = parts[0]
    for part, place in zip(parts, written, strict=True):
        if not isinstance(part, ir.Tensor) or part.scope != ir.TILE:
            takes = "takes a tile" if len(parts) == 1 else "takes a tuple of tiles"
            raise context.error(f"{what} {takes}, and this is {describe(part)}", place)
        if part.shape != first.shape:
            raise context.error(
                f"the tiles of a tuple have one shape: {describe(first)}, {describe(part)}", place
            )
        if part.owners != first.owners:
            raise context.error(
                f"the tiles of a tuple have one mapping: {first.owners}, {part.owners}",
                place,
                "tc.copy(tile, tile) converts to other owners",
            )
    return tuple(parts)


@handles("reduce")
def _reduce(
    context: Context, node: ast.Call, tile: ast.expr, axis: ast.expr, op: ast.expr
) -> Value:
    """`tc.reduce(tile, axis, op)`: a tile without the axis; of several tiles, as many."""
    if context.in_move:
        raise context.error(
            "what one element is can't be a reduction: tc.reduce folds a whole tile",
            node,
            "fold before, in a program by taskc.kernels.reductions.reduction(...), and read what that gives",
        )
    sources, number, operator, is_tuple = _fold_arguments(
        context, tile, axis, op, "tc.reduce", node
    )
    owners = sources[0].owners
    assert owners is not None
    kept_axes = [d for d in range(len(sources[0].shape)) if d != number]
    owners = owners.project(kept_axes) if kept_axes else replicate(owners.workers)
    targets = _like(context, sources, owners, node)
    context.emit(ir.Reduce(targets, sources, number, operator, loc=context.locate(node)))
    return targets if is_tuple else targets[0]


@handles("scan")
def _scan(
    context: Context,
    node: ast.Call,
    tile: ast.expr,
    axis: ast.expr,
    op: ast.expr,
    exclusive: ast.expr | None = None,
) -> Value:
    """`tc.scan(tile, axis, op, exclusive=False)`: a tile of prefixes; of several tiles, as many."""
    sources, number, operator, is_tuple = _fold_arguments(context, tile, axis, op, "tc.scan", node)
    assert sources[0].owners is not None
    is_exclusive = flag(context, exclusive, "exclusive")
    if exclusive is not None and is_exclusive and isinstance(operator, ir.Combine):
        raise context.error(
            "a scan by a function is inclusive: there is nothing that it could begin with",
            exclusive,
        )
    targets = _like(context, sources, sources[0].owners, node)
    loc = context.locate(node)
    context.emit(ir.Scan(targets, sources, number, operator, is_exclusive, loc=loc))
    return targets if is_tuple else targets[0]


def _like(
    context: Context, sources: tuple[ir.Tensor, ...], owners: Mapping, node: ast.Call
) -> tuple[ir.Tensor, ...]:
    """New tiles with the types of others."""
    loc, shape = context.locate(node), owners.iterated
    names = [context.name_for(node, source.name) for source in sources]
    return tuple(
        [
            allocate(context, ir.Tensor(name, source.dtype, shape, ir.TILE, owners=owners, loc=loc))
            for name, source in zip(names, sources, strict=True)
        ]
    )
