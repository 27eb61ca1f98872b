"""Whole-block operations: tc.load, tc.store, tc.copy, tc.mma, tc.reduce, tc.scan."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BINARY_OPERATORS
from taskc.ir.build import conjunction
from taskc.ir.mapping import Mapping, replicate
from taskc.ir.rewrite import walk
from taskc.ir.types import DType, boolean
from taskc.lang.calls import FunctionDefinition, Handler, bind, inline, plain_parameters
from taskc.lang.context import Context, Scope
from taskc.lang.conversions import constant_integer, scalar, typed
from taskc.lang.memory import allocate, constant_fill, require_phase, require_writable
from taskc.lang.source import Node
from taskc.lang.values import NOTHING, Nothing, Range, Transposed, Value, View, describe
from taskc.lang.views import block_variables, elements, read_guard, view_guard, view_of


def _load(context: Context, node: ast.Call) -> ir.Tensor:
    """`tc.load(a[r : r + 32, c : c + 8], fill=0)` and `tc.load((32, 8), lambda i, j: ..., fill=0)`"""
    bound = bind(context, node, "tc.load", "what value? * fill?")
    if context.in_room:
        raise context.error(
            "a tc.cuda kernel has no block values: tc.load is for kernels without barriers",
            node,
            "use tc.shared, copy into it, and tc.sync()",
        )
    require_phase(context, "tc.load", node)
    name, loc = context.target or "block", context.locate(node)
    if "value" in bound:
        shape = _block_shape(context, bound["what"])
        variables = block_variables(context, shape)
        value, variables = _element(context, bound["value"], variables)
        made = scalar(context, value, bound["value"])
        if "fill" in bound:
            fill = _load_fill(context, bound["fill"], made.dtype)
            inside = read_guard(context, _global_reads(made))
            made = made if inside is None else ir.Select(inside, made, fill, loc=loc)
    else:
        source = _sliced(context, bound["what"], "tc.load")
        if source.tensor.scope == ir.TILE:
            raise context.error(
                "tc.load takes memory, and this is a tile", bound["what"], "use tc.copy or tc.shared"
            )
        shape = source.shape
        variables = block_variables(context, shape)
        made = _read(context, source, variables, bound["what"])
        fill = _load_fill(context, bound.get("fill"), made.dtype)
        _, pairs = elements(source, variables)
        inside = view_guard(context, source, pairs)
        made = made if inside is None else ir.Select(inside, made, fill, loc=loc)
    block = ir.Tensor(name, made.dtype, shape, ir.SHARED, constant=True, loc=loc)
    allocate(context, block)
    context.emit(ir.Move(block, variables, variables, shape, made, loc=loc))
    return block


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
    if not shape or min(shape) < 1:
        raise context.error(f"the extents of a block value are at least 1: {shape}", node)
    return shape


def _sliced(context: Context, node: ast.expr, what: str) -> View:
    value = context.evaluate(node)
    view = view_of(context, value, node, f"what {what} takes")
    if not view.shape:
        raise context.error(f"{what} needs a slice, and this is one element", node)
    return view


def _read(context: Context, source: View, variables: tuple[ir.Variable, ...], node: Node) -> ir.Read:
    tensor = source.tensor
    if tensor.scope == ir.GLOBAL and tensor.role == "out":
        raise context.error(
            f"'{tensor.name}' is an output, and has no value to read",
            node,
            f"declare it tc.inout[{tensor.dtype}[...]] to update it in place",
        )
    if tensor.scope == ir.BARRIER:
        raise context.error("an mbarrier has no value", node)
    loc = context.locate(node)
    context.note_read(tensor, loc)
    indices, _ = elements(source, variables)
    return ir.Read(tensor, indices, loc=loc)


def _element(
    context: Context, node: ast.expr, variables: tuple[ir.Variable, ...]
) -> tuple[Value, tuple[ir.Variable, ...]]:
    """What `lambda i, j: ...` gives for an element, and the variables by the lambda's names."""
    if isinstance(node, ast.Lambda):
        arguments = node.args
        names = [argument.arg for argument in arguments.args]
        if len(names) != len(arguments.posonlyargs + arguments.args) or any(
            (arguments.kwonlyargs, arguments.vararg, arguments.kwarg, arguments.defaults)
        ):
            raise context.error("this lambda has only plain parameters", node)
    else:
        function = context.evaluate(node)
        if not isinstance(function, FunctionDefinition):
            raise context.error(
                f"the value is given by a lambda or a @tc.function, and this is {describe(function)}",
                node,
            )
        names = plain_parameters(function.source, f"function '{function.__name__}'")
    if len(names) != len(variables):
        plural = "s" if len(names) != 1 else ""
        raise context.error(
            f"the block has {len(variables)} dimensions, and the function {len(names)} parameter{plural}",
            node,
        )
    named = tuple([ir.Variable(name, loc=context.locate(node)) for name in names])
    context.nonnegative.update(named)
    before = context.in_move, context.lazy
    context.in_move, context.lazy = True, "a lambda"
    try:
        if isinstance(node, ast.Lambda):
            context.frame.scopes.append(Scope(dict(zip(names, named, strict=True))))
            value = context.evaluate(node.body)
            context.frame.scopes.pop()
        else:
            written = dict.fromkeys(names, node)
            value = inline(context, function, dict(zip(names, named, strict=True)), written, node)
    finally:
        context.in_move, context.lazy = before
    return value, named


