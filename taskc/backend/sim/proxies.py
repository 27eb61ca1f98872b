"""The order between ordinary accesses to SHARED memory and those of the asynchronous proxy."""

from __future__ import annotations

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.shadow import SEVERAL, SITE_BITS, SITE_MASK, workers_of
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
    for writer in np.unique(who[written]).tolist():
        mine = written & (who == writer)
        latest = int(clocks[mine].max())
        for worker in np.arange(order.workers)[workers_of(writer, order)].tolist():
            after = [c for c in frame.group.fences.get(worker, ()) if c > latest]
            others = workers[workers != worker]
            if after and (order.known[0, others, worker] >= min(after)).all():
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
