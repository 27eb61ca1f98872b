"""Where a block's tensors lie in its shared memory."""

from __future__ import annotations

from math import prod

from taskc.ir import nodes as ir
from taskc.ir.fragments import alignment
from taskc.ir.nodes import BARRIER, SHARED, Tensor
from taskc.ir.rewrite import walk


def slots_of(tensor: Tensor) -> int:
    """Elements that a tensor takes in memory."""
    shape = [int(n) for n in tensor.shape]  # type: ignore[arg-type]
    if tensor.layout is None:
        return prod(shape)
    outer = shape[: len(shape) - tensor.layout.rank]
    return prod(outer) * tensor.layout.slots


def shared_memory(kernel: ir.Kernel) -> tuple[dict[Tensor, int], int]:
    """Where each tensor of a block lies, and how many bytes all of them take."""
    allocated = [
        node.tensor
        for node in walk(kernel.body)
        if isinstance(node, ir.Allocate) and node.tensor.scope in (SHARED, BARRIER)
    ]
    places = {tensor: tensor.offset for tensor in allocated if tensor.offset is not None}
    end = max((at + slots_of(t) * t.dtype.nbytes for t, at in places.items()), default=0)
    for tensor in dict.fromkeys(allocated):
        if tensor not in places:
            step = 8 if tensor.scope == BARRIER else max(128, alignment(tensor))
            places[tensor] = -(-end // step) * step
            end = places[tensor] + slots_of(tensor) * tensor.dtype.nbytes
    return places, end
