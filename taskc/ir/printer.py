"""Printing of kernels as text that resembles the language; `taskc.ir.parser` parses it.

    kernel matmul(a: f32[64, 32], b: f32[32, 64], c: out f32[64, 64]) workers=256 stage=parsed:
        grid (row, col) in (64, 64) by (32, 32):
            tile acc: f32[32, 32] by spatial(4, 8).repeat(8, 4) = 0.0
            pipeline p in 32 by 8 stages=2:
                constant shared sa: f32[32, 8]
                move sa[i, q] = a[row + i, p + q] for (i, q) in (32, 8)
                ...

Names are unique within a kernel: the second variable called `i` is `i_1`. A tensor of shape () is
read and stored by its name alone. Rings are declared after the last of their tensors, tables and
snippets at the top of the body, though none of them is a statement. Notes and locations are left out.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from functools import singledispatch
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.code_size import deeply
from taskc.ir.forms import BLOCKS, PARTS
from taskc.ir.mapping import Mapping
from taskc.ir.nodes import Expression, Statement
from taskc.ir.printer_expressions import ExpressionPrinter, Named, joined
from taskc.ir.rewrite import walk
from taskc.ir.signature import Signed
from taskc.ir.text_rules import (
    is_word,
    operand_type,
    result_type,
    single_statement,
)
from taskc.ir.types import boolean, i64

_WIDTH = 100
_SCOPE_WORDS = {ir.BARRIER: "mbarrier"}


@singledispatch
def to_text(printed: Any) -> str:
    """A kernel as text with a final newline. A class above this layer names the module that registers its text."""
    importlib.import_module(printed.printer)
    return to_text.dispatch(type(printed))(printed)


@to_text.register(ir.Kernel)
@deeply
def _(kernel: ir.Kernel) -> str:
    return Printer(kernel).kernel(kernel)


@deeply
def statement_text(statement: Statement) -> str:
    """A statement as it would look in a kernel, without a final newline; for messages."""
    return "\n".join(Printer(None).statement(statement, ""))


@deeply
def expression_text(expression: Expression) -> str:
    """An expression as it would look in a kernel; for messages."""
    return ExpressionPrinter(None)(expression, None, 0)


# Nodes that use what is declared before the body.
_DECLARING = {ir.RingStep, ir.Lookup, ir.Inline, ir.Reduce, ir.Scan}


class Printer:
    """Prints a kernel; a derived class prints programs."""

    def __init__(
        self, kernel: ir.Kernel | None, names: dict[ir.Variable, str] | None = None
    ) -> None:
        self.text = ExpressionPrinter(kernel)
        for variable, name in (names or {}).items():
            self.text.names[variable] = name
            self.text.taken.add(name)
        self.rings: list[ir.Ring] = []  # those that await the declaration of their tensors
        self.declared: set[Named] = set()

    # --- kernels ---

    def kernel(self, kernel: ir.Kernel) -> str:
        first = self.header("kernel", kernel, f" {self.options(kernel)}")
        declarations: list[str] = []
        rings: dict[ir.Ring, None] = {}
        for node in walk(kernel.body):
            if type(node) not in _DECLARING:
                continue
            match node:
                case ir.RingStep():
                    rings[node.ring] = None
                case ir.Lookup() if node.table not in self.declared:
                    self.declared.add(node.table)
                    values = ", ".join(map(str, node.table.values.tolist()))
                    declarations.append(f"    table {self.text.name(node.table)} = [{values}]")
                case ir.Inline() if node.snippet not in self.declared:
                    self.declared.add(node.snippet)
                    declarations.append(f"    {self.snippet(node.snippet)}")
                case (
                    ir.Reduce(operator=ir.Combine() as combine)
                    | ir.Scan(operator=ir.Combine() as combine)
                ) if combine not in self.declared:
                    self.declared.add(combine)
                    declarations.append(f"    {self.combine(combine)}")
                case _:
                    pass  # declared already, or nothing to declare
        self.rings = list(rings)
        return "\n".join([first, *declarations, *self.block(kernel.body, "    "), ""])

    def snippet(self, snippet: ir.Snippet) -> str:
        parameters = ", ".join(
            [self.text.binder(parameter, None) for parameter in snippet.parameters]
        )
        meaning = self.text(snippet.meaning, None, 0)
        return f"snippet {self.text.name(snippet)}({parameters}) = {meaning} as {_quoted(snippet.text)}"

    def combine(self, combine: ir.Combine) -> str:
        """A combine function; its parameters are one list, the left half first."""
        name = self.text.name(combine)
        parameters = [self.text.binder(p, None) for p in (*combine.left, *combine.right)]
        lets = [f"{self.let(let)}, " for let in combine.lets]
        values = self.text.arguments(combine.values)
        return f"combine {name}({', '.join(parameters)}) = {''.join(lets)}{values}"

    def header(self, word: str, printed: Signed, options: str = "") -> str:
        name = printed.name if printed.name.isidentifier() else _quoted(printed.name)
        dimensions = ", ".join([self.text.binder(d) for d in printed.dimensions])
        name += f"[{dimensions}]" if dimensions else ""
        parameters = [self.parameter(parameter) for parameter in printed.parameters]
        first = f"{word} {name}({', '.join(parameters)}){options}:"
        if len(first) > _WIDTH and parameters:
            inside = "".join(f"    {parameter},\n" for parameter in parameters)
            first = f"{word} {name}(\n{inside}){options}:"
        return first

    def options(self, kernel: ir.Kernel) -> str:
        options = [f"workers={kernel.workers}"]
        if kernel.helpers:
            options.append(f"helpers={kernel.helpers}")
        for variable in (kernel.worker, kernel.block):
            if variable.dtype is not i64:
                options.append(f"{self.text.names[variable]}={variable.dtype}")
        if kernel.blocks is not None:
            options.append(f"blocks={self.text(kernel.blocks, None, 0)}")
        if kernel.cluster != 1:
            options.append(f"cluster={kernel.cluster}")
        options.append(f"stage={kernel.stage}")
        if kernel.target != "generic":
            options.append(f"target={_word(kernel.target)}")
        return " ".join(options)

    def parameter(self, parameter: ir.Tensor | ir.Variable) -> str:
        if isinstance(parameter, ir.Variable):
            multiple = "" if parameter.multiple == 1 else f" multiple={parameter.multiple}"
            return f"{self.text.name(parameter)}: {parameter.dtype}{multiple}"
        role = "" if parameter.role == "in" else f"{parameter.role} "
        return f"{self.text.name(parameter)}: {role}{self.text.type(parameter)}"

    # --- statements ---

    def statement(self, s: Statement, indent: str) -> Iterator[str]:
        if type(s) in PARTS:
            yield from self.formed(s, indent)
            return
        simple = _SIMPLE.get(type(s))
        if simple is not None:
            yield indent + simple(self, s)
            if type(s) is ir.Allocate:
                self.declared.add(s.tensor)
                if self.rings:
                    yield from self.complete_rings(indent)
            return
        compound = _COMPOUND.get(type(s))
        if compound is None:
            yield f"{indent}<{s!r}>"
        else:
            yield from compound(self, s, indent)

    def formed(self, s: Any, indent: str) -> Iterator[str]:
        if isinstance(s, ir.RingStep) and s.ring not in self.declared:
            yield indent + self.ring(s.ring)
        text = indent
        for part in PARTS[type(s)]:
            if isinstance(part, str):
                text += part
                continue
            value = getattr(s, part.names[0])
            if part.is_optional and (value is None or value is False or value in ("", ())):
                continue
            text += f"{part.before}{_KINDS[part.kind](self.text, s, value)}{part.after}"
        yield text
        if type(s) in BLOCKS:
            yield from self.block(s.body, indent + "    ")

    def block(self, body: Statement, indent: str) -> Iterator[str]:
        """The lines of a body; a Sequence there opens no scope besides the block's."""
        body = single_statement(body)
        statements = body.statements if isinstance(body, ir.Sequence) else (body,)
        if not statements:
            yield f"{indent}pass"
        for statement in statements:
            yield from self.statement(statement, indent)

    def complete_rings(self, indent: str) -> Iterator[str]:
        for ring in list(self.rings):
            if self.declared.issuperset(ring.tensors):
                yield indent + self.ring(ring)

    def ring(self, ring: ir.Ring) -> str:
        self.rings = [other for other in self.rings if other is not ring]
        self.declared.add(ring)
        tensors = ", ".join([self.text.name(tensor) for tensor in ring.tensors])
        options = f"stages={ring.stages} transport={_word(ring.transport)}"
        return f"ring {self.text.name(ring)} = ({tensors}) {options}"

    def sequence(self, s: ir.Sequence, indent: str) -> Iterator[str]:
        if not s.statements:
            yield f"{indent}pass"
            return
        yield f"{indent}scope:"
        for statement in s.statements:
            yield from self.statement(statement, indent + "    ")

    def let(self, s: ir.Let) -> str:
        variable, value = s.variable, s.value
        bare = type(value) is ir.Constant and value.dtype not in (i64, boolean)
        if bare or variable.dtype is not value.dtype:
            name = self.text.binder(variable, None)
            return f"let {name} = {self.text(value, variable.dtype, 0)}"
        return f"let {self.text.binder(variable, value.dtype)} = {self.text(value, None, 0)}"

    def allocate(self, s: ir.Allocate) -> str:
        tensor = s.tensor
        constant = "constant " if tensor.constant else ""
        scope = _SCOPE_WORDS.get(tensor.scope, tensor.scope)
        plain = not tensor.shape and (tensor.layout, tensor.swizzle, tensor.offset) == (None,) * 3
        type_text = str(tensor.dtype) if plain else self.text.type(tensor)
        by = _by(tensor.owners)
        fill = "" if s.fill is None else f" = {self.text(s.fill, tensor.dtype, 0)}"
        return f"{constant}{scope} {self.text.name(tensor)}: {type_text}{by}{fill}"

    def if_(self, s: ir.If, indent: str) -> Iterator[str]:
        yield f"{indent}if {self.text(s.condition, None, 0)}:"
        inner = indent + "    "
        yield from self.block(s.then, inner)
        otherwise = s.otherwise and single_statement(s.otherwise)
        while isinstance(otherwise, ir.If):
            yield f"{indent}elif {self.text(otherwise.condition, None, 0)}:"
            yield from self.block(otherwise.then, inner)
            otherwise = otherwise.otherwise and single_statement(otherwise.otherwise)
        if otherwise is not None:
            yield f"{indent}else:"
            yield from self.block(otherwise, inner)

    def for_(self, s: ir.For, indent: str) -> Iterator[str]:
        inferred = operand_type((s.start, s.stop), i64)
        expected = i64 if s.variable.dtype is inferred else s.variable.dtype
        bounds = list(self.text.operands((s.start, s.stop), expected))
        if s.step != 1:
            bounds.append(str(s.step))
        elif bounds[0] == "0":
            del bounds[0]
        word = "range" if s.kind == "serial" else s.kind
        yield f"{indent}for {self.text.binder(s.variable, inferred)} in {word}({', '.join(bounds)}):"
        yield from self.block(s.body, indent + "    ")

    def roles(self, s: ir.Roles, indent: str) -> Iterator[str]:
        yield f"{indent}roles:"
        for role in s.roles:
            name = role.name if role.name.isidentifier() else _quoted(role.name)
            yield f"{indent}    role {name} first={role.first} workers={role.workers}:"
            yield from self.block(role.body, indent + "        ")


