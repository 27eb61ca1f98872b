"""The verifier of a stage's rules; run after each pass, always in tests.

    verify(kernel)      returns, or raises InternalError: a pass is wrong, not the user

The permitted nodes of a stage are data, in `taskc.ir.specification`. Types are checked in
`taskc.ir.verify_expressions`. The rules of statements:

    names      A variable or tensor is bound once in a kernel, before its uses, and used within its
               scope.
    phases     Whole-block statements stand outside mapping loops. There is at most one Grid, at the
               top, with nothing but Lets before it.
    uniform    Until pipelined, everything outside mapping loops (conditions, bounds, bound values
               or stored) is the same for all workers: it reads no tile unless wholly replicated,
               and no local cell that a mapping loop writes. At synchronized the author of a kernel
               may diverge, by `worker` for example, but not around a phase.
    groups     A mapping loop has as many workers as run it (the block's, or the role's), or names
               the worker; a tile's owners are that many workers and have its shape.
    peers      A peer's memory is read, stored, updated atomically and named by operations, in a
               cluster; whole-block statements take memory of the own block.
    values     Until selected a constant tensor is written by one Move and by nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from taskc.ir import build, nodes as ir
from taskc.ir.code_size import deeply
from taskc.ir.extents import are_as_many
from taskc.ir.forms import name_of
from taskc.ir.fragments import misfit
from taskc.ir.nodes import Statement
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import STATEMENT_TYPES, walk
from taskc.ir.specification import PIPELINED, SCALAR, SELECTED, SYNCHRONIZED
from taskc.ir.target import (
    LEAST_REGISTERS,
    MATRIX_INSTRUCTIONS,
    MOST_COUNTED,
    MOST_REGISTERS,
    PackedInstruction,
    WarpgroupInstruction,
    is_asynchronous,
)
from taskc.ir.text_rules import result_type
from taskc.ir.verify_expressions import ExpressionVerifier, NameScopes, Rules

_ATOMICS = frozenset({"+", "min", "max", "&", "|", "^", "exchange", "acquire", "release"})
_LOOPS = frozenset({"serial", "unroll", "vector"})
_FOLDS = frozenset({"+", "*", "min", "max", "&", "|", "^"})
_TRANSPORTS = frozenset({"registers", "cp.async", "tma"})
_RING_STEPS = frozenset({"acquire", "commit", "wait", "release", "enter", "leave"})
_BARRIER_SCOPES = frozenset({"warp", "warpgroup", "role", "block", "grid"})


@deeply
def verify(kernel: ir.Kernel) -> None:
    """Raise an InternalError that names the broken rule, with the program's text."""
    divergent: frozenset[ir.Tensor] = frozenset()
    while True:
        # A loop may read a local cell before it is written, so the cells that differ between workers are known only at
        # the end. The check is repeated with them until there are no new ones.
        verifier = _Verifier(kernel, divergent)
        verifier.run()
        divergent_found = frozenset(verifier.expressions.divergent_cells)
        if divergent_found == divergent:
            return
        divergent = divergent_found


