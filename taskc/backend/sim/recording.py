"""Records of accesses: the lanes that take part, for the shadow memory, and the traffic, for the statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from taskc.analysis.coalescing import swizzled
from taskc.backend.sim.machine import Frame, Run, both
from taskc.backend.sim.memory import Array, Storage, laid_out
from taskc.backend.sim.report import (
    SECTOR,
    AccessTraffic,
    Located,
    SiteTraffic,
    against_conflicts,
    against_sectors,
)
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.target import WARP


def memory_of(frame: Frame, tensor: ir.Tensor) -> Storage:
    memory = frame.memories.get(tensor)
    if memory is None:
        raise InternalError(f"{tensor.name} is used outside its allocation")
    return memory


def legal(where: Any, illegal: Any) -> Any:
    """The lanes of a mask whose access is legal; None stands for all lanes, or for no illegal one."""
    return both(where, None if illegal is None else ~illegal)


def selection(frame: Frame, illegal: Any) -> Any:
    """The lanes that store: active, legal, and the first owner of a replicated task."""
    return legal(both(frame.mask, frame.owners_only), illegal)


def spread(frame: Frame, *operands: Any) -> tuple[tuple[int, ...], bool]:
    """The shape of an access other than a read, and whether all workers act as one."""
    if not frame.in_each and all(np.ndim(x) == 0 or x.shape[-1] == 1 for x in operands):
        return (*frame.axes, frame.count, 1), True
    return frame.full, False


def flattened(value: Any, shape: tuple[int, ...]) -> Array:
    """`value` for each lane, in the order of a worker's tasks.

    The axes of inner loops come first. That is the order where it counts: two tasks that store to
    one element are tasks of the innermost loop, or the loops would not run at once.
    """
    if isinstance(value, np.ndarray) and value.shape == shape:
        return value.reshape(-1)
    flat = np.empty(shape, value.dtype if hasattr(value, "dtype") else type(value))
    flat[...] = value  # five times faster than broadcast_to for a few lanes
    return flat.reshape(-1)


def picked(shape: tuple[int, ...], where: Any, *values: Any) -> tuple[Any, ...]:
    """The mask of participating lanes, None for all, and the values of those lanes, flat."""
    flat = [flattened(value, shape) for value in values]
    if where is None:
        return None, *flat
    chosen = flattened(where, shape)
    return chosen, *[value[chosen] for value in flat]


def widened(least: tuple[int, ...], *operands: Any) -> tuple[int, ...]:
    """The common shape of `least` and the operands; None is skipped."""
    shapes = {x.shape for x in operands if isinstance(x, np.ndarray)} - {least}
    return np.broadcast_shapes(least, *shapes) if shapes else least


def record(
    frame: Frame, memory: Storage, at: Any, where: Any, illegal: Any, site: int, kind: str
) -> None:
    """Report an access to the shadow, without widening indices more than needed."""
    where = legal(where, illegal)
    together = not frame.in_each and all(
        np.ndim(x) == 0 or x.shape[-1] == 1 for x in (at, where) if x is not None
    )
    shape = widened((frame.count, 1 if together else frame.width), at, where)
    chosen, flat = picked(shape, where, at)
    if flat.size:
        touch(frame, memory, shape, flat, chosen, site, together, kind)


def unwaited(frame: Frame, memory: Storage, at: Any, illegal: Any, site: int) -> Any:
    """Report lanes that read elements in flight; returns their mask, or None."""
    where = legal(frame.mask, illegal)
    shadow = memory.shadow
    assert shadow is not None
    assert shadow.flight is not None
    shape = widened((frame.count, frame.width), at, where)
    chosen, flat = picked(shape, where, at)
    late = np.zeros(shape, np.bool_)
    for entries in memory.entries(flat):
        if not np.count_nonzero(shadow.flight.state[entries]):
            continue
        lanes = frame.access(memory, shape, entries, chosen, site, False)
        wrong = shadow.flight.check(lanes, "reads")
        if wrong is not None:
            late.reshape(-1)[slice(None) if chosen is None else chosen] |= wrong
    return late if np.count_nonzero(late) else None


def touch(
    frame: Frame,
    memory: Storage,
    shape: tuple[int, ...],
    flat: Array,
    chosen: Array | None,
    site: int,
    together: bool,
    kind: str,
) -> None:
    """Report an access to the shadow; `kind` is the shadow's method."""
    if memory.shadow is not None:
        for lanes in frame.lanes(memory, shape, flat, chosen, site, together):
            getattr(memory.shadow, kind)(lanes)


