"""The verifier's rules of names and expressions.

    names       what is used is bound, and its scope hasn't ended
    operands of one operator have one type, on which it is defined; conditions are bool;
                indices are i64 until lean, there i32 or i64; a constant is a value of its type
    elements    as many indices as the tensor has dimensions; at lean one linear offset
    places      an Address is an operand of `Do` and nothing else
    snippets    an Inline has operands of its parameters' types; a meaning is closed; see ir/operations.py
    combine     a combine function is closed, too, and has the types of the values it folds

It runs after every pass, so expressions are checked by a loop over a stack. Messages are built only
when a rule is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import BINARY_OPERATORS, UNARY_OPERATORS, Operator
from taskc.ir.nodes import Expression, Statement
from taskc.ir.operations import fault_in_snippet
from taskc.ir.printer import expression_text, statement_text, to_text
from taskc.ir.specification import LEAN, SCALAR, STAGES, attributes, permitted, stages_of
from taskc.ir.text_rules import is_representable
from taskc.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, i32, i64


class Rules:
    """The rules of a kernel's stage, for the statement that the verifier is at."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        if kernel.stage not in STAGES:
            raise InternalError(
                f"{kernel.name}: there is no stage {kernel.stage!r}", to_text(kernel)
            )
        self.stage = STAGES.index(kernel.stage)
        self.permitted = permitted(self.stage)
        self.attributes = attributes(self.stage)
        self.cluster = ir.cluster_of(kernel)
        self.current: Statement | None = None
        self.inside = 0  # number of enclosing mapping loops and moves

    def broken(self, rule: str) -> InternalError:
        message = f"{self.kernel.name} breaks a rule of stage {self.kernel.stage}: {rule}"
        if self.current is not None:
            message += f", in `{statement_text(self.current).partition(chr(10))[0]}`"
            place = str(getattr(self.current, "loc", ""))
            message += f" ({place})" if place else ""
        return InternalError(message, to_text(self.kernel))

    def need(self, holds: bool, rule: str) -> None:
        if not holds:
            raise self.broken(rule)

    def not_here(self, what: type | str) -> InternalError:
        first, last = stages_of(what)
        name = what if isinstance(what, str) else what.__name__
        return self.broken(f"{name} belongs in the stages {STAGES[first]} to {STAGES[last]}")

    def attributes_of(self, node: Any) -> None:
        for rule in self.attributes.get(type(node), ()):
            if not rule.holds(node):
                stages = f"in the stages {STAGES[rule.first]} to {STAGES[rule.last]}"
                raise self.broken(f"a {type(node).__name__} {rule.says} {stages}")

    def same_type(self, left: DType, right: DType, what: str) -> None:
        if left is not right:
            raise self.broken(f"{what} have one type, not {left} and {right}")

    def is_bool(self, condition: Expression) -> None:
        self.same_type(condition.dtype, boolean, "a condition and its meaning")


_COMPUTED = frozenset({f16, bf16, f32, f64})  # the float types with arithmetic
_FLAT_SCOPES = frozenset({ir.GLOBAL, ir.SHARED, ir.REGISTER})


def _defined_on(operators: dict[str, Operator]) -> dict[str, frozenset[DType]]:
    types = [d for d in DTYPES.values() if not d.is_sub_byte and (not d.is_float or d in _COMPUTED)]
    return {
        name: frozenset(dtype for dtype in types if dtype.kind in operator.kinds)
        for name, operator in operators.items()
    }


_BINARY, _UNARY = _defined_on(BINARY_OPERATORS), _defined_on(UNARY_OPERATORS)
_NOTHING: frozenset[DType] = frozenset()


@lru_cache(maxsize=4096, typed=True)
def _is_value(value: bool | int | float, dtype: DType) -> bool:
    return is_representable(value, dtype)


