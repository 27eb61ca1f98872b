"""The table of contents: which passes run, in which order, and why.

Each row is a pass, the stage it ends (None: it stays within one) and the reason for its place.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.passes.layout import layout
from taskc.passes.lean import LEAN_PASSES
from taskc.passes.lower_grid import lower_grid
from taskc.passes.lower_mappings import lower_mappings
from taskc.passes.lower_rings import lower_rings
from taskc.passes.overlap import overlap
from taskc.passes.overlay import overlay
from taskc.passes.prove import prove
from taskc.passes.select import select
from taskc.passes.simplify import simplify
from taskc.passes.specialize import specialize
from taskc.passes.synchronize import synchronize

Pass = Callable[[ir.Kernel], ir.Kernel]
logger = logging.getLogger(__name__)

PASSES: tuple[Pass, ...] = (
    # What the author wrote is proved before anything changes it: later errors would be ours.
    prove,
    # Conditions that always hold would hide plain accesses from the choice of instructions.
    simplify,
    select,
    # Roles are cut out of whole pipelines, before those become loops.
    specialize,
    overlap,
    # Layouts come before offsets, since padding changes sizes; both come before barriers, since
    # memory that is used twice needs barriers of its own.
    layout,
    overlay,
    synchronize,
    # Barriers are placed where ring steps still say which copies are complete.
    lower_rings,
    # The grid's variables are bound before the mappings' arithmetic uses them.
    lower_grid,
    lower_mappings,
    *LEAN_PASSES,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel after a pass, and how long that took."""

    name: str
    kernel: ir.Kernel
    seconds: float


def lower_steps(kernel: ir.Kernel) -> Iterator[Step]:
    """The kernel after each of the passes that its stage still needs, one at a time."""
    folder = os.environ.get("TASKC_DUMP")
    started = ir.STAGES.index(kernel.stage)
    before = ""
    for number, run in enumerate(PASSES):
        if started > _latest_stage(run):
            continue
        start = time.perf_counter()
        kernel = run(kernel)
        seconds = time.perf_counter() - start
        logger.debug("%s: %.2f ms", run.__name__, seconds * 1e3)
        if folder:
            before = _dump(Path(folder), number, run.__name__, kernel, seconds, before)
        yield Step(run.__name__, kernel, seconds)


def lower(kernel: ir.Kernel, stage: str = "lean") -> ir.Kernel:
    """The kernel at the end of a stage."""
    last = ir.STAGES.index(stage)
    if ir.STAGES.index(kernel.stage) >= last and stage != "lean":
        return kernel
    result = kernel
    for step in lower_steps(kernel):
        if ir.STAGES.index(step.kernel.stage) > last:
            break
        result = step.kernel
    return result


def _latest_stage(run: Pass) -> int:
    """The last stage at which a pass still has work: a kernel born later skips it."""
    return ir.STAGES.index(_APPLIES_TO.get(run.__name__, "lean"))


# A kernel of the expert's room is born at stage synchronized: its barriers are its author's.
_APPLIES_TO = {
    "prove": "synchronized",
    "select": "synchronized",
    "specialize": "selected",
    "overlap": "selected",
    "layout": "pipelined",
    "overlay": "synchronized",
    "synchronize": "pipelined",
    "lower_rings": "pipelined",
    "lower_grid": "synchronized",
    "lower_mappings": "synchronized",
}


def _dump(
    folder: Path, number: int, name: str, kernel: ir.Kernel, seconds: float, before: str
) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    text = to_text(kernel)
    shown = "(unchanged)\n" if text == before else text
    path = folder / f"{kernel.name}.{number:02}_{name}.txt"
    path.write_text(f"# {name}: {seconds * 1e3:.2f} ms\n{shown}")
    return text
