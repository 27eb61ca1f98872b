"""Expressions in CUDA C++, and the text of a whole kernel.

    x[i * 4 + worker] + floor(y) % 3        x[i * 4 + worker] + tc::floor_modulo(floorf(y), 3.0f)

Plain operators are used where they mean the same: signed arithmetic that can't overflow, quotients of numbers
that aren't negative. All others are functions of the prelude. Every text has exactly the C++ type of its node,
so that functions may be overloaded.

`KernelSource` is the code of a kernel: lines with their source locations in Python, and the prelude entries they need.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from taskc.backend.cuda.compiled import LaunchDescription
from taskc.backend.cuda.prelude import (
    C_FUNCTIONS,
    COMPUTED_IN_F32,
    PRELUDE_FUNCTIONS,
    STRUCTURES,
    Prelude,
    PreludeEntry,
    UniqueNames,
    literal,
    prelude_text,
    type_name,
)
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, InternalError, Location, assert_never
from taskc.ir import nodes as ir
from taskc.ir.affine import SymbolTable
from taskc.ir.arithmetic import COMPARISONS
from taskc.ir.linear import Interval
from taskc.ir.nodes import Expression, Tensor
from taskc.ir.target import TARGETS
from taskc.ir.types import DType, bf16, boolean, f16, f32, f64, i64, tf32, u64

Text: TypeAlias = "tuple[str, int]"
"""An expression, and how tightly its outermost operator binds."""

PRIMARY, UNARY, PRODUCT, SUM, SHIFT, ORDER, EQUALITY = 16, 14, 13, 12, 11, 9, 8
BIT_AND, BIT_XOR, BIT_OR, AND, OR, CHOICE = 7, 6, 5, 4, 3, 2

_INFIX = {
    "*": PRODUCT, "/": PRODUCT, "+": SUM, "-": SUM, "<<": SHIFT, ">>": SHIFT,
    "<": ORDER, "<=": ORDER, ">": ORDER, ">=": ORDER, "==": EQUALITY, "!=": EQUALITY,
    "&": BIT_AND, "^": BIT_XOR, "|": BIT_OR, "and": AND, "or": OR,
}  # fmt: skip
_SPELLING = {"and": "&&", "or": "||"}
_WRAPPING = {"+": "add", "-": "subtract", "*": "multiply"}
_DIVISIONS = {"//": "floor_divide", "%": "floor_modulo"}
_FUNCTIONS = {"pow": "power", "dot_bytes": "dot_bytes"}
_EXTREMA = {"min": "minimum", "max": "maximum"}

_OF_BITS = ("popcount", "leading_zeros", "trailing_zeros", "reverse_bits")

_REGISTERS = {16: "h", 32: "r", 64: "l"}


class ExpressionWriter:
    """`scope` knows the ranges of variables; `replaced` gives the text to use instead of some reads."""

    def __init__(self, names: UniqueNames, prelude: Prelude, scope: SymbolTable, arch: str) -> None:
        self.names = names
        self.prelude = prelude
        self.scope = scope
        self.target = TARGETS[arch]
        self.replaced: Callable[[ir.Read], str | None] = lambda node: None
        self.tables: dict[ir.Table, str] = {}
        self.snippets: dict[ir.Snippet, str] = {}

    def __call__(self, node: Expression, level: int = 0) -> str:
        """The text, in parentheses where it binds less tightly than `level`."""
        text, binds = self.text(node)
        return text if binds >= level else f"({text})"

    def text(self, node: Expression) -> Text:
        match node:
            case ir.Variable():
                return self.names[node], PRIMARY
            case ir.Constant(value=value, dtype=dtype):
                return self.constant(value, dtype)
            case ir.Binary():
                return self._binary(node)
            case ir.Unary():
                return self._unary(node)
            case ir.Fused():
                return self._fused(node)
            case ir.Select(condition=condition, then=then, otherwise=otherwise):
                parts = [self(part, CHOICE + 1) for part in (condition, then, otherwise)]
                return f"{parts[0]} ? {parts[1]} : {parts[2]}", CHOICE
            case ir.Cast(operand=operand, dtype=dtype):
                is_near = operand.dtype is f32 and dtype in COMPUTED_IN_F32
                text = self._near(operand, dtype) if is_near else self.text(operand)
                return self.converted(text, operand.dtype, dtype)
            case ir.Bitcast(operand=operand, dtype=dtype):
                for named in {operand.dtype, dtype}.intersection(STRUCTURES):
                    self.use(named.name)
                self.prelude.use("words_of")
                return f"tc::bits_as<{type_name(dtype)}>({self(operand)})", PRIMARY
            case ir.Read(tensor=tensor, indices=indices):
                return self.replaced(node) or self.element(tensor, indices), PRIMARY
            case ir.Lookup(table=table, index=index):
                if table not in self.tables:
                    self.tables[table] = self.names[table]
                return f"{self.tables[table]}[{self(index)}]", PRIMARY
            case ir.Inline():
                return self._inline(node), PRIMARY
            case ir.Address():
                raise InternalError("an address has no value")
            case _:
                return assert_never(node)

    def use(self, name: str) -> str:
        """The name of a function of the prelude, whose entry is then included."""
        self.prelude.use(name)
        return f"tc::{name.partition('.')[0]}"

    def call(self, name: str, *operands: Expression) -> Text:
        return f"{self.use(name)}({', '.join([self(operand) for operand in operands])})", PRIMARY

    def constant(self, value: bool | int | float, dtype: DType) -> Text:
        text, is_primary = literal(value, dtype)
        if text.startswith("tc::"):
            self.use("bits64" if dtype is f64 else "bits32")
        elif dtype in STRUCTURES:
            self.use(dtype.name)
        return text, PRIMARY if is_primary else UNARY

    # Memory.

    def element(self, tensor: Tensor, indices: tuple[Expression, ...]) -> str:
        name = self.names[tensor]
        if not indices:
            return f"{name}[0]" if tensor.scope == ir.GLOBAL else name
        return f"{name}[{self.offset(tensor, indices)}]"

    def offset(self, tensor: Tensor, indices: tuple[Expression, ...]) -> str:
        """The text of an element's offset in its memory."""
        (index,) = indices
        swizzle = tensor.swizzle
        if swizzle is None:
            return self(index)
        function = self.use("swizzle")
        return f"{function}<{swizzle.bits}, {swizzle.base}, {swizzle.shift}>({self(index)})"

    def address(self, place: Expression) -> str:
        assert isinstance(place, ir.Address)
        return f"&{self.element(place.tensor, place.indices)}"

    # Operators.

    def interval(self, node: Expression) -> Interval:
        return self.scope.interval_of(self.scope.form(node))

    def _binary(self, node: ir.Binary) -> Text:
        operator, dtype = node.operator, node.left.dtype
        if dtype.is_float:
            return self._of_floats(node, dtype)
        if operator in ("and", "or") or operator in COMPARISONS:
            return self._infix(operator, node.left, node.right)
        if operator in _EXTREMA:
            return self.call(_EXTREMA[operator], node.left, node.right)
        if dtype is boolean or operator in ("&", "|", "^"):
            text = self._infix(operator, node.left, node.right)
            return self._exactly(text, dtype) if dtype.bits < 32 else text
        if operator in ("<<", ">>"):
            return self._shift(node, dtype)
        if operator in _DIVISIONS:
            return self._division(node, dtype)
        if operator in _FUNCTIONS:
            return self.call(_FUNCTIONS[operator], node.left, node.right)
        if dtype.bits < 32:
            # i8 and i16 are computed as int; the product of two u16 may not fit that.
            if operator == "*" and dtype.bits == 16:
                return self.call("multiply", node.left, node.right)
            return self._exactly(self._infix(operator, node.left, node.right), dtype)
        if dtype.is_signed and self._may_wrap(node):
            return self.call(_WRAPPING[operator], node.left, node.right)
        return self._infix(operator, node.left, node.right)

    def _infix(self, operator: str, left: Expression, right: Expression) -> Text:
        binds = _INFIX[operator]
        # Parentheses for a - (b + c), and for a & b == c, where C++'s precedence is surprising.
        loosest = SHIFT + 1 if BIT_OR <= binds <= EQUALITY or binds == SHIFT else binds
        first = self(left, loosest)
        second = self(right, max(loosest, binds + 1))
        return f"{first} {_SPELLING.get(operator, operator)} {second}", binds

    def _exactly(self, text: Text, dtype: DType) -> Text:
        """Convert a result that C++ computed as int back to its own type."""
        return f"({dtype})({text[0]})", UNARY

    def _may_wrap(self, node: ir.Binary) -> bool:
        left_range, right_range = self.interval(node.left), self.interval(node.right)
        if node.operator == "*":
            result = left_range.times(right_range)
        else:
            right_range = right_range.scaled(-1) if node.operator == "-" else right_range
            if None in (left_range.low, left_range.high, right_range.low, right_range.high):
                return True
            result = Interval(left_range.low + right_range.low, left_range.high + right_range.high)  # type: ignore[operator]
        low, high = result.low, result.high
        dtype = node.dtype
        return low is None or high is None or low < dtype.minimum or high > dtype.maximum

    def _shift(self, node: ir.Binary, dtype: DType) -> Text:
        by = node.right
        if not isinstance(by, ir.Constant) or not 0 <= by.value < dtype.bits:
            return self.call(
                "shift_left" if node.operator == "<<" else "shift_right", node.left, by
            )
        count = str(int(by.value))
        left = self(node.left, SHIFT + 1)
        if node.operator == ">>":
            text = f"{left} >> {count}", SHIFT
            return text if dtype.bits >= 32 else self._exactly(text, dtype)
        if dtype.kind == "uint" and dtype.bits >= 32:
            return f"{left} << {count}", SHIFT
        wide = "u64" if dtype.bits == 64 else "u32"
        return f"({dtype})(({wide}){self(node.left, UNARY)} << {count})", UNARY

    def _division(self, node: ir.Binary, dtype: DType) -> Text:
        left, right = node.left, node.right
        function = _DIVISIONS[node.operator]
        if isinstance(right, ir.Constant) and right.value > 0:
            natural = dtype.kind == "uint"
            if not natural:
                low = self.interval(left).low
                natural = low is not None and low >= 0
            if natural:
                sign = "/" if node.operator == "//" else "%"
                text = f"{self(left, PRODUCT)} {sign} {self(right, UNARY)}", PRODUCT
                return self._exactly(text, dtype) if dtype.bits < 32 else text
            value = int(right.value)
            if dtype.bits >= 32 and not value & (value - 1):  # shifts round down
                if node.operator == "//":
                    return f"{self(left, SHIFT + 1)} >> {value.bit_length() - 1}", SHIFT
                mask, _ = literal(value - 1, dtype)
                return f"{self(left, SHIFT + 1)} & {mask}", BIT_AND
        return self.call(function, left, right)

    # Floats. 16-bit floats without instructions of their own are computed in f32 and rounded.

    def _of_floats(self, node: ir.Binary, dtype: DType) -> Text:
        operator, left, right = node.operator, node.left, node.right
        if dtype in COMPUTED_IN_F32:
            if operator in _EXTREMA:
                return self.call(f"{_EXTREMA[operator]}.{dtype}", left, right)
            if operator in _WRAPPING:
                return self.call(f"{_WRAPPING[operator]}.{dtype}", left, right)
            wide = ir.Binary(operator, ir.Cast(left, f32), ir.Cast(right, f32))
            text = self._of_floats(wide, f32)
            return text if operator in COMPARISONS else self.converted(text, f32, dtype)
        if operator in _EXTREMA:
            return self.call(f"{_EXTREMA[operator]}.{dtype}", left, right)
        if operator in _DIVISIONS:
            return self.call(f"{_DIVISIONS[operator]}.{dtype}", left, right)
        if operator in ("pow", "fmod", "atan2"):
            return self._function(operator, dtype, left, right)
        return self._infix(operator, left, right)

    def _function(self, name: str, dtype: DType, *operands: Expression) -> Text:
        suffix = "f" if dtype is f32 else ""
        return f"{name}{suffix}({', '.join([self(operand) for operand in operands])})", PRIMARY

    def _fused(self, node: ir.Fused) -> Text:
        dtype = node.dtype
        parts = node.left, node.right, node.addend
        if dtype.is_integer:
            return self.text(ir.Binary("+", ir.Binary("*", node.left, node.right), node.addend))
        if dtype in COMPUTED_IN_F32:
            return self.call(f"fma.{dtype}", *parts)
        name = "__fma_rn" if dtype is f64 else "__fmaf_rn"
        return f"{name}({', '.join([self(part) for part in parts])})", PRIMARY

    def _unary(self, node: ir.Unary) -> Text:
        operator, operand = node.operator, node.operand
        dtype = operand.dtype
        if operator == "not":
            return f"!{self(operand, UNARY)}", UNARY
        if dtype.is_float:
            return self._of_float(operator, operand, dtype)
        text = self(operand, UNARY)
        if operator == "~":
            return self._exactly((f"~{text}", 0), dtype) if dtype.bits < 32 else (f"~{text}", UNARY)
        if operator == "abs" and not dtype.is_signed:
            return text, UNARY
        if operator == "-" and dtype.is_signed and dtype.bits >= 32:
            low = self.interval(operand).low
            if low is not None and low > dtype.minimum:
                return f"-{self(operand, PRIMARY)}", UNARY
        if operator in _OF_BITS:
            return self.call(operator, operand)
        return self.call("negate" if operator == "-" else "absolute", operand)

    def _of_float(self, operator: str, operand: Expression, dtype: DType) -> Text:
        if dtype in COMPUTED_IN_F32:
            if operator in ("-", "abs"):
                bits = f"{self(operand, PRIMARY)}.bits"
                change = "^ 0x8000" if operator == "-" else "& 0x7fff"
                return f"{self._structure(dtype)}{{(u16)({bits} {change})}}", PRIMARY
            text = self._near(ir.Unary(operator, ir.Cast(operand, f32)), dtype)
            return text if operator == "isnan" else self.converted(text, f32, dtype)
        if operator == "-":
            return f"-{self(operand, PRIMARY)}", UNARY
        if operator == "isnan":
            value = self(operand, EQUALITY + 1)
            return f"{value} != {value}", EQUALITY
        if operator in PRELUDE_FUNCTIONS:
            return self.call(f"{operator}.f64" if dtype is f64 else operator, operand)
        if operator in C_FUNCTIONS:
            return self._function(C_FUNCTIONS[operator], dtype, operand)
        raise InternalError(f"no CUDA code for {operator} of {dtype}")

    def _near(self, node: Expression, dtype: DType) -> Text:
        """An f32 that is only used rounded to 16 bits: its factors need no more precision than that."""
        match node:
            case ir.Unary(operator="gelu", operand=operand):
                return self.call(f"gelu_for_{dtype}", operand)
            case ir.Unary(operator="sigmoid", operand=operand):
                return self.call("fast_sigmoid", operand)
            case ir.Binary(operator="*", left=left, right=right):
                factors = self._near(left, dtype), self._near(right, dtype)
                return f"{_at(factors[0], PRODUCT)} * {_at(factors[1], PRODUCT + 1)}", PRODUCT
        return self.text(node)

    def _structure(self, dtype: DType) -> str:
        self.use(dtype.name)
        return type_name(dtype)

    # Conversions: see `convert` of taskc.ir.arithmetic.

    def converted(self, operand: Text, source: DType, target: DType) -> Text:
        if source is target:
            return operand
        if source in STRUCTURES:
            return self.converted(
                (f"{self.use(f'to_f32.{source}')}({operand[0]})", PRIMARY), f32, target
            )
        if source is tf32:
            operand, source = (f"{self.use('to_f32.tf32')}({operand[0]})", PRIMARY), f32
        if target is boolean:
            zero = self.constant(0, source)[0]
            return f"{_at(operand, EQUALITY + 1)} != {zero}", EQUALITY
        if target is source:
            return operand
        if source.is_float and target.is_integer:
            # The limits are powers of two, exact in every float.
            bounds = float(target.minimum), 2.0 ** (target.bits - target.is_signed)
            lower, upper = (self.constant(bound, source)[0] for bound in bounds)
            function = self.use("to_integer")
            return f"{function}<{target}>({operand[0]}, {lower}, {upper})", PRIMARY
        if target in (f32, f64) or target.is_integer:
            return f"({target}){_at(operand, UNARY)}", UNARY
        return self._rounded(operand, source, target)

    def _rounded(self, operand: Text, source: DType, target: DType) -> Text:
        """Round once to a float below f32, through an f32 that is exact or rounded to odd."""
        if source in (i64, u64):
            operand, source = (f"{self.use(f'odd.{source}')}({operand[0]})", PRIMARY), f64
        elif source is not f32 and source is not f64:
            wide = f64 if source.bits == 32 else f32
            operand, source = (f"({wide}){_at(operand, UNARY)}", UNARY), wide
        if source is f64:
            operand = f"{self.use('odd')}({operand[0]})", PRIMARY
        name = f"to_{target}"
        if target.bits < self.target.converts:
            name += ".software"
        return f"{self.use(name)}({operand[0]})", PRIMARY

    # Snippets.

    def _inline(self, node: ir.Inline) -> str:
        snippet = node.snippet
        if snippet not in self.snippets:
            self.snippets[snippet] = name = self.names[snippet]
            self.prelude.add(self._snippet(name, snippet))
        operands = ", ".join([self(operand) for operand in node.operands])
        return f"tc::{self.snippets[snippet]}({operands})"

    def _snippet(self, name: str, snippet: ir.Snippet) -> PreludeEntry:
        dtype = snippet.meaning.dtype
        types = [parameter.dtype for parameter in snippet.parameters]
        parameters = ", ".join([f"{one} x{i}" for i, one in enumerate(types, start=1)])
        inputs = ", ".join(
            [f'"{_constraint(t)}"({_bits(t)(f"x{i}")})' for i, t in enumerate(types, start=1)]
        )
        text = snippet.text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines = [
            f"__device__ __forceinline__ {dtype} {name}({parameters}) {{",
            f"    {dtype} result;",
            f'    asm("{{ {text} }}" : "={_constraint(dtype)}"({_bits(dtype)("result")}) : {inputs});',
            "    return result;",
            "}",
        ]
        needs = tuple([t.name for t in (dtype, *types) if t in STRUCTURES])
        return PreludeEntry(f"snippet {name}", needs, "\n".join(lines))


