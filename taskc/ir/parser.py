"""The parser of kernels in text form, printed by `taskc.ir.printer` or written by hand.

    parse(text) -> Kernel

The grammar is ir.lark. lark makes a tree; a builder turns it into nodes from the top down, since a
number's type comes from its surroundings. A name means what was bound to it last in a scope that is
still open; a name in use can't be bound again. Every node gets its place in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from taskc.ir import nodes as ir
from taskc.ir.code_size import deep
from taskc.ir.parser_expressions import Node, location, syntax_tree
from taskc.ir.parser_statements import Statements
from taskc.ir.types import i32, i64

T = TypeVar("T")

_PARAMETERS = ("scalar", "array")


def parse(text: str, file: str = "<ir>") -> ir.Kernel:
    """Parse the text of a kernel; raises a CompileError with the location of an error."""
    with deep(location(text.splitlines(), file, 1, 1)):
        (tree,) = syntax_tree(text, file, "kernel_text").children
        return kernel_of(Statements(text, file), tree)


def kernel_of(statements: Statements, tree: Node) -> ir.Kernel:
    """The kernel of a tree; the names of `statements` belong to it."""
    names = statements.names
    name, *parts = tree.children
    attributes = {part.data: part for part in parts if part.data not in _PARAMETERS}
    for part in parts:
        if part.data not in _PARAMETERS and attributes[part.data] is not part:
            raise names.error("this is said twice", part)
    if "workers" not in attributes:
        raise names.error("a kernel says its number of workers: workers=…", name)
    stage = _option(attributes, "stage", str, "parsed")
    if stage not in ir.STAGES:
        hint = f"there are: {', '.join(ir.STAGES)}"
        raise names.error(f"there is no stage {stage!r}", attributes["stage"], hint)
    statements.expression.is_flat = stage == "lean"
    numbers = {}
    for option, word in (("worker", "worker"), ("block_number", "block")):
        dtype = names.dtype(attributes[option].children[0]) if option in attributes else i64
        numbers[word] = names.bound[word] = ir.Variable(word, dtype, loc=names.location(name))
    processors = names.bound["processors"] = ir.Variable("processors", i32)
    dimensions, parameters = signature(statements, parts)
    blocks = attributes.get("blocks")
    return ir.Kernel(
        name=names.title(name),
        parameters=parameters,
        dimensions=dimensions,
        workers=_option(attributes, "workers", int, 1),
        blocks=None if blocks is None else statements.expression(blocks.children[0], None),
        body=statements.body(attributes["block"]),
        stage=stage,
        target=names.word(attributes["target"].children[0])
        if "target" in attributes
        else "generic",
        helpers=_option(attributes, "helpers", int, 0),
        cluster=_option(attributes, "clustered", int, 1),
        worker=numbers["worker"],
        block=numbers["block"],
        processors=processors,
        loc=names.location(name),
    )


def signature(
    statements: Statements, parts: Sequence[Node]
) -> tuple[tuple[ir.Variable, ...], tuple[ir.Tensor | ir.Variable, ...]]:
    """The dimensions and parameters among the parts of a header."""
    binders = [part for one in parts if one.data == "dimensions" for part in one.children]
    dimensions = [statements.names.bind(binder, i64) for binder in binders]
    parameters = [_parameter(statements, part) for part in parts if part.data in _PARAMETERS]
    return tuple(dimensions), tuple(parameters)


def _option(found: dict[str, Node], name: str, kind: Callable[[Any], T], default: T) -> T:
    return kind(found[name].children[0]) if name in found else default


def _parameter(statements: Statements, tree: Node) -> ir.Tensor | ir.Variable:
    names, name = statements.names, tree.children[0]
    if tree.data == "scalar":
        multiple = int(tree.children[2].children[0]) if len(tree.children) > 2 else 1
        dtype = names.dtype(tree.children[1])
        return names.define(name, ir.Variable(str(name), dtype, multiple, loc=names.location(name)))
    role = str(tree.children[1]) if len(tree.children) > 2 else "in"
    tensor = statements.tensor(name, tree.children[-1], ir.GLOBAL, role=role)
    return names.define(name, tensor)
