"""The proofs at stage parsed: tiles, bounds, coverage, races.

    prove(kernel)       the kernel itself, or the first error in the order of the source
    problem(kernel)     the first error, or None
    findings(kernel)    all of them

A kernel that is born with barriers (stage synchronized) has no phases: tiles and bounds are proved,
and what its workers do to each other is up to its author and the simulator.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.errors import CompileError
from taskc.ir.code_size import deeply
from taskc.ir.nodes import Kernel
from taskc.passes.common_strides import common_strides
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.passes.proofs.coverage import coverage_findings
from taskc.passes.proofs.races import race_findings
from taskc.passes.proofs.replicas import dropped_findings
from taskc.passes.proofs.tiles import tile_findings

# Kernels that were proved when they were fused and weren't lowered since, by the identities of their bodies.
_proved: dict[int, Kernel] = {}
_MOST_PROVED = 256


def prove(kernel: Kernel) -> Kernel:
    known = _proved.pop(id(kernel.body), None)
    if known is not None and replace(known, name=kernel.name, target=kernel.target) == kernel:
        return kernel
    for error in findings(kernel):
        raise error
    return kernel


def problem(kernel: Kernel) -> CompileError | None:
    """The first error, or None. A kernel without errors isn't proved again when it is lowered, for whichever target."""
    error = next(iter(findings(kernel)), None)
    if error is None:
        if len(_proved) >= _MOST_PROVED:  # most of them were in the cache, and won't be lowered
            _proved.clear()
        _proved[id(kernel.body)] = kernel
    return error


@deeply
def findings(kernel: Kernel) -> tuple[CompileError, ...]:
    """All errors, and all properties that can't be proved, in the order of the source."""
    program = collect(common_strides(kernel, proving=True))
    errors = [*tile_findings(program), *bounds_findings(program)]
    if kernel.stage == "parsed":
        errors += [*coverage_findings(program), *race_findings(program)]
        errors += dropped_findings(program)
    errors.sort(key=lambda error: (error.location.line, error.location.column))
    return tuple(errors)
