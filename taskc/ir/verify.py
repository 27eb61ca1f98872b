"""Whether a program keeps the rules of its stage; run after each pass, in tests always.

    verify(kernel)      returns, or raises InternalError: a pass is wrong, not the user

What a stage permits is data, in `taskc.ir.specification`. Types are the business of
`taskc.ir.verify_expressions`. This file holds the rules of statements:

    names      A variable or tensor is bound once in a kernel, before its uses, and used in its scope.
    phases     Whole-block statements, and loops that number their own workers, stand outside mapping
               loops. There is at most one Grid, at the top, with nothing but Lets before it.
    uniform    Until pipelined, what stands outside mapping loops (conditions, bounds, values bound
               or stored) is the same for all workers: it reads no tile that isn't wholly replicated,
               and no local cell that a mapping loop writes. At synchronized the author of a kernel
               may diverge, by `worker` for example, but not around a phase.
    groups     A mapping loop has as many workers as run it (the block's, or the role's), or names
               the worker; a tile's owners are that many workers and have its shape.
    values     Until selected a constant tensor is written by one Move and by nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.nodes import Statement
from taskc.ir.operations import OPERATIONS
from taskc.ir.specification import PIPELINED, SCALAR, SELECTED, SYNCHRONIZED
from taskc.ir.text_rules import result_type
from taskc.ir.types import boolean, i64
from taskc.ir.verify_expressions import ExpressionVerifier, broken

_ATOMICS = frozenset({"+", "min", "max", "&", "|", "^", "exchange"})
_FOLDS = frozenset({"+", "*", "min", "max", "&", "|", "^"})
_TRANSPORTS = frozenset({"registers", "cp.async", "tma"})
_RING_STEPS = frozenset({"acquire", "commit", "wait", "release"})
_BARRIER_SCOPES = frozenset({"warp", "role", "block"})
_KINDS = frozenset({"serial", "unroll", "vector"})


def verify(kernel: ir.Kernel) -> None:
    """Raise an InternalError that names the broken rule, with the program's text."""
    divergent: frozenset[ir.Tensor] = frozenset()
    while True:
        # Which local cells differ between workers shows only at the end: a loop may read a cell
        # before it is written. So it starts again with what it found, until nothing is new.
        verifier = _Verifier(kernel, divergent)
        verifier.run()
        if verifier.divergent_cells == divergent:
            return
        divergent = frozenset(verifier.divergent_cells)


