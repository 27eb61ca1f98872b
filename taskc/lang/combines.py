"""Functions as arguments: of tc.reduce and tc.scan, which combine two elements, and of tc.load and its like.

A function that combines is a `@tc.function`; elsewhere a lambda will do, as in `tc.load((8, 8), lambda i, j: x[j, i])`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.types import DType
from taskc.lang.calls import inline
from taskc.lang.context import Context, Scope
from taskc.lang.conversions import typed
from taskc.lang.functions import FunctionDefinition
from taskc.lang.values import NOTHING, Value, counted, describe

_CHOOSE = "a name has one value here; choose by an expression: a if condition else b"


def combine_function(
    context: Context,
    function: FunctionDefinition,
    dtypes: tuple[DType, ...] | DType,
    node: ast.expr,
) -> ir.Combine:
    """The function on elements of a type, or on tuples of elements of several."""
    return _Combination(context, function, dtypes, node).combine()


@dataclass(frozen=True, slots=True)
class _Combination:
    context: Context
    function: FunctionDefinition
    dtypes: tuple[DType, ...] | DType
    node: ast.expr

    @property
    def name(self) -> str:
        return self.function.__name__

    def combine(self) -> ir.Combine:
        names, rest = self.function.parameters
        if len(names) != 2 or rest is not None:
            raise self.context.error(
                f"'{self.name}' has {counted(len(names), 'parameter')}"
                f"{' or more' if rest else ''}, and what folds has two: a left and a right element",
                self.node,
                f"def {self.name}(a, b): ...; of a tuple of tiles each of them is a tuple",
            )
        left, right = map(self.parameter, names)
        value, statements = self.run(dict(zip(names, (left, right), strict=True)))
        value = tuple(value) if isinstance(value, list) else value
        lets = tuple([self.let(statement) for statement in statements])
        values = self.results(value)
        lefts, rights = (part if isinstance(part, tuple) else (part,) for part in (left, right))
        self.check_closed(lets, values, {*lefts, *rights})
        return ir.Combine(self.name, lefts, rights, lets, values)

    def parameter(self, name: str) -> ir.Variable | tuple[ir.Variable, ...]:
        loc = self.context.locate(self.node)
        if isinstance(self.dtypes, tuple):
            return tuple(
                [ir.Variable(f"{name}{k}", dtype, loc=loc) for k, dtype in enumerate(self.dtypes)]
            )
        return ir.Variable(name, self.dtypes, loc=loc)

    def run(self, given: dict[str, Value]) -> tuple[Value, list[ir.Statement]]:
        """The value that the function returns, and the statements that compute it."""
        context = self.context
        before, root, target = context.block, context.root, context.target
        context.block, context.root = [], self.node
        try:
            places = dict.fromkeys(given, self.node)
            return inline(context, self.function, given, places, self.node), context.block
        finally:
            context.block, context.root, context.target = before, root, target

    def let(self, statement: ir.Statement) -> ir.Let:
        match statement:
            case ir.Let():
                return statement
            case ir.Allocate(tensor=ir.Tensor(scope=ir.LOCAL, shape=())):
                name = statement.tensor.name
                raise self.error(
                    f"'{name}' changes in '{self.name}'", statement.tensor.loc, _CHOOSE
                )
            case ir.Atomic() | ir.Store() | ir.Allocate():
                raise self.error(
                    f"'{self.name}' touches '{statement.tensor.name}', and what folds is about its"
                    " two elements alone",
                    statement.loc,
                )
            case _:
                kind = type(statement).__name__.lower()
                raise self.error(
                    f"'{self.name}' has a '{kind}', and what folds is expressions",
                    statement.loc,
                    _CHOOSE if isinstance(statement, ir.If) else None,
                )

    def results(self, value: Value) -> tuple[ir.Expression, ...]:
        place, dtypes = self.returned, self.dtypes
        if value is NOTHING:
            raise self.error(f"'{self.name}' returns nothing", place)
        if not isinstance(dtypes, tuple):
            if isinstance(value, tuple):
                given = counted(len(value), "value")
                raise self.error(f"'{self.name}' returns {given}, and folds single elements", place)
            return (self.typed(value, dtypes, "the elements are"),)
        if not isinstance(value, tuple):
            raise self.error(
                f"'{self.name}' returns {describe(value)}, and folds tuples of {len(dtypes)}", place
            )
        if len(value) != len(dtypes):
            given = counted(len(value), "value")
            raise self.error(
                f"'{self.name}' returns {given}, and folds tuples of {len(dtypes)}", place
            )
        return tuple(
            [
                self.typed(part, dtype, f"element {k} of the tuples is")
                for k, (part, dtype) in enumerate(zip(value, dtypes, strict=True))
            ]
        )

    def typed(self, value: Value, dtype: DType, what: str) -> ir.Expression:
        try:
            return typed(self.context, value, dtype, self.returned, f"{what} {dtype}")
        except CompileError as error:
            raise self.error(error.message, error.location, error.hint) from None

    @property
    def returned(self) -> Location:
        """The value of its last return, or the name of the function that has none."""
        source = self.function.source
        ends = [part for part in ast.walk(source.tree) if isinstance(part, ast.Return)]
        if not ends or ends[-1].value is None:
            return self.context.locate(self.node)
        return source.locate(ends[-1].value)

    def check_closed(
        self,
        lets: tuple[ir.Let, ...],
        values: Iterable[ir.Expression],
        known: set[ir.Variable],
    ) -> None:
        known = known | {let.variable for let in lets}
        for part in (*lets, *values):
            for node in walk(part):
                named = node.tensor if isinstance(node, ir.Read) else node
                if isinstance(named, ir.Tensor) or (
                    isinstance(named, ir.Variable) and named not in known
                ):
                    raise self.error(
                        f"'{self.name}' uses '{named.name}', and what folds is about its two"
                        " elements alone",
                        part.loc if part.loc.line else self.returned,
                    )

    def error(self, message: str, place: Location, hint: str | None = None) -> CompileError:
        here = self.context.locate(self.node)
        note = () if place == here else ((f"in '{self.name}', which folds here", here),)
        return CompileError(message, place, hint, note)


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
    is_one = f"{what} is a lambda or a @tc.function"
    function = context.expect(FunctionDefinition, context.evaluate(node), node, is_one)
    return Callback(node, *function.parameters, function)
