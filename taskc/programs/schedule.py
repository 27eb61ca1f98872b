"""schedule: a computation becomes a kernel, by rule.

    computation add(x: f32[64, 48], b: f32[48], out: out f32[64, 48]):
        out[i, j] = x[i, j] + b[j]

    kernel add(x: f32[64, 48], b: f32[48], out: out f32[64, 48]) workers=16:
        grid (i_first, j_first) in (64, 48) by (64, 48):
            each (i, j) in repeat(64, 3) * spatial(1, 16):
                out[i_first + i, j_first + j] = x[i_first + i, j_first + j] + b[j_first + j]

Axes are joined and divided first. A block is a box of the output (blocks.py), in which neighbouring workers have
neighbours; where reads go along another axis it is squares that are turned (squares.py), and where rows are short, runs
of several. What a value has in several places is named, and indices that depend on data, or can't be proved to be
within their extents, are held to them (templates.py).

Short rows: a few vectors of several rows, which begin anew after as many elements, are written out.

    out[ij] = x[ij // 3] * b[ij % 3]
->
    for k in range(0, 4096, 48):
        tile run: f32[48] by repeat(3).spatial(16)
        each i in spatial(16):      run[i] = x[(first + k + i) // 3] * b[(first + k + i) % 3]
        each i in spatial(16):      run[16 + i] = x[(first + k + 16 + i) // 3] * ...
        each i in spatial(16):      run[32 + i] = ...
        each i in repeat(3).spatial(16):
            out[first + k + i] = run[i]

What a vector's lanes read is known then: `first` and `k` are multiples of 48, and so it is known which rows and which
places in them the lanes have.
"""

from __future__ import annotations

from math import ceil, lcm

from taskc.ir import nodes as ir
from taskc.ir.build import add, guarded, index, total
from taskc.ir.code_size import deep
from taskc.ir.mapping import repeat, spatial
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.programs.blocks import (
    Machine,
    elements_of_block,
    fewest_axes,
    inside,
    kernel_by,
    long_axes,
    owners_of,
)
from taskc.programs.ir import Callee, Computation, Program, map_callees, variables_in
from taskc.programs.squares import squares, turned_reads
from taskc.programs.templates import Parts


def runs(computation: Computation, period: int, machine: Machine) -> ir.Kernel:
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


def schedule(program: Program, machine: Machine) -> Program:
    """The program with kernels for its computations."""

    def scheduled(callee: Callee) -> Callee:
        return kernel_of(callee, machine) if isinstance(callee, Computation) else callee

    return map_callees(program, scheduled)


def kernel_of(computation: Computation, machine: Machine) -> ir.Kernel:
    """A kernel whose blocks are boxes of the output, or squares, or runs of short rows."""
    machine = machine.of(computation.output.dtype)
    with deep(computation.loc):
        computation = fewest_axes(computation)
        for make in (_fast, boxes):
            kernel = make(computation, machine)
            if not bounds_findings(collect(kernel)):
                return kernel
        return boxes(computation, machine, all_held=True)


def _fast(computation: Computation, machine: Machine) -> ir.Kernel:
    turned = turned_reads(computation)
    if turned is not None:
        return squares(computation, turned, machine)
    computation, period = long_axes(computation, machine.lanes)
    if period > 1 and machine.is_processor:
        return runs(computation, period, machine)
    return boxes(computation, machine)


def boxes(computation: Computation, machine: Machine, *, all_held: bool = False) -> ir.Kernel:
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
