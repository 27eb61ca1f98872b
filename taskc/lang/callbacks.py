"""A lambda or a `@tc.function` as an argument, as in `tc.load((8, 8), lambda i, j: x[j, i])`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from taskc.ir import nodes as ir
from taskc.lang.calls import inline
from taskc.lang.context import Context, Scope
from taskc.lang.functions import FunctionDefinition
from taskc.lang.values import Value, counted, describe


@dataclass(frozen=True, slots=True)
class Callback:
    """A function given as an argument; `function` is None for a lambda.

    rest  the parameter that takes all further arguments, `*place`
    """

    node: ast.expr
    names: list[str]
    rest: str | None
    function: FunctionDefinition | None

    @property
    def parameters(self) -> str:
        """The number of parameters, in a message."""
        more = " or more" if self.rest is not None else ""
        return counted(len(self.names), "parameter") + more

    def takes(self, count: int) -> bool:
        """Whether it accepts `count` arguments."""
        return count == len(self.names) or (self.rest is not None and count > len(self.names))

    def named(self, count: int) -> list[str]:
        """The name of each of `count` arguments."""
        return [*self.names, *[f"{self.rest}_{n}" for n in range(count - len(self.names))]]

    def value(self, context: Context, variables: tuple[ir.Variable, ...], lazy: str) -> Value:
        """The body, evaluated once on these variables; `lazy` is the callback's name in a message."""
        named: dict[str, Value] = dict(zip(self.names, variables, strict=False))
        if self.rest is not None:
            named[self.rest] = variables[len(self.names) :]
        before, context.lazy = context.lazy, lazy
        try:
            if self.function is not None:
                places = dict.fromkeys(named, self.node)
                return inline(context, self.function, named, places, self.node)
            assert isinstance(self.node, ast.Lambda)
            context.frame.scopes.append(Scope(named))
            value = context.evaluate(self.node.body)
            context.frame.scopes.pop()
            return value
        finally:
            context.lazy = before


def callback(context: Context, node: ast.expr, what: str) -> Callback:
    """The function that an argument is; `what` it gives, as in "the value", is for a message."""
    if isinstance(node, ast.Lambda):
        arguments = node.args
        odd = (arguments.posonlyargs, arguments.kwonlyargs, arguments.kwarg, arguments.defaults)
        if any(odd):
            raise context.error(
                "this lambda has only plain parameters",
                node,
                "only the last may have a star: *place",
            )
        rest = arguments.vararg.arg if arguments.vararg is not None else None
        return Callback(node, [argument.arg for argument in arguments.args], rest, None)
    function = context.evaluate(node)
    if not isinstance(function, FunctionDefinition):
        raise context.error(
            f"{what} is a lambda or a @tc.function, and this is {describe(function)}", node
        )
    return Callback(node, *function.parameters, function)
