"""The axes of a computation, the part of its output that is a block's, and the elements of each worker.

Neighbouring workers have neighbours in memory: along the last axis, or the axis with which a layout ends.

Before that, axes are changed: as few as the reads allow, and the last one long enough.

    out[i, j] = x[i, j]                  ->    out[ij] = x[ij]
    out[i, j] = x[i, j] + b[j]           ->    the same: b has no i
    out[i, 0, j] = x[j, i]               ->    out[i, j] = x[j, i]
    out[i, j] = x[i] * b[j]    j < 3     ->    out[ij] = x[ij // 3] * b[ij % 3]

Axes of one element are removed. Neighbouring axes that every read and the output have side by side become one axis. An
axis that would leave vectors less than half full becomes one with the axis before, by division. The axes of a tensor
with a layout don't change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, gcd, prod
from typing import Protocol

from taskc.ir import nodes as ir
from taskc.ir.build import conjunction, floor_divide, index, less, modulo, multiply
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import Constant, Expression, Kernel, Read, Select, Statement, Tensor, Variable
from taskc.ir.rewrite import replace_tensors, rewritten, substitute, walk
from taskc.ir.types import DType, boolean
from taskc.programs.ir import Computation, variables_in, with_tensors

Extent = int | Expression

# A processor's block has at least so many: finding the next one takes little time in comparison.
_LEAST_ELEMENTS = 1 << 12
_MOST_ELEMENTS = 1 << 15  # that the caches keep, for several tensors
_BLOCKS_PER_THREAD = 4  # so that no thread waits long for another one
_GPU_WORKERS = 256  # eight such blocks fill a multiprocessor
_GPU_ACCESSES = 4  # of a worker, that are under way at a time
_GPU_ALONG = 64  # workers along an axis whose extent isn't known
_WIDEST = 16  # bytes of an access


class BlockLimits(Protocol):
    """The machine that blocks are sized for: lanes of a vector or a warp, and blocks that run at the same time."""

    @property
    def lanes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def is_processor(self) -> bool: ...
    def of(self, dtype: DType, /) -> BlockLimits: ...


def memory_order(tensor: Tensor) -> list[tuple[int, Extent]]:
    """The axes, fastest in memory first, each with the number of its elements that are contiguous.

    A layout may return to an axis: with blocked channels, the channels of a block are contiguous.
    """
    modes = (tensor.layout.slot_modes if tensor.layout is not None else None) or ()
    found: dict[int, Extent] = {}
    for mode in reversed(modes):
        if mode.dimension is not None:
            found.setdefault(mode.dimension, mode.size)
    for axis in reversed(range(len(tensor.shape))):
        found.setdefault(axis, tensor.shape[axis])
    return list(found.items())


def owners_of(computation: Computation, machine: BlockLimits) -> Mapping:
    """The mapping of a block's elements to its workers."""
    if machine.is_processor:
        return _owners_on_processor(computation.output, machine)
    return _owners_on_gpu(computation.output, _width(computation), machine)