class _Verifier(ExpressionVerifier):
    def __init__(self, kernel: ir.Kernel, divergent_cells: frozenset[ir.Tensor]) -> None:
        super().__init__(kernel, divergent_cells)
        self.group = kernel.workers
        self.in_roles = False
        self.diverged = False  # the control flow around, at stage synchronized
        self.moves: Counter[ir.Tensor] = Counter()
        self.constants: list[ir.Tensor] = []

    # --- kernels ---

    def run(self) -> None:
        kernel = self.kernel
        if kernel.stage not in ir.STAGES:
            raise broken(kernel, f"there is no stage {kernel.stage!r}")
        self.attributes_of(kernel)
        self.need(kernel.workers >= 1 and kernel.helpers >= 0, "a kernel has at least one worker")
        self.need(kernel.worker.multiple == kernel.block.multiple == 1, "worker has no multiple")
        self.bind(kernel.worker)
        self.bind(kernel.block)
        for dimension in kernel.dimensions:
            self.bind(dimension)
        for parameter in kernel.parameters:
            if isinstance(parameter, ir.Tensor):
                self.need(parameter.scope == ir.GLOBAL, f"the parameter {parameter} is global")
                self.tensor(parameter, is_parameter=True)
            self.bind(parameter)
        if kernel.blocks is not None:
            self.index(kernel.blocks)
        self.grid_position(kernel.body)
        self.body(kernel.body)
        if self.stage <= SELECTED:
            for tensor in self.constants:
                count = self.moves[tensor]
                self.need(
                    count == 1, f"the block value {tensor} is written once, not {count} times"
                )

    def grid_position(self, body: Statement) -> None:
        top = body.statements if isinstance(body, ir.Sequence) else (body,)
        self.grid = next((s for s in top if isinstance(s, ir.Grid)), None)
        if self.grid is not None:
            for statement in top:
                self.current = statement
                self.need(
                    isinstance(statement, ir.Let) or statement is self.grid,
                    "beside a grid stand only the Lets before it",
                )
            self.need(top[-1] is self.grid, "beside a grid stand only the Lets before it")

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
        check = _STATEMENTS.get(kind)
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
        self.diverged = outer or (diverges and not self.inside)
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
        self.need(not self.inside or tensor.scope in (ir.LOCAL, ir.REGISTER),
                  f"the {tensor.scope} tensor {tensor} is allocated outside mapping loops")  # fmt: skip
        self.tensor(tensor, is_parameter=False)
        if s.fill is not None:
            self.need(type(s.fill) is ir.Constant, "a tensor is filled with a constant")
            self.expression(s.fill)
            self.same_type(tensor.dtype, s.fill.dtype, f"{tensor} and its fill")
        self.bind(tensor)
        if tensor.constant:
            self.constants.append(tensor)
        if not self.inside:
            self.outer_cells.add(tensor)

    def tensor(self, tensor: ir.Tensor, *, is_parameter: bool) -> None:
        self.attributes_of(tensor)
        for extent in tensor.shape:
            if not isinstance(extent, int):
                self.need(is_parameter, f"the shape of {tensor} is constant")
                self.index(extent)
            else:
                self.need(extent >= 0, f"the extents of {tensor} aren't negative")
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
        self.need(tensor.offset is None or tensor.scope == ir.SHARED,
                  f"{tensor} has an offset but is not shared")  # fmt: skip
        self.need((tensor.owners is not None) == (tensor.scope == ir.TILE),
                  f"{tensor} has owners if and only if it is a tile")  # fmt: skip
        owners = tensor.owners
        if owners is not None:
            self.need(owners.workers == self.group,
                      f"the owners of {tensor} are {owners.workers} workers of {self.group}")  # fmt: skip
            self.need(owners.iterated == tensor.shape and
                      (owners.is_composed or owners.covers(owners.iterated)),
                      f"the owners of {tensor} have its shape")  # fmt: skip

    def store(self, s: ir.Store) -> None:
        self.element(s.tensor, s.indices)
        self.written(s.tensor, self.value(s.value))
        self.same_type(s.tensor.dtype, s.value.dtype, f"{s.tensor} and what is stored")
        self.need(not s.tensor.constant or self.stage > SELECTED,
                  f"the block value {s.tensor} is written by a move")  # fmt: skip

    def written(self, tensor: ir.Tensor, diverges: bool) -> None:
        self.need(tensor.scope != ir.GLOBAL or tensor.role != "in", f"{tensor} is only read")
        if self.inside or diverges or self.diverged:
            if tensor.scope == ir.LOCAL and tensor in self.outer_cells:
                self.divergent_cells.add(tensor)
        if not self.inside and tensor.scope == ir.TILE:
            self.need(
                self.is_replicated(tensor), f"outside mapping loops nobody owns {tensor}'s elements"
            )

    def atomic(self, s: ir.Atomic) -> None:
        self.need(s.operator in _ATOMICS, f"there is no atomic {s.operator!r}")
        self.need(s.tensor.scope in (ir.GLOBAL, ir.SHARED), f"{s.tensor} is not shared or global")
        self.need(self.inside or self.stage > PIPELINED, "an atomic stands in a mapping loop")
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
            self.need(s.kind == "serial" or type(bound) is ir.Constant,
                      f"the bounds of a loop of kind {s.kind!r} are constant")  # fmt: skip
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

    def do(self, s: ir.Do) -> None:
        row = OPERATIONS.get(s.operation)
        if row is None:
            raise self.broken(f"there is no operation {s.operation!r}")
        kinds = list(row.operands)
        if kinds and kinds[-1].endswith("*"):
            last = kinds.pop()[:-1]
            kinds += [last] * (len(s.operands) - len(kinds))
        self.need(len(kinds) == len(s.operands),
                  f"{s.operation} takes {len(kinds)} operands, not {len(s.operands)}")  # fmt: skip
        for kind, operand in zip(kinds, s.operands, strict=True):
            if kind == "place":
                self.need(type(operand) is ir.Address, f"an operand of {s.operation} is a place")
                self.address(operand)  # type: ignore[arg-type]
                continue
            self.need(kind != "constant" or type(operand) is ir.Constant,
                      f"an operand of {s.operation} is a constant")  # fmt: skip
            self.expression(operand)
        if s.result is not None:
            result = result_type(s.operation, s.operands)
            if result is None:
                raise self.broken(f"{s.operation} has no result")
            self.same_type(s.result.dtype, result, f"the result of {s.operation} and its variable")
            self.bind(s.result)
            self.divergent.add(s.result)

    # --- phases, and what stands around them ---

    def whole_block(self, what: str) -> None:
        self.need(not self.inside, f"{what} stands outside mapping loops")
        self.need(not self.diverged, f"{what} is not in divergent control flow")

    def grid_(self, s: ir.Grid) -> None:
        self.need(s is self.grid, "there is at most one grid, at the top of the body")
        rank = len(s.shape)
        self.need(
            len(s.variables) == len(s.by) == rank, "a grid's names, shape and tiles have one rank"
        )
        self.need(all(n >= 1 for n in (*s.by, *s.cluster)), "a grid's tiles aren't empty")
        self.need(len(s.cluster) in (0, rank), "a cluster has the grid's rank")
        grouped = rank == 2 and len(s.order) == 2 and s.order[0] == "grouped" and s.order[1] != 0
        self.need(not s.order or grouped or sorted(map(str, s.order)) == sorted(map(str, range(rank))),
                  "a grid's order names each dimension once, or is grouped")  # fmt: skip
        for extent in s.shape:
            if not isinstance(extent, int):
                self.index(extent)
        self.inner(s.body, *s.variables)

    def pipeline(self, s: ir.Pipeline) -> None:
        self.whole_block("a pipeline")
        self.uniform(self.index(s.extent), "bounds")
        self.need(s.by >= 1 and s.stages >= 1, "a pipeline's step and stages are at least 1")
        self.need(
            s.transport is None or s.transport in _TRANSPORTS, f"no transport {s.transport!r}"
        )
        self.inner(s.body, s.variable)

    def each(self, s: ir.Each) -> None:
        if s.worker is None:
            self.need(s.mapping.workers == self.group,
                      f"the mapping has {s.mapping.workers} workers, the group {self.group}")  # fmt: skip
            self.need(not self.diverged, "a mapping loop is not in divergent control flow")
        else:
            self.inside += 1  # any stage may number the workers by `worker` here
            self.index(s.worker, allow_worker=True)
            self.inside -= 1
        self.need(
            len(s.variables) == s.mapping.rank, "a mapping loop has a name for each dimension"
        )
        self.inner(s.body, *s.variables, inside=True)

    def move(self, s: ir.Move) -> None:
        self.whole_block("a move")
        self.need(len(s.variables) == len(s.shape), "a move has a name for each dimension")
        for variable in s.variables:
            self.bind(variable)
            self.divergent.add(variable)
        self.inside += 1
        self.element(s.tensor, s.indices)
        self.expression(s.value)
        self.written(s.tensor, True)
        self.same_type(s.tensor.dtype, s.value.dtype, f"{s.tensor} and what is moved")
        if s.guard is not None:
            self.expression(s.guard)
            self.is_bool(s.guard)
        self.inside -= 1
        for variable in s.variables:
            self.live.discard(variable)
        self.moves[s.tensor] += 1
        if s.by is not None:
            self.need(
                s.by.rank == len(s.shape) and s.by.covers(s.shape),
                "a move's mapping covers its shape",
            )
            self.need(s.by.workers <= self.group,
                      f"a move's mapping has {s.by.workers} workers of {self.group}")  # fmt: skip

    def mma(self, s: ir.Mma) -> None:
        self.whole_block("a matrix product")
        self.known(s.accumulator)
        for operand in (s.left, s.right):
            self.known(operand.tensor)
            flat = self.stage >= SCALAR and len(operand.origin) == 1
            self.need(flat or len(operand.origin) == len(operand.tensor.shape) >= 2,
                      f"the origin of {operand.tensor} has its rank, at least 2")  # fmt: skip
            for index in operand.origin:
                self.index(index)
        (rows, inner), (depth, columns) = s.left.shape, s.right.shape
        self.need(inner == depth, f"the matrices {s.left.shape} and {s.right.shape} fit each other")
        if self.stage < SCALAR:
            self.need(s.accumulator.scope == ir.TILE, f"the accumulator {s.accumulator} is a tile")
            self.need(s.accumulator.shape == (rows, columns),
                      f"the accumulator {s.accumulator} is {rows} by {columns}")  # fmt: skip

    def fold(self, s: ir.Reduce | ir.Scan) -> None:
        what = "a reduction" if isinstance(s, ir.Reduce) else "a scan"
        self.whole_block(what)
        self.need(s.operator in _FOLDS, f"there is no fold {s.operator!r}")
        for tensor in (s.target, s.source):
            self.known(tensor)
            self.need(tensor.scope == ir.TILE, f"{what} is from tile to tile, and {tensor} is none")
        self.same_type(s.target.dtype, s.source.dtype, f"{s.target} and {s.source}")
        shape = s.source.shape
        self.need(0 <= s.axis < len(shape), f"{s.source} has no axis {s.axis}")
        if isinstance(s, ir.Reduce):
            shape = shape[: s.axis] + shape[s.axis + 1 :]
        self.need(s.target.shape == shape, f"{s.target} has the shape {shape}")

    def ring_step(self, s: ir.RingStep) -> None:
        self.whole_block("a ring's step")
        self.need(s.operation in _RING_STEPS, f"a ring has no operation {s.operation!r}")
        ring = s.ring
        self.need(
            ring.stages >= 1 and ring.transport in _TRANSPORTS, f"the ring {ring} is well-formed"
        )
        for tensor in ring.tensors:
            self.known(tensor)
            self.need(tensor.scope == ir.SHARED and tensor.shape[:1] == (ring.stages,),
                      f"{tensor} of the ring {ring} is shared and has {ring.stages} slots")  # fmt: skip
        self.uniform(self.index(s.step), "the step of a ring")

    def barrier(self, s: ir.Barrier) -> None:
        self.need(s.scope in _BARRIER_SCOPES, f"there is no barrier of scope {s.scope!r}")
        self.need(s.scope != "block" or not self.in_roles, "a role uses no barrier of the block")

    def roles(self, s: ir.Roles) -> None:
        self.whole_block("a split into roles")
        self.need(not self.in_roles, "roles don't nest")
        ends = 0
        for role in sorted(s.roles, key=lambda role: role.first):
            self.need(
                role.first >= ends and role.workers >= 1, f"the role {role.name} overlaps another"
            )
            ends = role.first + role.workers
        total = self.kernel.workers + self.kernel.helpers
        self.need(ends <= total, f"the roles take {ends} workers of {total}")
        group = self.group
        self.in_roles = True
        for role in s.roles:
            self.group = role.workers
            self.body(role.body)
        self.group = group
        self.in_roles = False

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


_STATEMENTS: dict[type, Callable[[_Verifier, Any], None]] = {
    ir.Let: _Verifier.let,
    ir.Allocate: _Verifier.allocate,
    ir.Store: _Verifier.store,
    ir.Atomic: _Verifier.atomic,
    ir.If: _Verifier.if_,
    ir.While: _Verifier.while_,
    ir.For: _Verifier.for_,
    ir.Grid: _Verifier.grid_,
    ir.Pipeline: _Verifier.pipeline,
    ir.Each: _Verifier.each,
    ir.Move: _Verifier.move,
    ir.Mma: _Verifier.mma,
    ir.Reduce: _Verifier.fold,
    ir.Scan: _Verifier.fold,
    ir.Print: _Verifier.print,
    ir.Assert: _Verifier.assert_,
    ir.RingStep: _Verifier.ring_step,
    ir.Barrier: _Verifier.barrier,
    ir.Roles: _Verifier.roles,
    ir.Do: _Verifier.do,
}
