"""What a person is told of races, and of what was not waited for."""

from __future__ import annotations

import numpy as np

from taskc.backend.sim.machine import Frame
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.shadow import Found, Lanes

_PENDING = {
    "copy": ("unwaited-copy", "a copy may not have reached yet", "the copy"),
    "store": ("unwaited-copy", "a bulk store may not have read yet", "the copy"),
    "product": ("unwaited-product", "a matrix product may not have read yet", "the product"),
}


class Races:
    """Turns what the shadow of a memory finds, for one access, into findings."""

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
