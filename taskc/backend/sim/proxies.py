"""The order between ordinary accesses to SHARED memory and those of the asynchronous proxy."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.shadow import SEVERAL, SITE_BITS, SITE_MASK, latest_clocks, workers_of
from taskc.ir import nodes as ir


def check_fences(
    frame: Frame, memory: Memory, at: Array, workers: Array, node: ir.Statement, what: str
) -> None:
    """Whoever wrote the elements with ordinary stores fenced, and these workers know of it.

    What an earlier bulk copy has written needs no fence, and leaves no trace here.
    """
    shadow, order = memory.shadow, frame.group.order
    assert shadow is not None
    order.spread()
    touched = (at[:, None] * memory.granules + np.arange(memory.granules)).reshape(-1)
    who = shadow.who[touched] & SEVERAL
    clocks = shadow.when[touched] >> SITE_BITS
    written = shadow.when[touched] != 0
    fences = frame.group.fences
    latest_of = latest_clocks(who[written], clocks[written], order)
    if latest_of is not None:  # all writers at once; one after another only to name who is late
        writers = np.flatnonzero(latest_of >= 0)
        after = [_fence_after(fences.get(w, []), latest_of[w]) for w in writers.tolist()]
        knows = order.known[0][np.ix_(workers, writers)] >= after
        if min(after, default=0) >= 0 and (knows | (workers[:, None] == writers)).all():
            return
    for writer in np.unique(who[written]).tolist():
        mine = written & (who == writer)
        latest = int(clocks[mine].max())
        for worker in np.arange(order.workers)[workers_of(writer, order)].tolist():
            later = [c for c in fences.get(worker, ()) if c > latest]
            others = workers[workers != worker]
            if later and (order.known[0, others, worker] >= min(later)).all():
                continue
            first = int(np.argmax(mine))
            site = int(shadow.when[touched[first]]) & SITE_MASK
            name = frame.name_element(memory, int(touched[first]))
            whom = frame.group.name_of(worker)
            rank, number = divmod(worker, frame.run.workers)
            block = int(frame.group.units[0]) * frame.run.cluster + rank
            frame.run.findings.add(
                "missing-fence",
                f"{name} is {what}; {whom}, who wrote it, has not executed"
                " fence.proxy.async in between",
                node.loc,
                count=int(np.count_nonzero(mine)),
                details=(("block", block), ("worker", number)),
                notes=((f"{whom} writes it here", frame.run.sites[site]),),
                where=node,
            )
            return


def _fence_after(fences: list[int], clock: int) -> int:
    """The first of a worker's fences, which ascend, that is later than a clock; -1 if there is none."""
    place = bisect_right(fences, clock)
    return fences[place] if place < len(fences) else -1
