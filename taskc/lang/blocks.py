"""Whole-block moves: tc.load, tc.store, tc.copy."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from taskc.ir import nodes as ir
from taskc.ir.build import conjunction
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import walk
from taskc.ir.types import DType, boolean
from taskc.lang.callbacks import callback
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context, Located
from taskc.lang.conversions import constant_integer, scalar, typed
from taskc.lang.expressions import readable
from taskc.lang.functions import FunctionDefinition
from taskc.lang.memory import allocate, constant_fill, require_writable
from taskc.lang.values import NOTHING, Nothing, Transposed, Value, View, counted, describe
from taskc.lang.views import block_variables, elements, read_guard, view_guard, view_of


def _load(context: Context, node: ast.Call) -> ir.Tensor | Transposed:
    """`tc.load(a[r : r + 8, :], fill=0)` and `tc.load((32, 8), lambda i, j: ..., fill=0)`

    Of `a.T[...]` the slice of `a` is loaded, as it lies, and transposed is how it is seen.
    """
    bound = bind(context, node, "tc.load")
    if context.is_cuda_kernel:
        raise context.error(
            "a tc.cuda kernel has no block values: tc.load is for kernels without barriers",
            node,
            "use tc.shared, copy into it, and tc.sync()",
        )
    context.require_phase("tc.load", node)
    name, loc = context.name_for(node, "block"), context.locate(node)
    is_transposed = False
    if "value" in bound:
        shape = _block_shape(context, bound["what"])
        variables = block_variables(context, shape)
        value, variables = _element(context, bound["value"], variables)
        element: ir.Expression = scalar(context, value, bound["value"])
        inside = read_guard(context, _global_reads(element)) if "fill" in bound else None
    else:
        source = _sliced(context, bound["what"], "tc.load")
        if source.tensor.scope == ir.TILE:
            raise context.error(
                "tc.load takes memory, and this is a tile",
                bound["what"],
                "use tc.copy or tc.shared",
            )
        is_transposed = source.is_transposed
        source = source.T if is_transposed else source
        shape = source.shape
        variables = block_variables(context, shape)
        element, inside = _read(context, source, variables, bound["what"])
    fill = _load_fill(context, bound.get("fill"), element.dtype)
    element = element if inside is None else ir.Select(inside, element, fill, loc=loc)
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


def _sliced(context: Context, node: ast.expr, what: str) -> View:
    value = context.evaluate(node)
    view = view_of(context, value, node, f"what {what} takes")
    if not view.shape:
        raise context.error(f"{what} needs a slice, and this is one element", node)
    return view


def _read(
    context: Context, source: View, variables: tuple[ir.Variable, ...], node: Located
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


def _store(context: Context, node: ast.Call) -> Nothing:
    """`tc.store(c[r : r + 32, :], tile)` and `tc.store(c[...], lambda i, j: ...)`"""
    bound = bind(context, node, "tc.store")
    context.require_phase("tc.store", node)
    target = _target(context, bound["target"], "tc.store")
    shape = target.shape
    variables = block_variables(context, shape)
    value_node = bound["value"]
    is_lambda = isinstance(value_node, ast.Lambda)
    stored = None if is_lambda else context.evaluate(value_node)
    value: ir.Expression
    guard = None
    if is_lambda or isinstance(stored, FunctionDefinition):
        value, variables = _element(context, value_node, variables)
    else:
        source = view_of(context, stored, value_node, "what tc.store stores")
        _same_shape(context, shape, source.shape, value_node)
        value, guard = _read(context, source, variables, value_node)
    _move(context, target, variables, value, guard, None, node, value_node)
    return NOTHING


def _copy(context: Context, node: ast.Call) -> Nothing:
    """`tc.copy(target, source, by=mapping)`"""
    bound = bind(context, node, "tc.copy")
    context.require_phase("tc.copy", node)
    target = _target(context, bound["target"], "tc.copy")
    source = _sliced(context, bound["source"], "tc.copy")
    _same_shape(context, target.shape, source.shape, bound["source"])
    by = _copiers(context, bound.get("by"), target)
    variables = block_variables(context, target.shape)
    value, guard = _read(context, source, variables, bound["source"])
    _move(context, target, variables, value, guard, by, node, bound["source"])
    return NOTHING


def _target(context: Context, node: ast.expr, what: str) -> View:
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


def _copiers(context: Context, node: ast.expr | None, target: View) -> Mapping | None:
    """The mapping that assigns elements of the target's slice to workers, in the order of its tensor's dimensions."""
    shape = target.shape
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
    return value.project(target.ordered(range(value.rank))) if target.is_transposed else value


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


HANDLERS: dict[str, Handler] = {"load": _load, "store": _store, "copy": _copy}