def _global_reads(value: ir.Expression) -> Iterator[ir.Read]:
    """The reads of GLOBAL memory, those in another's index before it."""
    reads = [part for part in walk(value) if type(part) is ir.Read]
    return (read for read in reversed(reads) if read.tensor.scope == ir.GLOBAL)


def _store(context: Context, node: ast.Call) -> Nothing:
    """`tc.store(c[r : r + 32, :], tile)` and `tc.store(c[...], lambda i, j: ...)`"""
    bound = bind(context, node, "tc.store", "target value")
    require_phase(context, "tc.store", node)
    target = _target(context, bound["target"], "tc.store")
    shape = target.shape
    variables = block_variables(context, shape)
    value_node = bound["value"]
    if isinstance(value_node, ast.Lambda):
        value, variables = _element(context, value_node, variables)
        guard = None
    else:
        given = context.evaluate(value_node)
        if isinstance(given, FunctionDefinition):
            value, variables = _element(context, value_node, variables)
            guard = None
        else:
            source = view_of(context, given, value_node, "what tc.store stores")
            _same_shape(context, shape, source.shape, value_node)
            value = _read(context, source, variables, value_node)
            guard = view_guard(context, source, elements(source, variables)[1])
    _move(context, target, variables, value, guard, None, node, value_node)
    return NOTHING


def _copy(context: Context, node: ast.Call) -> Nothing:
    """`tc.copy(target, source, by=mapping)`"""
    bound = bind(context, node, "tc.copy", "target source * by?")
    require_phase(context, "tc.copy", node)
    target = _target(context, bound["target"], "tc.copy")
    source = _sliced(context, bound["source"], "tc.copy")
    _same_shape(context, target.shape, source.shape, bound["source"])
    by = _copiers(context, bound.get("by"), target.shape)
    variables = block_variables(context, target.shape)
    value = _read(context, source, variables, bound["source"])
    guard = view_guard(context, source, elements(source, variables)[1])
    _move(context, target, variables, value, guard, by, node, bound["source"])
    return NOTHING


def _target(context: Context, node: ast.expr, what: str) -> View:
    target = _sliced(context, node, what)
    require_writable(context, target.tensor, node)
    if target.tensor.scope == ir.LOCAL:
        raise context.error(f"{what} writes memory of the block, and this is a private array", node)
    return target


def _same_shape(context: Context, target: tuple[int, ...], source: tuple[int, ...], node: Node) -> None:
    if target != source:
        raise context.error(
            f"the target is {list(target)}, and the source is {list(source)}", node
        )


def _copiers(context: Context, node: ast.expr | None, shape: tuple[int, ...]) -> Mapping | None:
    value = None if node is None else context.evaluate(node)
    if value is None:
        return None
    assert node is not None
    if not isinstance(value, Mapping):
        raise context.error(f"'by' is a mapping, and this is {describe(value)}", node)
    if value.workers != context.group:
        raise context.error(
            f"this mapping has {value.workers} workers, and the kernel has {context.group}", node
        )
    if value.rank != len(shape) or not value.covers(shape):
        raise context.error(f"the mapping {value} doesn't cover {list(shape)}", node)
    return value


def _move(
    context: Context,
    target: View,
    variables: tuple[ir.Variable, ...],
    value: Value,
    guard: ir.Expression | None,
    by: Mapping | None,
    node: ast.Call,
    value_node: ast.expr,
) -> None:
    tensor = target.tensor
    made = typed(context, value, tensor.dtype, value_node, f"'{tensor.name}' is {tensor.dtype}")
    indices, pairs = elements(target, variables)
    inside = conjunction((view_guard(context, target, pairs), guard))
    loc = context.locate(node)
    context.emit(ir.Move(tensor, indices, variables, target.shape, made, inside, by, loc=loc))


# --- products and reductions -----------------------------------------------------------------


def _mma(context: Context, node: ast.Call) -> Nothing:
    """`tc.mma(acc, a, b)`"""
    bound = bind(context, node, "tc.mma", "acc a b")
    require_phase(context, "tc.mma", node)
    accumulator = context.evaluate(bound["acc"])
    if not isinstance(accumulator, ir.Tensor) or accumulator.scope != ir.TILE:
        raise context.error(
            f"the accumulator of tc.mma is a tile, and this is {describe(accumulator)}", bound["acc"]
        )
    if len(accumulator.shape) != 2:
        raise context.error(
            f"the accumulator of tc.mma is a matrix, and this is {describe(accumulator)}", bound["acc"]
        )
    left, right = (_operand(context, bound[side], accumulator.dtype) for side in "ab")
    if left.tensor.dtype is not right.tensor.dtype:
        types = f"{left.tensor.dtype} and {right.tensor.dtype}"
        raise context.error(f"the operands of tc.mma have different types: {types}", node)
    (m, k), (k2, n) = left.shape, right.shape
    if k != k2 or accumulator.shape != (m, n):
        acc = list(accumulator.shape)
        raise context.error(
            f"the shapes don't fit: {acc} += {list(left.shape)} @ {list(right.shape)}",
            node,
            "[m, n] += [m, k] @ [k, n]; x.T transposes",
        )
    context.emit(ir.Mma(accumulator, left, right, loc=context.locate(node)))
    return NOTHING


