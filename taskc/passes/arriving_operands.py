"""Load an epilogue's operand of the result's shape by bulk copies, in the slots through which the result leaves.

    each (i, j) in own: done[i, j] = acc[i, j] + residual[row + i, col + j]
    shared out: bf16[2, 128, 64]
    for n in unroll(4):
        move out[n % 2, i, j] = done[i, n * 64 + j] for (i, j) in (128, 64) by part
        move c[row + i, col + n * 64 + j] = out[n % 2, i, j] for (i, j) in (128, 64) how=tma
->
    producer:                                       consumer:
        for n in range(4):                              for n in unroll(4):
            acquire r[n]                                    wait r[n]
            move out[n % 2, i, j] =                         move given[i, j] = out[n % 2, i, j] for ... by part
              residual[row + i, col + n * 64 + j]           each (i, j) in part:
              for (i, j) in (128, 64) how=tma                   done[i, n * 64 + j] = acc[i, n * 64 + j] + given[i, j]
            commit r[n]                                     move out[n % 2, i, j] = done[i, n * 64 + j] for ... by part
                                                            move c[...] = out[n % 2, i, j] for ... how=tma
                                                            if n > 0:
                                                                do tma.wait(1)
                                                                release r[n - 1]

No extra memory is needed for the slots: the result overwrites the operand in its slot, and the slot is free
again once the outgoing copy has read it. The last one of a tile is released in the next tile, `freed`, after
its main loop has begun. If a box is refused, workers read the operand from global memory, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from taskc.dataclass import dataclass
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.build import ZERO, add, floor_divide, index, less, modulo, multiply, subtract
from taskc.ir.nodes import GLOBAL, SHARED, TILE, Expression, Ring, Statement, Tensor, Variable
from taskc.ir.rewrite import rewritten, substitute, walk
from taskc.ir.target import Target
from taskc.passes.overlap import Work, needed_scalars
from taskc.passes.select_moves import with_matrix_moves
from taskc.passes.transports import refusal_of


@dataclass(frozen=True, slots=True)
class Arriving:
    """ring     the slots through which the operand comes and the result goes
    fill     the producer's statements after the main loop
    freed    the consumer's statements after its next main loop has begun
    after    the consumer's statements after the main loop
    setup    statements of both at a tile's start
    """

    ring: Ring
    fill: tuple[Statement, ...]
    freed: tuple[Statement, ...]
    after: tuple[Statement, ...]
    setup: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class _Panels:
    """A store by panels: `writes` fill the slot of panel `number` of `count`, and `send` copies it out."""

    slots: Tensor
    number: Variable
    count: int
    writes: tuple[Statement, ...]
    send: ir.Move

    @staticmethod
    def of(statement: Statement) -> _Panels | None:
        match statement:
            case ir.Sequence(
                statements=(
                    ir.Allocate(tensor=slots),
                    *_,
                    ir.For(
                        variable=number,
                        stop=ir.Constant(value=count),
                        body=ir.Sequence(statements=(*writes, ir.Move(how="tma") as send)),
                    ),
                )
            ) if slots.scope == SHARED:
                panel_writes = [
                    s for s in writes if not isinstance(s, ir.Do)
                ]  # the ring orders them: no wait
                return _Panels(slots, number, int(count), tuple(panel_writes), send)
        return None


def arriving(
    before: Sequence[Statement],
    after: Sequence[Statement],
    tiles: ir.For | None,
    kernel: ir.Kernel,
    target: Target,
    by_producer: Callable[[ir.Move], ir.Move],
    notes: list[tuple[str, Location]],
    *,
    alone: bool,
) -> Arriving | None:
    """The operand after a main loop that the producer can load; None if there is none.

    tiles  the loop in which the ring runs on
    alone  there is one consumer; else the others' panels go through the same slots, in the tiles' order
    """
    for at, (each, store) in enumerate(pairwise(after)):
        panels = _Panels.of(store)
        if panels is None or not isinstance(each, ir.Each):
            continue
        read = _operand(each, panels)
        if read is None:
            continue
        load = _load(read, panels)
        scalars = needed_scalars((*before, *after[:at]), (load,))
        refusal = refusal_of("tma", [load], target, kernel)
        reason = Work.of((kernel.body,)).needed_by((load, *scalars))
        if refusal or reason:
            text = refusal or f"the load of `{read.tensor.name}` {reason}"
            notes.append(
                (f"`{read.tensor.name}` is not loaded by the producer warp: {text}", each.loc)
            )
            continue
        stages = panels.slots.shape[0]
        assert isinstance(stages, int)
        ring = Ring(panels.slots.name, (panels.slots,), stages, "tma")
        load = by_producer(load)
        return _arriving(ring, each, read, panels, load, tiles, target, after, at, alone=alone)
    return None


def _arriving(
    ring: Ring,
    each: ir.Each,
    read: ir.Read,
    panels: _Panels,
    load: ir.Move,
    tiles: ir.For | None,
    target: Target,
    after: Sequence[Statement],
    at: int,
    *,
    alone: bool,
) -> Arriving:
    n, loc = panels.number, each.loc
    earlier: Expression = ZERO
    tile: Expression = ZERO
    setup: list[Statement] = []
    if tiles is not None:
        tile = floor_divide(subtract(tiles.variable, tiles.start), tiles.step)
        earlier_panels = Variable("earlier_panels", loc=loc)
        setup.append(ir.Let(earlier_panels, multiply(tile, panels.count), loc=loc))
        earlier = earlier_panels

    def step(operation: str, number: Expression) -> Statement:
        return ir.RingStep(operation, ring, number, loc=loc)

    def loop(kind: str, *body: Statement) -> Statement:
        return ir.For(n, ZERO, index(panels.count), 1, ir.Sequence(body, loc=loc), kind, loc=loc)

    def freed(panel: Expression, counted: Expression, under_way: int) -> Statement:
        """Release the panel before one, unless that is the first: it has been read when at most so many copies still
        read.
        """
        wait = ir.Do("tma.wait", (index(under_way),), loc=loc)
        body = ir.Sequence((wait, step("release", subtract(panel, 1))), loc=loc)
        return ir.If(less(0, counted), body, loc=loc)

    number = add(earlier, n)
    slot = modulo(number, ring.stages)
    load = replace(load, indices=(slot, *load.indices[1:]), how="tma")
    fill = loop("serial", step("acquire", number), load, step("commit", number))
    given, part = _part(each, read, panels)
    taken = replace(
        load, tensor=given, indices=load.variables, by=given.owners, how=None,
        value=ir.Read(panels.slots, load.indices, loc=loc),
    )  # fmt: skip
    leaves = _in_slot(ir.Sequence((*panels.writes, panels.send), loc=loc), panels.slots, slot)
    use = loop(
        "unroll",
        step("wait", number),
        ir.Allocate(given, loc=loc),
        with_matrix_moves(taken, target),
        part,
        leaves,
        freed(number, n, 1),
    )
    if alone:
        rest = (*after[:at], use, *after[at + 2 :])
        last = () if tiles is None else (freed(earlier, earlier, 0),)
        return Arriving(ring, (fill,), last, rest, tuple(setup))
    end = add(earlier, panels.count)
    # The producer needs the slot for another consumer before it loads for this one again.
    turn = step("enter", tile), use, step("leave", tile), freed(end, index(1), 0)
    rest = (*after[:at], *turn, *after[at + 2 :])
    return Arriving(ring, (fill,), (), rest, tuple(setup))


def _operand(each: ir.Each, panels: _Panels) -> ir.Read | None:
    """The operand that an epilogue reads at the result's own place; None unless it works panel by panel."""
    lets: dict[Variable, Expression] = {}
    for node in walk(each.body):
        match node:
            case ir.Let():
                lets[node.variable] = substitute(node.value, lets)
            case ir.Store() | ir.Read() if node.tensor.scope == TILE:
                if node.indices != each.variables:
                    return None
            case ir.Read(tensor=tensor):
                if tensor.scope != GLOBAL or tensor.role != "in":
                    return None
            case ir.Atomic() | ir.Do() | ir.For() | ir.While() | ir.Allocate():
                return None
            case _:
                pass  # arithmetic
    send = panels.send
    here = dict(zip(send.variables, each.variables, strict=True)) | {panels.number: ZERO}
    places = [substitute(place, here) for place in send.indices]
    for node in walk(each.body):
        if not isinstance(node, ir.Read) or node.tensor.dtype != panels.slots.dtype:
            continue
        matches_result = node.tensor.scope == GLOBAL and len(node.indices) == len(places)
        if matches_result and all(
            constant_difference(index(extent), index(other)) == 0
            and constant_difference(_within(substitute(one, lets), extent), place) == 0
            for one, place, extent, other in zip(
                node.indices, places, node.tensor.shape, send.tensor.shape, strict=True
            )
        ):
            return node
    return None


