"""Joining of small blocks: several blocks of few workers are one block of the device.

    blocks = 1000, of 32 workers
        body(worker, block)
->
    blocks = 125, of 256 workers
        let worker' = worker % 32
        let block' = block * 8 + worker // 32
        body(worker', block')

A multiprocessor has room for 32 blocks, and starts them one after another: blocks of a warp fill half of it. Only
blocks of whole warps are joined, which neither share memory nor meet.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.build import add, ceiling_divide, floor_divide, index, modulo, multiply
from taskc.ir.rewrite import walk
from taskc.ir.target import TARGETS, WARP

ENOUGH = 128  # workers of a block, to fill a multiprocessor
MOST = 256

_MEETING = (ir.Barrier, ir.Do, ir.Roles, ir.Peer, ir.RingStep, ir.Mma, ir.Move)


def join_blocks(kernel: ir.Kernel) -> ir.Kernel:
    target = TARGETS[kernel.target]
    warp = target.warp
    is_whole = (
        not target.is_processor
        and warp == WARP
        and kernel.workers % warp == 0
        and MOST % kernel.workers == 0
    )
    if kernel.blocks is None or kernel.workers >= ENOUGH or not is_whole or not _are_alone(kernel):
        return kernel
    count = MOST // kernel.workers
    if isinstance(kernel.blocks, ir.Constant):
        while int(kernel.blocks.value) % count:
            count //= 2
    if count == 1:
        return kernel
    worker, block = ir.Variable("worker"), ir.Variable("block")
    body = kernel.body
    if isinstance(kernel.blocks, ir.Constant):
        blocks = index(int(kernel.blocks.value) // count)
    else:
        blocks = ceiling_divide(kernel.blocks, count)
        body = ir.If(ir.Binary("<", kernel.block, kernel.blocks), body, None)
    own = add(multiply(block, index(count)), floor_divide(worker, index(kernel.workers)))
    return replace(
        kernel,
        workers=count * kernel.workers,
        worker=worker,
        block=block,
        blocks=blocks,
        body=ir.Sequence(
            (
                ir.Let(kernel.worker, modulo(worker, index(kernel.workers))),
                ir.Let(kernel.block, own),
                body,
            )
        ),
    )


def _are_alone(kernel: ir.Kernel) -> bool:
    """Whether blocks need nothing from the device but warps."""
    if kernel.helpers or kernel.cluster > 1:
        return False
    for node in walk(kernel.body):
        if isinstance(node, _MEETING) or node is kernel.processors:
            return False
        if isinstance(node, ir.Allocate) and node.tensor.scope not in (ir.LOCAL, ir.TILE):
            return False
        if isinstance(node, ir.Atomic) and node.operator in ("acquire", "release"):
            return False
    return True
