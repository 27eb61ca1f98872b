"""The order between ordinary accesses to SHARED memory and those of the asynchronous proxy."""

from __future__ import annotations

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.shadow import SEVERAL, SITE_BITS, SITE_MASK
from taskc.ir import nodes as ir


def check_fences(
    frame: Frame, memory: Memory, at: Array, workers: Array, node: ir.Statement, what: str
) -> None:
    """Whoever wrote the elements with ordinary stores fenced, and these workers know of it.

    What an earlier bulk copy has written needs no fence, and leaves no trace here.
    """
    shadow, order = memory.shadow, frame.group.order
    assert shadow is not None
    touched = (at[:, None] * memory.granules + np.arange(memory.granules)).reshape(-1)
    who = shadow.who[touched] & SEVERAL
    clocks = shadow.when[touched] >> SITE_BITS
    written = shadow.when[touched] != 0
    for writer in np.unique(who[written]).tolist():
        mine = written & (who == writer)
        latest = int(clocks[mine].max())
        for worker in [writer] if writer != SEVERAL else range(order.workers):
            after = [c for c in frame.group.fences.get(worker, ()) if c > latest]
            others = workers[workers != worker]
            if after and (order.known[0, others, worker] >= min(after)).all():
                continue
            first = int(np.argmax(mine))
            site = int(shadow.when[touched[first]]) & SITE_MASK
            name = frame.name_element(memory, int(touched[first]))
            frame.run.findings.add(
                "missing-fence",
                f"{name} is {what}; worker {worker}, who wrote it, has not executed"
                " fence.proxy.async in between",
                node.loc,
                count=int(np.count_nonzero(mine)),
                details=(("block", int(frame.group.blocks[0])), ("worker", worker)),
                notes=((f"worker {worker} writes it here", frame.run.sites[site]),),
                where=node,
            )
            return
