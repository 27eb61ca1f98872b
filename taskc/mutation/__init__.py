"""Mutation testing of the checker: break a correct kernel in every small way, and see whether that is reported.

A mutant is the kernel at a stage from `synchronized` on with one change: a barrier, wait, arrival or fence
deleted or moved across its neighbour, a ring's slot shifted, a buffer shrunk, a mapping perturbed. It is
reported when the simulator finds an error under one of the schedules, or when the result differs from that
of the program as written. A mutant that survives is run with other inputs (of other sizes where they are
symbolic), and at the last stage, where memory has the layouts' order, before it counts as equivalent. A
`@tc.program` is broken one kernel at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from taskc.backend.sim import Report, run
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Finding, InternalError, Location
from taskc.ir.nodes import Kernel
from taskc.lang.definition import Definition
from taskc.mutation.changes import (
    Change,
    deletions,
    is_barrier,
    is_ordering,
    is_wait,
    moves,
    other_changes,
)
from taskc.passes.lower_rings import lower_rings
from taskc.passes.pipeline import PASSES, lower, lower_steps
from taskc.passes.prove import findings
from taskc.passes.synchronize import is_synchronized
from taskc.programs.ir import Program, kernels_of
from taskc.programs.specialize import as_elements, launches
from taskc.runtime.driver import signature

_MOST_CALLS = 10_000  # of kernels in one run of a program


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant with its outcome.

    kind      "delete", "move", "slot", "buffer" or "mapping"
    finding   the report: a Finding, or a sentence (a wrong result, a refusal)
    reason    if it wasn't reported: why it is no bug, as proved or shown by runs
    """

    kind: str
    stage: str
    description: str
    location: Location
    finding: Finding | str | None
    reason: str = ""

    @property
    def reported(self) -> bool:
        return self.finding is not None

    @property
    def is_equivalent(self) -> bool:
        return self.finding is None and bool(self.reason)


EXAMPLES = ((0, 0), (1, 1))  # seeds and sizes: the kernel's own example, and another for survivors


def inputs_of(definition: Definition) -> list[Sequence[Any]]:
    """The inputs with which `mutate` runs a kernel or a program."""
    called = signature(definition)
    bound = [called.bind(definition.example(*which), {}) for which in EXAMPLES]
    return [[*map(as_elements, one.values)] for one in bound]


def mutate(
    mutated: Kernel | Program,
    inputs: Sequence[Sequence[Any]],
    *,
    seeds: Sequence[int | None] = (None, 0, 1),
) -> Iterator[Mutant]:
    """The mutants of a kernel, or of each kernel of a program, with their outcomes.

    inputs  the arguments of one call (with outputs), and of further calls for survivors

    A mutant of a program's kernel is reported by the findings of its own runs, or by the result of
    the whole program.
    """
    kernels = [mutated] if isinstance(mutated, Kernel) else kernels_of(mutated).values()
    for kernel in kernels:
        steps = {step.name: step.kernel for step in lower_steps(kernel)}
        calls = tuple((given, _result(mutated, kernel, given)) for given in inputs)
        synchronized = steps.get("lower_rings", kernel)
        trial = _Trial(
            mutated, kernel, calls, seeds,
            below_phases="synchronize" not in steps,
            unproved=frozenset(map(str, findings(synchronized))),
        )  # fmt: skip
        *_, final = [kernel, *steps.values()]
        for change in _changes(steps.get("synchronize"), synchronized):
            yield trial.judge(change, "synchronized")
        if final is not synchronized:
            for change in deletions(final, is_ordering):
                yield trial.judge(change, final.stage)


def _changes(with_ring_steps: Kernel | None, synchronized: Kernel) -> Iterator[Change]:
    """Barriers are changed before ring steps are lowered, since equivalence can be proved from these."""
    chosen = is_ordering
    if with_ring_steps is not None:
        chosen = is_wait
        for source in (deletions, moves):
            for change in source(with_ring_steps, is_barrier):
                ordered = is_synchronized(change.kernel)
                yield replace(
                    change,
                    kernel=lower_rings(change.kernel),
                    reason="every conflict is still ordered" if ordered else "",
                )
    yield from deletions(synchronized, chosen)
    yield from moves(synchronized, chosen)
    yield from other_changes(synchronized)


def _result(mutated: Kernel | Program, kernel: Kernel, arguments: Sequence[Any]) -> list[Any]:
    error, values = _run(mutated, kernel, kernel, arguments, None)
    if error is not None:
        raise InternalError(f"the unmutated kernel is not clean: {error}")
    return values