class NameScopes:
    """The names that have been bound, and those still in scope."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.live: set[Any] = set()
        self.ever: set[Any] = set()
        self.trail: list[Any] = []  # live names, in the order of binding

    def bind(self, name: ir.Variable | ir.Tensor) -> None:
        if name in self.ever:
            raise self.rules.broken(f"a name is bound once, but {name} is bound again")
        self.ever.add(name)
        self.live.add(name)
        self.trail.append(name)

    def known(self, name: ir.Variable | ir.Tensor) -> None:
        if name not in self.live:
            when = "after its scope has ended" if name in self.ever else "without being bound"
            raise self.rules.broken(f"a name is used within its scope, but {name} is used {when}")

    def end_behind(self, mark: int) -> None:
        """End the scope that began when the trail had this length."""
        self.live.difference_update(self.trail[mark:])
        del self.trail[mark:]


class ExpressionVerifier:
    """Checks expressions, and determines whether their values may differ between workers."""

    def __init__(
        self, rules: Rules, names: NameScopes, divergent_cells: frozenset[ir.Tensor]
    ) -> None:
        self.rules = rules
        self.names = names
        self.divergent: set[ir.Variable] = {rules.kernel.worker}
        self.divergent_cells: set[ir.Tensor] = set(divergent_cells)
        self.replicated: dict[ir.Tensor, bool] = {}
        self.closed: set[ir.Snippet | ir.Combine] = set()  # those that have been checked
        # The kernel's own variables that the stage doesn't have.
        numbers = (rules.kernel.worker, rules.kernel.block, rules.kernel.processors)
        self.hidden = {one: one.name for one in numbers if one.name not in rules.permitted}

    def index(self, index: Expression, *, allow_worker: bool = False) -> bool:
        diverges = self.check(index, allow_worker=allow_worker)
        self.index_type(index.dtype)
        return diverges

    def index_type(self, dtype: DType) -> None:
        if dtype is not i64 and (self.rules.stage != LEAN or dtype is not i32):
            allowed = "i32 or i64" if self.rules.stage == LEAN else "i64"
            raise self.rules.broken(f"an index is {allowed}, not {dtype}")

    def element(self, tensor: ir.Tensor, indices: tuple[Expression, ...]) -> bool:
        self.names.known(tensor)
        self.rank(tensor, len(indices))
        diverges = False
        for index in indices:
            diverges |= self.index(index)
        return diverges

    def rank(self, tensor: ir.Tensor, count: int, *, is_place: bool = False) -> None:
        rank = len(tensor.shape)
        if self.rules.stage == LEAN:
            if count == 1 or (count == rank and (is_place or tensor.scope not in _FLAT_SCOPES)):
                return
            raise self.rules.broken(f"{tensor} has one linear index, not {count}")
        if count != rank:
            raise self.rules.broken(f"{tensor} has {rank} dimensions, but {count} indices")

    def address(self, place: ir.Address) -> None:
        self.names.known(place.tensor)
        self.rank(place.tensor, len(place.indices), is_place=True)
        for index in place.indices:
            self.index(index)

    def is_replicated(self, tile: ir.Tensor) -> bool:
        """Whether each worker holds the whole tile, so that it is the same for all of them."""
        replicated = self.replicated.get(tile)
        if replicated is None:
            owners = tile.owners
            replicated = (
                owners is not None and owners.is_composed and owners.slots == prod(owners.shape)
            )
            self.replicated[tile] = replicated
        return replicated

    def check(self, root: Expression, *, allow_worker: bool = False) -> bool:
        """Check all of it; returns whether its value may differ between workers."""
        diverges = False
        live, divergent, rules = self.names.live, self.divergent, self.rules
        # By identity: twenty sums of a value and itself are a tree of a million nodes.
        checked: set[int] = set()
        stack: list[Any] = [root]
        while stack:
            e = stack.pop()
            kind = type(e)
            if kind is ir.Variable:
                if e not in live:
                    self.names.known(e)
                if e in divergent:
                    diverges = True
                if e in self.hidden and not allow_worker:
                    raise rules.not_here(self.hidden[e])
            elif kind is ir.Constant:
                if not _is_value(e.value, e.dtype):
                    raise rules.broken(
                        f"a constant is of its type, but {e.value!r} is no {e.dtype}"
                    )
            elif id(e) in checked:
                continue
            elif kind is ir.Binary:
                checked.add(id(e))
                left, right = e.left, e.right
                dtype = left.dtype
                if dtype is not right.dtype:
                    what = f"the operands of `{expression_text(e)}`"
                    rules.same_type(dtype, right.dtype, what)
                if dtype not in _BINARY.get(e.operator, _NOTHING):
                    raise self.undefined(e.operator, _BINARY, dtype)
                stack.append(right)
                stack.append(left)
            elif kind is ir.Read:
                tensor, indices = e.tensor, e.indices
                if tensor not in live:
                    self.names.known(tensor)
                if len(indices) != len(tensor.shape) or rules.stage == LEAN:
                    self.rank(tensor, len(indices))
                for index in indices:
                    if index.dtype is not i64:
                        self.index_type(index.dtype)
                stack.extend(indices)
                if not rules.inside and self.differs(tensor):
                    diverges = True
            else:
                checked.add(id(e))
                rule = _RARE.get(kind)
                if rule is None or kind not in rules.permitted:
                    raise self.no_expression(e)
                rule(self, e, stack)
        return diverges

    # Kinds that are rare in an index; their operands are pushed on the stack.

    def unary(self, e: ir.Unary, stack: list[Any]) -> None:
        if e.operand.dtype not in _UNARY.get(e.operator, _NOTHING):
            raise self.undefined(e.operator, _UNARY, e.operand.dtype)
        stack.append(e.operand)

    def fused(self, e: ir.Fused, stack: list[Any]) -> None:
        what = "the operands of a fused multiply-add"
        self.rules.same_type(e.left.dtype, e.right.dtype, what)
        self.rules.same_type(e.left.dtype, e.addend.dtype, what)
        if e.addend.dtype not in _COMPUTED:
            raise self.rules.broken(f"a fused multiply-add is not defined on {e.addend.dtype}")
        stack += (e.addend, e.right, e.left)

    def select(self, e: ir.Select, stack: list[Any]) -> None:
        self.rules.is_bool(e.condition)
        self.rules.same_type(e.then.dtype, e.otherwise.dtype, "the branches of a select")
        stack += (e.otherwise, e.then, e.condition)

    def cast(self, e: ir.Cast, stack: list[Any]) -> None:
        stack.append(e.operand)

    def bitcast(self, e: ir.Bitcast, stack: list[Any]) -> None:
        source, target = e.operand.dtype, e.dtype
        what = f"the bits of {source} as {target}"
        self.rules.need(source.bits == target.bits, f"{what}, which has not as many")
        self.rules.need("bool" not in (source.kind, target.kind), f"{what}: a bool has none")
        self.rules.need(source.is_float or target.is_float, f"{what}: that is a Cast")
        stack.append(e.operand)

    def lookup(self, e: ir.Lookup, stack: list[Any]) -> None:
        values = e.table.values
        is_list = values.ndim == 1 and values.dtype.kind == "i"
        self.rules.need(is_list, f"the table {e.table} is a list of integers")
        self.index_type(e.index.dtype)
        stack.append(e.index)

    def inline(self, e: ir.Inline, stack: list[Any]) -> None:
        self.snippet(e.snippet)
        types = [parameter.dtype for parameter in e.snippet.parameters]
        given = [operand.dtype for operand in e.operands]
        if types != given:
            raise self.rules.broken(f"the snippet {e.snippet} takes {types}, not {given}")
        stack += reversed(e.operands)

    def snippet(self, snippet: ir.Snippet) -> None:
        if snippet in self.closed:
            return
        self.closed.add(snippet)
        fault = fault_in_snippet(snippet)
        if fault is not None:
            raise self.rules.broken(f"in the snippet {snippet}, {fault}")
        live = self.names.live
        self.names.live = set(snippet.parameters)
        self.check(snippet.meaning)
        self.names.live = live

    def combine(self, combine: ir.Combine, types: tuple[DType, ...]) -> None:
        """Check a function of two tuples of these types, which returns a third."""
        for part in (combine.left, combine.right, combine.values):
            part_types = tuple([value.dtype for value in part])
            if part_types != types:
                raise self.rules.broken(f"{combine} is a function of {types}, not {part_types}")
        if combine in self.closed:
            return
        self.closed.add(combine)
        live = self.names.live
        self.names.live = {*combine.left, *combine.right}
        for let in combine.lets:
            self.check(let.value)
            self.rules.same_type(let.variable.dtype, let.value.dtype, f"{let.variable}")
            self.names.live.add(let.variable)
        for value in combine.values:
            self.check(value)
        self.names.live = live

    def differs(self, tensor: ir.Tensor) -> bool:
        """Whether an element may differ between workers, outside mapping loops."""
        if tensor.scope == ir.TILE:
            return not self.is_replicated(tensor)
        return tensor.scope == ir.LOCAL and tensor in self.divergent_cells

    def undefined(
        self, operator: str, operators: dict[str, frozenset[DType]], dtype: DType
    ) -> InternalError:
        if operator not in operators:
            return self.rules.broken(f"there is no operator {operator!r} here")
        return self.rules.broken(f"{operator!r} is not defined on {dtype}")

    def no_expression(self, e: object) -> InternalError:
        if type(e) is ir.Address:
            return self.rules.broken("an address is an operand of an operation and nothing else")
        if type(e) is ir.Lookup and self.rules.stage < SCALAR:
            return self.rules.not_here(ir.Lookup)
        return self.rules.broken(f"{e!r} is no expression")


# An Address is an expression only as an operand of an operation; see `address`.
_RARE: dict[type, Callable[[ExpressionVerifier, Any, list[Any]], None]] = {
    ir.Unary: ExpressionVerifier.unary,
    ir.Fused: ExpressionVerifier.fused,
    ir.Select: ExpressionVerifier.select,
    ir.Cast: ExpressionVerifier.cast,
    ir.Bitcast: ExpressionVerifier.bitcast,
    ir.Lookup: ExpressionVerifier.lookup,
    ir.Inline: ExpressionVerifier.inline,
}
