"""Kernels for GPUs, in the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from taskc.lang.definition import Definition
from taskc.runtime.checking import examine


def simulated(
    definition: Definition,
    arguments: list[Any],
    target: str,
    stages: str | Iterable[str] = ("parsed", "lean"),
) -> tuple[np.ndarray, tuple[str, ...]]:
    """What it computes, and its notes: no findings, and no access of shared memory worse than 2-way.

    Of a program that is what its last kernel computes, in that kernel's shape.
    """
    examination = examine(definition, arguments, target=target, stages=stages)
    findings, calls = examination.findings, examination.calls
    wrong = [str(finding) for finding in findings if finding.severity == "error"]
    assert not wrong, "\n".join(wrong)
    conflicts = [f for f in findings if f.kind == "bank-conflict"]
    assert all(int(dict(f.details)["ways"]) <= 2 for f in conflicts), conflicts
    notes = tuple(message for call in calls for message, _ in call.steps[-1].kernel.notes)
    return np.asarray(calls[-1].results[-1]).astype(np.float64), notes
