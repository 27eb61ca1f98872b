"""Short rows: a few vectors of several rows, which begin anew after as many elements, are written out.

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
from taskc.ir.mapping import repeat, spatial
from taskc.ir.nodes import Expression, Statement, Tensor, Variable
from taskc.programs.blocks import Machine, elements_of_block, inside, kernel_by
from taskc.programs.ir import Computation
from taskc.programs.parts import Parts


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
