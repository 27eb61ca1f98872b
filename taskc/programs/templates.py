"""Kernels of computations that the compiler writes in the language, over parameters that are IR already.

Their bodies are functions of the language as any other. Python functions, which take and return IR, add the rest while
the body is parsed, such as the value of a computation at a place.

In such a value, a part that is used in several places gets a name, and an index that depends on data is checked against
its extent.

    out[i] = exp(x[i]) * exp(x[i])           let a = exp(x[i])
                                             out[i] = a * a

    out[i] = x[ids[i]]                       let a = ids[i]
                                             assert 0 <= a and a < 8
                                             out[i] = x[a]

    out[i] = x[ids[i]] if c else 0           assert not c or (0 <= a and a < 8)
                                             out[i] = (x[a] if 0 <= a and a < 8 else 0) if c else 0

A part under a condition is named if it is evaluated whenever the condition holds; where it doesn't hold, the name has
an arbitrary value. Parts that are evaluated under different conditions get no name.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType
from typing import Any

from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, conjunction, index
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, map_children, operands_first, rewritten, substitute, walk
from taskc.lang.context import Context, FunctionFrame, Scope
from taskc.lang.functions import Outside
from taskc.lang.parser import EVALUATORS, EXECUTORS
from taskc.lang.source import source_of
from taskc.lang.values import NOTHING, Method, Value
from taskc.programs.blocks import kernel_by, nothing
from taskc.programs.ir import Computation


def kernel_of_template(
    computation: Computation,
    workers: int,
    template: Callable[..., Any],
    *functions: Callable[..., Any],
) -> ir.Kernel:
    """The kernel of a computation with a template's body.

    functions  the template's arguments: functions over IR, which run while it is parsed. A statement that one returns
               becomes a part of the body, anything else is its value
    """
    assert isinstance(template, FunctionType)
    source = source_of(template, f"template '{template.__name__}'")
    context = Context(computation.name, workers, False, "generic", EVALUATORS, EXECUTORS)
    context.place = NOWHERE
    context.nonnegative.update(computation.dimensions)
    context.frames.append(FunctionFrame(source, Outside(template), []))

    def method(function: Callable[..., Any]) -> Method:
        def call(node: ast.Call) -> Value:
            result = function(*map(context.evaluate, node.args))
            if isinstance(result, ir.Statement):
                context.emit(result)
                return NOTHING
            return NOTHING if result is None else result

        return Method(call)

    names = [argument.arg for argument in source.tree.args.args]
    context.run(source.tree.body, Scope(dict(zip(names, map(method, functions), strict=True))))
    return kernel_by(computation, workers, context.finished())


# The conditions on the way to a part: the number of an expression, operands first, and what it is.
Path = tuple[tuple[int, bool], ...]

Told = Callable[[int, bool], frozenset[tuple[int, bool]]]

_MOST_PATHS = 16
_MANY: Path = ((-1, True),)  # more paths than that
_CHEAP = 12  # nodes of index arithmetic that is rather written twice


class Parts:
    """A value: `statements` that name its parts, and the expression `value` over these names.

    scalars   variables that may have any value: indices that depend on them are checked against their extents
    all_held  whether all indices are checked
    """

    def __init__(
        self, value: Expression, scalars: Collection[Variable], all_held: bool = False
    ) -> None:
        self.scalars = scalars
        self.all_held = all_held
        self.statements: list[Statement] = []
        self._order = operands_first(value)
        self._paths = _paths(self._order)
        self._made: dict[int, Expression] = {}
        self._uses = Counter(id(part) for node in self._order for part in expressions(node))
        self._sizes: dict[int, int] = {}
        for node in self._order:
            size = 1 + sum(self._sizes[id(part)] for part in expressions(node))
            self._sizes[id(node)] = min(_CHEAP + 1, size)
        for node in self._order:
            self._make(node)
        self.value = self._made[id(value)]

    def _make(self, node: Expression) -> Expression:
        """The expression for a part. A condition may be needed before its turn, by a part that it protects."""
        if id(node) not in self._made:
            made = map_children(node, self._make)
            if isinstance(node, ir.Read) and isinstance(made, ir.Read):
                made = self._within(node, made)
            if self._uses[id(node)] > 1 and _is_worth_a_name(node, self._sizes[id(node)]):
                made = self._named(node, made)
            self._made[id(node)] = made
        return self._made[id(node)]

    @staticmethod
    def of(
        computation: Computation,
        place: Sequence[Expression],
        reads: Mapping[int, Expression] | None = None,
        *,
        all_held: bool = False,
    ) -> Parts:
        """An element's value; `reads` stand for those of the computation with these identities."""
        read = reads or {}
        value = rewritten(computation.value, lambda node: read.get(id(node), node))
        at = dict(zip(computation.variables, place, strict=True))
        scalars = [item for item in computation.parameters if isinstance(item, Variable)]
        return Parts(substitute(value, at), scalars, all_held)

    def stored(
        self,
        tensor: Tensor,
        place: Sequence[Expression],
        loc: Location,
        branches: Callable[[Expression], bool] = lambda condition: False,
    ) -> Statement:
        """The statement that stores the value; `branches` says which conditions are better branches than selects."""

        def store(value: Expression) -> Statement:
            if isinstance(value, ir.Select) and branches(value.condition):
                return ir.If(value.condition, store(value.then), store(value.otherwise), loc=loc)
            return ir.Store(tensor, tuple(place), value, loc=loc)

        stored = store(self.value)
        return ir.Sequence((*self.statements, stored), loc=loc) if self.statements else stored

    def _named(self, node: Expression, made: Expression) -> Expression:
        paths = self._paths[id(node)]
        if len(paths) > 1 or _MANY in paths:
            return made
        (path,) = paths
        return self._let("part", _guarded(self._holds(path), made))

    def _let(self, name: str, value: Expression) -> Expression:
        if isinstance(value, Variable | ir.Constant):
            return value
        variable = Variable(name, value.dtype)
        self.statements.append(ir.Let(variable, value, loc=value.loc))
        return variable

    def _holds(self, path: Path) -> Expression | None:
        """The condition of a path; each of its parts has a name from then on."""
        conditions = []
        for place, (number, holds) in enumerate(path):
            made = self._condition(self._order[number], path[:place])
            conditions.append(made if holds else ir.Unary("not", made))
        return conjunction(conditions)

    def _condition(self, node: Expression, path: Path) -> Expression:
        """A condition on one of the paths to it; its name has its value on all of them."""
        made, paths = self._make(node), self._paths[id(node)]
        if isinstance(made, Variable | ir.Constant):
            return made
        is_one = paths == {path} or _MANY in paths
        guard = self._holds(path) if is_one else self._needed(node)
        named = self._let("condition", _guarded(guard, made))
        if _MANY not in paths:
            self._made[id(node)] = named
        return named

    # Indices.

    def _within(self, node: ir.Read, made: ir.Read) -> Expression:
        """A read with checks of those indices that depend on data."""
        axes = [n for n, at in enumerate(node.indices) if self._is_held(at)]
        if not axes:
            return made
        needed = self._needed(node)
        indices, inside = list(made.indices), []
        for axis in axes:
            indices[axis] = self._let("place", _guarded(needed, indices[axis]))
            inside.append(ir.Binary("<=", ZERO, indices[axis]))
            inside.append(ir.Binary("<", indices[axis], index(made.tensor.shape[axis])))
        read = ir.Read(made.tensor, tuple(indices), loc=made.loc)
        whose = f"{made.loc.text}: " if made.loc.text and not made.loc.line else ""
        text = f"{whose}an index of '{made.tensor.name}' is within its extent"
        condition = conjunction(inside)
        assert condition is not None
        if needed is None:
            self.statements.append(ir.Assert(condition, text, loc=made.loc))
            return read
        condition = self._let("inside", condition)
        held = ir.Binary("or", ir.Unary("not", needed), condition)
        self.statements.append(ir.Assert(held, text, loc=made.loc))
        return _guarded(condition, read)

    def _is_held(self, at: Expression) -> bool:
        return self.all_held or any(
            isinstance(part, ir.Read) or (isinstance(part, Variable) and part in self.scalars)
            for part in walk(at)
        )

    def _needed(self, node: Expression) -> Expression | None:
        """The condition under which one of the paths to a node is taken."""
        needed: Expression | None = None
        for path in sorted(self._paths[id(node)]):
            if path == _MANY:
                raise CompileError(
                    "this index depends on data, and is used on too many different conditions",
                    node.loc,
                    hint="give the value that is read a tensor of its own",
                )
            holds = self._holds(path)
            if holds is None:
                return None
            needed = holds if needed is None else ir.Binary("or", needed, holds)
        assert needed is not None
        return self._let("needed", needed)


