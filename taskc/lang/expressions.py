"""Names, constants, subscripts and attributes."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import gcd, prod
from typing import Any

from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.mapping import Mapping
from taskc.ir.types import DType, boolean
from taskc.lang.context import Context, Located
from taskc.lang.conversions import index, literal, scalar
from taskc.lang.names import word_for
from taskc.lang.operators import compute
from taskc.lang.sizes import FloatOfSizes
from taskc.lang.values import (
    Cell,
    Choice,
    MappingLoop,
    Method,
    Pending,
    Slice,
    TensorPart,
    TensorView,
    Transposed,
    Value,
    counted,
    describe,
    did_you_mean,
    has_float,
    is_constant,
    is_expression,
    is_number,
    is_scalar,
    plain,
    shape_text,
)
from taskc.lang.views import subscript_dimension


def constant(context: Context, node: ast.Constant) -> Value:
    if isinstance(node.value, (bytes, complex)) or node.value is Ellipsis:
        hint = "name all indices: y[i, j]" if node.value is ... else None
        raise context.error(f"{node.value!r} is not a value of the language", node, hint)
    return node.value


def name(context: Context, node: ast.Name) -> Value:
    value = context.lookup(node.id, node)
    if not isinstance(value, Cell):
        return value
    if value.tensor is None:
        return Pending(value)
    loc = context.locate(node)
    context.note_read(value.tensor, loc)
    return ir.Read(value.tensor, (), loc=loc)


class Evaluated(ast.expr):
    """An expression whose value is known: a part of `*parts`, where that is written."""

    def __init__(self, value: Value, written: ast.expr) -> None:
        super().__init__()
        self.value = value
        ast.copy_location(self, written)


def unstarred(context: Context, written: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The parts of `(i, *place)`, each an expression."""
    for node in written:
        if not isinstance(node, ast.Starred):
            yield node
            continue
        parts = context.evaluate(node.value)
        for part in context.expect((tuple, list), parts, node, "'*' takes the parts of a tuple"):
            yield Evaluated(part, node)


def items(context: Context, node: ast.Tuple | ast.List) -> Value:
    values = [context.evaluate(part) for part in unstarred(context, node.elts)]
    return tuple(values) if isinstance(node, ast.Tuple) else values


# --- tensors and attributes ------------------------------------------------------------------


def subscript(context: Context, node: ast.Subscript) -> Value:
    owner = context.evaluate(node.value)
    if not isinstance(owner, (ir.Tensor, Transposed, TensorPart)):
        return _constant_subscript(context, owner, node)
    tensor, element = place(context, owner, node)
    if isinstance(element, TensorView):
        return element
    return read(context, tensor, element, node)


def read(
    context: Context, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: ast.expr
) -> ir.Expression:
    """The element, where it may be read."""
    if tensor.scope == ir.BARRIER:
        raise context.error("an mbarrier has no value", node, "pass it to tc.cuda.mbarrier_...")
    is_distributed = tensor.owners is not None and not _is_everywhere(tensor.owners)
    if is_distributed and not context.each and not context.in_move:
        raise context.error(
            f"'{tensor.name}' is a tile: outside a mapping loop no worker owns this element",
            node,
            "read it in a mapping loop, or use tc.store, tc.copy or tc.reduce",
        )
    return readable(context, tensor, indices, node)


def readable(
    context: Context, tensor: ir.Tensor, indices: tuple[ir.Expression, ...], node: Located
) -> ir.Expression:
    """The element of what isn't an output; of a sub-byte type the wider number."""
    if tensor.role == "out" and tensor.scope == ir.GLOBAL:
        raise context.error(
            f"'{tensor.name}' is an output, and has no value to read",
            node,
            f"declare it tc.inout[{tensor.dtype}{shape_text(tensor.shape)}] to update it in place",
        )
    loc = context.locate(node)
    context.note_read(tensor, loc)
    element = ir.Read(tensor, indices, loc=loc)
    loaded = tensor.dtype.loaded
    return element if loaded is None else ir.Cast(element, loaded, loc=loc)


def _is_everywhere(owners: Mapping) -> bool:
    """Whether each worker owns all of a tile, so that it is the same for all of them."""
    return owners.is_composed and owners.slots == prod(owners.shape)