def uninitialized(
    frame: Frame, memory: Storage, at: Any, missing: Any, illegal: Any, node: Located
) -> None:
    where = both(legal(missing, illegal), frame.mask)
    if not np.count_nonzero(where):
        return
    name = memory.tensor.name
    if memory.tensor.scope in (ir.SHARED, ir.GLOBAL):
        _, _, position = frame.someone(where)
        spots = np.broadcast_to(at, np.broadcast_shapes(np.shape(at), where.shape))
        spot = int(spots[position[len(position) - spots.ndim :]])
        name = frame.name_element(memory, spot * memory.granules)
    frame.fault("uninitialized", f"{name} is read before it is written", where, node)


def outside(
    frame: Frame,
    tensor: ir.Tensor,
    wrong: Any,
    index: Any,
    extent: int,
    dimension: int,
    node: Located,
) -> Any:
    """Report the active lanes whose index is out of bounds; returns their mask, or None."""
    message = f"index {{}} is outside 0..{extent - 1} in dimension {dimension} of {tensor.name}"
    return frame.fault_if("out-of-bounds", message, wrong, node, index)


# --- Traffic --------------------------------------------------------------------------------------


def measure(frame: Frame, memory: Storage, at: Any, where: Any, site: int, kind: str) -> None:
    """Note the worst request of an access, and the total of all."""
    run = frame.run
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
    traffic = run.traffic.get(site)
    if traffic is None:
        worst = AccessTraffic(tensor.name, tensor.scope, run.sites[site], kind=kind)
        traffic = run.traffic[site] = SiteTraffic(tensor, worst)
    for row in range(len(offsets)):
        for start in range(0, frame.width, WARP):
            part = slice(start, start + WARP)
            mine = offsets[row, part][active[row, part]]
            if not mine.size:
                continue
            if tensor.scope == ir.SHARED:
                lanes = np.where(active[row, part], offsets[row, part], -1)
                key = bytes([together]) + lanes.tobytes()
                ways, added = traffic.request(key, lanes, together).cost(tensor)
                traffic.total += added
                if ways > traffic.worst.ways:
                    traffic.worst = replace(traffic.worst, ways=ways)
            else:
                addresses = swizzled(tensor.swizzle, mine) * bits // 8
                sectors, ideal = _sectors(addresses, width)
                traffic.total += sectors
                worst = traffic.worst
                if sectors * max(worst.ideal, 1) > worst.sectors * ideal:
                    full = mine.size == WARP
                    advice = against_sectors(tensor, memory.shape, mine) if full else ""
                    traffic.worst = replace(
                        worst, sectors=sectors, ideal=ideal, is_full=full, advice=advice
                    )


def _sectors(addresses: Array, width: int) -> tuple[int, int]:
    """The number of sectors that a request touches, and the fewest that could hold its bytes."""
    starts = np.unique(addresses)
    first, last = starts // SECTOR, (starts + width - 1) // SECTOR
    touched = np.unique(np.concatenate((first, last))).size
    return int(touched), -(-int(starts.size) * width // SECTOR)


def warn(run: Run) -> None:
    """Add findings about accesses that are far from the best possible."""
    for site, measured in run.traffic.items():
        worst = measured.worst
        if worst.ways >= 2:
            message = f"{worst.ways}-way bank conflict in {worst.tensor}"
            _warn(run, site, "bank-conflict", message, _advice(run, measured), ways=worst.ways)
        if worst.is_full and worst.sectors >= max(2 * worst.ideal, worst.ideal + 2):
            message = (
                f"a warp touches {worst.sectors} sectors of {worst.tensor}; {worst.ideal} would do"
            )
            numbers = {"sectors": worst.sectors, "ideal": worst.ideal}
            _warn(run, site, "uncoalesced", message, worst.advice, **numbers)


def _warn(run: Run, site: int, kind: str, message: str, advice: str, **numbers: int) -> None:
    details: list[tuple[str, str | int]] = [*numbers.items()]
    if advice:
        details.append(("hint", advice))
    loc = run.sites[site]
    run.findings.add(kind, message, loc, details=tuple(details), severity="warning", where=site)


def _advice(run: Run, here: SiteTraffic) -> str:
    everywhere = [
        request
        for measured in run.traffic.values()
        if measured.tensor is here.tensor
        for request in measured.requests.values()
    ]
    return against_conflicts(run.kernel, here.tensor, list(here.requests.values()), everywhere)
