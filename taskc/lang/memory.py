"""Allocations, stores and atomic updates of a kernel: tiles, shared and private arrays."""

from __future__ import annotations

import ast
from math import prod

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BINARY_OPERATORS
from taskc.ir.fragments import swizzle_of
from taskc.ir.mapping import Mapping
from taskc.ir.types import DType, TensorType, boolean
from taskc.lang.calls import handles
from taskc.lang.context import Context, Located
from taskc.lang.conversions import constant_integer, literal, typed
from taskc.lang.expressions import element_type, place, refuse_sub_byte
from taskc.lang.values import (
    NOTHING,
    TensorView,
    Transposed,
    Value,
    counted,
    describe,
    is_number,
    layout_of,
    layout_problem,
    shape_text,
)


def allocate(context: Context, tensor: ir.Tensor, fill: ir.Constant | None = None) -> ir.Tensor:
    context.emit(ir.Allocate(tensor, fill, loc=tensor.loc))
    return tensor


def constant_fill(context: Context, node: ast.expr | None, dtype: DType) -> ir.Constant | None:
    """The argument `fill=`; None where it isn't given, or is None."""
    if node is None:
        return None
    value = context.evaluate(node)
    if value is None:
        return None
    if is_number(value):
        return literal(context, value, dtype, node)
    if isinstance(value, ir.Constant):
        fill = typed(context, value, dtype, node)
        if isinstance(fill, ir.Constant):
            return fill
    raise context.error(f"a fill is a constant, and this is {describe(value)}", node)


@handles("tile", as_phase=True)
def _tile(
    context: Context,
    node: ast.Call,
    dtype: ast.expr,
    mapping: ast.expr,
    fill: ast.expr | None = None,
) -> ir.Tensor:
    form = "first the type, then the mapping of owners: tc.tile(f32, mapping, 0)"
    kind = element_type(context, dtype, "the type of a tile is an element type", form)
    hint = f"worker i holds element i of tc.tile({kind}, spatial({context.group}))"
    what = "a tile is laid out by a mapping"
    owners = context.expect(Mapping, context.evaluate(mapping), mapping, what, hint)
    if owners.workers != context.group:
        raise wrong_workers(context, owners, mapping)
    filled = constant_fill(context, fill, kind)
    name, loc = context.name_for(node, "tile"), context.locate(node)
    tile = ir.Tensor(name, kind, owners.iterated, ir.TILE, owners=owners, loc=loc)
    return allocate(context, tile, filled)


def wrong_workers(context: Context, mapping: Mapping, node: Located) -> Exception:
    where = "role" if context.in_role else "kernel"
    hint = None if context.in_role else f"declare the kernel with workers={mapping.workers}"
    if context.group % mapping.workers == 0:
        times = context.group // mapping.workers
        shared = f"let {times} workers share each task: tc.replicate({times}) * mapping"
        hint = shared if hint is None else f"{hint}, or {shared}"
    has = counted(mapping.workers, "worker")
    return context.error(f"this mapping has {has}, and the {where} has {context.group}", node, hint)


def _typed_shape(context: Context, node: ast.expr, what: str) -> TensorType:
    has_one, example = f"{what} has a tensor type", "for example f32[32, 8]"
    value = context.expect(TensorType, context.evaluate(node), node, has_one, example)
    refuse_sub_byte(context, value.dtype, node)
    for extent in value.shape:
        context.expect(int, extent, node, f"the extents of {what} are known at compile time")
    return value


@handles("shared", as_phase=True)
def _shared(
    context: Context, node: ast.Call, type: ast.expr, swizzle: ast.expr | None = None
) -> ir.Tensor:
    kind = _typed_shape(context, type, "tc.shared")
    check_layout(context, kind, type)
    name, loc = context.name_for(node, "shared"), context.locate(node)
    permuted = None if swizzle is None else _swizzle(context, kind, swizzle)
    return allocate(
        context,
        ir.Tensor(name, kind.dtype, kind.shape, ir.SHARED, layout_of(kind), permuted, loc=loc),
    )