def _width(computation: Computation) -> int:
    """The elements of one access: more than one only where all reads are contiguous, too."""
    output = computation.output
    last, together = memory_order(output)[0]
    variable = computation.variables[last]
    types = [item.dtype for item in computation.parameters if isinstance(item, Tensor)]
    wide = gcd(_divisor(together), *[max(1, 8 * _WIDEST // dtype.bits) for dtype in types])
    return wide if _keeps_neighbours(computation.value, variable) else 1


def _keeps_neighbours(value: Expression, variable: Variable) -> bool:
    """Whether reads have the variable as the index of their fastest axis alone, and conditions don't have it."""
    for node in walk(value):
        if isinstance(node, Select) and variable in variables_in(node.condition):
            return False
        if isinstance(node, Read) and node.indices:
            fastest, _ = memory_order(node.tensor)[0]
            others = [at for n, at in enumerate(node.indices) if n != fastest]
            if any(variable in variables_in(at) for at in others):
                return False
            at = node.indices[fastest]
            if at is not variable and variable in variables_in(at):
                return False
    return True


def elements_of_block(shape: tuple[Extent, ...], machine: BlockLimits) -> int:
    """The elements of a processor's block that are aimed for."""
    known = [extent for extent in shape if isinstance(extent, int)]
    if len(known) < len(shape):
        return _LEAST_ELEMENTS
    share = prod(known) // (_BLOCKS_PER_THREAD * machine.threads)
    return max(_LEAST_ELEMENTS, min(_MOST_ELEMENTS, share))


def _owners_on_processor(output: Tensor, machine: BlockLimits) -> Mapping:
    order, rank = memory_order(output), len(output.shape)
    lanes, vectors = [1] * rank, [1] * rank
    free = machine.lanes
    for axis, extent in order:
        lanes[axis] = _lanes_along(extent, free)
        free //= lanes[axis]
    left = max(1, elements_of_block(output.shape, machine) // machine.lanes)
    for axis, extent in order:
        vectors[axis] = left
        if isinstance(extent, int):
            needed = max(1, ceil(extent / lanes[axis]))
            vectors[axis] = ceil(needed / ceil(needed / left))  # blocks of one size
        left = max(1, left // vectors[axis])
    slowest_first = [axis for axis, _ in reversed(order)]
    return repeat(*vectors, order=slowest_first) * spatial(*lanes, order=slowest_first)


def _lanes_along(extent: Extent, free: int) -> int:
    """The free lanes, or as many of them as fill a shorter axis."""
    if isinstance(extent, int) and 0 < extent < free and free % extent == 0:
        return extent
    return free


def _owners_on_gpu(output: Tensor, wide: int, machine: BlockLimits) -> Mapping:
    """A worker has as many neighbours as one access may have, neighbouring workers the next of these."""
    order, rank = memory_order(output), len(output.shape)
    fastest, together = order[0]
    extents = dict(order)
    if isinstance(together, int):
        extents[fastest] = together // wide
    workers, accesses, inner = [1] * rank, [1] * rank, [1] * rank
    inner[fastest] = wide
    free = _GPU_WORKERS
    for axis, _ in order:
        extent = extents[axis]
        if isinstance(extent, int):
            workers[axis] = min(free, _power(extent))
        else:
            workers[axis] = min(free, free if rank == 1 else _GPU_ALONG)
        free //= workers[axis]
    left = _gpu_accesses(output, prod(workers) * wide, machine)
    for axis, _ in order:
        extent = extents[axis]
        most = _power(ceil(extent / workers[axis])) if isinstance(extent, int) else left
        accesses[axis] = max(1, min(left, most))
        left //= accesses[axis]
    workers[order[-1][0]] *= max(1, free * machine.lanes // _GPU_WORKERS)  # a whole warp at least
    slowest_first = [axis for axis, _ in reversed(order)]
    return (
        repeat(*accesses, order=slowest_first)
        * spatial(*workers, order=slowest_first)
        * repeat(*inner)
    )


def _gpu_accesses(output: Tensor, elements: int, machine: BlockLimits) -> int:
    """More than one of a worker only where blocks enough are left."""
    known = [extent for extent in output.shape if isinstance(extent, int)]
    if len(known) < len(output.shape):
        return _GPU_ACCESSES
    blocks = prod(known) // elements
    share = max(1, min(_GPU_ACCESSES, blocks // (_BLOCKS_PER_THREAD * machine.threads)))
    return _power(share + 1) // 2


def inside(
    place: Sequence[Expression], shape: Sequence[Extent], box: Sequence[int]
) -> Expression | None:
    """The condition that a place is inside the output; None where the output is whole boxes of this size."""
    axes = zip(place, shape, box, strict=True)
    return conjunction(
        [less(at, index(extent)) for at, extent, size in axes if _divisor(extent) % size]
    )


def kernel_by(computation: Computation, workers: int, body: Statement) -> Kernel:
    """The kernel of a computation that has this body."""
    parameters, dimensions = computation.parameters, computation.dimensions
    return Kernel(computation.name, parameters, dimensions, workers, body, loc=computation.loc)


def nothing(dtype: DType) -> Constant:
    """The constant for values that are never used."""
    if dtype is boolean:
        return Constant(False, dtype)
    return Constant(0 if dtype.is_integer else 0.0, dtype)


def _divisor(extent: Extent) -> int:
    """A number that is known to divide an extent; 0 for the extent 0, which all numbers divide."""
    return extent if isinstance(extent, int) else getattr(extent, "multiple", 1)


def _power(n: int) -> int:
    """The smallest power of two from n on."""
    return 1 << max(0, n - 1).bit_length()


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

    def joined(node: Expression) -> Expression:
        if not isinstance(node, ir.Read) or node.tensor not in tensors:
            return node
        place = places[node.tensor]
        indices = (*node.indices[:place], together, *node.indices[place + 2 :])
        return ir.Read(tensors[node.tensor], indices, loc=node.loc)

    value = rewritten(computation.value, joined)
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
    return replace(
        computation,
        parameters=with_tensors(computation.parameters, tensors),
        variables=variables,
        value=replace_tensors(value, tensors),
    )


def _equal(one: Extent, other: Extent) -> bool:
    return one is other or one == other
