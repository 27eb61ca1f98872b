"""Unrolling: the choice of loops to unroll, and of loops of products to cut into pieces that are.

acc: a REGISTER array                   acc: a REGISTER array
for i in range(0, 64):           ->     for i in unroll(0, 64):
    acc[i] = acc[i] + x[i]                  acc[i] = acc[i] + x[i]

A register has no address: a loop whose variable is part of a REGISTER index must be unrolled,
however long it is. So is a loop of at most 16 iterations, with constant bounds, whose unrolled
body stays small (`Target.unroll_limit`): the loop's overhead (an add, a compare, a branch) would
matter for a short body, and a few loads are then in flight at a time. More iterations would take
registers and code for no gain. Such loops keep their form, as kind "unroll", for the backends to
unroll. Only loops of at most `Options.limit` iterations are expanded here.

A loop in which workers wait at an mbarrier is not unrolled: an iteration takes as long as the wait, and
copies would only take the compiler's time and room in the instruction cache.

`vectorize` asks for the pieces: parts of a loop of products whose reads of SHARED memory become one access.

for q in range(0, 8):                        for o in range(0, 2):
    for i in unroll(4):                          for q in unroll(4):
        acc[i] = fma(a[8 * i + q],     ->            for i in unroll(4):
                     b[64 * q + w],                      acc[i] = fma(a[8 * i + (4 * o + q)],
                     acc[i])                                         b[64 * (4 * o + q) + w], acc[i])

Four iterations read four consecutive elements of each row of `a`: unrolled, they are one access of 16 bytes, which
compilers for GPUs find if the address is known to be a multiple of that. A loop is cut if

  - the bounds are constant, and the body only adds to registers: no memory that it reads changes meanwhile;
  - an offset of SHARED memory grows by one with each iteration, from a multiple of the piece's length on;
  - a piece has no more than `Target.merge_limit` statements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taskc.analysis.facts import Facts
from taskc.analysis.touches import seen_through
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.code_size import CodeSizes, trip_count
from taskc.ir.nodes import Binary, Constant, Expression, Kernel, Statement, Variable
from taskc.ir.rewrite import copy, map_statements, statements, substitute, walk
from taskc.ir.target import TARGETS, Target
from taskc.passes.computed_tiles import is_of_cells


def in_pieces(loop: ir.For, facts: Facts, target: Target, sizes: CodeSizes, limit: int) -> ir.For:
    """The loop, or its pieces; no piece has more iterations than `limit`."""
    trips = trip_count(loop)
    if trips is None or loop.kind != "serial" or loop.step != 1 or not _only_adds(loop.body):
        return loop
    size = sizes.of(loop.body)
    if size is None:
        return loop
    assert isinstance(loop.start, Constant)
    length = limit
    while length > 1:
        fits = trips % length == 0 and int(loop.start.value) % length == 0
        if fits and size * length <= target.merge_limit and _joins(loop, facts, length, target):
            return _cut(loop, trips, length)
        length //= 2
    return loop


def _only_adds(body: Statement) -> bool:
    """Whether it is straight-line code that only changes registers."""
    match body:
        case ir.Let():
            return True
        case ir.Store() | ir.Allocate():
            return body.tensor.scope == ir.REGISTER
        case ir.For():
            return body.kind != "serial" and _only_adds(body.body)
        case ir.Sequence():
            return all(map(_only_adds, body.statements))
    return False


def _joins(loop: ir.For, facts: Facts, length: int, target: Target) -> bool:
    """Whether the reads of so many iterations merge into one."""
    for read, known in _reads(loop.body, facts.enter(loop)):
        bytes_ = read.tensor.dtype.nbytes * length
        if read.tensor.scope != ir.SHARED or bytes_ > target.vector_bytes or not read.indices:
            continue
        offset = known.affine(read.indices[0])
        if offset.coefficient(loop.variable) == 1:
            modulus, remainder = known.congruence_of(offset.without(loop.variable))
            if modulus % length == 0 and remainder % length == 0:
                return True
    return False


def _reads(node: Statement, facts: Facts) -> Iterator[tuple[ir.Read, Facts]]:
    """The reads of straight-line code, with the facts that hold there."""
    if isinstance(node, ir.Sequence):
        for statement in node.statements:
            yield from _reads(statement, facts)
            facts = facts.enter(statement) if isinstance(statement, ir.Let) else facts
        return
    if isinstance(node, ir.Let | ir.Store):
        for part in walk(node.value):
            if isinstance(part, ir.Read):
                yield part, facts
    inside = facts.enter(node)
    for below in statements(node):
        yield from _reads(below, inside)


def _cut(loop: ir.For, trips: int, length: int) -> ir.For:
    if trips == length:
        return replace(loop, kind="unroll")
    dtype = loop.variable.dtype
    assert isinstance(loop.start, Constant)
    zero = Constant(0, dtype)
    first = int(loop.start.value) // length
    outer = Variable(f"{loop.variable.name}_piece", dtype)
    inner = replace(loop.variable)
    value: Expression = Binary("*", outer, Constant(length, dtype))
    body = substitute(loop.body, {loop.variable: Binary("+", value, inner)})
    piece = replace(
        loop, variable=inner, start=zero, stop=Constant(length, dtype), body=body, kind="unroll"
    )
    start, stop = Constant(first, dtype), Constant(first + trips // length, dtype)
    return replace(loop, variable=outer, start=start, stop=stop, body=piece)


@dataclass(frozen=True, slots=True)
class Options:
    """limit: most iterations of a loop that is expanded here. trips: most iterations of a small loop."""

    limit: int = 1
    trips: int = 16


DEFAULT = Options()


def unroll(kernel: Kernel, *, options: Options = DEFAULT) -> Kernel:
    """Mark the loops to be unrolled, as the head of this file shows."""
    unroll_limit = TARGETS[kernel.target].unroll_limit
    pass_ = _Unroller(options, unroll_limit, _register_indices(kernel.body))
    body = pass_.visit(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _register_indices(body: Statement) -> set[Variable]:
    """The variables that decide which register is accessed, through Lets too."""
    indices: list[Expression] = []
    definitions: dict[Variable, Expression] = {}
    for node in walk(body):
        if isinstance(node, ir.Let):
            definitions[node.variable] = node.value
        elif (
            isinstance(node, (ir.Read, ir.Store, ir.Address, ir.Atomic))
            and node.tensor.scope == ir.REGISTER
        ):
            indices += node.indices
    return {part for part in seen_through(indices, definitions) if isinstance(part, Variable)}


class _Unroller:
    def __init__(self, options: Options, unroll_limit: int, registers: set[Variable]) -> None:
        self.options = options
        self.unroll_limit = unroll_limit
        self.registers = registers
        self.sizes = CodeSizes()

    def visit(self, node: Statement) -> Statement:
        node = map_statements(node, self.visit)
        if not isinstance(node, ir.For) or node.kind == "vector":
            return node
        trips = trip_count(node)
        if trips is None:
            return node
        if trips <= self.options.limit:
            return _written_out(node)
        is_small = self._is_small(node, trips) and not is_of_cells(node)
        if node.kind == "serial" and (node.variable in self.registers or is_small):
            return replace(node, kind="unroll")
        return node

    def _is_small(self, loop: ir.For, trips: int) -> bool:
        if trips > self.options.trips:
            return False
        size = self.sizes.of(loop.body)
        return size is not None and size * trips <= self.unroll_limit


def _written_out(loop: ir.For) -> Statement:
    """One copy of the body for each iteration, each a scope of its own."""
    assert isinstance(loop.start, Constant)
    assert isinstance(loop.stop, Constant)
    positions = range(int(loop.start.value), int(loop.stop.value), loop.step)
    copies: list[Statement] = []
    for position in positions:
        values: dict[Variable, Expression] = {
            loop.variable: Constant(position, loop.variable.dtype)
        }
        # The first copy may keep the identities of its bindings.
        body = copy(loop.body, values) if copies else substitute(loop.body, values)
        copies.append(body)
    return copies[0] if len(copies) == 1 else ir.Sequence(tuple(copies), loc=loop.loc)
