"""The printer of names, types and expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression
from taskc.ir.rewrite import expressions
from taskc.ir.text_rules import (
    BINARY_FUNCTIONS,
    CALLS,
    COMPARISON,
    FUNCTIONS,
    NOT,
    POSTFIX,
    PRECEDENCE,
    PREFIXES,
    RESERVED,
    default_type,
    identifier,
    number_text,
    operand_type,
    surroundings,
)
from taskc.ir.types import DType, boolean, i64, u8

Named = ir.Variable | ir.Tensor | ir.Ring | ir.Table | ir.Snippet | ir.Combine


class ExpressionPrinter:
    """Prints expressions, and the names, types and binders around them."""

    def __init__(self, kernel: ir.Kernel | None) -> None:
        self.names: dict[Named, str] = {}
        self.counts: dict[str, int] = {}
        self.taken: set[str] = set()
        self.shared: dict[int, str] = {}  # names of expressions, by their `id`
        if kernel is not None:
            self.taken |= RESERVED
            self.names[kernel.worker] = "worker"
            self.names[kernel.block] = "block"
            self.names[kernel.processors] = "processors"

    def name(self, named: Named) -> str:
        known = self.names.get(named)
        if known is not None:
            return known
        base = name = identifier(named.name)
        count = self.counts.get(base, 0)
        while name in self.taken or (type(named) in (ir.Snippet, ir.Combine) and name in FUNCTIONS):
            count += 1
            name = f"{base}_{count}"
        self.counts[base] = count
        self.taken.add(name)
        self.names[named] = name
        return name

    def type(self, tensor: ir.Tensor) -> str:
        if tensor.held is not None:
            return f"{self.type(tensor.held)}.{'bytes' if tensor.dtype is u8 else 'words'}()"
        extents = self.extents(tensor.argument_shape) or "()"
        text = f"{tensor.dtype}[{extents}]"
        if tensor.given is not None:
            text += f".reshape({self.extents(tensor.shape)})"
        if tensor.layout is not None:
            text += f".laid({tensor.layout})"
        if tensor.swizzle is not None:
            swizzle = tensor.swizzle
            text += f".swizzled({swizzle.bits}, {swizzle.base}, {swizzle.shift})"
        if tensor.offset is not None:
            text += f".at({tensor.offset})"
        return text

    def extents(self, shape: tuple[int | Expression, ...]) -> str:
        return ", ".join([self.extent(extent) for extent in shape])

    def extent(self, extent: int | Expression) -> str:
        return str(extent) if isinstance(extent, int) else self(extent, i64, 0)

    # --- names bound ---

    def binder(self, variable: ir.Variable, assumed: DType | None = i64) -> str:
        text = self.name(variable)
        if variable.dtype is not assumed:
            text += f": {variable.dtype}"
        if variable.multiple != 1:
            text += f" multiple={variable.multiple}"
        return text

    def binders(self, variables: tuple[ir.Variable, ...]) -> str:
        return joined([self.binder(variable) for variable in variables])

    # --- expressions ---

    def __call__(self, e: Expression, expected: DType | None, level: int) -> str:
        """The text of `e` in a place that expects a type and binds at `level` (see PRECEDENCE)."""
        kind = type(e)
        if self.shared and id(e) in self.shared:
            return self.shared[id(e)]
        if kind is ir.Variable:
            return self.names.get(e) or self.name(e)  # type: ignore[arg-type]
        if kind is ir.Binary and e.operator in PRECEDENCE:  # type: ignore[union-attr]
            return self.infix(e, expected, level)  # type: ignore[arg-type]
        render = _EXPRESSIONS.get(kind)
        # An invalid expression is shown, too: the verifier's message contains the whole program.
        return f"<{e!r}>" if render is None else render(self, e, expected, level)

    def constant(self, e: ir.Constant, expected: DType | None, level: int) -> str:
        text = number_text(e.value, e.dtype)
        if e.dtype is boolean:
            return text
        if e.dtype is not default_type(expected):
            return f"{e.dtype}({text})"
        return f"({text})" if level >= POSTFIX else text

    def infix(self, e: ir.Binary, expected: DType | None, level: int) -> str:
        """The text of a chain like a + b - c, from left to right without recursion: sums may be long."""
        right_sides: list[tuple[str, Expression, DType | None, int, str]] = []
        first: Expression = e
        opened = 0
        while (
            type(first) is ir.Binary
            and first.operator in PRECEDENCE
            and id(first) not in self.shared
        ):
            precedence = PRECEDENCE[first.operator]
            closing = ")" if precedence < level else ""
            opened += len(closing)
            expected = surroundings(first.operator, expected)
            common = operand_type((first.left, first.right), expected)
            right_type = common if type(first.left) is not ir.Constant else expected
            right_sides.append((first.operator, first.right, right_type, precedence + 1, closing))
            level = precedence + (precedence == COMPARISON)
            expected = common if type(first.left) is ir.Constant else expected
            first = first.left
        text = "(" * opened + self(first, expected, level)
        for operator, right, right_type, precedence, closing in reversed(right_sides):
            text += f" {operator} {self(right, right_type, precedence)}{closing}"
        return text

    def function(self, name: str, operands: tuple[Expression, ...], expected: DType | None) -> str:
        return f"{name}({', '.join(self.operands(operands, expected))})"

    def operands(self, operands: tuple[Expression, ...], expected: DType | None) -> Iterator[str]:
        """The texts of operands: the one that determines the type expects what the surroundings do, the others its
        type.
        """
        common = operand_type(operands, expected)
        giver = next((i for i, e in enumerate(operands) if type(e) is not ir.Constant), None)
        for i, operand in enumerate(operands):
            yield self(operand, expected if i == giver else common, 0)

    def binary(self, e: ir.Binary, expected: DType | None, _level: int) -> str:
        name = e.operator if e.operator in BINARY_FUNCTIONS else f"<{e.operator}>"
        return self.function(name, (e.left, e.right), expected)

    def unary(self, e: ir.Unary, expected: DType | None, level: int) -> str:
        expected = surroundings(e.operator, expected)
        precedence = PREFIXES.get(e.operator)
        if precedence is None:
            return self.function(e.operator, (e.operand,), expected)
        operand = self(e.operand, expected, precedence)
        if e.operator == "-" and (operand[0].isdigit() or operand in ("inf", "nan")):
            operand = f"({operand})"  # without parentheses it would be a negative constant
        text = f"not {operand}" if precedence == NOT else e.operator + operand
        return f"({text})" if precedence < level else text

    def called(self, e: Expression, expected: DType | None, _level: int) -> str:
        name, conditions = _CALLED[type(e)]
        operands = tuple(expressions(e))
        first = [self(operand, None, 0) for operand in operands[:conditions]]
        return f"{name}({', '.join([*first, *self.operands(operands[conditions:], expected)])})"

    def cast(self, e: ir.Cast, _expected: DType | None, _level: int) -> str:
        return f"{self(e.operand, None, POSTFIX)}.to({e.dtype})"

    def bitcast(self, e: ir.Bitcast, _expected: DType | None, _level: int) -> str:
        return f"{self(e.operand, None, POSTFIX)}.bitcast({e.dtype})"

    def read(self, e: ir.Read, _expected: DType | None, _level: int) -> str:
        return self.element(e.tensor, e.indices)

    def lookup(self, e: ir.Lookup, _expected: DType | None, _level: int) -> str:
        return f"{self.name(e.table)}[{self(e.index, i64, 0)}]"

    def inline(self, e: ir.Inline, _expected: DType | None, _level: int) -> str:
        pairs = zip(e.operands, e.snippet.parameters, strict=True)
        operands = [self(operand, parameter.dtype, 0) for operand, parameter in pairs]
        return f"{self.name(e.snippet)}({', '.join(operands)})"

    def address(self, e: ir.Address, _expected: DType | None, _level: int) -> str:
        return "&" + self.element(e.tensor, e.indices)

    def element(self, tensor: ir.Tensor, indices: tuple[Expression, ...]) -> str:
        name = self.name(tensor)
        if not indices:
            return name if not tensor.shape else f"{name}[]"
        return f"{name}[{', '.join([self(index, i64, 0) for index in indices])}]"

    def arguments(self, arguments: Iterable[Expression]) -> str:
        return ", ".join([self(argument, None, 0) for argument in arguments])


def extent_text(extent: int | Expression) -> str:
    """An extent as it would look in a kernel; for messages."""
    return ExpressionPrinter(None).extent(extent)


def joined(items: Iterable[str]) -> str:
    items = list(items)
    return items[0] if len(items) == 1 else f"({', '.join(items)})"


_CALLED = {kind: (name, conditions) for name, (kind, conditions) in CALLS.items()}
_EXPRESSIONS: dict[type, Callable[[ExpressionPrinter, Any, DType | None, int], str]] = {
    ir.Constant: ExpressionPrinter.constant,
    ir.Unary: ExpressionPrinter.unary,
    ir.Binary: ExpressionPrinter.binary,
    ir.Cast: ExpressionPrinter.cast,
    ir.Bitcast: ExpressionPrinter.bitcast,
    ir.Read: ExpressionPrinter.read,
    ir.Lookup: ExpressionPrinter.lookup,
    ir.Inline: ExpressionPrinter.inline,
    ir.Address: ExpressionPrinter.address,
    **dict.fromkeys(_CALLED, ExpressionPrinter.called),
}