class _Verifier:
    checks: ClassVar[dict[type, Callable[[Any, Any], None]]]  # `check_…` of each kind of statement

    def __init__(self, kernel: ir.Kernel, divergent_cells: frozenset[ir.Tensor]) -> None:
        self.rules = Rules(kernel)
        self.need = self.rules.need
        self.names = NameScopes(self.rules)
        self.expressions = ExpressionVerifier(self.rules, self.names, divergent_cells)
        self.group = kernel.workers
        self.in_roles = False
        self.diverged = False  # whether the control flow around diverges, at stage synchronized
        self.outer_cells: set[ir.Tensor] = set()  # allocated outside mapping loops
        self.peers: set[ir.Tensor] = set()  # tensors of other blocks
        self.moves: Counter[ir.Tensor] = Counter()
        self.constants: list[ir.Tensor] = []

    # --- kernels ---

    def run(self) -> None:
        kernel = self.rules.kernel
        self.rules.attributes_of(kernel)
        self.need(kernel.workers >= 1 and kernel.helpers >= 0, "a kernel has at least one worker")
        self.need(kernel.worker.multiple == kernel.block.multiple == 1, "worker has no multiple")
        self.names.bind(kernel.worker)
        self.names.bind(kernel.block)
        self.names.bind(kernel.processors)
        for dimension in kernel.dimensions:
            self.names.bind(dimension)
        for parameter in kernel.parameters:
            if isinstance(parameter, ir.Tensor):
                self.need(parameter.scope == ir.GLOBAL, f"the parameter {parameter} is global")
                self.tensor(parameter, is_parameter=True)
            self.names.bind(parameter)
        if kernel.blocks is not None:
            self.expressions.index(kernel.blocks)
        self.need(kernel.cluster >= 1, "a cluster has at least one block")
        self.grid_position(kernel.body)
        self.body(kernel.body)
        if self.rules.stage <= SELECTED:
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
                self.rules.current = statement
                self.need(
                    isinstance(statement, ir.Let) or statement is self.grid,
                    "beside a grid stand only the Lets before it",
                )
            self.need(top[-1] is self.grid, "beside a grid stand only the Lets before it")

    # --- scopes ---

    def body(self, statement: Statement) -> None:
        """Check a statement whose names end with it."""
        mark = len(self.names.trail)
        self.statement(statement)
        self.names.end_behind(mark)

    def statement(self, statement: Statement) -> None:
        kind = type(statement)
        if kind is ir.Sequence:
            mark = len(self.names.trail)
            for inner in statement.statements:  # type: ignore[union-attr]
                self.statement(inner)
            self.names.end_behind(mark)
            return
        self.rules.current = statement
        check = self.checks.get(kind)
        if check is None:
            raise self.rules.broken("this is no statement")
        if kind not in self.rules.permitted:
            raise self.rules.not_here(kind)
        if kind in self.rules.attributes:
            self.rules.attributes_of(statement)
        check(self, statement)

    def inner(self, statement: Statement, *variables: ir.Variable, inside: bool = False) -> None:
        """Check the body of a statement that binds variables for it."""
        for variable in variables:
            self.names.bind(variable)
            if inside:
                self.expressions.divergent.add(variable)
        self.rules.inside += inside
        self.body(statement)
        self.rules.inside -= inside
        for variable in variables:
            self.names.live.discard(variable)

    def flow(self, diverges: bool, *bodies: Statement | None) -> None:
        """Check bodies whose execution, or number of executions, depends on a condition."""
        outer = self.diverged
        if diverges and not self.rules.inside and self.rules.stage <= SYNCHRONIZED:
            self.diverged = True
        for body in bodies:
            if body is not None:
                self.body(body)
        self.diverged = outer

    # --- statements that may be anywhere ---

    def check_let(self, s: ir.Let) -> None:
        if self.value(s.value):
            self.expressions.divergent.add(s.variable)
        self.rules.same_type(s.variable.dtype, s.value.dtype, "a variable and its value")
        self.names.bind(s.variable)

    def check_allocate(self, s: ir.Allocate) -> None:
        tensor = s.tensor
        self.need(tensor.scope != ir.GLOBAL, f"{tensor} is global, so it is a parameter")
        if tensor.scope not in self.rules.permitted:
            raise self.rules.not_here(tensor.scope)
        self.need(
            not self.rules.inside or tensor.scope in (ir.LOCAL, ir.REGISTER),
            f"the {tensor.scope} tensor {tensor} is allocated outside mapping loops",
        )
        self.tensor(tensor, is_parameter=False)
        if s.fill is not None:
            self.need(type(s.fill) is ir.Constant, "a tensor is filled with a constant")
            self.need(
                tensor.scope in (ir.TILE, ir.LOCAL, ir.REGISTER),
                f"the {tensor.scope} tensor {tensor} isn't filled by its allocation, but by stores",
            )
            self.expressions.check(s.fill)
            self.rules.same_type(tensor.dtype, s.fill.dtype, f"{tensor} and its fill")
        self.names.bind(tensor)
        if tensor.constant:
            self.constants.append(tensor)
        if not self.rules.inside:
            self.outer_cells.add(tensor)

    def check_peer(self, s: ir.Peer) -> None:
        tensor, of = s.tensor, s.of
        self.names.known(of)
        self.need(of.scope in (ir.SHARED, ir.BARRIER), f"{of} has peers, so it is shared")
        self.need(of not in self.peers, f"{of} is a peer's already")
        self.need(self.rules.cluster > 1, "peers are in a cluster, and there is none")
        same = (tensor.dtype, tensor.shape, tensor.scope, tensor.layout, tensor.swizzle)
        self.need(
            same == (of.dtype, of.shape, of.scope, of.layout, of.swizzle) and tensor.offset is None,
            f"{tensor} has the form of {of}, and its place",
        )
        self.expressions.index(s.rank)
        self.names.bind(tensor)
        self.peers.add(tensor)

    def own(self, tensor: ir.Tensor, what: str) -> None:
        """Check that a tensor isn't a peer's."""
        self.need(tensor not in self.peers, f"{what} takes memory of its own block")

    def tensor(self, tensor: ir.Tensor, *, is_parameter: bool) -> None:
        self.rules.attributes_of(tensor)
        for extent in tensor.shape:
            if not isinstance(extent, int):
                self.need(is_parameter, f"the shape of {tensor} is constant")
                self.expressions.index(extent)
            else:
                self.need(extent >= 0, f"the extents of {tensor} aren't negative")
        if tensor.dtype.is_sub_byte:
            is_read = is_parameter and tensor.role == "in"
            self.need(is_read, f"{tensor} is of {tensor.dtype}, so it is a parameter that is read")
        self.need(
            tensor.held is None or (is_parameter and tensor.held.dtype.is_sub_byte),
            f"{tensor} is the bytes of a parameter of a sub-byte type",
        )
        if tensor.given is not None:
            self.need(is_parameter, f"{tensor} is reshaped, so it is a parameter")
            self.need(tensor.layout is None, f"{tensor} is reshaped, so it is row-major")
            for extent in tensor.given:
                self.expressions.index(build.index(extent))
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

    def check_store(self, s: ir.Store) -> None:
        self.expressions.element(s.tensor, s.indices)
        self.written(s.tensor, self.value(s.value))
        self.rules.same_type(s.tensor.dtype, s.value.dtype, f"{s.tensor} and what is stored")
        self.need(
            not s.tensor.constant or self.rules.stage > SELECTED,
            f"the block value {s.tensor} is written by a move",
        )

    def written(self, tensor: ir.Tensor, diverges: bool) -> None:
        self.need(tensor.scope != ir.GLOBAL or tensor.role != "in", f"{tensor} is only read")
        may_differ = self.rules.stage <= SYNCHRONIZED and (
            self.rules.inside > 0 or diverges or self.diverged
        )
        if may_differ and tensor.scope == ir.LOCAL and tensor in self.outer_cells:
            self.expressions.divergent_cells.add(tensor)
        if not self.rules.inside and tensor.scope == ir.TILE:
            self.need(
                self.expressions.is_replicated(tensor),
                f"outside mapping loops nobody owns {tensor}'s elements",
            )

    def check_atomic(self, s: ir.Atomic) -> None:
        self.need(s.operator in _ATOMICS, f"there is no atomic {s.operator!r}")
        self.need(s.operator != "release" or s.result is None, "a release has no result")
        self.need(s.tensor.scope in (ir.GLOBAL, ir.SHARED), f"{s.tensor} is not shared or global")
        self.need(
            self.rules.inside > 0 or self.rules.stage > PIPELINED,
            "an atomic stands in a mapping loop",
        )
        self.expressions.element(s.tensor, s.indices)
        self.written(s.tensor, self.value(s.value))
        self.rules.same_type(s.tensor.dtype, s.value.dtype, f"{s.tensor} and the atomic's operand")
        if s.result is not None:
            self.rules.same_type(
                s.result.dtype, s.tensor.dtype, "the atomic's result and its tensor"
            )
            self.names.bind(s.result)
            self.expressions.divergent.add(s.result)

    def check_if(self, s: ir.If) -> None:
        self.flow(self.condition(s.condition), s.then, s.otherwise)

    def check_while(self, s: ir.While) -> None:
        self.flow(self.condition(s.condition), s.body)

    def check_for(self, s: ir.For) -> None:
        self.need(s.kind in _LOOPS, f"there is no loop of kind {s.kind!r}")
        self.need(s.step != 0, "a loop's step is not 0")
        diverges = self.expressions.index(s.start) | self.expressions.index(s.stop)
        self.uniform(diverges, "bounds")
        for bound in (s.start, s.stop):
            self.rules.same_type(s.variable.dtype, bound.dtype, "a loop's variable and its bounds")
            self.need(
                s.kind == "serial" or type(bound) is ir.Constant,
                f"the bounds of a loop of kind {s.kind!r} are constant",
            )
        parts = s.body.statements if isinstance(s.body, ir.Sequence) else (s.body,)
        self.need(
            s.kind != "vector" or all(isinstance(part, (ir.Let, ir.Store)) for part in parts),
            "a vector loop holds names and stores only",
        )
        self.names.bind(s.variable)
        if diverges:
            self.expressions.divergent.add(s.variable)
        self.flow(diverges, s.body)
        self.names.live.discard(s.variable)

    def check_print(self, s: ir.Print) -> None:
        for value in s.values:
            self.expressions.check(value)
        holes = s.text.count("{}")
        self.need(holes == len(s.values), f"{holes} places for {len(s.values)} values")

    def check_assert(self, s: ir.Assert) -> None:
        self.expressions.check(s.condition)
        self.rules.is_bool(s.condition)

    def check_breakpoint(self, s: ir.Breakpoint) -> None:
        """A breakpoint may be anywhere."""

    def check_do(self, s: ir.Do) -> None:
        row = OPERATIONS.get(s.operation)
        if row is None:
            raise self.rules.broken(f"there is no operation {s.operation!r}")
        self.need(
            row.participants != "cluster" or self.rules.cluster > 1,
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
                self.expressions.address(operand)  # type: ignore[arg-type]
                if kind == "place":
                    self.own(operand.tensor, s.operation)  # type: ignore[union-attr]
                continue
            self.need(
                kind != "constant" or type(operand) is ir.Constant,
                f"an operand of {s.operation} is a constant",
            )
            self.expressions.check(operand)
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
                raise self.rules.broken(f"{s.operation} has no result")
            self.rules.same_type(
                s.result.dtype, result, f"the result of {s.operation} and its variable"
            )
            self.names.bind(s.result)
            self.expressions.divergent.add(s.result)

    # --- uniformity ---

    def uniform(self, diverges: bool, what: str) -> None:
        if diverges and not self.rules.inside and self.rules.stage < SYNCHRONIZED:
            raise self.rules.broken(f"{what} outside mapping loops is the same for all workers")

    def value(self, value: Any) -> bool:
        diverges = self.expressions.check(value)
        self.uniform(diverges, "a value")
        return diverges and not self.rules.inside

    def condition(self, condition: Any) -> bool:
        diverges = self.expressions.check(condition)
        self.rules.is_bool(condition)
        self.uniform(diverges, "a condition")
        return diverges

    # --- phases, and the code around them ---

    def whole_block(self, what: str) -> None:
        self.need(not self.rules.inside, f"{what} stands outside mapping loops")
        self.need(not self.diverged, f"{what} is not in divergent control flow")

    def check_grid(self, s: ir.Grid) -> None:
        self.need(s is self.grid, "there is at most one grid, at the top of the body")
        rank = len(s.shape)
        self.need(
            len(s.variables) == len(s.by) == rank, "a grid's names, shape and tiles have one rank"
        )
        self.need(all(n >= 1 for n in (*s.by, *s.cluster)), "a grid's tiles aren't empty")
        self.need(len(s.cluster) in (0, rank), "a cluster has the grid's rank")
        grouped = rank == len(s.order) == 2 and s.order[0] in ir.GROUPED and s.order[1] != 0
        permuted = sorted(map(str, s.order)) == sorted(map(str, range(rank)))
        self.need(
            not s.order or grouped or permuted,
            "a grid's order names each dimension once, or is grouped",
        )
        for extent in s.shape:
            if not isinstance(extent, int):
                self.expressions.index(extent)
        self.inner(s.body, *s.variables)

    def check_pipeline(self, s: ir.Pipeline) -> None:
        self.whole_block("a pipeline")
        self.uniform(self.expressions.index(s.extent), "bounds")
        self.need(min(s.by, s.stages) >= 1, "a pipeline's step and stages are at least 1")
        self.need(
            s.transport is None or s.transport in _TRANSPORTS, f"no transport {s.transport!r}"
        )
        self.need(s.turns is None or s.turns in ir.TURNS, f"no turns by {s.turns!r}")
        self.inner(s.body, s.variable)

    def check_each(self, s: ir.Each) -> None:
        if s.worker is None:
            self.need(
                s.mapping.workers == self.group,
                f"the mapping has {s.mapping.workers} workers, the group {self.group}",
            )
            self.need(not self.diverged, "a mapping loop is not in divergent control flow")
        else:
            self.rules.inside += 1  # at any stage the worker's number may use `worker`
            self.expressions.index(s.worker, allow_worker=True)
            self.rules.inside -= 1
        self.need(
            len(s.variables) == s.mapping.rank, "a mapping loop has a name for each dimension"
        )
        self.inner(s.body, *s.variables, inside=True)

    def check_move(self, s: ir.Move) -> None:
        self.whole_block("a move")
        self.need(len(s.variables) == len(s.shape), "a move has a name for each dimension")
        for variable in s.variables:
            self.names.bind(variable)
            self.expressions.divergent.add(variable)
        self.rules.inside += 1
        for part in (*s.indices, s.value):
            for node in walk(part):
                if isinstance(node, ir.Read):
                    self.own(node.tensor, "a move")
        self.own(s.tensor, "a move")
        self.expressions.element(s.tensor, s.indices)
        self.expressions.check(s.value)
        self.written(s.tensor, True)
        self.rules.same_type(s.tensor.dtype, s.value.dtype, f"{s.tensor} and what is moved")
        if s.guard is not None:
            self.expressions.check(s.guard)
            self.rules.is_bool(s.guard)
        self.rules.inside -= 1
        for variable in s.variables:
            self.names.live.discard(variable)
        self.moves[s.tensor] += 1
        if s.by is not None:
            self.need(
                s.by.rank == len(s.shape) and s.by.covers(s.shape),
                "a move's mapping covers its shape",
            )
            self.need(
                s.by.workers <= self.group,
                f"a move's mapping has {s.by.workers} workers of {self.group}",
            )

    def check_mma(self, s: ir.Mma) -> None:
        self.whole_block("a matrix product")
        self.names.known(s.accumulator)
        for operand in (s.left, s.right):
            self.names.known(operand.tensor)
            self.own(operand.tensor, "a matrix product")
            flat = self.rules.stage >= SCALAR and len(operand.origin) == 1
            self.need(
                flat or len(operand.origin) == len(operand.tensor.shape) >= 2,
                f"the origin of {operand.tensor} has its rank, at least 2",
            )
            for index in operand.origin:
                self.expressions.index(index)
        row = MATRIX_INSTRUCTIONS.get(s.how or "")
        if s.by is not None:
            dtypes = (s.by, s.left.tensor.dtype, s.right.tensor.dtype)
            self.need(all(t.is_float for t in dtypes), "a product rounds floats to a float type")
        if s.accumulate is not None:
            self.need(is_asynchronous(s.how), "only an asynchronous product may not accumulate")
            self.uniform(self.expressions.check(s.accumulate), "a condition")
            self.rules.is_bool(s.accumulate)
        (rows, inner), (depth, columns) = s.left.shape, s.right.shape
        self.need(inner == depth, f"the matrices {s.left.shape} and {s.right.shape} fit each other")
        if self.rules.stage < SCALAR:
            self.need(s.accumulator.scope == ir.TILE, f"the accumulator {s.accumulator} is a tile")
            self.need(
                s.accumulator.shape == (rows, columns),
                f"the accumulator {s.accumulator} is {rows} by {columns}",
            )
            if isinstance(row, PackedInstruction | WarpgroupInstruction):
                wrong = misfit(s, row)
                self.need(wrong is None, wrong or "")

    def check_fold(self, s: ir.Reduce | ir.Scan) -> None:
        what = "a reduction" if isinstance(s, ir.Reduce) else "a scan"
        self.whole_block(what)
        count = len(s.sources)
        self.need(len(s.targets) == count >= 1, f"{what} has as many targets as sources")
        if isinstance(s.operator, ir.Combine):
            types = tuple([tensor.dtype for tensor in s.sources])
            self.expressions.combine(s.operator, types)
            exclusive = isinstance(s, ir.Scan) and s.exclusive
            self.need(not exclusive, "a scan by a function is inclusive")
        else:
            self.need(s.operator in _FOLDS, f"there is no fold {s.operator!r}")
            self.need(count == 1, f"{what} of several tiles is by a function")
        for target, source in zip(s.targets, s.sources, strict=True):
            for tensor in (target, source):
                self.names.known(tensor)
                is_tile = tensor.scope == ir.TILE
                self.need(is_tile, f"{what} is from tile to tile, and {tensor} is none")
            self.rules.same_type(target.dtype, source.dtype, f"{target} and {source}")
            shape = source.shape
            self.need(0 <= s.axis < len(shape), f"{source} has no axis {s.axis}")
            if isinstance(s, ir.Reduce):
                shape = shape[: s.axis] + shape[s.axis + 1 :] or (1,)
            self.need(target.shape == shape, f"{target} has the shape {shape}")

    check_reduce = check_scan = check_fold

    def check_ringstep(self, s: ir.RingStep) -> None:
        self.whole_block("a ring's step")
        self.need(s.operation in _RING_STEPS, f"a ring has no operation {s.operation!r}")
        ring = s.ring
        self.need(
            ring.stages >= 1 and ring.transport in _TRANSPORTS, f"the ring {ring} is well-formed"
        )
        for tensor in ring.tensors:
            self.names.known(tensor)
            self.need(
                tensor.scope == ir.SHARED and tensor.shape[:1] == (ring.stages,),
                f"{tensor} of the ring {ring} is shared and has {ring.stages} slots",
            )
        self.uniform(self.expressions.index(s.step), "the step of a ring")

    def check_barrier(self, s: ir.Barrier) -> None:
        self.need(s.scope in _BARRIER_SCOPES, f"there is no barrier of scope {s.scope!r}")
        wide = s.scope in ("block", "grid")
        self.need(not (wide and self.in_roles), f"a role uses no barrier of the {s.scope}")

    def check_roles(self, s: ir.Roles) -> None:
        self.whole_block("a split into roles")
        self.need(not self.in_roles, "roles don't nest")
        ends = 0
        for role in sorted(s.roles, key=lambda role: role.first):
            self.need(
                role.first >= ends and role.workers >= 1, f"the role {role.name} overlaps another"
            )
            ends = role.first + role.workers
        total = self.rules.kernel.workers + self.rules.kernel.helpers
        self.need(ends <= total, f"the roles take {ends} workers of {total}")
        group = self.group
        self.in_roles = True
        for role in s.roles:
            self.group = role.workers
            self.body(role.body)
        self.group = group
        self.in_roles = False


_Verifier.checks = {
    kind: getattr(_Verifier, f"check_{name_of(kind)}") for kind in STATEMENT_TYPES - {ir.Sequence}
}
