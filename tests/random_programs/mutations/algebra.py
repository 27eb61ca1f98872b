"""Bugs in `simplify`."""

from __future__ import annotations

from typing import Any

from taskc.analysis import facts
from taskc.ir import linear, nodes as ir
from taskc.passes import simplify, simplify_expressions, simplify_rules
from tests.random_programs.mutations.mutation import Mutation, Wrong, edited


def _truncating_fold(right: Any) -> Any:
    def fold(node: ir.Expression) -> ir.Expression | None:
        match node:
            case ir.Binary(
                operator="//",
                left=ir.Constant(value=int() as left),
                right=ir.Constant(value=int() as divisor),
            ) if divisor:
                return ir.Constant(int(left / divisor), node.dtype)
        return right(node)  # type: ignore[no-any-return]

    return fold


def _with_rule(line: str) -> Wrong:
    rule = simplify_rules._parse(line)

    def wrong(right: Any) -> Any:
        def candidates(root: type, operator: str, operands: tuple[type, ...]) -> Any:
            fits = rule.root == (root, operator) and all(
                wanted is None or wanted is given
                for wanted, given in zip(rule.operands, operands, strict=True)
            )
            return ((rule,) if fits else ()) + right(root, operator, operands)

        return candidates

    return wrong


MUTATIONS = (
    Mutation("simplify", "// is folded towards zero",
             simplify_expressions, "fold", _truncating_fold),
    Mutation("simplify", "abs(-x) is abs(x) for unsigned numbers too",
             simplify_expressions, "candidates", _with_rule("number: abs(-x) -> abs(x)")),
    Mutation("simplify", "x * 0 is 0 for floats",
             simplify_expressions, "candidates", _with_rule("float: x * 0 -> 0")),
    Mutation("simplify", "x - -y is x - y",
             simplify_expressions, "candidates", _with_rule("int: x - -y -> x - y")),
    *(
        Mutation("simplify", f"the rule {line}",
                 simplify_expressions, "candidates", _with_rule(line))
        for line in (
            "float: x + 0 -> x",  # -0.0
            "float: x - x -> 0",  # infinity
            "float: 0 - x -> -x",  # 0.0
            "float: (x + y) - y -> x",  # rounding
            "number: (x * a) * b -> x * (a * b)",  # rounding
            "int: (x // a) // b -> x // (a * b)",  # a negative divisor
            "int: (x * a) // a -> x",  # numbers that wrap
            "int: -x < a -> x > -a",  # the least number, and unsigned ones
            "int: min(x, max(x, y)) -> y",
            "int: max(x, min(x, y)) -> y",
            "bool: select(p, x, False) -> p or x",
            "any: select(not p, x, y) -> select(p, x, y)",
            "float: fused(x, -1, y) -> x - y",
            "int: x % -1 -> x",
            "int: ~x -> -x",
        )
    ),
    Mutation("simplify", "a Select's condition is known to hold in its other branch",
             simplify_expressions.ExpressionSimplifier, "_select",
             edited("holds=False, lasting=False", "lasting=False")),
    Mutation("simplify", "of min and max the other operand is taken",
             simplify_expressions.ExpressionSimplifier, "_made",
             edited('smaller == (node.operator == "min")', 'smaller == (node.operator == "max")')),
    Mutation("simplify", "a quotient and a remainder of different divisors are joined",
             simplify_expressions, "_recombined",
             edited("q.parts == parts", "q.parts[0] == parts[0]")),
    Mutation("simplify", "an If whose first branch is empty keeps its condition",
             simplify._Walker, "_if",
             edited('self.expression(Unary("not", condition), facts)', "condition")),
    Mutation("simplify", "a loop's bounds use no names",
             simplify._Sweeper, "statement",
             edited("self._use(expression)\n                if", "pass\n                if")),
    Mutation("simplify", "a loop's last value is one step early",
             facts.Facts, "_enter_loop",
             edited("max(distance.constant - 1, -1)", "max(distance.constant - 2, -1)")),
    Mutation("simplify", "a loop ends a whole step before its bound",
             facts.Facts, "_enter_loop",
             edited("edge = stride if modulus % stride == 0 and remainder % stride == 0 else 1",
                    "edge = stride")),
    Mutation("simplify", "a remainder of a remainder is one for any divisors",
             linear, "modulo", edited(' and m % n == 0', "")),
    Mutation("simplify", "a quotient of a remainder is one for any divisors",
             linear, "floor_divided", edited(' and m % n == 0', "")),
    Mutation("simplify", "what is left of a division may be the divisor",
             linear, "_split", edited("high < g", "high <= g")),
    Mutation("simplify", "what is left of a division may be negative",
             linear, "_split", edited("low >= 0 and ", "")),
    Mutation("simplify", "two outer products end as one",
             linear, "floor_divided", edited("low // n == high // n", "low // n + 1 >= high // n")),
    Mutation("simplify", "memory that is only reduced is dead",
             simplify, "_tensors_of", edited("kind is ir.Reduce or ", "")),
)  # fmt: skip
