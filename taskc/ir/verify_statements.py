"""The verifier's rules of statements that may stand anywhere, and of scopes and tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from taskc.ir import build, nodes as ir
from taskc.ir.extents import are_as_many
from taskc.ir.nodes import Statement
from taskc.ir.operations import OPERATIONS
from taskc.ir.specification import PIPELINED, SELECTED, SYNCHRONIZED
from taskc.ir.target import LEAST_REGISTERS, MOST_COUNTED, MOST_REGISTERS
from taskc.ir.text_rules import result_type
from taskc.ir.types import boolean
from taskc.ir.verify_expressions import ExpressionVerifier

_ATOMICS = frozenset({"+", "min", "max", "&", "|", "^", "exchange"})
_KINDS = frozenset({"serial", "unroll", "vector"})


class StatementVerifier(ExpressionVerifier):
    checks: ClassVar[dict[type, Callable[[Any, Any], None]]]

    def __init__(self, kernel: ir.Kernel, divergent_cells: frozenset[ir.Tensor]) -> None:
        super().__init__(kernel, divergent_cells)
        self.group = kernel.workers
        self.diverged = False  # the control flow around, at stage synchronized
        self.moves: Counter[ir.Tensor] = Counter()
        self.constants: list[ir.Tensor] = []

    # --- scopes ---

    def body(self, statement: Statement) -> None:
        """A statement whose names end with it."""
        mark = len(self.trail)
        self.statement(statement)
        for name in self.trail[mark:]:
            self.live.discard(name)
        del self.trail[mark:]

    def statement(self, statement: Statement) -> None:
        kind = type(statement)
        if kind is ir.Sequence:
            mark = len(self.trail)
            for inner in statement.statements:  # type: ignore[union-attr]
                self.statement(inner)
            for name in self.trail[mark:]:
                self.live.discard(name)
            del self.trail[mark:]
            return
        self.current = statement
        check = self.checks.get(kind)
        if check is None:
            raise self.broken("this is no statement")
        if kind not in self.permitted:
            raise self.not_here(kind)
        if kind in self.rules:
            self.attributes_of(statement)
        check(self, statement)

    def inner(self, statement: Statement, *variables: ir.Variable, inside: bool = False) -> None:
        """The block of a statement that binds variables for it."""
        for variable in variables:
            self.bind(variable)
            if inside:
                self.divergent.add(variable)
        self.inside += inside
        self.body(statement)
        self.inside -= inside
        for variable in variables:
            self.live.discard(variable)

    def flow(self, diverges: bool, *bodies: Statement | None) -> None:
        """Blocks that run, or how often they run, as a condition says."""
        outer = self.diverged
        if diverges and not self.inside and self.stage <= SYNCHRONIZED:
            self.diverged = True
        for body in bodies:
            if body is not None:
                self.body(body)
        self.diverged = outer

    # --- what stands anywhere ---

    def let(self, s: ir.Let) -> None:
        if self.value(s.value):
            self.divergent.add(s.variable)
        self.same_type(s.variable.dtype, s.value.dtype, "a variable and its value")
        self.bind(s.variable)

    def allocate(self, s: ir.Allocate) -> None:
        tensor = s.tensor
        self.need(tensor.scope != ir.GLOBAL, f"{tensor} is global, so it is a parameter")
        if tensor.scope not in self.permitted:
            raise self.not_here(tensor.scope)
        self.need(
            not self.inside or tensor.scope in (ir.LOCAL, ir.REGISTER),
            f"the {tensor.scope} tensor {tensor} is allocated outside mapping loops",
        )
        self.tensor(tensor, is_parameter=False)
        if s.fill is not None:
            self.need(type(s.fill) is ir.Constant, "a tensor is filled with a constant")
            self.need(
                tensor.scope in (ir.TILE, ir.LOCAL, ir.REGISTER),
                f"the {tensor.scope} tensor {tensor} isn't filled by its allocation, but by stores",
            )
            self.expression(s.fill)
            self.same_type(tensor.dtype, s.fill.dtype, f"{tensor} and its fill")
        self.bind(tensor)
        if tensor.constant:
            self.constants.append(tensor)
        if not self.inside:
            self.outer_cells.add(tensor)

    def peer(self, s: ir.Peer) -> None:
        tensor, of = s.tensor, s.of
        self.known(of)
        self.need(of.scope in (ir.SHARED, ir.BARRIER), f"{of} has peers, so it is shared")
        self.need(of not in self.peers, f"{of} is a peer's already")
        self.need(self.cluster > 1, "peers are in a cluster, and there is none")
        same = (tensor.dtype, tensor.shape, tensor.scope, tensor.layout, tensor.swizzle)
        self.need(
            same == (of.dtype, of.shape, of.scope, of.layout, of.swizzle) and tensor.offset is None,
            f"{tensor} has the form of {of}, and its place",
        )
        self.index(s.rank)
        self.bind(tensor)
        self.peers.add(tensor)

    def own(self, tensor: ir.Tensor, what: str) -> None:
        """A tensor that is no peer's."""
        self.need(tensor not in self.peers, f"{what} takes memory of its own block")

    def tensor(self, tensor: ir.Tensor, *, is_parameter: bool) -> None:
        self.attributes_of(tensor)
        for extent in tensor.shape:
            if not isinstance(extent, int):
                self.need(is_parameter, f"the shape of {tensor} is constant")
                self.index(extent)
            else:
                self.need(extent >= 0, f"the extents of {tensor} aren't negative")
        if tensor.given is not None:
            self.need(is_parameter, f"{tensor} is reshaped, so it is a parameter")
            self.need(tensor.layout is None, f"{tensor} is reshaped, so it is row-major")
            for extent in tensor.given:
                self.index(build.index(extent))
            as_many = are_as_many(tensor.given, tensor.shape)
            self.need(as_many, f"{tensor} has as many elements as its argument")
        layout = tensor.layout
        if layout is not None:
            self.need(layout.workers == 1, f"the layout of {tensor} has one worker")
            self.need(layout.rank == len(tensor.shape), f"the layout of {tensor} has its rank")
            fits = all(
                not isinstance(n, int) or n <= limit
                for n, limit in zip(tensor.shape, layout.iterated, strict=True)
            )
            self.need(fits, f"the layout of {tensor} covers its shape")
        self.need(tensor.role in ("in", "out", "inout"), f"{tensor} has no role {tensor.role!r}")
        self.need(is_parameter or tensor.role == "in", f"{tensor} has a role but is no parameter")
        self.need(
            not (is_parameter and tensor.constant), f"the parameter {tensor} is no block value"
        )
        self.need(
            tensor.offset is None or tensor.scope == ir.SHARED,
            f"{tensor} has an offset but is not shared",
        )
        self.need(
            (tensor.owners is not None) == (tensor.scope == ir.TILE),
            f"{tensor} has owners if and only if it is a tile",
        )
        owners = tensor.owners
        if owners is not None:
            self.need(
                owners.workers == self.group,
                f"the owners of {tensor} are {owners.workers} workers of {self.group}",
            )
            self.need(
                owners.iterated == tensor.shape
                and (owners.is_composed or owners.covers(owners.iterated)),
                f"the owners of {tensor} have its shape",
            )

    def store(self, s: ir.Store) -> None:
        self.element(s.tensor, s.indices)
        self.written(s.tensor, self.value(s.value))
        self.same_type(s.tensor.dtype, s.value.dtype, f"{s.tensor} and what is stored")
        self.need(
            not s.tensor.constant or self.stage > SELECTED,
            f"the block value {s.tensor} is written by a move",
        )

    def written(self, tensor: ir.Tensor, diverges: bool) -> None:
        self.need(tensor.scope != ir.GLOBAL or tensor.role != "in", f"{tensor} is only read")
        may_differ = self.stage <= SYNCHRONIZED and (self.inside > 0 or diverges or self.diverged)
        if may_differ and tensor.scope == ir.LOCAL and tensor in self.outer_cells:
            self.divergent_cells.add(tensor)
        if not self.inside and tensor.scope == ir.TILE:
            self.need(
                self.is_replicated(tensor), f"outside mapping loops nobody owns {tensor}'s elements"
            )

    def atomic(self, s: ir.Atomic) -> None:
        self.need(s.operator in _ATOMICS, f"there is no atomic {s.operator!r}")
        self.need(s.tensor.scope in (ir.GLOBAL, ir.SHARED), f"{s.tensor} is not shared or global")
        self.need(self.inside > 0 or self.stage > PIPELINED, "an atomic stands in a mapping loop")
        self.element(s.tensor, s.indices)
        self.written(s.tensor, self.value(s.value))
        self.same_type(s.tensor.dtype, s.value.dtype, f"{s.tensor} and the atomic's operand")
        if s.result is not None:
            self.same_type(s.result.dtype, s.tensor.dtype, "the atomic's result and its tensor")
            self.bind(s.result)
            self.divergent.add(s.result)

    def if_(self, s: ir.If) -> None:
        self.flow(self.condition(s.condition), s.then, s.otherwise)

    def while_(self, s: ir.While) -> None:
        self.flow(self.condition(s.condition), s.body)

    def for_(self, s: ir.For) -> None:
        self.need(s.kind in _KINDS, f"there is no loop of kind {s.kind!r}")
        self.need(s.step != 0, "a loop's step is not 0")
        diverges = self.index(s.start) | self.index(s.stop)
        self.uniform(diverges, "bounds")
        for bound in (s.start, s.stop):
            self.same_type(s.variable.dtype, bound.dtype, "a loop's variable and its bounds")
            self.need(
                s.kind == "serial" or type(bound) is ir.Constant,
                f"the bounds of a loop of kind {s.kind!r} are constant",
            )
        parts = s.body.statements if isinstance(s.body, ir.Sequence) else (s.body,)
        self.need(
            s.kind != "vector" or all(isinstance(part, (ir.Let, ir.Store)) for part in parts),
            "a vector loop holds names and stores only",
        )
        self.bind(s.variable)
        if diverges:
            self.divergent.add(s.variable)
        self.flow(diverges, s.body)
        self.live.discard(s.variable)

    def print(self, s: ir.Print) -> None:
        for value in s.values:
            self.expression(value)
        holes = s.text.count("{}")
        self.need(holes == len(s.values), f"{holes} places for {len(s.values)} values")

    def assert_(self, s: ir.Assert) -> None:
        self.expression(s.condition)
        self.is_bool(s.condition)

    def breakpoint(self, s: ir.Breakpoint) -> None:
        """It may stand anywhere."""

    def do(self, s: ir.Do) -> None:
        row = OPERATIONS.get(s.operation)
        if row is None:
            raise self.broken(f"there is no operation {s.operation!r}")
        self.need(
            row.participants != "cluster" or self.cluster > 1,
            f"{s.operation} is for clusters, and there is none",
        )
        kinds = row.kinds(len(s.operands))
        self.need(
            len(kinds) == len(s.operands),
            f"{s.operation} takes {len(kinds)} operands, not {len(s.operands)}",
        )
        for kind, operand in zip(kinds, s.operands, strict=True):
            if kind in ("place", "remote"):
                self.need(type(operand) is ir.Address, f"an operand of {s.operation} is a place")
                self.address(operand)  # type: ignore[arg-type]
                if kind == "place":
                    self.own(operand.tensor, s.operation)  # type: ignore[union-attr]
                continue
            self.need(
                kind != "constant" or type(operand) is ir.Constant,
                f"an operand of {s.operation} is a constant",
            )
            self.expression(operand)
        match s.operation, s.operands:
            case "setmaxnreg", (ir.Constant(value=count),):
                is_given = LEAST_REGISTERS <= count <= MOST_REGISTERS and count % 8 == 0
                self.need(is_given, f"a worker can't have {count} registers")
            case "mbarrier.init" | "mbarrier.expect", (_, ir.Constant(value=count)):
                self.need(0 <= count <= MOST_COUNTED, f"an mbarrier doesn't count to {count}")
            case _:
                pass  # its constants have no limits
        if s.result is not None:
            result = result_type(s.operation, s.operands)
            if result is None:
                raise self.broken(f"{s.operation} has no result")
            self.same_type(s.result.dtype, result, f"the result of {s.operation} and its variable")
            self.bind(s.result)
            self.divergent.add(s.result)

    # --- uniformity ---

    def uniform(self, diverges: bool, what: str) -> None:
        if diverges and not self.inside and self.stage < SYNCHRONIZED:
            raise self.broken(f"{what} outside mapping loops is the same for all workers")

    def value(self, value: Any) -> bool:
        diverges = self.expression(value)
        self.uniform(diverges, "a value")
        return diverges and not self.inside

    def condition(self, condition: Any) -> bool:
        diverges = self.expression(condition)
        self.is_bool(condition)
        self.uniform(diverges, "a condition")
        return diverges

    def is_bool(self, condition: Any) -> None:
        self.same_type(condition.dtype, boolean, "a condition and its meaning")