def _at(operand: Text, level: int) -> str:
    text, binds = operand
    return text if binds >= level else f"({text})"


def _constraint(dtype: DType) -> str:
    if dtype in (f32, tf32):
        return "f"
    return "d" if dtype is f64 else _REGISTERS[dtype.bits]


def _bits(dtype: DType) -> Callable[[str], str]:
    return (lambda text: f"{text}.bits") if dtype in (f16, bf16) else (lambda text: text)


@dataclass(frozen=True, slots=True)
class Line:
    indent: int
    text: str
    loc: Location = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource(LaunchDescription):
    """A kernel's code: entries of the prelude, preceded by `macros`, and `lines`, the tables and the kernel."""

    entries: tuple[PreludeEntry, ...]
    macros: tuple[str, ...]
    lines: tuple[Line, ...]

    def text(self, *, with_places: bool = True) -> str:
        """The whole translation unit; with places, `#line` directives map its lines to those of Python."""
        parts = [prelude_text(self.entries, self.macros)]
        file, line = "", 0
        for one in self.lines:
            loc = one.loc
            if with_places and loc.line and (loc.file, loc.line) != (file, line):
                file, line = loc.file, loc.line
                parts.append(f"#line {line} {json.dumps(file, ensure_ascii=False)}\n")
            parts.append("    " * one.indent + one.text + "\n")
            line += 1
        return "".join(parts)
