"""What hardware does with a vector loop, written out for the simulator, which runs its lanes in turn.

    for e in vector(4):                  assert &x[o] is a multiple of 4, and &x[o + e] == &x[o] + e
        y[p + e] = x[o + e] * 2    ->    for e in range(4):
                                             lanes[e] = x[o + e] * 2
                                         assert &y[p] is a multiple of 4, and &y[p + e] == &y[p] + e
                                         for e in range(4):
                                             y[p + e] = lanes[e]

Each statement is done for all lanes before the next one, values before stores; an access of GLOBAL or
SHARED memory that varies with the lane is of consecutive, aligned elements and at most 16 bytes.
Lanes that read one element say so: x[o] names no lane, and in x[o + e // 2] each two share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from taskc.ir import nodes as ir
from taskc.ir.rewrite import copy, map_statements, substitute, walk

Lanes: TypeAlias = "Callable[[ir.Statement], ir.Statement]"  # a statement, for each of them

MEMORY = (ir.GLOBAL, ir.SHARED)
MOST_BYTES = 16


def as_hardware_does(kernel: ir.Kernel) -> ir.Kernel:
    """The same object where there is no vector loop."""

    def visit(node: ir.Statement) -> ir.Statement:
        if isinstance(node, ir.For) and node.kind == "vector":
            return ir.Sequence(tuple(_in_lockstep(node)), loc=node.loc)
        return map_statements(node, visit)

    body = visit(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _in_lockstep(loop: ir.For) -> Iterator[ir.Statement]:
    assert isinstance(loop.stop, ir.Constant)
    width = int(loop.stop.value)
    statements = loop.body.statements if isinstance(loop.body, ir.Sequence) else (loop.body,)
    named: dict[ir.Variable, ir.Expression] = {}
    lane = loop.variable

    def lanes(body: ir.Statement) -> ir.Statement:
        return copy(replace(loop, body=body, kind="serial"))

    for statement in statements:
        assert isinstance(statement, (ir.Let, ir.Store))
        value = substitute(statement.value, named)
        yield from _accesses(value, lane, width, lanes)
        dtype = value.dtype
        array = ir.Tensor("lanes", dtype, (width,), ir.LOCAL, loc=statement.loc)
        yield ir.Allocate(array)
        yield lanes(ir.Store(array, (lane,), value))
        if isinstance(statement, ir.Let):
            named[statement.variable] = ir.Read(array, (lane,))
            continue
        indices = tuple(substitute(index, named) for index in statement.indices)
        yield from _whole(statement.tensor, indices, lane, width, lanes)
        yield lanes(ir.Store(statement.tensor, indices, ir.Read(array, (lane,)), loc=statement.loc))


def _accesses(
    value: ir.Expression, lane: ir.Variable, width: int, lanes: Lanes
) -> Iterator[ir.Statement]:
    for node in walk(value):
        if isinstance(node, ir.Read):
            yield from _whole(node.tensor, node.indices, lane, width, lanes)


def _whole(
    tensor: ir.Tensor,
    indices: tuple[ir.Expression, ...],
    lane: ir.Variable,
    width: int,
    lanes: Lanes,
) -> Iterator[ir.Statement]:
    """The access is one of consecutive and aligned elements, or the same one in all lanes."""
    varies = any(node is lane for index in indices for node in walk(index))
    is_known = not any(isinstance(node, ir.Read) for index in indices for node in walk(index))
    if tensor.scope not in MEMORY or not varies or not is_known:
        return
    (offset,) = indices
    dtype = offset.dtype

    def number(n: int) -> ir.Constant:
        return ir.Constant(n, dtype)

    def address(at: ir.Expression) -> ir.Expression:
        if tensor.swizzle is None:
            return at
        swizzle = tensor.swizzle
        bits = ir.Binary(">>", at, number(swizzle.shift))
        bits = ir.Binary("&", bits, number((1 << swizzle.bits) - 1))
        return ir.Binary("^", at, ir.Binary("<<", bits, number(swizzle.base)))

    first = address(substitute(offset, {lane: ir.Constant(0, lane.dtype)}))
    start = (tensor.offset or 0) // tensor.dtype.nbytes
    share = _share(offset, lane)
    count = width // share
    place_in_memory = ir.Binary("+", first, number(start))
    aligned = ir.Binary("==", ir.Binary("%", place_in_memory, number(count)), number(0))
    fits = ir.Constant(count * tensor.dtype.nbytes <= MOST_BYTES, aligned.dtype)
    yield ir.Assert(aligned, f"a vector of {tensor.name} is aligned")
    yield ir.Assert(fits, f"a vector of {tensor.name} has at most {MOST_BYTES} bytes")
    group = ir.Binary("//", lane, ir.Constant(share, lane.dtype))
    place = group if lane.dtype is dtype else ir.Cast(group, dtype)
    beside = ir.Binary("==", address(offset), ir.Binary("+", first, place))
    yield lanes(ir.Assert(beside, f"a vector of {tensor.name} is consecutive"))


def _share(offset: ir.Expression, lane: ir.Variable) -> int:
    """The number of lanes that access one element, from the offset's text."""
    for node in walk(offset):
        if isinstance(node, ir.Binary) and node.operator == "//" and node.left is lane:
            assert isinstance(node.right, ir.Constant)
            return int(node.right.value)
    return 1
