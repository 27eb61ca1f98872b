"""The pass pipeline: the passes in order, with the reasons.

Each row is a pass and the last stage at which it has work, after the reason for its place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from taskc.dataclass import dataclass
from taskc.errors import blaming_taskc
from taskc.ir import nodes as ir
from taskc.ir.code_size import deep
from taskc.ir.printer import to_text
from taskc.ir.spans import span
from taskc.output_file import write_whole
from taskc.passes.await_products import await_products
from taskc.passes.common_strides import common_strides
from taskc.passes.flatten import flatten
from taskc.passes.gather_words import gather_words
from taskc.passes.hoist import hoist
from taskc.passes.join_blocks import join_blocks
from taskc.passes.layout import layout
from taskc.passes.lower_grid import lower_grid
from taskc.passes.lower_mappings import lower_mappings
from taskc.passes.lower_rings import lower_rings
from taskc.passes.overlap import overlap
from taskc.passes.overlay import overlay
from taskc.passes.persist import persist
from taskc.passes.prove import prove
from taskc.passes.select import select
from taskc.passes.simplify import simplify
from taskc.passes.specialize import specialize
from taskc.passes.synchronize import synchronize
from taskc.passes.unpack import unpack
from taskc.passes.unroll import unroll
from taskc.passes.vectorize import vectorize


@dataclass(frozen=True, slots=True)
class Pass:
    """A row of the table. A kernel that starts after the stage `until` skips the pass."""

    run: Callable[[ir.Kernel], ir.Kernel]
    until: str = "lean"

    @property
    def name(self) -> str:
        return self.run.__name__


PASSES: tuple[Pass, ...] = (
    # The author's program is proved before anything changes it: later errors would be ours.
    Pass(prove, until="synchronized"),
    # Lanes that take the same turns load neighbours; simplify decides the guards.
    Pass(common_strides, until="synchronized"),
    # Conditions that always hold would hide plain accesses from instruction selection.
    Pass(simplify),
    # Moves of whole words have to be recognized before an instruction is selected for them.
    Pass(gather_words, until="synchronized"),
    Pass(select, until="synchronized"),
    # Rings continue from tile to tile, and roles run over tiles of their own: both have to see the loop.
    Pass(persist, until="synchronized"),
    # Roles are cut out of whole pipelines, before those become loops.
    Pass(specialize, until="selected"),
    Pass(overlap, until="selected"),
    # Ring steps tell which slots a product still reads; barriers go after the fences that it needs.
    Pass(await_products, until="pipelined"),
    # Layouts come before offsets, since padding changes sizes; both come before barriers, since reused memory needs
    # barriers of its own.
    Pass(layout, until="pipelined"),
    # A SIMT kernel starts at synchronized: its author chose barriers and layouts, but not the places of its buffers.
    Pass(overlay, until="synchronized"),
    Pass(synchronize, until="pipelined"),
    # Barriers are placed while ring steps still tell which copies are complete.
    Pass(lower_rings, until="pipelined"),
    # The grid's variables are bound before the mappings' arithmetic uses them.
    Pass(lower_grid, until="synchronized"),
    Pass(lower_mappings, until="synchronized"),
    # Mappings have been counted out in a block's own workers.
    Pass(join_blocks, until="synchronized"),
    # Decided guards and loops of one iteration are removed before other passes see them.
    Pass(simplify),
    # From here on each access has one offset, whatever its layout. Loop variables are rebound as i32, so that no later
    # pass has to choose a type.
    Pass(flatten),
    # A linear offset determines the bytes of an element; later passes see bytes.
    Pass(unpack),
    # Offsets of several dimensions, quotients by layouts and casts fold into each other now, while sums are whole,
    # before hoist splits them.
    Pass(simplify),
    # It chooses loops by the size of their simplified bodies.
    Pass(unroll),
    # It splits loops of constant bounds, including those from unroll, and needs whole offsets to prove alignment.
    Pass(vectorize),
    # It splits offsets by the remaining loops. A condition that vectorize made uniform is invariant only now.
    Pass(hoist),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel after a pass, and the time that took."""

    name: str
    kernel: ir.Kernel
    seconds: float


def passes_of(kernel: ir.Kernel) -> list[tuple[int, Pass]]:
    """The passes that a kernel of its stage still needs, with their places in the table."""
    started = ir.STAGES.index(kernel.stage)
    return [
        (number, row) for number, row in enumerate(PASSES) if started <= ir.STAGES.index(row.until)
    ]


def lower_steps(kernel: ir.Kernel) -> Iterator[Step]:
    """The kernel after each of the passes that its stage still needs, one at a time."""
    folder = os.environ.get("TASKC_DUMP")
    before = ""
    for number, row in passes_of(kernel):
        start = time.perf_counter()
        with (
            span(f"kernel passes/{row.name}"),
            deep(kernel.loc),
            blaming_taskc(row.name, partial(to_text, kernel)),
        ):
            kernel = row.run(kernel)
        seconds = time.perf_counter() - start
        if folder:
            before = _dump(Path(folder), number, row.name, kernel, seconds, before)
        yield Step(row.name, kernel, seconds)


def lower(kernel: ir.Kernel, stage: str = "lean") -> ir.Kernel:
    """Lower a kernel to the end of a stage."""
    last = ir.STAGES.index(stage)
    if ir.STAGES.index(kernel.stage) >= last and stage != "lean":
        return kernel
    result = kernel
    for step in lower_steps(kernel):
        if ir.STAGES.index(step.kernel.stage) > last:
            break
        result = step.kernel
    return result


def _dump(
    folder: Path, number: int, name: str, kernel: ir.Kernel, seconds: float, before: str
) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    text = to_text(kernel)
    shown = "(unchanged)\n" if text == before else text
    path = folder / f"{kernel.name}.{number:02}_{name}.txt"
    write_whole(path, f"# {name}: {seconds * 1e3:.2f} ms\n{shown}")
    return text