def _operand(context: Context, node: ast.expr, accumulator: DType) -> ir.Operand:
    value = context.evaluate(node)
    transposed = isinstance(value, Transposed)
    view = view_of(context, value.matrix if transposed else value, node, "an operand of tc.mma")
    tensor = view.tensor
    if tensor.scope not in (ir.SHARED, ir.TILE):
        raise context.error(
            "an operand of tc.mma is a block value, a tile or shared memory", node, "use tc.load"
        )
    row, column = (None, None, *view.dimensions)[-2:]
    ranges = [part for part in view.dimensions if isinstance(part, Range)]
    if len(ranges) != 2 or not isinstance(row, Range) or not isinstance(column, Range):
        raise context.error(
            f"an operand of tc.mma is a matrix in the last two dimensions; this is {describe(value)}",
            node,
        )
    dtype = tensor.dtype
    if dtype.is_float != accumulator.is_float or dtype is boolean or dtype.bits > accumulator.bits:
        raise context.error(f"a product of {dtype} can't be accumulated in {accumulator}", node)
    origin = tuple([part.start if isinstance(part, Range) else part for part in view.dimensions])
    rows, columns = row.size, column.size
    shape = (columns, rows) if transposed else (rows, columns)
    return ir.Operand(tensor, origin, shape, transposed)


_REDUCTIONS = ("+", "*", "min", "max", "&", "|", "^")


def _fold_arguments(
    context: Context, bound: dict[str, ast.expr], what: str, node: ast.Call
) -> tuple[ir.Tensor, int, str]:
    require_phase(context, what, node)
    source = context.evaluate(bound["tile"])
    if not isinstance(source, ir.Tensor) or source.scope != ir.TILE:
        raise context.error(f"{what} takes a tile, and this is {describe(source)}", bound["tile"])
    axis = constant_integer(context, context.evaluate(bound["axis"]), bound["axis"], "an axis")
    rank = len(source.shape)
    if not -rank <= axis < rank:
        raise context.error(f"there is no axis {axis} in {describe(source)}", bound["axis"])
    operator = context.evaluate(bound["op"])
    if operator not in _REDUCTIONS:
        known = ", ".join(f'"{symbol}"' for symbol in _REDUCTIONS)
        raise context.error(f"the operators of {what} are {known}", bound["op"])
    kinds = BINARY_OPERATORS[operator].kinds
    dtype = source.dtype
    if dtype.kind not in kinds or (dtype.is_float and dtype.bits < 16):
        raise context.error(f"'{operator}' is not defined on {dtype}", node)
    return source, axis % rank, operator


def _reduce(context: Context, node: ast.Call) -> ir.Tensor:
    """`tc.reduce(tile, axis, op)`: a tile without the axis."""
    bound = bind(context, node, "tc.reduce", "tile axis op")
    source, axis, operator = _fold_arguments(context, bound, "tc.reduce", node)
    assert source.owners is not None
    kept = [d for d in range(len(source.shape)) if d != axis]
    owners = source.owners.project(kept) if kept else replicate(source.owners.workers)
    target = _like(context, source, owners, node)
    context.emit(ir.Reduce(target, source, axis, operator, loc=target.loc))
    return target


def _scan(context: Context, node: ast.Call) -> ir.Tensor:
    """`tc.scan(tile, axis, op, exclusive=False)`: a tile of prefixes."""
    bound = bind(context, node, "tc.scan", "tile axis op * exclusive?")
    source, axis, operator = _fold_arguments(context, bound, "tc.scan", node)
    assert source.owners is not None
    exclusive = flag(context, bound.get("exclusive"), "exclusive")
    target = _like(context, source, source.owners, node)
    context.emit(ir.Scan(target, source, axis, operator, exclusive, loc=target.loc))
    return target


def flag(context: Context, node: ast.expr | None, name: str) -> bool:
    """A constant True or False; False where it isn't given."""
    if node is None:
        return False
    value = context.evaluate(node)
    if not isinstance(value, bool):
        raise context.error(f"'{name}' is True or False, and this is {describe(value)}", node)
    return value


def _like(context: Context, source: ir.Tensor, owners: Mapping, node: ast.Call) -> ir.Tensor:
    name, loc = context.target or source.name, context.locate(node)
    return allocate(
        context, ir.Tensor(name, source.dtype, owners.iterated, ir.TILE, owners=owners, loc=loc)
    )


HANDLERS: dict[str, Handler] = {
    "load": _load,
    "store": _store,
    "copy": _copy,
    "mma": _mma,
    "reduce": _reduce,
    "scan": _scan,
}
