"""Loops of products are cut into pieces whose reads of SHARED memory become one access.

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
from taskc.ir import nodes as ir
from taskc.ir.code_size import CodeSizes, trip_count
from taskc.ir.nodes import Binary, Constant, Expression, Statement, Variable
from taskc.ir.rewrite import statements, substitute, walk
from taskc.ir.target import Target


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
