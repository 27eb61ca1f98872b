"""Offsets of a block's tensors in its shared memory."""

from __future__ import annotations

from taskc.ir import nodes as ir
from taskc.ir.extents import size_in_bytes
from taskc.ir.fragments import alignment
from taskc.ir.nodes import BARRIER, SHARED, Tensor
from taskc.ir.rewrite import walk


def shared_memory(kernel: ir.Kernel) -> tuple[dict[Tensor, int], int]:
    """The offset of each tensor of a block, and their total size in bytes."""
    allocated = [
        node.tensor
        for node in walk(kernel.body)
        if isinstance(node, ir.Allocate) and node.tensor.scope in (SHARED, BARRIER)
    ]
    places = {tensor: tensor.offset for tensor in allocated if tensor.offset is not None}
    end = max((at + size_in_bytes(t) for t, at in places.items()), default=0)
    for tensor in dict.fromkeys(allocated):
        if tensor not in places:
            step = 8 if tensor.scope == BARRIER else max(128, alignment(tensor))
            places[tensor] = -(-end // step) * step
            end = places[tensor] + size_in_bytes(tensor)
    return places, end