def _swizzle(context: Context, kind: TensorType, node: ast.expr) -> ir.Swizzle | None:
    """The hardware's swizzle of lines of 32, 64 or 128 bytes; 0 for none."""
    if not context.is_cuda_kernel:
        raise context.error(
            "a swizzle is only for tc.cuda kernels", node, "elsewhere the compiler chooses one"
        )
    width = constant_integer(context, context.evaluate(node), node, "a swizzle")
    if width not in (0, 32, 64, 128):
        raise context.error(f"a swizzle is of 32, 64 or 128 bytes (0: none), not {width}", node)
    if width == 0:
        return None
    layout = layout_of(kind)
    size = prod(kind.shape) if layout is None else layout.slots
    if size * kind.dtype.nbytes % width:
        raise context.error(
            f"{kind.dtype}{list(kind.shape)} is {size * kind.dtype.nbytes} bytes, and a swizzle of"
            f" {width} moves elements within {width}",
            node,
        )
    return swizzle_of(width, kind.dtype)


def check_layout(context: Context, kind: TensorType, node: Located) -> None:
    problem = layout_problem(kind)
    if problem is not None:
        raise context.error(problem, node)


@handles("local", as_statement=True)
def _local(
    context: Context, node: ast.Call, type: ast.expr, fill: ast.expr | None = None
) -> ir.Tensor:
    kind = _typed_shape(context, type, "tc.local")
    filled = constant_fill(context, fill, kind.dtype)
    name, loc = context.name_for(node, "local"), context.locate(node)
    return allocate(context, ir.Tensor(name, kind.dtype, kind.shape, ir.LOCAL, loc=loc), filled)


# --- stores ----------------------------------------------------------------------------------


def store(
    context: Context,
    tensor: ir.Tensor,
    indices: tuple[ir.Expression, ...],
    value: Value,
    target: ast.expr,
    value_node: ast.expr,
    loc: Location,
) -> None:
    """`x[i, j] = value`"""
    require_writable(context, tensor, target)
    is_open = tensor.scope == ir.LOCAL or (context.is_cuda_kernel and tensor.scope != ir.TILE)
    if not context.each and not is_open:
        raise context.error(
            f"'{tensor.name}' is stored to outside a mapping loop: every worker would do it",
            target,
            f"say which worker does: for _ in spatial({context.group}): ..., or use tc.store",
        )
    converted = typed(
        context, value, tensor.dtype, value_node, f"'{tensor.name}' is {tensor.dtype}"
    )
    context.note_write(tensor, loc)
    context.emit(ir.Store(tensor, indices, converted, loc=loc))


def require_writable(context: Context, tensor: ir.Tensor, node: Located) -> None:
    name, kind = tensor.name, f"{tensor.dtype}{shape_text(tensor.shape)}"
    if tensor.scope == ir.GLOBAL and tensor.role == "in":
        raise context.error(
            f"'{name}' is an input, and can't be written",
            node,
            f"declare it as an output: {name}: tc.out[{kind}], or tc.inout to update it in place",
        )
    if tensor.constant:
        raise context.error(
            f"'{name}' is a block value, and never changes",
            node,
            "use tc.shared for memory to write",
        )
    if tensor.scope == ir.BARRIER:
        raise context.error(f"'{name}' holds mbarriers, and can't be written", node)


_ATOMICS = {
    "atomic_add": "+",
    "atomic_min": "min",
    "atomic_max": "max",
    "atomic_and": "&",
    "atomic_or": "|",
    "atomic_xor": "^",
    "atomic_exchange": "exchange",
}


def _atomic(name: str, symbol: str) -> None:
    what = f"tc.{name}"

    @handles(name, as_statement=True)
    def handler(context: Context, node: ast.Call, element: ast.expr, value: ast.expr) -> Value:
        tensor, indices = element_place(context, element, what)
        _check_atomic(context, symbol, what, tensor, node, element)
        operand = _value_for(context, tensor, value)
        loc = context.locate(node)
        if node is not context.root:
            raise context.error(
                f"{what} writes to memory, so it can't be a part of an expression",
                node,
                "assign its result to a name before",
            )
        result = ir.Variable(context.target, tensor.dtype, loc=loc) if context.target else None
        if result is not None:
            context.results.add(result)
        context.emit(ir.Atomic(symbol, tensor, indices, operand, result, loc=loc))
        return NOTHING if result is None else result


