"""Computations of expressions that gradients make, recorded in the program that is being traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.build import index, product, subtract
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import replace_tensors, substitute, walk
from taskc.ir.types import DType, boolean
from taskc.programs.indices import flat_index
from taskc.programs.ir import Computation, View
from taskc.programs.record_call import dimensions_of, traced_call
from taskc.programs.tracing import TensorHandle, Trace


def computation(
    trace: Trace,
    shape: Sequence[int | Expression],
    variables: Sequence[Variable],
    value: Expression,
    arguments: Mapping[Any, Any],
    name: str,
    loc: Location,
) -> TensorHandle:
    """Record a computation of an expression; `arguments` has the handle of each tensor, and each scalar, in it."""
    named = {
        node.tensor if isinstance(node, ir.Read) else node
        for node in walk(value)
        if isinstance(node, ir.Read | Variable)
    }
    used = [item for item in arguments if item in named]
    own: dict[Tensor | Variable, Any] = {
        item: replace(item, name=f"{item.name}_{place}", role="in")
        if isinstance(item, Tensor)
        else replace(item, name=f"{item.name}_{place}")
        for place, item in enumerate(used)
    }
    value = replace_tensors(value, {a: b for a, b in own.items() if isinstance(a, Tensor)})
    value = substitute(value, {a: b for a, b in own.items() if isinstance(a, Variable)})
    output = Tensor("out", value.dtype, tuple(shape), ir.GLOBAL, role="out", loc=loc)
    parameters = (*own.values(), output)
    made = Computation(
        name, parameters, dimensions_of(trace, value, parameters), tuple(variables), value, loc=loc
    )
    handle: TensorHandle = traced_call(trace, made, {}, [arguments[item] for item in used], {}, loc)
    return handle


def copied(trace: Trace, handle: TensorHandle, loc: Location) -> TensorHandle:
    own = handle.tensor
    at = tuple([Variable(f"at_{axis}") for axis in range(len(own.shape))])
    return computation(trace, own.shape, at, ir.Read(own, at), {own: handle}, "copy", loc)


def embedded(
    trace: Trace, part: TensorHandle, view: View, rest: TensorHandle | None, loc: Location
) -> TensorHandle:
    """Memory of the shape of `view.of` with a part, and elsewhere the elements of `rest`, or 0."""
    whole = view.of
    count, size = product(part.tensor.shape), product(whole.shape)
    if trace.are_equal(count, size):
        return part.trace.view(replace(whole, role="in"), part.tensor, 0)
    own = replace(part.tensor, shape=(trace.extent(count),), role="in")
    flat = trace.view(own, part.tensor, 0)
    at = tuple([Variable(f"at_{axis}") for axis in range(len(whole.shape))])
    place = subtract(flat_index(at, whole.shape), index(view.offset))
    inside = ir.Binary("and", ir.Binary("<=", index(0), place), ir.Binary("<", place, count))
    arguments: dict[Any, Any] = {own: flat}
    other: Expression = zero(whole.dtype)
    if rest is not None:
        arguments[rest.tensor] = rest
        other = ir.Read(rest.tensor, at)
    value = ir.Select(inside, ir.Read(own, (place,)), other)
    return computation(trace, whole.shape, at, value, arguments, "part", loc)


def added(trace: Trace, left: TensorHandle, right: TensorHandle, loc: Location) -> TensorHandle:
    at = tuple([Variable(f"at_{axis}") for axis in range(len(left.tensor.shape))])
    value = ir.Binary("+", ir.Read(left.tensor, at), ir.Read(right.tensor, at))
    arguments: dict[Any, Any] = {left.tensor: left, right.tensor: right}
    return computation(trace, left.tensor.shape, at, value, arguments, "accumulate", loc)


def filled(trace: Trace, like: Tensor, value: float, loc: Location) -> TensorHandle:
    """A tensor of the shape of another one, all of whose elements are a number."""
    at = tuple([Variable(f"at_{axis}") for axis in range(len(like.shape))])
    return computation(trace, like.shape, at, ir.Constant(value, like.dtype), {}, "filled", loc)


def zero(dtype: DType) -> ir.Constant:
    return ir.Constant(False if dtype is boolean else 0.0 if dtype.is_float else 0, dtype)
