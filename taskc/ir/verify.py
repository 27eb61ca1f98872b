"""Whether a program keeps the rules of its stage; run after each pass, in tests always.

    verify(kernel)      returns, or raises InternalError: a pass is wrong, not the user

What a stage permits is data, in `taskc.ir.specification`. Types are the business of
`taskc.ir.verify_expressions`. The rules of statements:

    names      A variable or tensor is bound once in a kernel, before its uses, and used within its
               scope.
    phases     Whole-block statements stand outside mapping loops. There is at most one Grid, at the
               top, with nothing but Lets before it.
    uniform    Until pipelined, what stands outside mapping loops (conditions, bounds, what is bound
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

from taskc.ir import nodes as ir
from taskc.ir.depth import deeply
from taskc.ir.fragments import misfit
from taskc.ir.nodes import Statement
from taskc.ir.rewrite import walk
from taskc.ir.specification import SCALAR, SELECTED
from taskc.ir.target import (
    MATRIX_INSTRUCTIONS,
    PackedInstruction,
    WarpgroupInstruction,
    is_asynchronous,
)
from taskc.ir.verify_expressions import broken
from taskc.ir.verify_statements import StatementVerifier

_FOLDS = frozenset({"+", "*", "min", "max", "&", "|", "^"})
_TRANSPORTS = frozenset({"registers", "cp.async", "tma"})
_RING_STEPS = frozenset({"acquire", "commit", "wait", "release"})
_BARRIER_SCOPES = frozenset({"warp", "warpgroup", "role", "block", "grid"})


@deeply
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


class _Verifier(StatementVerifier):
    def __init__(self, kernel: ir.Kernel, divergent_cells: frozenset[ir.Tensor]) -> None:
        super().__init__(kernel, divergent_cells)
        self.in_roles = False

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
        self.need(kernel.cluster >= 1, "a cluster has at least one block")
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
        grouped = rank == len(s.order) == 2 and s.order[0] in ir.GROUPED and s.order[1] != 0
        permuted = sorted(map(str, s.order)) == sorted(map(str, range(rank)))
        self.need(
            not s.order or grouped or permuted,
            "a grid's order names each dimension once, or is grouped",
        )
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
            self.need(
                s.mapping.workers == self.group,
                f"the mapping has {s.mapping.workers} workers, the group {self.group}",
            )
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
        for part in (*s.indices, s.value):
            for node in walk(part):
                if isinstance(node, ir.Read):
                    self.own(node.tensor, "a move")
        self.own(s.tensor, "a move")
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
            self.need(
                s.by.workers <= self.group,
                f"a move's mapping has {s.by.workers} workers of {self.group}",
            )

    def mma(self, s: ir.Mma) -> None:
        self.whole_block("a matrix product")
        self.known(s.accumulator)
        for operand in (s.left, s.right):
            self.known(operand.tensor)
            self.own(operand.tensor, "a matrix product")
            flat = self.stage >= SCALAR and len(operand.origin) == 1
            self.need(
                flat or len(operand.origin) == len(operand.tensor.shape) >= 2,
                f"the origin of {operand.tensor} has its rank, at least 2",
            )
            for index in operand.origin:
                self.index(index)
        row = MATRIX_INSTRUCTIONS.get(s.how or "")
        if s.by is not None:
            dtypes = (s.by, s.left.tensor.dtype, s.right.tensor.dtype)
            self.need(all(t.is_float for t in dtypes), "a product rounds floats to a float type")
        if s.accumulate is not None:
            self.need(is_asynchronous(s.how), "only an asynchronous product may not accumulate")
            self.uniform(self.expression(s.accumulate), "a condition")
            self.is_bool(s.accumulate)
        (rows, inner), (depth, columns) = s.left.shape, s.right.shape
        self.need(inner == depth, f"the matrices {s.left.shape} and {s.right.shape} fit each other")
        if self.stage < SCALAR:
            self.need(s.accumulator.scope == ir.TILE, f"the accumulator {s.accumulator} is a tile")
            self.need(
                s.accumulator.shape == (rows, columns),
                f"the accumulator {s.accumulator} is {rows} by {columns}",
            )
            if isinstance(row, PackedInstruction | WarpgroupInstruction):
                wrong = misfit(s, row)
                self.need(wrong is None, wrong or "")

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
            shape = shape[: s.axis] + shape[s.axis + 1 :] or (1,)
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
            self.need(
                tensor.scope == ir.SHARED and tensor.shape[:1] == (ring.stages,),
                f"{tensor} of the ring {ring} is shared and has {ring.stages} slots",
            )
        self.uniform(self.index(s.step), "the step of a ring")

    def barrier(self, s: ir.Barrier) -> None:
        self.need(s.scope in _BARRIER_SCOPES, f"there is no barrier of scope {s.scope!r}")
        wide = s.scope in ("block", "grid")
        self.need(not (wide and self.in_roles), f"a role uses no barrier of the {s.scope}")

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


_Verifier.checks = {
    ir.Let: _Verifier.let,
    ir.Allocate: _Verifier.allocate,
    ir.Peer: _Verifier.peer,
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
    ir.Breakpoint: _Verifier.breakpoint,
    ir.RingStep: _Verifier.ring_step,
    ir.Barrier: _Verifier.barrier,
    ir.Roles: _Verifier.roles,
    ir.Do: _Verifier.do,
}
