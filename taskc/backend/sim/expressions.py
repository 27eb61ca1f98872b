"""Expressions as closures: each node becomes a function of the frame, once for each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.sim.machine import Frame, Run, both
from taskc.errors import InternalError
from taskc.ir import arithmetic, nodes as ir
from taskc.ir.types import DType, boolean, f32, f64, i64

Evaluate: TypeAlias = Callable[[Frame], Any]
Pure: TypeAlias = "tuple[Evaluate, bool]"
"""A function, and whether it can't go wrong: it may then be evaluated where it isn't asked for."""

# NumPy's own functions compute these exactly, on scalars too, for types with native arithmetic.
_BINARY = "+ - * / & | ^ << >> == != < <= > >=".split()
_UNARY = "- abs ~ not isnan sqrt floor ceil round trunc".split()
_NATIVE = {symbol: arithmetic.BINARY_OPERATORS[symbol].evaluate for symbol in _BINARY}
_NATIVE_UNARY = {symbol: arithmetic.UNARY_OPERATORS[symbol].evaluate for symbol in _UNARY}


def scalar(value: Any) -> Any:
    """Turn 0-d arrays into NumPy scalars, so that only real arrays are arrays."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def narrowed(mask: Any, condition: Any) -> Any:
    """`mask` where the condition holds too; None if all lanes remain."""
    if isinstance(condition, np.ndarray):
        return None if mask is None and condition.all() else both(mask, condition)
    return mask if condition else np.zeros((1, 1), np.bool_)