def _within(place: Expression, extent: Expression | int) -> Expression:
    """An index without the clamp that keeps it inside the tensor: elements outside are not stored."""
    match place:
        case ir.Binary(operator="min", left=left, right=right):
            for inner, edge in ((left, right), (right, left)):
                if constant_difference(subtract(extent, 1), edge) == 0:
                    return inner
    return place


def _load(read: ir.Read, panels: _Panels) -> ir.Move:
    """The bulk copy of a panel to its slot."""
    send, loc = panels.send, read.loc
    variables = tuple(replace(v) for v in send.variables)
    here = dict(zip(send.variables, variables, strict=True))
    value: Expression = replace(read, indices=tuple(substitute(x, here) for x in send.indices))
    if send.guard is not None:
        zero = ir.Constant(0.0 if read.dtype.is_float else 0, read.dtype)
        value = ir.Select(substitute(send.guard, here), value, zero, loc=loc)
    places: tuple[Expression, ...] = (ZERO, *variables)
    return ir.Move(panels.slots, places, variables, send.shape, value, by=send.by, loc=loc)


def _in_slot(statement: Statement, slots: Tensor, slot: Expression) -> Statement:
    """The statement with all accesses redirected to this slot."""

    def changed(node: Any) -> Any:
        if isinstance(node, ir.Read | ir.Move) and node.tensor is slots:
            return replace(node, indices=(slot, *node.indices[1:]))
        return node

    return rewritten(statement, changed)


def _part(each: ir.Each, read: ir.Read, panels: _Panels) -> tuple[Tensor, ir.Each]:
    """A panel of the epilogue, and the registers from which it takes the operand."""
    by = next(
        node.by for write in panels.writes for node in walk(write) if isinstance(node, ir.Move)
    )
    assert by is not None
    rows, line = panels.send.shape
    given = Tensor(
        f"{read.tensor.name}_given", read.dtype, (rows, line), TILE, owners=by, loc=read.loc
    )
    i, j = (replace(v) for v in each.variables)
    taken = ir.Read(given, (i, j), loc=read.loc)
    body = rewritten(each.body, lambda node: taken if node is read else node)
    row, column = each.variables
    body = substitute(body, {row: i, column: add(multiply(panels.number, line), j)})
    return given, replace(each, variables=(i, j), mapping=by, body=body)