for _row in _ATOMICS.items():
    _atomic(*_row)


def _value_for(context: Context, tensor: ir.Tensor, value: ast.expr) -> ir.Expression:
    """A value in the type of the tensor whose element it meets."""
    what = f"'{tensor.name}' is {tensor.dtype}"
    return typed(context, context.evaluate(value), tensor.dtype, value, what)


@handles("cuda.load_acquire", in_cuda=True, as_statement=True)
def _load_acquire(context: Context, node: ast.Call, element: ast.expr) -> Value:
    what = "tc.cuda.load_acquire"
    tensor, indices = _ordered_place(context, what, element, node)
    if node is not context.root or not context.target:
        raise context.error(
            f"{what} is ordered among other statements, so it can't be a part of an expression",
            node,
            "assign its result to a name",
        )
    loc = context.locate(node)
    result = ir.Variable(context.target, tensor.dtype, loc=loc)
    context.results.add(result)
    nothing = ir.Constant(0.0 if tensor.dtype.is_float else 0, tensor.dtype, loc=loc)
    context.emit(ir.Atomic("acquire", tensor, indices, nothing, result, loc=loc))
    return result


@handles("cuda.store_release", in_cuda=True, as_statement=True)
def _store_release(context: Context, node: ast.Call, element: ast.expr, value: ast.expr) -> Value:
    tensor, indices = _ordered_place(context, "tc.cuda.store_release", element, node)
    stored = _value_for(context, tensor, value)
    context.emit(ir.Atomic("release", tensor, indices, stored, loc=context.locate(node)))
    return NOTHING


def _ordered_place(
    context: Context, what: str, element: ast.expr, node: ast.Call
) -> tuple[ir.Tensor, tuple[ir.Expression, ...]]:
    tensor, indices = element_place(context, element, what)
    _check_atomic(context, "exchange", what, tensor, node, element)
    if tensor.dtype.nbytes not in (4, 8):
        raise context.error(
            f"{what} is for elements of 4 or 8 bytes, and '{tensor.name}' is {tensor.dtype}", node
        )
    return tensor, indices


def _check_atomic(
    context: Context, symbol: str, what: str, tensor: ir.Tensor, node: ast.expr, element: ast.expr
) -> None:
    require_writable(context, tensor, element)
    if tensor.scope not in (ir.GLOBAL, ir.SHARED):
        raise context.error(
            f"{what} works on memory that workers share, and '{tensor.name}' is {describe(tensor)}",
            element,
        )
    if tensor.scope == ir.GLOBAL and tensor.role == "out":
        raise context.error(
            f"'{tensor.name}' is an output, whose elements are each stored once",
            element,
            f"declare it tc.inout[{tensor.dtype}{shape_text(tensor.shape)}] to update it in place",
        )
    if symbol != "exchange" and tensor.dtype.kind not in BINARY_OPERATORS[symbol].kinds:
        raise context.error(f"{what} is not defined on {tensor.dtype}", node)
    if symbol != "exchange" and tensor.dtype is boolean:
        raise context.error(f"{what} is not defined on {tensor.dtype}", node)
    if context.is_cuda_kernel:
        return
    if not context.each:
        raise context.error(
            f"{what} outside a mapping loop: every worker would do it",
            node,
            f"say which worker does: for _ in spatial({context.group}): ...",
        )
    if any(mapping.is_replicated for mapping in context.each):
        raise context.error(
            f"{what} in a loop over a replicated mapping: each owner of a task would do it", node
        )


def element_place(
    context: Context, node: ast.expr, what: str
) -> tuple[ir.Tensor, tuple[ir.Expression, ...]]:
    """`x[i, j]` as a place, not a value."""
    if isinstance(node, ast.Subscript):
        owner = context.evaluate(node.value)
        if isinstance(owner, (ir.Tensor, Transposed)):
            tensor, indices = place(context, owner, node)
            if not isinstance(indices, TensorView):
                return tensor, indices
    raise context.error(f"{what} needs an element of a tensor here, as in x[i]", node)
