"""Rewrite a kernel over the sizes of the program that calls it.

    kernel copy[m](x: f32[m], y: out f32[m])     called with f32[2 * n]
->
    kernel copy[n](x: f32[2 * n], y: out f32[2 * n])

Computations are over the program's sizes, so a kernel has to be before one is fused with it.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.build import index
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Expression, Kernel, Tensor, Variable
from taskc.ir.rewrite import map_statements, replace_tensors, substitute, walk
from taskc.programs.ir import Call

Sizes = dict[Variable, int | Expression]


def sizes_of(call: Call) -> Sizes | None:
    """A kernel's dimensions in a call; None where an argument's shape doesn't determine one."""
    sizes: Sizes = {}
    for item, given in zip(call.callee.parameters, call.arguments, strict=True):
        if isinstance(item, Tensor) and isinstance(given, Tensor):
            for own, extent in zip(item.argument_shape, given.shape, strict=True):
                if isinstance(own, Variable):
                    sizes.setdefault(own, extent)
    return sizes if all(own in sizes for own in call.callee.dimensions) else None


def over_program_sizes(call: Call) -> tuple[Kernel, dict[Tensor, Tensor]]:
    """The kernel of a call over the program's sizes, and its new tensors by the old ones."""
    kernel, sizes = call.callee, sizes_of(call)
    assert isinstance(kernel, Kernel)
    assert sizes is not None
    tensors = {item: item for item in kernel.parameters if isinstance(item, Tensor)}
    if not sizes:
        return kernel, tensors
    values = {own: index(extent) for own, extent in sizes.items()}
    tensors = {item: _tensor(item, values) for item in tensors}

    def visit(statement: ir.Statement) -> ir.Statement:
        if isinstance(statement, ir.Grid):
            return replace(statement, shape=tuple([_number(n) for n in statement.shape]))
        return map_statements(statement, visit)

    body = visit(substitute(replace_tensors(kernel.body, tensors), values))
    used = [node for extent in values.values() for node in walk(extent)]
    dimensions = dict.fromkeys([node for node in used if isinstance(node, Variable)])
    parameters = [tensors[item] if isinstance(item, Tensor) else item for item in kernel.parameters]
    rewritten = replace(
        kernel, parameters=tuple(parameters), dimensions=tuple(dimensions), body=body
    )
    return rewritten, tensors


def _tensor(tensor: Tensor, values: dict[Variable, Expression]) -> Tensor:
    shape = tuple([_extent(extent, values) for extent in tensor.shape])
    if tensor.given is None:
        return replace(tensor, shape=shape)
    given = tuple([_extent(extent, values) for extent in tensor.given])
    return replace(tensor, shape=shape, given=given)


def _extent(extent: int | Expression, values: dict[Variable, Expression]) -> int | Expression:
    return extent if isinstance(extent, int) else _number(substitute(extent, values))


def _number(extent: int | Expression) -> int | Expression:
    """An extent, evaluated if it has no variables."""
    if isinstance(extent, int | Variable) or any(isinstance(n, Variable) for n in walk(extent)):
        return extent
    return extent_value(extent, {})