def _by(mapping: Mapping | None) -> str:
    return "" if mapping is None else f" by {mapping}"


def _result(text: ExpressionPrinter, s: ir.Do, variable: ir.Variable) -> str:
    return text.binder(variable, result_type(s.operation, s.operands))


def _operand(text: ExpressionPrinter, s: Any, operand: ir.Operand) -> str:
    place = text.element(operand.tensor, operand.origin)
    rows, columns = operand.shape
    return f"{place}.as({rows}, {columns}{', transposed' if operand.transposed else ''})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _word(text: str) -> str:
    return text if is_word(text) else _quoted(text)


# The text of a field by its kind in a form.
_KINDS: dict[str, Callable[..., str]] = {
    **dict.fromkeys(
        ("INT", "NAME", "MAPPING", "RING_STEP", "BARRIER_SCOPE", "dtype"),
        lambda text, s, value: str(value),
    ),
    "STRING": lambda text, s, value: _quoted(value),
    **dict.fromkeys(("word", "operation"), lambda text, s, value: _word(value)),
    "PERSISTENT": lambda text, s, value: "persistent",
    "SPECIALIZE": lambda text, s, value: "specialize",
    "EXCLUSIVE": lambda text, s, value: "exclusive",
    "ATOMIC": lambda text, s, operator: f"{operator}=",
    "old": lambda text, s, variable: text.binder(variable, s.tensor.dtype),
    "result": _result,
    "operands": lambda text, s, operands: text.arguments(operands),
    "place": lambda text, s, tensor: text.element(tensor, s.indices),
    "element": lambda text, s, value: text(value, s.tensor.dtype, 0),
    "index": lambda text, s, value: text(value, i64, 0),
    "condition": lambda text, s, value: text(value, None, 0),
    "more": lambda text, s, values: "".join([f", {text(value, None, 0)}" for value in values]),
    "operand": _operand,
    "binder": lambda text, s, variable: text.binder(variable),
    "binders": lambda text, s, variables: text.binders(variables),
    **dict.fromkeys(("tensor", "peer", "ring"), lambda text, s, named: text.name(named)),
    "names": lambda text, s, tensors: joined(map(text.name, tensors)),
    "fold": lambda text, s, operator: (
        operator if isinstance(operator, str) else text.name(operator)
    ),
    "extents": lambda text, s, shape: joined(map(text.extent, shape)),
    **dict.fromkeys(("sizes", "tiles"), lambda text, s, sizes: joined(map(str, sizes))),
    "order": lambda text, s, order: f"({', '.join(map(json.dumps, order))})",
}

_SIMPLE: dict[type, Callable[[Printer, Any], str]] = {
    ir.Let: Printer.let,
    ir.Allocate: Printer.allocate,
}

_COMPOUND: dict[type, Callable[[Printer, Any, str], Iterator[str]]] = {
    ir.Sequence: Printer.sequence,
    ir.If: Printer.if_,
    ir.For: Printer.for_,
    ir.Roles: Printer.roles,
}