def place(
    context: Context, owner: ir.Tensor | Transposed | TensorPart, node: ast.Subscript
) -> tuple[ir.Tensor, tuple[ir.Expression, ...] | TensorView]:
    """The tensor and the indices of `x[i, j]`; of `x[i, r : r + 8]` a view."""
    tensor = owner if isinstance(owner, ir.Tensor) else owner.tensor
    order = -1 if isinstance(owner, Transposed) else 1
    written: list[ast.expr] = [node.slice]
    if isinstance(node.slice, ast.Tuple):
        written = list(unstarred(context, node.slice.elts))
    elif not isinstance(node.slice, ast.Slice):
        given = context.evaluate(node.slice)
        values = given if isinstance(given, tuple) else (given,)
        written = [Evaluated(value, node.slice) for value in values]
    _check_rank(context, tensor.name, len(owner.shape), len(written), node)
    parts = [
        subscript_dimension(context, extent, part)
        for extent, part in zip(owner.shape, written, strict=True)
    ]
    if any(isinstance(part, Slice) for part in parts):
        if isinstance(owner, TensorPart):
            raise context.error("a computation reads one element of a part", node)
        return tensor, TensorView(tensor, tuple(parts[::order]), is_transposed=order < 0)
    indices = tuple([part for part in parts[::order] if not isinstance(part, Slice)])
    return tensor, owner.indices(indices) if isinstance(owner, TensorPart) else indices


def _check_rank(context: Context, name: str, rank: int, given: int, node: ast.Subscript) -> None:
    if given != rank:
        dimensions = counted(rank, "dimension")
        plural = "index is" if given == 1 else "indices are"
        hint = None if rank else f"it is one number: {name}[()]"
        raise context.error(f"'{name}' has {dimensions}, and {given} {plural} given", node, hint)


def _constant_subscript(context: Context, owner: Value, node: ast.Subscript) -> Value:
    if isinstance(owner, (TensorView, Pending)) or is_expression(owner):
        hint = None
        if isinstance(owner, ir.Variable):
            hint = f"a parameter that is a tensor has extents: {owner.dtype}[64]"
        raise context.error(
            f"only a tensor can be indexed, and this is {describe(owner)}", node, hint
        )
    if isinstance(node.slice, ast.Slice):
        bounds = [
            None if bound is None else context.evaluate(bound)
            for bound in (node.slice.lower, node.slice.upper, node.slice.step)
        ]
        which: Value = slice(*bounds)
        known = all(map(is_constant, bounds))
    else:
        which = context.evaluate(node.slice)
        known = is_constant(which)
    if isinstance(owner, DType):
        known = True  # whoever uses the type looks at its extents
    if not known:
        raise context.error(
            "a Python sequence can only be indexed by constants", node, "use tc.static or a tensor"
        )
    if (
        isinstance(owner, tuple)
        and isinstance(which, int)
        and not -len(owner) <= which < len(owner)
    ):
        raise context.error(
            f"there is no part {which} in {describe(owner)}", node, "ask first: if parts: ..."
        )
    return compute(context, node, operator.getitem, owner, which)


def attribute(context: Context, node: ast.Attribute) -> Value:
    if isinstance(node.value, ast.Name):
        context.require_known(node.value, node.attr, node.value.id)
    owner = context.evaluate(node.value)
    attributes = _ATTRIBUTES.get(type(owner))
    if attributes is None and is_scalar(owner):
        attributes = _SCALAR
    if attributes is not None:
        getter = attributes.get(node.attr)
        if getter is not None:
            return getter(context, owner, node)
        if not is_constant(owner) or is_number(owner):
            raise _no_attribute(context, node, owner, attributes)
    try:
        value = plain(getattr(owner, node.attr))
    except AttributeError:
        raise _no_attribute(context, node, owner, dir(owner)) from None
    return context.symbolic(value)


def _no_attribute(
    context: Context, node: ast.Attribute, owner: Value, known: Iterable[str]
) -> CompileError:
    hint = word_for(node.attr)
    hint = hint or did_you_mean(node.attr, [name for name in known if not name.startswith("_")])
    return context.error(f"there is no '{node.attr}' in {describe(owner)}", node, hint)


Getter = Callable[[Context, Any, ast.Attribute], Value]


def _transpose(context: Context, owner: Value, node: ast.Attribute) -> Value:
    """`x.T`: the same elements, with the dimensions from the last to the first."""
    if isinstance(owner, Transposed):
        return owner.tensor
    if len(owner.shape) < 2:
        return owner
    return Transposed(owner) if isinstance(owner, ir.Tensor) else owner.T


def _layout_mapping(context: Context, tensor: ir.Tensor, node: ast.Attribute) -> Mapping:
    if tensor.owners is None:
        raise context.error(f"only a tile has a mapping, and this is {describe(tensor)}", node)
    return tensor.owners


def _dtype(context: Context, owner: Value, node: ast.Attribute) -> DType:
    is_memory = isinstance(owner, (TensorView, Transposed, TensorPart))
    return owner.tensor.dtype if is_memory else scalar(context, owner, node).dtype


def convert_method(context: Context, owner: Value, call: ast.Call) -> Value:
    """`x.to(dtype)`"""
    assert isinstance(call.func, ast.Attribute)
    if len(call.args) != 1 or call.keywords:
        raise context.error("'.to' takes one type: x.to(f32)", call)
    target = element_type(context, call.args[0], "a type is needed here")
    return convert_to(context, target, owner, call.func.value, call)


