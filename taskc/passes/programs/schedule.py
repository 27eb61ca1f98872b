"""schedule: a computation becomes a kernel, by rule.

    computation add(x: f32[64, 48], b: f32[48], out: out f32[64, 48]):
        out[i, j] = x[i, j] + b[j]

    kernel add(x: f32[64, 48], b: f32[48], out: out f32[64, 48]) workers=16:
        grid (row, first) in (64, 48) by (1, 48):
            each (i, j) in repeat(1, 3) * spatial(1, 16):
                out[row + i, first + j] = x[row + i, first + j] + b[first + j]

Neighbouring axes that every read has side by side, as the output has them, are one axis first: without `b` that
were out[t] = x[t]. Axes of one element go. A block is a few vectors of the last axis.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.build import add, conjunction, guarded, index, less, multiply
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.program import Callee, Computation, Program, map_callees
from taskc.ir.rewrite import map_children, replace_tensors, substitute, walk

Extent = int | Expression

_ACCESSES = 4  # vectors of a block
_GPU_WORKERS = 128


def schedule(program: Program, lanes: int, is_processor: bool = True) -> Program:
    """The program with kernels for its computations.

    lanes  of a processor's vector, or of a warp
    """

    def scheduled(callee: Callee) -> Callee:
        if isinstance(callee, Computation):
            return kernel_of(callee, lanes if is_processor else _GPU_WORKERS)
        return callee

    return map_callees(program, scheduled)


def kernel_of(computation: Computation, workers: int) -> ir.Kernel:
    """A kernel whose blocks are boxes of the output with this many workers along its last axis."""
    computation = _without_ones(computation)
    for axis in reversed(range(len(computation.variables) - 1)):
        computation = _joined(computation, axis)
    output, loc = computation.output, computation.loc
    own = _owners(output.shape[-1], len(output.shape), workers)
    first = [Variable(f"{axis.name}_first") for axis in computation.variables]
    at = [Variable(axis.name) for axis in computation.variables]
    place = [add(start, task) for start, task in zip(first, at, strict=True)]
    inside = conjunction(
        [
            less(where, index(extent))
            for where, extent, box in zip(place, output.shape, own.shape, strict=True)
            if not _is_multiple(extent, box)
        ]
    )
    value = substitute(computation.value, dict(zip(computation.variables, place, strict=True)))
    store = guarded(inside, ir.Store(output, tuple(place), value, loc=loc))
    tasks = ir.Each(tuple(at), own, None, store, loc=loc)
    grid = ir.Grid(tuple(first), output.shape, own.shape, tasks, loc=loc)
    return ir.Kernel(
        computation.name, computation.parameters, computation.dimensions, own.workers, grid, loc=loc
    )


def _owners(extent: Extent, rank: int, workers: int) -> Mapping:
    """A few accesses of all workers along the last axis, no more than it has."""
    accesses = _ACCESSES
    while isinstance(extent, int) and accesses > 1 and (accesses // 2) * workers >= extent:
        accesses //= 2
    ones = [1] * (rank - 1)
    return repeat(*ones, accesses) * spatial(*ones, workers)


def _is_multiple(extent: Extent, box: int) -> bool:
    if isinstance(extent, int):
        return extent % box == 0
    return isinstance(extent, Variable) and extent.multiple % box == 0


def _without_ones(computation: Computation) -> Computation:
    """Axes of one element have the index 0; one axis stays."""
    output = computation.output
    kept = [axis for axis, extent in enumerate(output.shape) if extent != 1]
    if len(kept) == len(output.shape) and kept:
        return computation
    zeros = {
        variable: index(0)
        for axis, variable in enumerate(computation.variables)
        if axis not in kept
    }
    variables = tuple([computation.variables[axis] for axis in kept]) or (Variable("i"),)
    shape = tuple([output.shape[axis] for axis in kept]) or (1,)
    return _with(
        computation,
        variables,
        substitute(computation.value, zeros),
        {output: replace(output, shape=shape, given=output.argument_shape)},
    )


def _joined(computation: Computation, axis: int) -> Computation:
    """An axis and the next one as one, where all reads have them side by side."""
    outer, inner = computation.variables[axis : axis + 2]
    output = computation.output
    extent = output.shape[axis + 1]
    places: dict[Tensor, int] = {}

    def fits(read: ir.Read) -> bool:
        used = [n for n, at in enumerate(read.indices) if {outer, inner} & {*walk(at)}]
        tensor = read.tensor
        if len(used) != 2 or tensor.layout is not None:
            return False
        is_pair = read.indices[used[0]] is outer and read.indices[used[1]] is inner
        is_dense = used[1] == used[0] + 1 and _equal(tensor.shape[used[1]], extent)
        return is_pair and is_dense and places.setdefault(tensor, used[0]) == used[0]

    reads = [node for node in walk(computation.value) if isinstance(node, ir.Read)]
    using = [
        read for read in reads if {outer, inner} & {v for at in read.indices for v in walk(at)}
    ]
    if output.layout is not None or not all(map(fits, using)):
        return computation
    if any(read.tensor in places and read not in using for read in reads):
        return computation
    together = Variable(f"{outer.name}{inner.name}")
    tensors = {tensor: _merged(tensor, place) for tensor, place in places.items()}

    made: dict[int, Expression] = {}

    def joined(node: Expression) -> Expression:
        if id(node) not in made:
            seen = node
            if isinstance(node, ir.Read) and node.tensor in tensors:
                place = places[node.tensor]
                indices = (*node.indices[:place], together, *node.indices[place + 2 :])
                seen = ir.Read(tensors[node.tensor], indices, loc=node.loc)
            made[id(node)] = map_children(seen, joined)
        return made[id(node)]

    value = joined(computation.value)
    if {outer, inner} & {*walk(value)}:  # also used by themselves
        return computation
    variables = (*computation.variables[:axis], together, *computation.variables[axis + 2 :])
    return _with(computation, variables, value, tensors | {output: _merged(output, axis)})


def _merged(tensor: Tensor, axis: int) -> Tensor:
    """The parameter seen with an axis and the next one as one."""
    outer, inner = tensor.shape[axis : axis + 2]
    if isinstance(outer, int) and isinstance(inner, int):
        extent: Extent = outer * inner
    else:
        extent = multiply(index(outer), index(inner))
    shape = (*tensor.shape[:axis], extent, *tensor.shape[axis + 2 :])
    return replace(tensor, shape=shape, given=tensor.argument_shape)


def _with(
    computation: Computation,
    variables: tuple[Variable, ...],
    value: Expression,
    tensors: dict[Tensor, Tensor],
) -> Computation:
    parameters = tuple(
        [
            tensors.get(item, item) if isinstance(item, Tensor) else item
            for item in computation.parameters
        ]
    )
    return replace(
        computation,
        parameters=parameters,
        variables=variables,
        value=replace_tensors(value, tensors),
    )


def _equal(one: Extent, other: Extent) -> bool:
    return one is other or one == other
