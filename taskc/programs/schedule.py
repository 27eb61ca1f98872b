"""schedule: a computation becomes a kernel, by rule.

    computation add(x: f32[64, 48], b: f32[48], out: out f32[64, 48]):
        out[i, j] = x[i, j] + b[j]

    kernel add(x: f32[64, 48], b: f32[48], out: out f32[64, 48]) workers=16:
        grid (i_first, j_first) in (64, 48) by (64, 48):
            each (i, j) in repeat(64, 3) * spatial(1, 16):
                out[i_first + i, j_first + j] = x[i_first + i, j_first + j] + b[j_first + j]

Axes are joined and divided first, and a block's elements distributed over its workers (blocks.py). There are three
kinds of kernels. Most have boxes of the output as blocks, as above. In each, parts of the value that are used twice get
a name, and indices that depend on data, or aren't proved to be in bounds, are checked (templates.py).

**Runs**, where rows are short: a few vectors of several rows, which begin anew after as many elements, are written out.

    out[ij] = x[ij // 3] * b[ij % 3]
->
    for k in range(0, 4096, 48):
        tile run: f32[48] by repeat(3).spatial(16)
        each i in spatial(16):      run[i] = x[(first + k + i) // 3] * b[(first + k + i) % 3]
        each i in spatial(16):      run[16 + i] = x[(first + k + 16 + i) // 3] * ...
        each i in spatial(16):      run[32 + i] = ...
        each i in repeat(3).spatial(16):
            out[first + k + i] = run[i]

`first` and `k` are multiples of 48, so the rows that a vector's lanes read, and the places in them, are constants.

**Squares**, where reads go along another axis than the output's last: they are transposed in memory of the block.

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
from collections.abc import Iterator, Sequence
from math import ceil, lcm
from typing import Any

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.build import Index, add, guarded, index, multiply, total
from taskc.ir.code_size import deep
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.ir.rewrite import expressions, operands_first, substitute, walk
from taskc.ir.spans import span
from taskc.lang import names as tc
from taskc.lang.functions import function
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.programs.blocks import (
    BlockLimits,
    elements_of_block,
    fewest_axes,
    inside,
    kernel_by,
    long_axes,
    memory_order,
    nothing,
    owners_of,
)
from taskc.programs.ir import Callee, Computation, Program, map_callees, variables_in
from taskc.programs.templates import Parts, kernel_of_template

_SHORT = 4  # an axis of no more is read well enough by shuffles
_MOST_SQUARES = 16  # along each side of a processor's block, which share their cache lines
_GPU_SIDE, _GPU_ROWS = 32, 8  # of a square: its columns, and the rows that are read at a time

Place = Sequence[Expression]


def schedule(program: Program, machine: BlockLimits) -> Program:
    """The program with kernels for its computations."""

    def scheduled(callee: Callee) -> Callee:
        return kernel_of(callee, machine) if isinstance(callee, Computation) else callee

    return map_callees(program, scheduled)


def kernel_of(computation: Computation, machine: BlockLimits) -> ir.Kernel:
    """A kernel whose blocks are boxes of the output, or squares, or runs of short rows.

    Where an index isn't proved in bounds, all are checked: each read is under the condition that its indices are.
    """
    machine = machine.of(computation.output.dtype)
    with deep(computation.loc):
        computation = fewest_axes(computation)
        for kernel in _candidates(computation, machine):
            with span("proofs/schedules"):
                is_proved = not bounds_findings(collect(kernel), most=1)
            if is_proved:
                return kernel
        return boxes(computation, machine, all_held=True)


def _candidates(computation: Computation, machine: BlockLimits) -> Iterator[ir.Kernel]:
    """The kernels of a computation, fastest first."""
    turned = turned_reads(computation)
    if turned is not None:
        yield squares(computation, turned, machine)
    else:
        longer, period = long_axes(computation, machine.lanes)
        if period > 1:
            yield runs(longer, period, machine) if machine.is_processor else boxes(longer, machine)
    yield boxes(computation, machine)


def boxes(computation: Computation, machine: BlockLimits, *, all_held: bool = False) -> ir.Kernel:
    output, loc = computation.output, computation.loc
    own = owners_of(computation, machine)
    first = [Variable(f"{axis.name}_first") for axis in computation.variables]
    at = [Variable(axis.name) for axis in computation.variables]
    place = [add(start, task) for start, task in zip(first, at, strict=True)]
    across = {mode.dimension for mode in own.worker_modes or ()}
    by_lane = {at[axis]: place[axis] for axis in range(len(at)) if axis in across}
    parts = Parts.of(computation, place, all_held=all_held)
    named = {made.variable: made.value for made in parts.statements if isinstance(made, ir.Let)}

    def is_uniform(condition: Expression) -> bool:
        return _is_uniform(condition, by_lane | named, machine.lanes)

    stored = parts.stored(output, place, loc, is_uniform)
    body = guarded(inside(place, output.shape, own.shape), stored)
    tasks = ir.Each(tuple(at), own, None, body, loc=loc)
    grid = ir.Grid(tuple(first), output.shape, own.shape, tasks, loc=loc)
    return kernel_by(computation, own.workers, grid)


def _is_uniform(condition: Expression, by_lane: dict[Variable, Expression], lanes: int) -> bool:
    """Whether a condition is the same on all lanes: it has nothing that may differ, or it ends between vectors.

    by_lane  what may differ: indices, with the place that they are part of, and names
    """
    if isinstance(condition, ir.Binary) and condition.operator in ("and", "or"):
        return all(_is_uniform(part, by_lane, lanes) for part in (condition.left, condition.right))
    used = [part for part in variables_in(condition) if part in by_lane]
    if not used:
        return True
    return (
        len(used) == 1
        and isinstance(condition, ir.Binary)
        and condition.operator in ("<", ">=")
        and condition.left is by_lane[used[0]]
        and isinstance(condition.right, ir.Constant)
        and condition.right.value % lanes == 0
    )


def runs(computation: Computation, period: int, machine: BlockLimits) -> ir.Kernel:
    """The kernel of a computation that repeats itself along its last axis after so many elements."""
    output, loc = computation.output, computation.loc
    size = lcm(period, machine.lanes)
    extent = output.shape[-1]
    count = max(1, elements_of_block(output.shape, machine) // size)
    if isinstance(extent, int):
        count = max(1, min(count, ceil(extent / size)))
    by = (*[1] * (len(output.shape) - 1), count * size)
    first = tuple([Variable(f"{axis.name}_first") for axis in computation.variables])
    k = Variable("k")
    begin = add(first[-1], k)
    body = _run(computation, [*first[:-1], begin], size, machine.lanes)
    loop = ir.For(k, index(0), index(count * size), size, body, loc=loc)
    return kernel_by(computation, machine.lanes, ir.Grid(first, output.shape, by, loop, loc=loc))


def _run(computation: Computation, first: list[Expression], size: int, lanes: int) -> Statement:
    """So many elements, from the first one on."""
    output, loc = computation.output, computation.loc
    box = (*[1] * (len(first) - 1), size)
    run = Tensor("run", output.dtype, (size,), ir.TILE, owners=repeat(size // lanes).spatial(lanes))
    assert run.owners is not None
    statements: list[Statement] = [ir.Allocate(run)]
    for start in range(0, size, lanes):
        i = Variable("i")
        place = [*first[:-1], total([first[-1], start, i])]
        stored = Parts.of(computation, place).stored(run, [add(i, start)], loc)
        body = guarded(inside(place, output.shape, box), stored)
        statements.append(ir.Each((i,), spatial(lanes), None, body, loc=loc))
    i = Variable("i")
    place = [*first[:-1], add(first[-1], i)]
    store = ir.Store(output, tuple(place), ir.Read(run, (i,)), loc=loc)
    body = guarded(inside(place, output.shape, box), store)
    statements.append(ir.Each((i,), run.owners, None, body, loc=loc))
    return ir.Sequence(tuple(statements), loc=loc)


@dataclass(frozen=True, slots=True)
class Turned:
    """Reads go along the axis `across` of the output, whose neighbours in memory go along `last`.

    reads  equal ones are a tuple, and become one square
    """

    across: int
    last: int
    reads: tuple[tuple[ir.Read, ...], ...]


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
    equal: dict[ir.Read, list[ir.Read]] = {}
    for axis, read in found:
        if axis == across:
            equal.setdefault(read, []).append(read)
    return Turned(across, last, tuple(map(tuple, equal.values())))


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


def squares(computation: Computation, turned: Turned, machine: BlockLimits) -> ir.Kernel:
    """The kernel of a computation some of whose reads are turned."""
    output, loc, is_processor = computation.output, computation.loc, machine.is_processor
    side = max(4, machine.lanes) if is_processor else _GPU_SIDE
    tall, wide = _squares_of_block(output, turned, side, machine)
    by = [1] * len(output.shape)
    by[turned.across], by[turned.last] = tall * side, wide * side
    own = lines(side, 1 if is_processor else _GPU_ROWS)
    types = [equal[0].dtype for equal in turned.reads]
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

    def element(number: int, place: Place) -> Expression:
        named = dict(zip(computation.variables, place, strict=True))
        return substitute(turned.reads[number][0], named)

    def store(place: Place, memory: list[Tensor], indices: tuple[Expression, ...]) -> Statement:
        reads: dict[int, Expression] = {
            id(read): ir.Read(tensor, indices)
            for equal, tensor in zip(turned.reads, memory, strict=True)
            for read in equal
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
    output: Tensor, turned: Turned, side: int, machine: BlockLimits
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
