"""Reads along another axis than the output's last: squares of what they read are turned in memory of the block.

    out[i, j] = x[j, i] * b[j]
->
    square[j, i] = x[first + j, second + i]             rows of x
    out[second + i, first + j] = square[j, i] * b[first + j]      columns of the square

On processors a square has a vector a row, and is turned in two rounds of four vectors each: both write whole
vectors and read from windows of four.

    square[4 * r1 + r0, 4 * c1 + c0]  ->  part[c0, r1, c1, r0]  ->  out[4 * c1 + c0, 4 * r1 + r0]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from taskc.ir import nodes as ir
from taskc.ir.build import add, guarded, index, multiply
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.program import Computation
from taskc.ir.rewrite import expressions, operands_first, substitute, walk
from taskc.programs.blocks import (
    Machine,
    elements_of_block,
    inside,
    kernel_by,
    memory_order,
    nothing,
)
from taskc.programs.parts import Parts

_SHORT = 4  # an axis of no more is read well enough by shuffles
_MOST_SQUARES = 16  # along each side of a processor's block, which share their cache lines
_GPU_SIDE, _GPU_ROWS = 32, 8  # of a square: its columns, and the rows that are read at a time


@dataclass(frozen=True, slots=True)
class Turned:
    """`reads` go along the axis `across` of the output, whose neighbours in memory go along `last`."""

    across: int
    last: int
    reads: tuple[ir.Read, ...]


def turned_reads(computation: Computation) -> Turned | None:
    """What is worth being turned: always evaluated, and of two axes that are long."""
    last, _ = memory_order(computation.output)[0]
    found = [
        (axis, read)
        for read in _always_evaluated(computation.value)
        if (axis := _axis_of(read, computation, last)) is not None
    ]
    if not found:
        return None
    ((across, _),) = Counter(axis for axis, _ in found).most_common(1)
    return Turned(across, last, tuple([read for axis, read in found if axis == across]))


def _always_evaluated(value: Expression) -> list[ir.Read]:
    """The reads that are evaluated whatever the data are; not those in others' indices."""

    def parts(node: Expression) -> Sequence[Expression]:
        match node:
            case ir.Select():
                return [node.condition]
            case ir.Binary(operator="and" | "or"):
                return [node.left]
            case ir.Read():
                return []
        return list(expressions(node))

    return [node for node in operands_first(value, parts) if isinstance(node, ir.Read)]


def _axis_of(read: ir.Read, computation: Computation, last: int) -> int | None:
    """The axis of the output along which a read has its neighbours, where it has others along the last one."""
    if not read.indices:
        return None
    fastest, _ = memory_order(read.tensor)[0]
    variable, end = read.indices[fastest], computation.variables[last]
    others = [*read.indices[:fastest], *read.indices[fastest + 1 :]]
    used = {part for at in others for part in walk(at) if isinstance(part, Variable)}
    if any(isinstance(part, ir.Read) for at in others for part in walk(at)):
        return None
    if variable not in computation.variables or variable is end or variable in used:
        return None
    axis = next(n for n, own in enumerate(computation.variables) if own is variable)
    extents = [computation.output.shape[n] for n in (axis, last)]
    are_long = all(not isinstance(extent, int) or extent > _SHORT for extent in extents)
    return axis if end in used and are_long else None


def squares(computation: Computation, turned: Turned, machine: Machine) -> ir.Kernel:
    """The kernel of a computation some of whose reads are turned."""
    side = max(4, machine.lanes) if machine.is_processor else _GPU_SIDE
    output, loc = computation.output, computation.loc
    tall, wide = _squares_of_block(output, turned, side, machine)
    by = [1] * len(output.shape)
    by[turned.across], by[turned.last] = tall * side, wide * side
    first = [Variable(f"{axis.name}_first") for axis in computation.variables]
    loops = [(turned.across, Variable("p"), tall), (turned.last, Variable("q"), wide)]
    place: list[Expression] = list(first)
    for axis, variable, count in loops:
        place[axis] = add(first[axis], multiply(variable, side) if count > 1 else 0)
    square = _Square(computation, turned, side, place, tuple(by), machine.is_processor)
    body: Statement = square.body()
    for _, variable, count in loops:
        if count > 1:
            body = ir.For(variable, index(0), index(count), 1, body, loc=loc)
    grid = ir.Grid(tuple(first), output.shape, tuple(by), body, loc=loc)
    return kernel_by(computation, square.rows.workers, grid)


