"""The oracle's expressions: each is compiled to a function of the environment."""

from __future__ import annotations

from typing import Any

from tests.random_programs import description as d
from tests.random_programs.numbers import FLOATS, angle, bitcast, cast, fma, function, number
from tests.random_programs.oracle_memory import Environment, Evaluate, OracleError, TileMemory


class Values:
    def value(self, node: d.Value) -> Evaluate:
        match node:
            case d.Number():
                constant = number(node.value, node.dtype)
                return lambda environment: constant
            case d.Name():
                name = node.name
                return lambda environment: environment[name]
            case d.Element():
                return self.element(node)
        return self.applied(node)

    def element(self, node: d.Element) -> Evaluate:
        name = node.tensor
        indices = [self.value(index) for index in node.indices]

        def read(environment: Environment) -> Any:
            index = tuple([evaluate(environment) for evaluate in indices])
            memory = environment[name]
            values = memory.values
            if type(memory) is TileMemory:
                worker = environment[" worker"]
                values = values[memory.layout.first[index] if worker is None else worker]
            try:
                return values[index]
            except KeyError:
                raise OracleError(f"{name}{list(index)} of {memory.shape} has no value") from None

        return read

    def applied(self, node: d.Apply) -> Evaluate:
        operator, dtype = node.operator, node.operands[0].dtype
        if operator == "and" or operator == "or":
            left, right = map(self.value, node.operands)
            if operator == "and":
                return lambda environment: left(environment) and right(environment)
            return lambda environment: left(environment) or right(environment)
        if operator in ("where", "if"):
            condition, then, otherwise = map(self.value, node.operands)
            return lambda e: then(e) if condition(e) else otherwise(e)
        if operator == "cast":
            operand = self.value(node.operands[0])
            if dtype == "number":
                return lambda environment: cast(operand(environment), "i64", node.dtype)
            return lambda environment: cast(operand(environment), dtype, node.dtype)
        if operator == "typed":
            operand = self.value(node.operands[0])
            return lambda environment: number(operand(environment), node.dtype)
        if operator == "bitcast":
            operand = self.value(node.operands[0])
            return lambda environment: bitcast(operand(environment), dtype, node.dtype)
        if operator == "+" and dtype in FLOATS:
            first, second = node.operands
            for product, addend in ((second, first), (first, second)):
                if isinstance(product, d.Apply) and product.operator == "*":
                    return self.fused((*product.operands, addend), dtype)
        if operator in ("fma", "ptx"):
            return self.fused(node.operands, dtype)
        compute = angle if operator == "angle" else function(operator, dtype)
        if len(node.operands) == 1:
            operand = self.value(node.operands[0])
            return lambda environment: compute(operand(environment))
        left, right = map(self.value, node.operands)
        if operator in ("//", "%"):
            return lambda e: compute(left(e), _nonzero(right(e)))
        return lambda environment: compute(left(environment), right(environment))

    def fused(self, operands: tuple[d.Value, ...], dtype: str) -> Evaluate:
        a, b, c = map(self.value, operands)
        return lambda e: fma(a(e), b(e), c(e), dtype)


def _nonzero(divisor: Any) -> Any:
    if divisor == 0:
        raise OracleError("division by zero")
    return divisor
