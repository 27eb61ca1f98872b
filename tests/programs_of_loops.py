"""Random kernels of stage scalar: loops, conditions, Lets, mutable scalars, guarded accesses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.nodes import Binary, Cast, Constant, Expression, Statement, Variable, constant
from taskc.ir.types import f32, i32, i64
from tests.evaluator import Environment, Generator, run_kernel

__all__ = ["arguments_for", "random_kernel", "run_kernel"]


class _Programs:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = Generator(seed, [])
        self.m = Variable("m", multiple=4)
        self.x = ir.Tensor("x", i64, (64,), ir.GLOBAL)
        self.f = ir.Tensor("f", f32, (self.m, 16), ir.GLOBAL)
        self.y = ir.Tensor("y", f32, (self.m, 16), ir.GLOBAL, role="inout")
        self.z = ir.Tensor("z", i64, (8, 8, 4), ir.GLOBAL, role="inout")
        self.counter = ir.Tensor("counter", i64, (), ir.LOCAL)
        self.acc = ir.Tensor("acc", f32, (16,), ir.REGISTER)
        self.count = 0

    def name(self) -> Variable:
        self.count += 1
        return Variable(f"v{self.count}")

    def integer(self, depth: int = 2) -> Expression:
        return self.generator.integer(depth)

    def within(self, extent: int | Expression) -> Expression:
        """An index below the extent: obviously, or by a modulo."""
        if isinstance(extent, int):
            return Binary("%", self.integer(), constant(extent))
        return Binary("%", self.integer(1), extent)

    def value(self) -> Expression:
        kind = self.random.random()
        if kind < 0.3:
            return Cast(Cast(self.integer(), i32), f32)
        if kind < 0.6:
            return ir.Read(self.f, (self.within(self.m), self.within(16)))
        return self.generator.float(2)

    def statement(self, depth: int) -> Statement:
        kind = self.random.random()
        if depth > 0 and kind < 0.4:
            return self.loop(depth)
        if depth > 0 and kind < 0.55:
            otherwise = self.block(depth - 1) if self.random.random() < 0.4 else None
            return ir.If(self.generator.boolean(2), self.block(depth - 1), otherwise)
        if kind < 0.62:
            return ir.Store(self.counter, (), self.integer())
        if kind < 0.72:
            index = tuple(self.within(extent) for extent in self.z.shape)  # type: ignore[arg-type]
            return ir.Store(self.z, index, self.integer())
        if kind < 0.8:
            return ir.Store(self.acc, (self.within(16),), self.value())
        if kind < 0.84:
            value = ir.Read(self.acc, (self.within(16),))
            return ir.Store(self.y, (self.within(self.m), self.within(16)), value)
        return ir.Store(self.y, (self.within(self.m), self.within(16)), self.value())

    def loop(self, depth: int) -> Statement:
        variable = self.name()
        step = self.random.choice([1, 1, 1, 2, 4, -1, -2])
        count = self.random.choice([0, 1, 2, 3, 4])
        start = self.random.choice([0, 0, 0, 3, -2])
        first: Expression = constant(start)
        last: Expression = constant(start + count * step)
        if self.random.random() < 0.25:
            last = Binary("min", self.integer(1), constant(4))
        elif self.random.random() < 0.15:
            first, last, step = constant(0), self.m, 4
        old = self.generator.variables
        self.generator.variables = [*old, variable, variable]
        body = self.block(depth - 1)
        self.generator.variables = old
        constant_bounds = isinstance(first, Constant) and isinstance(last, Constant)
        kind = "unroll" if constant_bounds and self.random.random() < 0.3 else "serial"
        return ir.For(variable, first, last, step, body, kind)

    def block(self, depth: int) -> Statement:
        old = self.generator.variables
        statements: list[Statement] = []
        for _ in range(self.random.choice([1, 1, 2, 3])):
            if self.random.random() < 0.4:
                variable = self.name()
                value = self.integer(3)
                if self.random.random() < 0.2:
                    value = ir.Read(self.x, (self.within(64),))
                if self.random.random() < 0.1:
                    value = ir.Read(self.counter, ())
                statements.append(ir.Let(variable, value))
                self.generator.variables = [*self.generator.variables, variable]
            statements.append(self.statement(depth))
        self.generator.variables = old
        return statements[0] if len(statements) == 1 else ir.Sequence(tuple(statements))


def random_kernel(seed: int) -> tuple[ir.Kernel, Environment]:
    """A kernel of stage scalar, and sizes to run it with."""
    programs = _Programs(seed)
    parameters = (programs.x, programs.f, programs.y, programs.z)
    blocks = Binary("//", Binary("+", programs.m, constant(7)), constant(8))
    kernel = ir.Kernel("k", parameters, (programs.m,), 3, ir.Sequence(()), "scalar", blocks=blocks)
    programs.generator.variables = [programs.m, kernel.worker, kernel.worker, kernel.block]
    body = ir.Sequence(
        (
            ir.Allocate(programs.counter, constant(0)),
            ir.Allocate(programs.acc, Constant(0.0, f32)),
            *(programs.statement(3) for _ in range(3)),
        )
    )
    size = programs.random.choice([4, 8, 12])
    return replace(kernel, body=body), {programs.m: size}


def arguments_for(kernel: ir.Kernel) -> dict[ir.Tensor, Any]:
    return {
        tensor: [(place * 7 % 23) * (0.5 if tensor.dtype is f32 else 1) for place in range(256)]
        for tensor in kernel.parameters
        if isinstance(tensor, ir.Tensor)
    }
