"""The axes of a computation, before it is scheduled: as few as its reads allow, and the last one long enough.

    out[i, j] = x[i, j]                  ->    out[ij] = x[ij]
    out[i, j] = x[i, j] + b[j]           ->    the same: b has no i
    out[i, 0, j] = x[j, i]               ->    out[i, j] = x[j, i]
    out[i, j] = x[i] * b[j]    j < 3     ->    out[ij] = x[ij // 3] * b[ij % 3]

Axes of one element go. Neighbouring axes that every read has side by side, as the output has them, are one axis.
Axes that are so short that vectors along them were less than half full are one with the axis before, by division.
The axes of a tensor with a layout stay what they are.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.build import floor_divide, index, modulo, multiply
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.rewrite import map_children, replace_tensors, substitute, walk
from taskc.programs.ir import Computation

Extent = int | Expression

_MOST_NODES = 400  # of a value whose vectors are written out


def fewest_axes(computation: Computation) -> Computation:
    """The computation with axes joined wherever its reads have them side by side."""
    computation = _without_ones(computation)
    for axis in reversed(range(len(computation.variables) - 1)):
        computation = _joined(computation, axis)
    return computation


def long_axes(computation: Computation, lanes: int) -> tuple[Computation, int]:
    """The computation with its last axis long enough for vectors, and after how many elements it repeats itself."""
    period = 1
    while len(computation.variables) > 1 and _wastes(computation, lanes, period):
        extent = computation.output.shape[-1]
        assert isinstance(extent, int)
        computation, period = _divided(computation), period * extent
    return computation, period


def _wastes(computation: Computation, lanes: int, period: int) -> bool:
    """Whether the last axis leaves too many lanes of its vectors idle."""
    output = computation.output
    extent = output.shape[-1]
    if not isinstance(extent, int) or not 1 < extent < lanes or output.layout is not None:
        return False
    if period * extent * sum(1 for _ in walk(computation.value)) > _MOST_NODES:
        return False
    return 2 * extent < lanes and lanes % extent != 0


def _divided(computation: Computation) -> Computation:
    """The last two axes as one: what was read by one of them is read by a quotient or a remainder."""
    outer, inner = computation.variables[-2:]
    output = computation.output
    extent = output.shape[-1]
    assert isinstance(extent, int)
    together = Variable(f"{outer.name}{inner.name}")
    digits = {outer: floor_divide(together, extent), inner: modulo(together, extent)}
    return _with(
        computation,
        (*computation.variables[:-2], together),
        substitute(computation.value, digits),
        {output: _merged(output, len(output.shape) - 2)},
    )


def _without_ones(computation: Computation) -> Computation:
    """Axes of one element have the index 0; one axis stays."""
    output = computation.output
    kept = [axis for axis, extent in enumerate(output.shape) if extent != 1]
    if (len(kept) == len(output.shape) and kept) or output.layout is not None:
        return computation
    zeros: dict[Variable, Expression] = {
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
    reads = [node for node in walk(computation.value) if isinstance(node, ir.Read)]
    using = [read for read in reads if any(_uses(at, outer, inner) for at in read.indices)]
    places: dict[Tensor, int] = {}

    def fits(read: ir.Read) -> bool:
        used = [n for n, at in enumerate(read.indices) if _uses(at, outer, inner)]
        tensor = read.tensor
        if len(used) != 2 or tensor.layout is not None:
            return False
        is_pair = read.indices[used[0]] is outer and read.indices[used[1]] is inner
        is_dense = used[1] == used[0] + 1 and _equal(tensor.shape[used[1]], extent)
        return is_pair and is_dense and places.setdefault(tensor, used[0]) == used[0]

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
    if _uses(value, outer, inner):  # also used by themselves
        return computation
    variables = (*computation.variables[:axis], together, *computation.variables[axis + 2 :])
    return _with(computation, variables, value, tensors | {output: _merged(output, axis)})


def _uses(node: Expression, *variables: Variable) -> bool:
    return any(part is variable for part in walk(node) for variable in variables)


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
