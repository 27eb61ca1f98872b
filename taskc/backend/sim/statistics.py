"""How accesses meet the memory: bank conflicts of SHARED tensors, sectors of GLOBAL ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.order import WARP
from taskc.backend.sim.report import Findings, Traffic
from taskc.ir import nodes as ir

BANKS = 32
SECTOR = 32
WORD = 4


def measure(frame: Frame, memory: Memory, at: Any, where: Any, site: int) -> None:
    """Notes the worst of an access's requests; unless all are asked for, only its first one."""
    run = frame.run
    before = run.accesses.get(site)
    if (before is not None and not run.statistics) or frame.anonymous or not frame.vector:
        return
    tensor = memory.tensor
    shape = np.broadcast_shapes(np.shape(at), np.shape(where), (frame.count, frame.width))
    elements = np.broadcast_to(at - memory.rows, shape)
    active = np.broadcast_to(True if where is None else where, shape)
    together = 1
    if frame.vector > 1:  # the turns of the innermost axis are one access
        if len(frame.axes) and frame.axes[0] == frame.vector and len(shape) == len(frame.axes) + 2:
            grows = (np.diff(elements, axis=0) == 1) | ~active[1:]
            if grows.all():
                together = frame.vector
                elements, active = elements[0], active[0]
        else:
            together = frame.vector
    elements = elements.reshape(-1, frame.width)
    active = active.reshape(-1, frame.width)
    if not run.statistics:
        first = int(np.argmax(active.any(axis=1)))
        elements, active = elements[first : first + 1], active[first : first + 1]
    offsets = (
        swizzled(tensor, elements) if run.is_flat else physical(tensor, memory.shape, elements)
    )
    addresses = offsets * tensor.dtype.nbytes + (tensor.offset or 0)
    width = together * tensor.dtype.nbytes
    worst = before or Traffic(tensor.name, tensor.scope, run.sites[site])
    for row in range(len(addresses)):
        for start in range(0, frame.width, WARP):
            part = slice(start, start + WARP)
            mine = addresses[row, part][active[row, part]]
            if not mine.size:
                continue
            if tensor.scope == ir.SHARED:
                ways = _ways(addresses[row, part], active[row, part], width)
                if ways > worst.ways:
                    worst = Traffic(tensor.name, tensor.scope, run.sites[site], ways)
            else:
                sectors, ideal = _sectors(mine, width)
                if sectors * max(worst.ideal, 1) > worst.sectors * ideal:
                    full = mine.size == WARP
                    worst = Traffic(
                        tensor.name, tensor.scope, run.sites[site], 1, sectors, ideal, full
                    )
    run.accesses[site] = worst


def _ways(addresses: Array, active: Array, width: int) -> int:
    """The most different words of one bank, among the lanes that one access serves."""
    lanes = WARP if width <= WORD else max(WARP * WORD // width, 1)
    words = max(width // WORD, 1)
    most = 1
    for start in range(0, len(addresses), lanes):
        chosen = addresses[start : start + lanes][active[start : start + lanes]]
        touched = np.unique(chosen[:, None] // WORD + np.arange(words))
        if touched.size:
            most = max(most, int(np.bincount(touched % BANKS).max()))
    return most


def _sectors(addresses: Array, width: int) -> tuple[int, int]:
    """How many sectors a request touches, and how few its bytes would fill."""
    starts = np.unique(addresses)
    first, last = starts // SECTOR, (starts + width - 1) // SECTOR
    touched = np.unique(np.concatenate((first, last))).size
    return int(touched), -(-int(starts.size) * width // SECTOR)


def warn(accesses: dict[int, Traffic], findings: Findings) -> None:
    """Findings about the accesses that are far from the best possible."""
    for site, traffic in accesses.items():
        if traffic.ways >= 2:
            findings.add(
                "bank-conflict",
                f"{traffic.ways}-way bank conflict in {traffic.tensor}",
                traffic.location,
                details=(("ways", traffic.ways),),
                severity="warning",
                where=site,
            )
        if traffic.is_full and traffic.sectors >= max(2 * traffic.ideal, traffic.ideal + 2):
            findings.add(
                "uncoalesced",
                f"a warp touches {traffic.sectors} sectors of {traffic.tensor};"
                f" {traffic.ideal} would do",
                traffic.location,
                details=(("sectors", traffic.sectors), ("ideal", traffic.ideal)),
                severity="warning",
                where=site,
            )


def physical(tensor: ir.Tensor, shape: tuple[int, ...], linear: Array) -> Array:
    """Where elements lie, from their row-major offsets."""
    return swizzled(tensor, laid_out(tensor, shape, linear))


def laid_out(tensor: ir.Tensor, shape: tuple[int, ...], linear: Array) -> Array:
    """The layout's offsets of elements, from their row-major ones: what a flat access has.

    The data of a run stand in this order: a swizzle exchanges places only in hardware, where it
    decides about banks.
    """
    if tensor.layout is None:
        return linear
    tasks = np.stack(np.unravel_index(linear, shape), axis=-1)
    return tensor.layout.find(0, tasks)


def swizzled(tensor: ir.Tensor, linear: Array) -> Array:
    """Where the elements of a layout's offsets lie."""
    if tensor.swizzle is None:
        return linear
    swizzle = tensor.swizzle
    mask = (1 << swizzle.bits) - 1
    moved: Array = linear ^ (((linear >> swizzle.shift) & mask) << swizzle.base)
    return moved
