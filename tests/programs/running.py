"""Programs as they are written and fused, run side by side: every output has to be the same to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from taskc.arrays.arguments import Signature
from taskc.backend import sim
from taskc.ir.nodes import Tensor
from taskc.ir.verify import verify
from taskc.passes.pipeline import lower
from taskc.passes.prove import problem
from taskc.programs.blocks import BlockLimits
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Program, kernels_of
from taskc.programs.pipeline import fused
from taskc.programs.schedule import schedule
from taskc.programs.specialize import in_usual_order, launches
from taskc.runtime.machine import machine
from taskc.runtime.targets import find_target


def arguments(definition: ProgramDefinition, seed: int = 0) -> list[Any]:
    """What it is called with: outputs, too, filled with what no result may depend on."""
    bound = Signature(definition.ir).bind(definition.example(seed), {}, 1, None)
    return [_spoiled(value) for value in bound.values]


def _spoiled(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def outputs_of(program: Program, values: Sequence[Any], target: str = "parsed") -> list[Any]:
    """What the tensors are that a program writes, after it.

    target  a stage for the simulator; a GPU, whose lowered kernels the simulator runs; or "cpu"
    """
    given = [_spoiled(value) for value in values]
    for step in launches(schedule(program, _machine(target)), given, _temporary):
        kernel, bound = step.kernel, step.bound
        if target == "cpu":
            find_target("cpu").compile(kernel, ()).run(bound)
            continue
        if target != "parsed":
            kernel = lower(replace(kernel, target=target), "synchronized")
        report = sim.run(kernel, bound.values, dimensions=bound.dimensions)
        wrong = [finding for finding in report.findings if finding.severity == "error"]
        assert not wrong, "\n".join(map(str, wrong))
    written = zip(program.parameters, given, strict=True)
    return [value for item, value in written if isinstance(item, Tensor) and item.role != "in"]


def _machine(target: str) -> BlockLimits:
    return machine(None if target in ("cpu", "parsed") else target)


def _temporary(described: Any) -> Any:
    """Memory that shows where somebody reads what nobody wrote."""
    made = in_usual_order(described)
    made.reshape(-1).view(np.uint8).fill(0xFF)
    return made


def check(
    definition: ProgramDefinition,
    target: str = "parsed",
    *,
    is_processor: bool = True,
    seed: int = 0,
) -> Program:
    """The fused program, if it gives what the program does."""
    program = definition.ir
    made = fused(program, 16 if is_processor else 0)
    for kernel in kernels_of(schedule(made, _machine(target))).values():
        verify(kernel)
        assert problem(kernel) is None
    values = arguments(definition, seed)
    expected = outputs_of(program, values, target)
    for one, other in zip(expected, outputs_of(made, values, target), strict=True):
        assert one.tobytes() == other.tobytes(), f"{_differing(one, other)} elements differ"
    return made


def _differing(one: Any, other: Any) -> str:
    return (
        f"{np.count_nonzero(~((one == other) | ((one != one) & (other != other))))} of {one.size}"
    )


def called(program: Program) -> list[str]:
    """The names of what a program calls, in order."""
    return [call.callee.name for call in program.calls]
