"""The common part of all accesses: the lanes that take part, and their reports to the checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.report import Located
from taskc.backend.sim.shadow import Found, Lanes
from taskc.errors import InternalError
from taskc.ir import nodes as ir

# --- Reports of races, and of accesses without a wait --------------------------------------------


_PENDING = {
    "copy": ("unwaited-copy", "a copy may not have reached yet", "the copy"),
    "store": ("unwaited-copy", "a bulk store may not have read yet", "the copy"),
    "product": ("unwaited-product", "a matrix product may not have read yet", "the product"),
}


class Races:
    """Turns conflicts that a memory's shadow finds for one access into findings."""

    def __init__(self, frame: Frame, memory: Memory, site: int) -> None:
        self.frame = frame
        self.memory = memory
        self.site = site

    def race(self, verb: str, other_verb: str, found: Found | None) -> None:
        if found is None:
            return
        run = self.frame.run
        at, mine, other, other_site, count = found
        block, other_block = run.who(mine)[0], run.who(other)[0]
        element = self.frame.name_element(self.memory, at)
        who, whom = self._name(mine), self._name(other)
        details: tuple[tuple[str, str | int], ...] = (("block", block), ("element", element))
        details = (*details, ("worker", who), ("other", whom))
        if block != other_block:
            who, whom = f"{who} of block {block}", f"{whom} of block {other_block}"
            may_meet = run.waits_for_grid or block // run.cluster == other_block // run.cluster
            why = "and nothing orders the two" if may_meet else "blocks are not ordered"
        elif run.by_phases:
            why = "within one phase"
        else:
            why = "and nothing orders the two"
        run.findings.add(
            "race",
            f"{who} {verb} {element}, which {whom} {other_verb} ({why})",
            run.sites[self.site],
            count=count,
            details=details,
            notes=((f"{whom} {other_verb} it here", run.sites[other_site]),),
            where=self.site,
        )

    def unwaited(
        self, verb: str, lanes: Lanes, wrong: Array, sites: Array, what: str = "copy"
    ) -> None:
        run = self.frame.run
        first = int(np.argmax(wrong))
        element = self.frame.name_element(self.memory, int(lanes.at[first]))
        who = self._name(int(lanes.who[first]))
        kind, done, issued = _PENDING[what]
        run.findings.add(
            kind,
            f"{who} {verb} {element}, which {done}",
            run.sites[self.site],
            count=int(np.count_nonzero(wrong)),
            details=(("block", run.who(int(lanes.who[first]))[0]), ("element", element)),
            notes=((f"{issued} is issued here", run.sites[int(sites[0])]),),
            where=self.site,
        )

    def _name(self, who: int) -> str:
        run = self.frame.run
        worker = run.who(who)[1]
        if worker is None:
            return "several workers" if run.workers > 1 else "its worker"
        is_task = self.frame.anonymous and run.by_phases
        return f"task {worker}" if is_task else f"worker {worker}"


def memory_of(frame: Frame, tensor: ir.Tensor) -> Memory:
    memory = frame.memories.get(tensor)
    if memory is None:
        raise InternalError(f"{tensor.name} is used outside its allocation")
    return memory


def legal(where: Any, illegal: Any) -> Any:
    """The lanes of a mask whose access is legal; None stands for all lanes, or for no illegal one."""
    if illegal is None:
        return where
    return ~illegal if where is None else where & ~illegal


def selection(frame: Frame, illegal: Any) -> Any:
    """The lanes that store: active, legal, and the first owner of a replicated task."""
    where = frame.mask
    if frame.owners_only is not None:
        where = frame.owners_only if where is None else where & frame.owners_only
    return legal(where, illegal)


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
    frame: Frame, memory: Memory, at: Any, where: Any, illegal: Any, site: int, kind: str
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


def unwaited(frame: Frame, memory: Memory, at: Any, illegal: Any, site: int) -> Any:
    """Report lanes that read elements in flight; returns their mask, or None."""
    where = legal(frame.mask, illegal)
    shadow = memory.shadow
    assert shadow is not None
    assert shadow.flight is not None
    shape = widened((frame.count, frame.width), at, where)
    chosen, flat = picked(shape, where, at)
    late = np.zeros(shape, np.bool_)
    for granule in range(memory.granules):
        elements = flat * memory.granules + granule
        if not np.count_nonzero(shadow.flight.state[elements]):
            continue
        lanes = frame.lanes(shape, elements, chosen, site, False)
        wrong = shadow.check_arrived(lanes, "reads", Races(frame, memory, site))
        if wrong is not None:
            late.reshape(-1)[slice(None) if chosen is None else chosen] |= wrong
    return late if np.count_nonzero(late) else None


def touch(
    frame: Frame,
    memory: Memory,
    shape: tuple[int, ...],
    flat: Array,
    chosen: Array | None,
    site: int,
    together: bool,
    kind: str,
) -> None:
    shadow = memory.shadow
    if shadow is None:
        return
    lanes = frame.lanes(shape, flat, chosen, site, together)
    act = getattr(shadow, kind)
    report = Races(frame, memory, site)
    if memory.granules == 1:
        act(lanes, report)
    else:
        for granule in range(memory.granules):
            lanes.at = flat * memory.granules + granule
            act(lanes, report)


def uninitialized(
    frame: Frame, memory: Memory, at: Any, missing: Any, illegal: Any, node: Located
) -> None:
    where = legal(missing, illegal)
    if frame.mask is not None:
        where = where & frame.mask
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
    where = wrong if frame.mask is None else wrong & frame.mask
    if not np.count_nonzero(where):
        return None
    message = f"index {{}} is outside 0..{extent - 1} in dimension {dimension} of {tensor.name}"
    frame.fault("out-of-bounds", message, where, node, index)
    return where
