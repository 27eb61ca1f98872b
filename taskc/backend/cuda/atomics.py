"""Atomic updates in CUDA C++: those of the hardware, and for the rest compare and swap.

atomic y[0] max= x      tc::update(&y[0], [value = x](f32 old) -> f32 { return tc::maximum(old, value); });
"""

from __future__ import annotations

from taskc.backend.cuda.expressions import Expressions
from taskc.ir import nodes as ir
from taskc.ir.types import DType, boolean

_FUNCTIONS = {
    "+": "Add", "min": "Min", "max": "Max", "&": "And", "|": "Or", "^": "Xor", "exchange": "Exch",
}  # fmt: skip


def atomic_text(node: ir.Atomic, expressions: Expressions) -> str:
    dtype, operator = node.tensor.dtype, node.operator
    place = f"&{expressions.element(node.tensor, node.indices)}"
    if node.operator == "release":
        return f"{expressions.use('store_release')}({place}, {expressions(node.value)});"
    value = expressions(node.value)
    if operator == "acquire":
        text = f"{expressions.use('load_acquire')}({place})"
    elif not _is_in_hardware(operator, dtype):
        function = expressions.use("update")
        text = f"{function}({place}, {_combination(operator, dtype, value, expressions)})"
    elif dtype.kind == "int" and dtype.bits == 64 and operator not in ("min", "max"):
        # These are declared for unsigned numbers alone; the bits are the same.
        text = f"({dtype})atomic{_FUNCTIONS[operator]}((u64*){place}, (u64)({value}))"
    else:
        text = f"atomic{_FUNCTIONS[operator]}({place}, {value})"
    if node.result is not None:
        text = f"const {node.result.dtype} {expressions.names[node.result]} = {text}"
    return f"{text};"


def _combination(operator: str, dtype: DType, value: str, expressions: Expressions) -> str:
    """A function from the old element to the new one."""
    if operator == "exchange":
        return f"[value = {value}]({dtype}) -> {dtype} {{ return value; }}"
    old, operand = ir.Variable("old", dtype), ir.Variable("value", dtype)
    expressions.names.of.update({old: "old", operand: "value"})
    made = expressions(ir.Binary(operator, old, operand))
    return f"[value = {value}]({dtype} old) -> {dtype} {{ return {made}; }}"


def _is_in_hardware(operator: str, dtype: DType) -> bool:
    """Whether there is one that is what the language means."""
    if dtype.bits < 32 or dtype is boolean:
        return False
    if dtype.is_float:
        return operator == "+" or (operator == "exchange" and dtype.bits == 32)
    return True
