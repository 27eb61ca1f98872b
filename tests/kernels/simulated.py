"""Kernels for GPUs, in the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from taskc.checking import examine
from taskc.lang.definition import KernelDefinition


def simulated(
    kernel: KernelDefinition,
    arguments: list[Any],
    target: str,
    stages: str | Iterable[str] = ("parsed", "lean"),
) -> tuple[np.ndarray, tuple[str, ...]]:
    """What it computes, and its notes: no findings, and no access of shared memory worse than 2-way."""
    examination = examine(kernel, arguments, target=target, stages=stages)
    wrong = [str(finding) for finding in examination.findings if finding.severity == "error"]
    assert not wrong, "\n".join(wrong)
    conflicts = [f for f in examination.findings if f.kind == "bank-conflict"]
    assert all(int(dict(f.details)["ways"]) <= 2 for f in conflicts), conflicts
    notes = tuple(message for message, _ in examination.steps[-1].kernel.notes)
    return np.asarray(examination.results[-1]).astype(np.float64), notes