def _run(
    whole: Kernel | Program,
    kernel: Kernel,
    instead: Kernel,
    arguments: Sequence[Any],
    seed: int | None,
) -> tuple[Finding | None, list[Any]]:
    """The first error of a run with a kernel replaced, and the arguments after it.

    The other kernels of a program run as written.
    """
    values = _copies(arguments)
    if isinstance(whole, Kernel):
        return _first_error(run(instead, values, seed=seed, until_error=True)), values
    for number, launch in enumerate(launches(whole, values)):
        if number == _MOST_CALLS:  # a mutant's flag may hold forever
            return Finding("endless", "error", f"there are more than {_MOST_CALLS} calls"), values
        if launch.kernel is kernel:
            report = run(
                instead,
                launch.bound.values,
                dimensions=launch.bound.dimensions,
                seed=seed,
                until_error=True,
            )
            error = _first_error(report)
        else:
            error = _first_error(
                run(launch.kernel, launch.bound.values, dimensions=launch.bound.dimensions)
            )
        if error is not None:
            return error, values
    return None, values


def _first_error(report: Report) -> Finding | None:
    return next((finding for finding in report.findings if finding.severity == "error"), None)


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


@dataclass(frozen=True, slots=True)
class _Trial:
    """Runs mutants of one kernel. `calls` are arguments with their results.

    below_phases  the kernel places its barriers itself
    unproved      findings of the proofs about the unbroken kernel: they know nothing of reductions lowered to exchanges
    """

    whole: Kernel | Program
    kernel: Kernel
    calls: tuple[tuple[Sequence[Any], Sequence[Any]], ...]
    seeds: Sequence[int | None]
    below_phases: bool
    unproved: frozenset[str]

    def judge(self, change: Change, stage: str) -> Mutant:
        finding: Finding | str | None = None
        try:
            finding = self.first_difference(change.kernel)
            if finding is None and change.kernel.stage != "lean":
                finding = self.first_difference(self.lowered(change.kernel))
        except (CompileError, InternalError) as error:
            finding = f"rejected: {str(error).splitlines()[0]}"
        reason = "" if finding is not None else self.reason(change)
        return Mutant(change.kind, stage, change.description, change.location, finding, reason)

    def lowered(self, kernel: Kernel) -> Kernel:
        """A synchronized kernel at the last stage; new findings of its proofs are raised."""
        if self.below_phases:
            return lower(kernel)
        for error in findings(kernel):
            if str(error) not in self.unproved:
                raise error
        for row in PASSES[[row.name for row in PASSES].index("lower_rings") + 1 :]:
            kernel = row.run(kernel)
        return kernel

    def first_difference(self, kernel: Kernel) -> Finding | str | None:
        """The first error of any run."""
        for call, seed in product(range(len(self.calls)), self.seeds):
            finding = self.wrong_result(kernel, call, seed)
            if finding is not None:
                return finding
        return None

    def wrong_result(self, kernel: Kernel, call: int, seed: int | None) -> Finding | str | None:
        """The error of a run, or None."""
        arguments, expected = self.calls[call]
        error, values = _run(self.whole, self.kernel, kernel, arguments, seed)
        if error is not None:
            return error
        parameters = self.whole.parameters
        for parameter, mine, theirs in zip(parameters, values, expected, strict=True):
            if isinstance(mine, np.ndarray) and mine.tobytes() != theirs.tobytes():
                return f"wrong result: `{parameter.name}` differs"
        return None

    def reason(self, change: Change) -> str:
        """The reason why an unreported change is no bug.

        The arrivals that complete a phase of an mbarrier don't depend on the schedule, and the shadow
        memory requires that they order all conflicting accesses: so clean runs prove the order. The
        same holds for barriers and for waits for bulk copies, but it is used only for moved ones,
        where nothing else can tell: a barrier that can be deleted is for its author to look at.
        """
        if change.reason:
            return change.reason
        if "mbarrier" in change.description:
            return (
                f"the arrivals that are left order every conflicting pair of accesses{self.where}"
            )
        if change.description.startswith("wgmma.fence"):
            # A missing fence doesn't depend on the schedule either.
            return f"a fence is left behind whatever touched a product's registers{self.where}"
        if change.kind == "move" and change.description.startswith("tma.wait"):
            return f"nobody writes what a copy reads before it is waited for{self.where}"
        if change.kind == "buffer":  # every index is checked against its extent
            return f"no access reaches what is cut off{self.where}"
        if self.below_phases and change.kind == "move" and "barrier" in change.description:
            return f"the barriers order every conflicting pair of accesses{self.where}"
        if any(
            not any(self.wrong_result(probe, call, None) for call in range(len(self.calls)))
            for probe in change.probes
        ):
            return f"each store that it drops changes nothing, or reaches no output{self.where}"
        return ""

    @property
    def where(self) -> str:
        """The inputs for which a reason from runs was found, in words."""
        return (
            " of this run"
            if len(self.calls) == 1
            else f" of the runs with {len(self.calls)} inputs"
        )
