"""A kernel on its way through the passes."""

from __future__ import annotations

from collections.abc import Iterator

from taskc.ir import nodes as ir
from taskc.passes.pipeline import Step, lower_steps


def changes(kernel: ir.Kernel) -> Iterator[Step]:
    """The steps that change the kernel: what held before one that doesn't holds after it."""
    for step in lower_steps(kernel):
        if step.kernel is not kernel:
            yield step
        kernel = step.kernel