def _guarded(condition: Expression | None, value: Expression) -> Expression:
    """The value where the condition holds; elsewhere a constant that is never used."""
    if condition is None or isinstance(value, Variable | ir.Constant):
        return value
    return ir.Select(condition, value, nothing(value.dtype), loc=value.loc)


def _is_worth_a_name(node: Expression, size: int) -> bool:
    if isinstance(node, Variable | ir.Constant):
        return False
    is_index = node.dtype.is_integer and not any(isinstance(part, ir.Read) for part in walk(node))
    return not is_index or size > _CHEAP


def _paths(order: list[Expression]) -> dict[int, frozenset[Path]]:
    """The conditions under which each part is evaluated; the last one of `order` always is."""
    numbers = {id(node): number for number, node in enumerate(order)}
    found: dict[int, set[Path]] = {id(node): set() for node in order}
    found[id(order[-1])] = {()}

    def told(number: int, holds: bool) -> frozenset[tuple[int, bool]]:
        """The conditions that follow from one: both sides of a true `and`, neither side of a false `or`."""
        node, own = order[number], frozenset([(number, holds)])
        if isinstance(node, ir.Unary) and node.operator == "not":
            return own | told(numbers[id(node.operand)], not holds)
        if isinstance(node, ir.Binary) and node.operator == ("and" if holds else "or"):
            return own.union(*[told(numbers[id(part)], holds) for part in (node.left, node.right)])
        return own

    for node in reversed(order):
        paths = found[id(node)] = _fewest(found[id(node)], told)
        if isinstance(node, ir.Select):
            condition, then, otherwise = node.condition, node.then, node.otherwise
            sides = [(then, True), (otherwise, False)]
        elif isinstance(node, ir.Binary) and node.operator in ("and", "or"):
            condition, sides = node.left, [(node.right, node.operator == "and")]
        else:
            for part in expressions(node):
                found[id(part)] |= paths
            continue
        found[id(condition)] |= paths
        for part, holds in sides:
            here = (numbers[id(condition)], holds)
            found[id(part)] |= {path if path == _MANY else (*path, here) for path in paths}
    return {identity: frozenset(paths) for identity, paths in found.items()}


def _fewest(paths: set[Path], told: Told) -> set[Path]:
    """The same conditions with fewer paths: one that others imply is left out, and both sides of a condition cancel."""
    left = set(paths)
    for longest in sorted(paths, key=len, reverse=True):
        path = longest
        while path in left and path and path != _MANY:
            *above, (number, holds) = path
            if (*above, (number, not holds)) not in left:
                break
            left -= {path, (*above, (number, not holds))}
            path = tuple(above)
            left.add(path)
    if _MANY not in left:
        for path in sorted(left, key=len, reverse=True):
            known = frozenset[tuple[int, bool]]().union(*[told(*step) for step in path])
            if any(other != path and known.issuperset(other) for other in left):
                left.remove(path)
    return {_MANY} if _MANY in left or len(left) > _MOST_PATHS else left