class ExpressionCompiler:
    """Compiles expressions, by a table; `read` is set by `AccessCompiler`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.read: Callable[[ir.Read], Evaluate] = lambda node: NotImplemented
        self.makers = EXPRESSIONS

    def __call__(self, node: ir.Expression) -> Evaluate:
        return self.compile(node)[0]

    def compile(self, node: ir.Expression) -> Pure:
        maker = self.makers.get(type(node))
        if maker is None:
            raise InternalError(f"{type(node).__name__} is not a value")
        return maker(self, node)

    def index(self, node: ir.Expression) -> Evaluate:
        """An index, as i64."""
        evaluate = self(node)
        if node.dtype is i64:
            return evaluate

        def widened(frame: Frame) -> Any:
            return evaluate(frame).astype(np.int64)

        return widened


def _constant(compiler: ExpressionCompiler, node: ir.Constant) -> Pure:
    value = scalar(arithmetic.as_storage(node.value, node.dtype))
    return (lambda frame: value), True


def _variable(compiler: ExpressionCompiler, node: ir.Variable) -> Pure:
    def get(frame: Frame) -> Any:
        try:
            return frame.env[node]
        except KeyError:
            raise InternalError(f"the variable {node.name} is not bound") from None

    return get, True


def _unary(compiler: ExpressionCompiler, node: ir.Unary) -> Pure:
    operand, pure = compiler.compile(node.operand)
    operator, dtype = node.operator, node.operand.dtype
    function: Any = _NATIVE_UNARY.get(operator)
    if function is None or not _is_native(dtype):

        def general(frame: Frame) -> Any:
            return scalar(arithmetic.unary(operator, operand(frame), dtype))

        return general, pure
    return (lambda frame: function(operand(frame))), pure


def _binary(compiler: ExpressionCompiler, node: ir.Binary) -> Pure:
    operator, dtype = node.operator, node.left.dtype
    left, left_pure = compiler.compile(node.left)
    right, right_pure = compiler.compile(node.right)
    pure = left_pure and right_pure
    if operator in ("and", "or"):
        function: Any = np.logical_and if operator == "and" else np.logical_or
        if not right_pure:
            return _lazy(operator == "and", left, right), pure
        return (lambda frame: function(left(frame), right(frame))), pure
    if operator in ("//", "%") and dtype.is_integer:
        return _division(node, left, right, left_pure)
    function = _NATIVE.get(operator)
    if operator in ("min", "max") and not dtype.is_float:
        function = np.minimum if operator == "min" else np.maximum
    if function is not None and _is_native(dtype):
        return (lambda frame: function(left(frame), right(frame))), pure

    def general(frame: Frame) -> Any:
        return scalar(arithmetic.binary(operator, left(frame), right(frame), dtype))

    return general, pure


def _lazy(is_and: bool, left: Evaluate, right: Evaluate) -> Evaluate:
    def lazy(frame: Frame) -> Any:
        first = left(frame)
        asked = first if is_and else np.logical_not(first)
        if not np.count_nonzero(asked):
            return first
        outer = frame.mask
        frame.mask = narrowed(outer, asked)
        second = right(frame)
        frame.mask = outer
        return np.logical_and(first, second) if is_and else np.logical_or(first, second)

    return lazy


def _division(node: ir.Binary, left: Evaluate, right: Evaluate, left_pure: bool) -> Pure:
    function: Any = np.floor_divide if node.operator == "//" else np.remainder
    divisor = node.right
    if isinstance(divisor, ir.Constant) and divisor.value != 0:
        return (lambda frame: function(left(frame), right(frame))), left_pure
    message = "{} is divided by zero" if node.operator == "//" else "{} modulo zero"

    def divide(frame: Frame) -> Any:
        dividend, by = left(frame), right(frame)
        zero = by == 0
        if np.count_nonzero(zero):
            frame.fault_if("division-by-zero", message, zero, node, dividend)
        return function(dividend, by)

    return divide, False


def _fused(compiler: ExpressionCompiler, node: ir.Fused) -> Pure:
    left, left_pure = compiler.compile(node.left)
    right, right_pure = compiler.compile(node.right)
    addend, addend_pure = compiler.compile(node.addend)
    pure = left_pure and right_pure and addend_pure
    dtype = node.dtype
    if dtype.is_integer:
        return (lambda frame: left(frame) * right(frame) + addend(frame)), pure
    fma = arithmetic.fma

    def fused(frame: Frame) -> Any:
        return scalar(fma(left(frame), right(frame), addend(frame), dtype))

    return fused, pure


def _select(compiler: ExpressionCompiler, node: ir.Select) -> Pure:
    condition, condition_pure = compiler.compile(node.condition)
    then, then_pure = compiler.compile(node.then)
    otherwise, otherwise_pure = compiler.compile(node.otherwise)
    eager = then_pure and otherwise_pure

    def select(frame: Frame) -> Any:
        chosen = condition(frame)
        if not isinstance(chosen, np.ndarray):
            return then(frame) if chosen else otherwise(frame)
        if eager:
            return np.where(chosen, then(frame), otherwise(frame))
        outer = frame.mask
        wanted, refused = both(outer, chosen), both(outer, ~chosen)
        if not np.count_nonzero(refused):
            return then(frame)
        if not np.count_nonzero(wanted):
            return otherwise(frame)
        frame.mask = wanted
        first = then(frame)
        frame.mask = refused
        second = otherwise(frame)
        frame.mask = outer
        return np.where(chosen, first, second)

    return select, eager and condition_pure


def _cast(compiler: ExpressionCompiler, node: ir.Cast) -> Pure:
    operand, pure = compiler.compile(node.operand)
    source, target = node.operand.dtype, node.dtype
    if source is target:
        return operand, pure
    if source.is_integer and (target.is_integer or target in (f32, f64)):
        storage = target.numpy
        return (lambda frame: operand(frame).astype(storage)), pure
    convert = arithmetic.convert
    return (lambda frame: scalar(convert(operand(frame), source, target))), pure


def _bitcast(compiler: ExpressionCompiler, node: ir.Bitcast) -> Pure:
    operand, pure = compiler.compile(node.operand)
    source, target = node.operand.dtype, node.dtype
    return (lambda frame: scalar(arithmetic.bitcast(operand(frame), source, target))), pure


def _lookup(compiler: ExpressionCompiler, node: ir.Lookup) -> Pure:
    index = compiler.index(node.index)
    values = np.asarray(node.table.values, np.int64).reshape(-1)
    name, size = node.table.name, len(values)

    def lookup(frame: Frame) -> Any:
        at = index(frame)
        wrong = (at < 0) | (at >= size)
        if np.count_nonzero(wrong):
            message = f"{{}} is outside the {size} entries of the table {name}"
            frame.fault_if("out-of-bounds", message, wrong, node, at)
            at = np.where(wrong, 0, at)
        return values[at]

    return lookup, False


def _inline(compiler: ExpressionCompiler, node: ir.Inline) -> Pure:
    """The snippet's meaning, with its parameters bound to the operands."""
    compiled = [compiler.compile(operand) for operand in node.operands]
    operands = [evaluate for evaluate, _ in compiled]
    meaning, pure = compiler.compile(node.snippet.meaning)
    parameters = node.snippet.parameters

    def inline(frame: Frame) -> Any:
        values = [operand(frame) for operand in operands]
        frame.env.update(zip(parameters, values, strict=True))
        return meaning(frame)

    return inline, pure and all(is_pure for _, is_pure in compiled)


def _read(compiler: ExpressionCompiler, node: ir.Read) -> Pure:
    return compiler.read(node), False


EXPRESSIONS: dict[type, Callable[[ExpressionCompiler, Any], Pure]] = {
    ir.Constant: _constant,
    ir.Variable: _variable,
    ir.Unary: _unary,
    ir.Binary: _binary,
    ir.Fused: _fused,
    ir.Select: _select,
    ir.Cast: _cast,
    ir.Bitcast: _bitcast,
    ir.Read: _read,
    ir.Lookup: _lookup,
    ir.Inline: _inline,
}


def _is_native(dtype: DType) -> bool:
    return dtype.is_integer or dtype is boolean or dtype is f32 or dtype is f64
