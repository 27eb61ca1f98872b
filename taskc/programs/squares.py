"""Reads along another axis than the output's last: squares of their tensor are transposed in memory of the block.

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
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.build import Index, add, multiply
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import Expression, Statement, Tensor
from taskc.ir.rewrite import expressions, operands_first, substitute, walk
from taskc.lang import names as tc
from taskc.lang.functions import function
from taskc.programs.blocks import Machine, elements_of_block, inside, memory_order, nothing
from taskc.programs.ir import Computation, variables_in
from taskc.programs.templates import Parts, kernel_of_template

_SHORT = 4  # an axis of no more is read well enough by shuffles
_MOST_SQUARES = 16  # along each side of a processor's block, which share their cache lines
_GPU_SIDE, _GPU_ROWS = 32, 8  # of a square: its columns, and the rows that are read at a time

Place = Sequence[Expression]


def lines(side: int, tall: int = 1) -> Mapping:
    """The rows of a square, `tall` at a time, with the columns along the lanes."""
    return repeat(side // tall, 1) * spatial(tall, side)


def columns(lanes: int) -> Mapping:
    """The columns of a square, one after the other: (c1, c0, r1, r0), with the rows along the lanes."""
    quarter = lanes // 4
    return repeat(quarter, 4, 1, 1) * spatial(1, 1, quarter, 4)


@function
def quarters(square: Any) -> Any:
    """The square's parts, with four rows of every fourth column in each line."""
    lanes = square.shape[0]
    part = tc.shared(square.dtype[4, lanes // 4, lanes // 4, 4])
    fill_quarters(part, square)
    return part


@function
def fill_quarters(part: Any, square: Any) -> None:
    for r1, c0, c1, r0 in columns(square.shape[0]):
        part[c0, r1, c1, r0] = square[4 * r1 + r0, 4 * c1 + c0]


@dataclass(frozen=True, slots=True)
class Turned:
    """`reads` go along the axis `across` of the output, whose neighbours in memory go along `last`."""

    across: int
    last: int
    reads: tuple[ir.Read, ...]


def turned_reads(computation: Computation) -> Turned | None:
    """Reads that are worth turning: always evaluated, along two long axes."""
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
    used = {*variables_in(*others)}
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
    output, loc, is_processor = computation.output, computation.loc, machine.is_processor
    side = max(4, machine.lanes) if is_processor else _GPU_SIDE
    tall, wide = _squares_of_block(output, turned, side, machine)
    by = [1] * len(output.shape)
    by[turned.across], by[turned.last] = tall * side, wide * side
    own = lines(side, 1 if is_processor else _GPU_ROWS)
    types = [read.dtype for read in turned.reads]
    # The last axis of GPUs' squares is longer, so that a column's elements lie in different banks.
    extents = (4, side // 4, side // 4, 4) if is_processor else (side, side + 1)

    def at(first: Place, q: Index, p: Index, i: Index, j: Index) -> Place:
        """An element of a square: `i` along the last axis, `j` along the one that is read."""
        place = list(first)
        for axis, square, task in ((turned.last, q, i), (turned.across, p, j)):
            place[axis] = add(add(first[axis], multiply(square, side)), task)
        return tuple(place)

    def is_inside(place: Place) -> Expression | bool:
        condition = inside(place, output.shape, by)
        return True if condition is None else condition

    def element(read: int, place: Place) -> Expression:
        named = dict(zip(computation.variables, place, strict=True))
        return substitute(turned.reads[read], named)

    def store(place: Place, memory: list[Tensor], indices: tuple[Expression, ...]) -> Statement:
        reads: dict[int, Expression] = {
            id(read): ir.Read(tensor, indices)
            for read, tensor in zip(turned.reads, memory, strict=True)
        }
        return Parts.of(computation, place, reads).stored(output, place, loc)

    def template(at: Any, is_inside: Any, element: Any, store: Any) -> None:
        for (*first,) in tc.tiles(output.shape, by=by):
            for q in range(wide):
                for p in range(tall):
                    memory = [tc.shared(dtype[extents]) for dtype in types]
                    for n in tc.static(range(len(types))):
                        if is_processor:
                            square = tc.shared(types[n][side, side])
                        else:
                            square = memory[n]
                        if not is_inside(at(first, q, p, side - 1, side - 1)):
                            for i, j in own:
                                square[i, j] = nothing(types[n])
                        for i, j in own:
                            if is_inside(at(first, q, p, i, j)):
                                square[i, j] = element(n, at(first, q, p, i, j))
                        if is_processor:
                            fill_quarters(memory[n], square)
                    if is_processor:
                        for c1, c0, r1, r0 in columns(side):
                            if is_inside(at(first, q, p, 4 * r1 + r0, 4 * c1 + c0)):
                                store(
                                    at(first, q, p, 4 * r1 + r0, 4 * c1 + c0),
                                    memory,
                                    (c0, r1, c1, r0),
                                )
                    else:
                        for j, i in own:
                            if is_inside(at(first, q, p, i, j)):
                                store(at(first, q, p, i, j), memory, (i, j))

    return kernel_of_template(computation, own.workers, template, at, is_inside, element, store)


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