def _squares_of_block(
    output: Tensor, turned: Turned, side: int, machine: Machine
) -> tuple[int, int]:
    """Along each side: as many as share cache lines, while that leaves blocks enough."""
    if not machine.is_processor:
        return 1, 1
    extents = [output.shape[axis] for axis in (turned.across, turned.last)]
    tall, wide = (
        max(1, min(_MOST_SQUARES, ceil(n / side))) if isinstance(n, int) else _MOST_SQUARES
        for n in extents
    )
    elements = elements_of_block(output.shape, machine)
    while max(tall, wide) > 1 and tall * wide * side * side > 2 * elements:
        tall, wide = (tall // 2, wide) if tall >= wide else (tall, wide // 2)
    return tall, wide


@dataclass(frozen=True, slots=True)
class _Square:
    """One square of the output, whose first element is at `place`, in a block's box of size `by`."""

    computation: Computation
    turned: Turned
    side: int
    place: list[Expression]
    by: tuple[int, ...]
    is_processor: bool

    @property
    def rows(self) -> Mapping:
        """The lines of what is read."""
        if self.is_processor:
            return repeat(self.side, 1) * spatial(1, self.side)
        return repeat(self.side // _GPU_ROWS, 1) * spatial(_GPU_ROWS, self.side)

    def body(self) -> Statement:
        statements: list[Statement] = []
        memory = []
        for read in self.turned.reads:
            made, tensor = self._filled(read)
            statements += made
            if self.is_processor:
                turns, tensor = self._quarters(tensor)
                statements += turns
            memory.append(tensor)
        return ir.Sequence((*statements, self._stored(memory)))

    def _moved(self, i: Expression, j: Expression) -> list[Expression]:
        """An element's indices: `i` along the last axis, `j` along the one that is read."""
        place = list(self.place)
        place[self.turned.last] = add(place[self.turned.last], i)
        place[self.turned.across] = add(place[self.turned.across], j)
        return place

    def _inside(self, place: list[Expression]) -> Expression | None:
        return inside(place, self.computation.output.shape, self.by)

    def _filled(self, read: ir.Read) -> tuple[list[Statement], Tensor]:
        """A square of what is read, a row for each place along the last axis."""
        room = 0 if self.is_processor else 1  # so that a column's elements lie in different banks
        tensor = Tensor("square", read.dtype, (self.side, self.side + room), ir.SHARED)
        i, j = Variable("i"), Variable("j")
        place = self._moved(i, j)
        value = substitute(read, dict(zip(self.computation.variables, place, strict=True)))
        guard = self._inside(place)
        stored = guarded(guard, ir.Store(tensor, (i, j), value))
        statements: list[Statement] = [ir.Allocate(tensor)]
        if guard is not None:
            statements.append(self._cleared(tensor))
        return [*statements, ir.Each((i, j), self.rows, None, stored)], tensor

    def _cleared(self, tensor: Tensor) -> Statement:
        """What sticks out of the tensor is something, too."""
        i, j = Variable("i"), Variable("j")
        each = ir.Each((i, j), self.rows, None, ir.Store(tensor, (i, j), nothing(tensor.dtype)))
        ends = self._moved(index(self.side - 1), index(self.side - 1))
        whole = self._inside(ends)
        assert whole is not None
        return ir.If(ir.Unary("not", whole), each)

    @property
    def _columns(self) -> Mapping:
        quarter = self.side // 4
        return repeat(quarter, 4, 1, 1) * spatial(1, 1, quarter, 4)

    def _quarters(self, square: Tensor) -> tuple[list[Statement], Tensor]:
        """The first round: four rows of every fourth column in each line."""
        quarter = self.side // 4
        part = Tensor("part", square.dtype, (4, quarter, quarter, 4), ir.SHARED)
        r1, c0, c1, r0 = at = tuple([Variable(name) for name in ("r1", "c0", "c1", "r0")])
        value = ir.Read(square, (add(multiply(r1, 4), r0), add(multiply(c1, 4), c0)))
        store = ir.Store(part, (c0, r1, c1, r0), value)
        return [ir.Allocate(part), ir.Each(at, self._columns, None, store)], part

    def _stored(self, memory: list[Tensor]) -> Statement:
        """The second round, or the only one: lines of the output."""
        if self.is_processor:
            c1, c0, r1, r0 = at = tuple([Variable(name) for name in ("c1", "c0", "r1", "r0")])
            place = self._moved(add(multiply(r1, 4), r0), add(multiply(c1, 4), c0))
            indices: tuple[Expression, ...] = (c0, r1, c1, r0)
            mapping = self._columns
        else:
            at = j, i = Variable("j"), Variable("i")
            place, indices, mapping = self._moved(i, j), (i, j), self.rows
        reads: dict[int, Expression] = {
            id(read): ir.Read(tensor, indices)
            for read, tensor in zip(self.turned.reads, memory, strict=True)
        }
        parts = Parts.of(self.computation, place, reads)
        stored = parts.stored(self.computation.output, place, self.computation.loc)
        stored = guarded(self._inside(place), stored)
        return ir.Each(at, mapping, None, stored)
