"""The number of blocks of a call.

    i64 count(ptr arguments)

`count_text` writes this function. The number is negated where one thread is enough: where all blocks take less than,
roughly, ten microseconds of operations. IN_ORDER is added where threads have to take blocks in order, since a block may
wait for an earlier one.
"""

from __future__ import annotations

from taskc.backend.cpu.instructions import Builder, LaneValue, constant
from taskc.backend.cpu.native import Elementwise
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.code_size import trip_count
from taskc.ir.nodes import Expression, Statement, Variable
from taskc.ir.rewrite import all_below, expressions, statements, walk
from taskc.ir.types import i64

WORTH = 40_000  # operations, about ten microseconds: below that, other threads come too late
IN_ORDER = 1 << 62
_UNKNOWN_TRIPS = 64
_MATH = 20
_OPERATIONS = frozenset({ir.Unary, ir.Binary, ir.Read, ir.Fused, ir.Address})


def count_text(kernel: ir.Kernel, vectors: int) -> str:
    """The text of `count`; a block runs its body once for each of its vectors."""
    builder = Builder()
    elementwise = Elementwise(builder)
    known: dict[Variable, LaneValue] = {}
    for number, item in enumerate([*kernel.parameters, *kernel.dimensions]):
        if isinstance(item, Variable) and item.dtype.is_integer:
            place = builder.pure(f"getelementptr i64, ptr %arguments, i64 {number}")
            text = builder.pure(f"load i{item.dtype.bits}, ptr {place}")
            known[item] = LaneValue(text, item.dtype)

    def value(expression: Expression) -> LaneValue:
        match expression:
            case ir.Constant():
                return constant(expression.value, expression.dtype)
            case Variable():
                return known[expression]
            case ir.Binary():
                return elementwise.binary(
                    expression.operator, value(expression.left), value(expression.right)
                )
            case ir.Cast():
                return elementwise.convert(value(expression.operand), expression.dtype)
        raise InternalError(f"the number of blocks can't be {type(expression).__name__}")

    blocks = elementwise.convert(value(kernel.blocks or ir.constant(1)), i64)
    most = constant(WORTH // max(1, cost_of(kernel.body) * vectors), i64)
    few = elementwise.binary("<=", blocks, most)
    many = blocks
    if waits_for_blocks(kernel.body):
        many = elementwise.binary("|", blocks, IN_ORDER)
    signed = elementwise.select(few, elementwise.unary("-", blocks), many)
    lines = [*builder.declared.values(), "define i64 @count(ptr %arguments) {", *builder.lines]
    return "\n".join([*lines, f"  ret i64 {signed.text}", "}"])


def waits_for_blocks(body: Statement) -> bool:
    """Whether a loop may wait for another block's update."""
    return any(
        node.tensor.scope == ir.GLOBAL
        for loop in all_below(body, ir.While)
        for node in all_below(loop.body, ir.Atomic)
    )


def cost_of(statement: Statement) -> int:
    """Operations of one vector of workers; a loop of unknown length counts as _UNKNOWN_TRIPS turns."""
    own_operations = own_cost(statement)
    nested = sum(cost_of(inner) for inner in statements(statement))
    match statement:
        case ir.For() if (trips := trip_count(statement)) is not None:
            return own_operations + trips * nested
        case ir.For() | ir.While():
            return own_operations + _UNKNOWN_TRIPS * (own_operations + nested)
    return own_operations + nested


def own_cost(statement: Statement) -> int:
    """Operations of the statement's own expressions, without nested statements."""
    total = 0
    for part in expressions(statement):
        for node in walk(part):
            if type(node) in _OPERATIONS:
                is_math = getattr(node, "operator", None) in MATH_FUNCTIONS
                total += _MATH if is_math else 1
    return total
