"""Memory traffic of accesses: bank conflicts of SHARED tensors, sectors of GLOBAL ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from taskc.analysis.coalescing import swizzled
from taskc.backend.sim.machine import Frame, Run
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.report import (
    MOST_REQUESTS,
    Findings,
    Request,
    Traffic,
    against_conflicts,
    against_sectors,
)
from taskc.ir import nodes as ir
from taskc.ir.target import WARP

SECTOR = 32


def measure(frame: Frame, memory: Memory, at: Any, where: Any, site: int, kind: str) -> None:
    """Note the worst request of an access, and the total of all."""
    run = frame.run
    before = run.accesses.get(site)
    if frame.anonymous or not frame.vector:
        return
    tensor = memory.tensor
    shape = np.broadcast_shapes(np.shape(at), np.shape(where), (frame.count, frame.width))
    elements = np.broadcast_to(at - memory.rows, shape)
    active = np.broadcast_to(True if where is None else where, shape)
    together = 1
    if not frame.axes:  # an asynchronous copy's first element, or a scalar access
        together = frame.vector
    elif frame.vector > 1 and len(shape) == len(frame.axes) + 2:
        # The turns of the innermost axis are one access, unless they all access one element.
        steps = np.diff(elements, axis=0)
        if not np.count_nonzero(steps):
            elements, active = elements[0], active[0]
        elif ((steps == 1) | ~active[1:]).all():
            together = frame.vector
            elements, active = elements[0], active[0]
    elements = elements.reshape(-1, frame.width)
    active = active.reshape(-1, frame.width)
    offsets = elements if run.is_flat else laid_out(tensor, memory.shape, elements)
    bits = tensor.dtype.bits
    width = tensor.dtype.bytes_of(together)
    worst = before or Traffic(tensor.name, tensor.scope, run.sites[site], kind=kind)
    requests = run.requests.setdefault(site, (tensor, {}))[1]
    total = run.totals.get(site, 0)
    for row in range(len(offsets)):
        for start in range(0, frame.width, WARP):
            part = slice(start, start + WARP)
            mine = offsets[row, part][active[row, part]]
            if not mine.size:
                continue
            if tensor.scope == ir.SHARED:
                lanes = np.where(active[row, part], offsets[row, part], -1)
                key = bytes([together]) + lanes.tobytes()
                request = requests.get(key)
                if request is None:
                    request = Request(lanes, together)
                    if len(requests) < MOST_REQUESTS:
                        requests[key] = request
                ways, added = request.cost(tensor)
                total += added
                if ways > worst.ways:
                    worst = replace(worst, ways=ways)
            else:
                addresses = swizzled(tensor.swizzle, mine) * bits // 8
                sectors, ideal = _sectors(addresses, width)
                total += sectors
                if sectors * max(worst.ideal, 1) > worst.sectors * ideal:
                    full = mine.size == WARP
                    advice = against_sectors(tensor, memory.shape, mine) if full else ""
                    worst = replace(
                        worst, sectors=sectors, ideal=ideal, is_full=full, advice=advice
                    )
    run.accesses[site] = worst
    run.totals[site] = total


def _sectors(addresses: Array, width: int) -> tuple[int, int]:
    """The number of sectors that a request touches, and the fewest that could hold its bytes."""
    starts = np.unique(addresses)
    first, last = starts // SECTOR, (starts + width - 1) // SECTOR
    touched = np.unique(np.concatenate((first, last))).size
    return int(touched), -(-int(starts.size) * width // SECTOR)


def warn(run: Run, findings: Findings) -> None:
    """Add findings about accesses that are far from the best possible."""
    for site, traffic in run.accesses.items():
        if traffic.ways >= 2:
            advice = _advice(run, site)
            findings.add(
                "bank-conflict",
                f"{traffic.ways}-way bank conflict in {traffic.tensor}",
                traffic.location,
                details=(("ways", traffic.ways), *_hint(advice)),
                severity="warning",
                where=site,
            )
        if traffic.is_full and traffic.sectors >= max(2 * traffic.ideal, traffic.ideal + 2):
            findings.add(
                "uncoalesced",
                f"a warp touches {traffic.sectors} sectors of {traffic.tensor};"
                f" {traffic.ideal} would do",
                traffic.location,
                details=(
                    ("sectors", traffic.sectors),
                    ("ideal", traffic.ideal),
                    *_hint(traffic.advice),
                ),
                severity="warning",
                where=site,
            )


def _hint(advice: str) -> tuple[tuple[str, str], ...]:
    return (("hint", advice),) if advice else ()


def _advice(run: Run, site: int) -> str:
    tensor, here = run.requests[site]
    everywhere = [
        request
        for other, requests in run.requests.values()
        if other is tensor
        for request in requests.values()
    ]
    return against_conflicts(run.kernel, tensor, list(here.values()), everywhere)


def physical(tensor: ir.Tensor, shape: tuple[int, ...], linear: Array) -> Array:
    """The physical offsets of elements, from their row-major offsets."""
    return swizzled(tensor.swizzle, laid_out(tensor, shape, linear))


def laid_out(tensor: ir.Tensor, shape: tuple[int, ...], linear: Array) -> Array:
    """The layout's offsets of elements, from their row-major ones; used for a flat access.

    The data of a run stand in this order: a swizzle exchanges places only in hardware, where it
    decides about banks.
    """
    if tensor.layout is None:
        return linear
    tasks = np.stack(np.unravel_index(linear, shape), axis=-1)
    return tensor.layout.find(0, tasks)


def elements_at(tensor: ir.Tensor, shape: tuple[int, ...]) -> Array | None:
    """The row-major offset of the element at each place of a layout, -1 for none; None without a layout."""
    if tensor.layout is None:
        return None
    row_major = np.full(tensor.layout.slots, -1, np.int64)
    every = np.arange(int(np.prod(shape)))
    row_major[laid_out(tensor, shape, every)] = every
    return row_major
