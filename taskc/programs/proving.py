"""What is made of two callees is proved again, as what an author writes is; where it can't be, they stay two."""

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
    """Indices are in bounds on one machine as on another."""

    lanes: int = 16
    threads: int = 1
    is_processor: bool = True

    def of(self, dtype: DType) -> _AnyMachine:
        return self


def kernel_problem(kernel: Kernel) -> CompileError | None:
    """The first thing that can't be proved of a kernel."""
    return next(iter(findings(kernel)), None)


@deeply
def computation_problem(computation: Computation) -> CompileError | None:
    """The first index of a computation that isn't proved to be in bounds: what else there is to prove, any has."""
    problem: CompileError | None = None
    for all_held in (False, True):  # holding all takes 20 times as long to prove
        kernel = boxes(computation, _AnyMachine(), all_held=all_held)
        problem = next(iter(bounds_findings(collect(kernel))), None)
        if problem is None:
            break
    return problem