_TYPES = "a type is one of taskc's own, such as f32 and i64: from taskc import f32"


def element_type(context: Context, node: ast.expr, what: str, hint: str = _TYPES) -> DType:
    """The type that an argument names; `what` says that there has to be one."""
    named = context.expect(DType, boolean_type(context.evaluate(node)), node, what, hint)
    refuse_sub_byte(context, named, node)
    return named


def refuse_sub_byte(context: Context, dtype: DType, node: Located) -> None:
    """Raise an error for a type of less than whole bytes, which a kernel can neither compute nor write."""
    if dtype.is_sub_byte:
        unit = gcd(dtype.bits, 8)
        shared = "a byte" if dtype.bits == unit else f"{dtype.bits // unit} bytes"
        raise context.error(
            f"{dtype} is a type of memory that is only read: {8 // unit} elements share {shared}, and"
            " two workers would write one",
            node,
            f"compute on {dtype.loaded}, and store u8 bytes that you put together",
        )


def boolean_type(value: Value) -> Value:
    """Python's bool as the element type of that name."""
    return boolean if value is bool else value


def convert_to(
    context: Context, dtype: DType, value: Value, node: ast.expr, at: ast.expr
) -> ir.Expression:
    """An explicit conversion."""
    loc = context.locate(at)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if dtype.is_integer and isinstance(value, float) and value == value // 1:
            value = int(value)
        constant = literal(context, value, dtype, node)
        return ir.Constant(constant.value, dtype, loc=loc)
    if isinstance(value, Choice) and has_float(value):
        return ir.Select(
            value.condition,
            convert_to(context, dtype, value.then, node, at),
            convert_to(context, dtype, value.otherwise, node, at),
            loc=loc,
        )
    in_f64 = isinstance(value, FloatOfSizes)
    expression = value.expression if in_f64 else scalar(context, value, node)
    if expression.dtype is dtype:
        return expression
    return ir.Cast(expression, dtype, loc=loc)


def bitcast_method(context: Context, owner: Value, call: ast.Call) -> ir.Expression:
    """`x.bitcast(dtype)`; between integers it is what `x.to(dtype)` is."""
    assert isinstance(call.func, ast.Attribute)
    if len(call.args) != 1 or call.keywords:
        raise context.error("'.bitcast' takes one type: x.bitcast(u32)", call)
    target = element_type(context, call.args[0], "a type is needed here")
    operand = scalar(context, owner, call.func.value)
    source, loc = operand.dtype, context.locate(call)
    if boolean in (source, target):
        raise context.error("a bool has no bits to take", call, "convert it: .to(u8), or x != 0")
    if source.bits != target.bits:
        raise context.error(
            f"{source} has {source.bits} bits, and {target} has {target.bits}",
            call,
            f"another number of bits is a conversion of the value: .to({target})",
        )
    if source is target:
        return operand
    is_float = source.is_float or target.is_float
    return (ir.Bitcast if is_float else ir.Cast)(operand, target, loc=loc)


def on_method(context: Context, owner: Mapping, call: ast.Call) -> MappingLoop:
    """`mapping.on(worker)`"""
    if len(call.args) != 1 or call.keywords:
        raise context.error("'.on' takes one worker's number: mapping.on(w)", call)
    before, context.may_name_worker = context.may_name_worker, True
    worker = index(context, context.evaluate(call.args[0]), call.args[0])
    context.may_name_worker = before
    return MappingLoop(owner, worker)


_SCALAR: dict[str, Getter] = {
    "to": lambda context, owner, node: Method(partial(convert_method, context, owner)),
    "bitcast": lambda context, owner, node: Method(partial(bitcast_method, context, owner)),
    "dtype": _dtype,
}
_PART: dict[str, Getter] = {
    "shape": lambda context, owner, node: owner.shape,
    "dtype": _dtype,
    "T": _transpose,
}
_ATTRIBUTES: dict[type, dict[str, Getter]] = {
    ir.Tensor: {
        "shape": lambda context, owner, node: owner.shape,
        "dtype": lambda context, owner, node: owner.dtype,
        "T": _transpose,
        "mapping": _layout_mapping,
    },
    TensorView: _PART,
    Transposed: _PART,
    TensorPart: {name: _PART[name] for name in ("shape", "dtype")},
    Mapping: {"on": lambda context, owner, node: Method(partial(on_method, context, owner))},
}

EXPRESSIONS: dict[type, Callable[[Context, Any], Value]] = {
    ast.Constant: constant,
    ast.Name: name,
    ast.Tuple: items,
    ast.List: items,
    Evaluated: lambda context, node: node.value,
    ast.Subscript: subscript,
    ast.Attribute: attribute,
}
