"""The parser of computations, which follow the program that calls them."""

from __future__ import annotations

from collections.abc import Mapping

from taskc.ir import nodes as ir
from taskc.ir.parser import signature
from taskc.ir.parser_names import Node
from taskc.ir.parser_statements import Statements
from taskc.ir.program import Computation
from taskc.ir.rewrite import walk
from taskc.ir.types import i64


def computation_of(
    statements: Statements, tree: Node, sizes: Mapping[str, ir.Variable]
) -> Computation:
    """The computation of a tree; its dimensions are among the program's sizes."""
    names = statements.names
    name, *parts, element = tree.children
    dimensions = []
    for binder in [part for one in parts if one.data == "dimensions" for part in one.children]:
        dimension = sizes.get(binder.children[0])
        if dimension is None:
            message = f"the program has no dimension and no loop of {binder.children[0]}"
            raise names.error(message, binder)
        dimensions.append(names.define(binder.children[0], dimension))
    declared = [part for part in parts if part.data not in ("dimensions", "shared")]
    _, parameters = signature(statements, declared)
    output = parameters[-1] if parameters else None
    roles = [item.role for item in parameters[:-1] if isinstance(item, ir.Tensor)]
    if not isinstance(output, ir.Tensor) or output.role != "out" or set(roles) - {"in"}:
        message = "a computation has inputs and scalars, and last its one output"
        raise names.error(message, name)
    written, *binders, expression = element.children
    if names.find(written, ir.Tensor) is not output:
        raise names.error(f"a computation writes its output, {output}", written)
    if len(binders) != len(output.shape):
        raise names.error(f"{output} has rank {len(output.shape)}, not {len(binders)}", element)
    variables = tuple([names.bind(binder, i64) for binder in binders])
    for part in parts:
        if part.data == "shared":
            names.define(part.children[0], statements.expression(part.children[1], None))
    value = statements.expression(expression, output.dtype)
    if value.dtype is not output.dtype:
        raise names.error(f"{output} is of {output.dtype}, and this of {value.dtype}", expression)
    if any(isinstance(node, ir.Read) and node.tensor is output for node in walk(value)):
        raise names.error(f"{output} is written, and not read", expression)
    return Computation(
        names.title(name),
        parameters,
        tuple(dimensions),
        variables,
        value,
        loc=names.location(name),
    )
