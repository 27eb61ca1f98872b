"""Prove fused callees as hand-written ones are; a callee that can't be proved isn't used."""

from __future__ import annotations

from dataclasses import dataclass

from taskc.errors import CompileError
from taskc.ir.depth import deeply
from taskc.ir.nodes import Kernel
from taskc.ir.program import Computation
from taskc.ir.types import DType
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.passes.prove import findings
from taskc.programs.schedule import boxes


@dataclass(frozen=True, slots=True)
class _AnyMachine:
    """A stand-in for any machine: whether indices are in bounds doesn't depend on the machine."""

    lanes: int = 16
    threads: int = 1
    is_processor: bool = True

    def of(self, dtype: DType) -> _AnyMachine:
        return self


def kernel_problem(kernel: Kernel) -> CompileError | None:
    """The first problem found by the proofs of a kernel, or None."""
    return next(iter(findings(kernel)), None)


@deeply
def computation_problem(computation: Computation) -> CompileError | None:
    """The first index of a computation that isn't proved in bounds; its other proofs always succeed."""
    problem: CompileError | None = None
    for all_held in (False, True):  # with all held, the proof takes 20 times as long
        kernel = boxes(computation, _AnyMachine(), all_held=all_held)
        problem = next(iter(bounds_findings(collect(kernel))), None)
        if problem is None:
            break
    return problem
