"""Which part of a computation's output a block has, and which of its workers has which elements of that.

Neighbouring workers have neighbours in memory: of the last axis, or of that with which a layout ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, prod
from typing import Protocol

from taskc.ir.build import conjunction, index, less
from taskc.ir.mapping import Mapping, repeat, spatial
from taskc.ir.nodes import Constant, Expression, Grid, Kernel, Read, Select, Tensor, Variable
from taskc.ir.rewrite import walk
from taskc.ir.types import DType, boolean
from taskc.programs.ir import Computation

Extent = int | Expression

_LEAST_ELEMENTS = 1 << 12  # of a processor's block, beside which finding the next block is little
_MOST_ELEMENTS = 1 << 15  # that the caches keep, for several tensors
_BLOCKS_PER_THREAD = 4  # so that no thread waits long for another one
_GPU_WORKERS = 256  # eight such blocks fill a multiprocessor
_GPU_ACCESSES = 4  # of a worker, that are under way at a time
_GPU_ALONG = 64  # workers along an axis whose extent isn't known
_WIDEST = 16  # bytes of an access


class Machine(Protocol):
    """What blocks are made for: vectors of so many lanes, or warps; and how many blocks run at a time."""

    @property
    def lanes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def is_processor(self) -> bool: ...
    def of(self, dtype: DType, /) -> Machine: ...


def memory_order(tensor: Tensor) -> list[tuple[int, Extent]]:
    """The axes, from that of neighbours in memory on, and how many of each lie together.

    A layout may come back to an axis: of blocked channels, the channels of a block lie together.
    """
    modes = (tensor.layout.slot_modes if tensor.layout is not None else None) or ()
    found: dict[int, Extent] = {}
    for mode in reversed(modes):
        if mode.dimension is not None:
            found.setdefault(mode.dimension, mode.size)
    for axis in reversed(range(len(tensor.shape))):
        found.setdefault(axis, tensor.shape[axis])
    return list(found.items())


def owners_of(computation: Computation, machine: Machine) -> Mapping:
    """Who has which elements of a block's box."""
    if machine.is_processor:
        return _owners_on_processor(computation.output, machine)
    return _owners_on_gpu(computation.output, _width(computation), machine)


def _width(computation: Computation) -> int:
    """How many neighbours one access may have: of what every read has side by side, too, or not at all."""
    output = computation.output
    last, together = memory_order(output)[0]
    variable = computation.variables[last]
    types = [item.dtype for item in computation.parameters if isinstance(item, Tensor)]
    wide = gcd(_divisor(together), *[max(1, 8 * _WIDEST // dtype.bits) for dtype in types])
    return wide if _keeps_neighbours(computation.value, variable) else 1


def _keeps_neighbours(value: Expression, variable: Variable) -> bool:
    """Whether reads have the variable as the index of their fastest axis alone, and conditions don't have it."""
    for node in walk(value):
        if isinstance(node, Select) and variable in _variables(node.condition):
            return False
        if isinstance(node, Read) and node.indices:
            fastest, _ = memory_order(node.tensor)[0]
            others = [at for n, at in enumerate(node.indices) if n != fastest]
            if any(variable in _variables(at) for at in others):
                return False
            at = node.indices[fastest]
            if at is not variable and variable in _variables(at):
                return False
    return True


def _variables(node: Expression) -> list[Variable]:
    return [part for part in walk(node) if isinstance(part, Variable)]


def elements_of_block(shape: tuple[Extent, ...], machine: Machine) -> int:
    """How many of an output a processor's block has, if it can."""
    known = [extent for extent in shape if isinstance(extent, int)]
    if len(known) < len(shape):
        return _LEAST_ELEMENTS
    share = prod(known) // (_BLOCKS_PER_THREAD * machine.threads)
    return max(_LEAST_ELEMENTS, min(_MOST_ELEMENTS, share))


def _owners_on_processor(output: Tensor, machine: Machine) -> Mapping:
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
    """All that are free, or as many as fill an axis that is shorter."""
    if isinstance(extent, int) and 0 < extent < free and free % extent == 0:
        return extent
    return free


def _owners_on_gpu(output: Tensor, wide: int, machine: Machine) -> Mapping:
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


def _gpu_accesses(output: Tensor, elements: int, machine: Machine) -> int:
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
    """What says that a place is one of the output; None where boxes of this size end with it."""
    axes = zip(place, shape, box, strict=True)
    return conjunction(
        [less(at, index(extent)) for at, extent, size in axes if _divisor(extent) % size]
    )


def kernel_by(computation: Computation, workers: int, grid: Grid) -> Kernel:
    name, parameters, dimensions = (
        computation.name,
        computation.parameters,
        computation.dimensions,
    )
    return Kernel(name, parameters, dimensions, workers, grid, loc=computation.loc)


def nothing(dtype: DType) -> Constant:
    """What stands for values that don't count."""
    if dtype is boolean:
        return Constant(False, dtype)
    return Constant(0 if dtype.is_integer else 0.0, dtype)


def _divisor(extent: Extent) -> int:
    """What is known to divide an extent; 0, which all numbers divide, is that of 0."""
    return extent if isinstance(extent, int) else getattr(extent, "multiple", 1)


def _power(n: int) -> int:
    """The smallest power of two from n on."""
    return 1 << max(0, n - 1).bit_length()
