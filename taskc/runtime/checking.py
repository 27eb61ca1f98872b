"""The checker: proves a kernel, then runs it in the simulator after every pass.

    check(definition)    its errors and warnings
    examine(definition)  the same, with the memory traffic of every run; of a program, of each call

After each pass, the results have to equal, bit for bit, those of the kernel as written. If they
don't, the pass is wrong, and an `InternalError` names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.arguments import Bound
from taskc.arrays.packed import Packed
from taskc.backend import sim
from taskc.backend.sim.breakpoints import open_debugger
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Finding, Findings, InternalError
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.ir.target import TARGETS
from taskc.lang.definition import Definition, KernelDefinition
from taskc.passes.pipeline import lower_steps, passes_of
from taskc.passes.prove import findings as proof_errors
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Computation, Program, kernels_of, map_kernels
from taskc.programs.specialize import launches
from taskc.runtime.driver import scheduled, signature
from taskc.runtime.machine import machine
from taskc.runtime.targets import check_target


@dataclass(frozen=True, slots=True)
class Doing:
    """The current step of a check.

    text    a description, such as "running it after hoist"
    step    of `steps`, from 0 on: the proofs, the run as written, and a run after each pass
    block   of `blocks`: the number of blocks that have ended
    """

    text: str
    step: int
    steps: int
    block: int = 0
    blocks: int = 0

    @property
    def share(self) -> float:
        """The completed share of all steps."""
        return (self.step + self.block / max(self.blocks, 1)) / self.steps

    def __str__(self) -> str:
        of_blocks = f", block {self.block} of {self.blocks}" if self.blocks > 1 else ""
        return f"{self.text} ({self.step + 1} of {self.steps}{of_blocks})"


Progress: TypeAlias = "Callable[[Doing | None], None]"
"""Called with each next step, and with None where a debugger opens."""

_CLOSE = 1e-3  # tolerance for float atomics, which are folded in any order


@dataclass(frozen=True, slots=True)
class Examined:
    """The kernel after a pass, run under one or more schedules. `report` is that of the run without a seed."""

    name: str
    kernel: ir.Kernel
    report: sim.Report
    seconds: float


@dataclass(frozen=True, slots=True)
class _WithFindings:
    """Problems, each once."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class CallExamination(_WithFindings):
    """The results of examining one call of a kernel.

    steps    the kernels that were run, as written first
    bound    the arguments
    results  their values after the run as written, if it could run
    """

    steps: tuple[Examined, ...]
    bound: Bound
    results: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Examination(_WithFindings):
    """The results of examining a kernel, which is one call, or a program.

    calls    the examined calls in order, up to the first with an error; a loop's in each step
    results  the values of the arguments after these calls, as written
    called   the kernel of each call, with its name in the program's text; also of calls that were not examined
    """

    calls: tuple[CallExamination, ...]
    results: tuple[Any, ...] = ()
    called: tuple[tuple[str, ir.Kernel], ...] = ()


def check(
    definition: Definition,
    arguments: Sequence[Any] | None = None,
    seeds: Sequence[int] = (0,),
    stages: str | Iterable[str] = "all",
    *,
    target: str | None = None,
    progress: Progress = lambda doing: None,
) -> Findings:
    """Find everything wrong with a kernel or a program; each finding has its line of Python.

    arguments  the arguments of the call, without outputs; by default the kernel's own example
    seeds      of the order in which workers run, from stage synchronized on
    stages     the programs to run: "all", one after every pass, or those at the end of the named stages
    target     the target to lower for, by default the kernel's own. For a processor ("cpu" is the one at hand), slow
               code is reported, too
    progress   called with each step and its position, as in `progress=print`
    """
    examination = examine(definition, arguments, seeds, stages, target=target, progress=progress)
    return Findings(examination.findings)


def examine(
    definition: Definition,
    arguments: Sequence[Any] | None = None,
    seeds: Sequence[int] = (0,),
    stages: str | Iterable[str] = "all",
    *,
    target: str | None = None,
    progress: Progress = lambda doing: None,
) -> Examination:
    """Check a kernel or a program as `check` does, and return what was run and measured.

    Each call of a program is examined as its kernel would be, on the results of earlier calls. The check ends
    at a call with an error, as later calls would get meaningless numbers.
    """
    wanted = _wanted(stages)
    if isinstance(definition, KernelDefinition):
        kernel = for_target(definition.ir, target)
        call = _examine(kernel, _bound(definition, arguments), seeds, wanted, progress)
        return Examination(call.findings, (call,), call.results, ((kernel.name, kernel),))
    assert isinstance(definition, ProgramDefinition)
    program = map_kernels(
        scheduled(definition, target)[0], lambda kernel: for_target(kernel, target)
    )
    bound = _bound(definition, arguments)
    names = {id(kernel): name for name, kernel in kernels_of(program).items()}
    findings: dict[Any, Finding] = {}
    calls: list[CallExamination] = []
    values = _copies(program, bound)
    launched = launches(program, values)
    for number, launch in enumerate(launched, start=1):
        kernel = launch.kernel
        report_call = _prefixed(f"call {number}, {names[id(kernel)]}: ", progress)
        examination = _examine(kernel, launch.bound, seeds, wanted, report_call)
        for finding in examination.findings:
            findings.setdefault(_key(finding), finding)
        calls.append(examination)
        if not examination.ok:
            break
        for value, result in zip(launch.bound.values, examination.results, strict=True):
            if isinstance(value, np.ndarray):
                value[...] = result
    called = tuple([(names[id(launch.kernel)], launch.kernel) for launch in launched.all])
    return Examination(tuple(findings.values()), tuple(calls), tuple(values), called)


def _bound(definition: Definition, arguments: Sequence[Any] | None) -> Bound:
    """The arguments of a check, in the order that the simulator takes."""
    arguments_or_example = definition.example() if arguments is None else arguments
    bound = signature(definition).bind(arguments_or_example, {})
    values = [value.unpack() if isinstance(value, Packed) else value for value in bound.values]
    return replace(bound, values=tuple(values))


def _prefixed(place: str, progress: Progress) -> Progress:
    return lambda doing: progress(doing and replace(doing, text=place + doing.text))


def _examine(
    kernel: ir.Kernel,
    bound: Bound,
    seeds: Sequence[int],
    wanted: frozenset[str] | None,
    progress: Progress,
) -> CallExamination:
    examination = _Examination(kernel, bound, tuple(seeds), progress)
    if kernel.stage == "parsed":
        examination.tell("proving")
        errors = proof_errors(kernel)
        if errors:
            return CallExamination(tuple(map(_as_finding, errors)), (), bound)
    examination.run("parse", kernel, is_last=True)
    if not examination.errors:
        examination.lower(wanted)
    results = tuple(examination.expected or ())
    return CallExamination(examination.found(), tuple(examination.steps), bound, results)


def processor_at_hand() -> str:
    """The target that "cpu" stands for."""
    from taskc.backend.cpu.processor import host

    return host().target


def for_target(kernel: ir.Kernel, target: str | None) -> ir.Kernel:
    """The kernel with another target; None keeps its own."""
    name = kernel.target if target is None else target
    if name == "cpu":
        name = processor_at_hand()
    check_target(name, kernel.loc)
    return kernel if name == kernel.target else replace(kernel, target=name)


def _wanted(stages: str | Iterable[str]) -> frozenset[str] | None:
    """The stages whose ends are run; None means after every pass."""
    if stages == "all":
        return None
    chosen = frozenset((stages,) if isinstance(stages, str) else stages)
    unknown = sorted(chosen - set(ir.STAGES))
    if unknown:
        raise ValueError(f"there is no stage {unknown[0]!r}; there are {', '.join(ir.STAGES)}")
    return chosen


def _key(finding: Finding) -> tuple[str, Any]:
    """Findings with equal keys are reported once."""
    return finding.kind, finding.location if finding.location.line else finding.message


def _as_finding(error: CompileError) -> Finding:
    hint = () if error.hint is None else (("hint", error.hint),)
    return Finding("error", "error", error.message, error.location, hint, error.notes)


class _Examination:
    def __init__(
        self, kernel: ir.Kernel, bound: Bound, seeds: tuple[int, ...], progress: Progress
    ) -> None:
        self.kernel = kernel
        self.bound = bound
        self.seeds = seeds
        self.progress = progress
        self.errors: dict[Any, Finding] = {}
        self.steps: list[Examined] = []
        self.expected: list[Any] | None = None
        self.at = 0  # the current one of `count` steps
        self.count = 1 + len(passes_of(kernel))  # one more for the first pass, which proves
        self.comparison = comparison_of(kernel)

    def tell(self, text: str, block: int = 0, blocks: int = 0) -> None:
        self.progress(Doing(text, self.at, self.count, block, blocks))

    def _stop(self, stop: sim.Stop) -> object:
        self.progress(None)
        return open_debugger(stop)

    def found(self) -> tuple[Finding, ...]:
        """The errors of all runs. Warnings about speed count only if they remain in the last one."""
        last = self.steps[-1].report.findings if self.steps else ()
        slow = [finding for finding in last if finding.severity != "error"]
        is_whole = self.kernel.stage == "parsed" and not self.errors
        if is_whole and TARGETS[self.kernel.target].is_processor:
            slow += self._advice()
        return (*self.errors.values(), *slow)

    def _advice(self) -> Iterator[Finding]:
        """Warnings about code that is slow on a processor, from its lowered forms."""
        from taskc.backend.cpu.advice import advice
        from taskc.backend.cpu.compile import refuse
        from taskc.backend.cpu.processor import host, typical

        self.tell("compiling it")
        try:
            refuse(self.kernel)
        except CompileError:  # no processor runs it
            return
        target = self.kernel.target
        processor = host() if host().target == target else typical(target)
        stages = {step.kernel.stage: step.kernel for step in lower_steps(self.kernel)}
        here = machine() if processor is host() else machine(target)
        warnings = advice(
            self.kernel,
            stages["scalar"],
            stages["lean"],
            processor,
            here.threads,
            self.bound.dimensions,
        )
        yield from warnings

    def lower(self, wanted: frozenset[str] | None) -> None:
        """Run the kernel after each pass, until one of them shows an error."""
        # Whether a step is the last of its stage is known when the next one has been made.
        before = self.kernel
        pending: tuple[str, ir.Kernel] | None = None
        try:
            for step in lower_steps(self.kernel):
                self.at += 1
                if step.kernel is before:
                    continue
                if pending is not None:
                    self._step(*pending, step.kernel.stage != pending[1].stage, wanted)
                    if self.errors:
                        return
                before, pending = step.kernel, (step.name, step.kernel)
        except CompileError as error:  # the target doesn't support it
            self._add(_as_finding(error), "")
        if pending is not None:
            self._step(*pending, True, wanted)

    def _step(
        self, name: str, kernel: ir.Kernel, is_last: bool, wanted: frozenset[str] | None
    ) -> None:
        if wanted is None or (is_last and kernel.stage in wanted):
            self.run(name, kernel, is_last=is_last)

    def run(self, name: str, kernel: ir.Kernel, *, is_last: bool) -> None:
        """Run one kernel; the last of a stage under all schedules. Breakpoints stop only the kernel as written."""
        text = (
            f"running it after {name}"
            if kernel is not self.kernel
            else "running it as it was written"
        )
        self.tell(text)
        start = time.perf_counter()
        by_phases = ir.STAGES.index(kernel.stage) < ir.STAGES.index("synchronized")
        schedules: tuple[int | None, ...] = (None,)
        if not by_phases:
            schedules = (None, *self.seeds) if is_last else (None,)
        for seed in schedules:
            values = _copies(kernel, self.bound)
            report = sim.run(
                kernel,
                values,
                dimensions=self.bound.dimensions,
                seed=seed,
                statistics=is_last and seed is None,
                shared_limit=TARGETS[kernel.target].shared_bytes,
                on_stop=self._stop if kernel is self.kernel else None,
                on_blocks=partial(self.tell, text),
            )
            if seed is None:
                self.steps.append(Examined(name, kernel, report, 0.0))
            errors = [finding for finding in report.findings if finding.severity == "error"]
            for error in errors:
                self._add(error, "" if kernel is self.kernel else name)
            if errors:
                break
            if self.expected is None:
                self.expected = values
            else:
                self._compare(name, kernel, values, seed)
        self.steps[-1] = replace(self.steps[-1], seconds=time.perf_counter() - start)

    def _add(self, finding: Finding, after: str) -> None:
        key = _key(finding)
        if after:
            details = (*finding.details, ("after the pass", after))
            finding = replace(finding, details=details)
        self.errors.setdefault(key, finding)

    def _compare(self, name: str, kernel: ir.Kernel, values: list[Any], seed: int | None) -> None:
        if self.comparison == "none" or self.expected is None:
            return
        for parameter, mine, theirs in zip(kernel.parameters, values, self.expected, strict=True):
            if not isinstance(parameter, ir.Tensor) or mine.tobytes() == theirs.tobytes():
                continue
            a, b = mine.astype(np.float64), theirs.astype(np.float64)
            if self.comparison == "close" and np.allclose(a, b, _CLOSE, _CLOSE, equal_nan=True):
                continue
            bits = np.dtype(f"u{mine.itemsize}")
            differs = (mine.view(bits) != theirs.view(bits)) & ~(np.isnan(a) & np.isnan(b))
            if not differs.any():
                continue
            at = np.unravel_index(int(np.argmax(differs)), mine.shape)
            element = f"{parameter.name}[{', '.join(str(int(i)) for i in at)}]"
            schedule = "" if seed is None else f", with schedule {seed}"
            raise InternalError(
                f"after the pass {name}{schedule} {element} is {mine[at]!r} and not {theirs[at]!r}",
                to_text(kernel),
            )


def _copies(kernel: ir.Kernel | Program, bound: Bound) -> list[Any]:
    """The arguments of one run, with copies of the arrays that it writes."""
    return [
        value.copy() if isinstance(parameter, ir.Tensor) and parameter.role != "in" else value
        for parameter, value in zip(kernel.parameters, bound.values, strict=True)
    ]


def comparison_of(kernel: ir.Kernel) -> str:
    """How closely two schedules must agree: "exact", "close", or "none" where atomics return old values."""
    atomics = [node for node in walk(kernel.body) if isinstance(node, ir.Atomic)]
    if any(node.result is not None or node.operator in ("exchange", "release") for node in atomics):
        return "none"
    if any(node.operator == "+" and node.tensor.dtype.is_float for node in atomics):
        return "close"
    return "exact"


def _bodies(definition: Definition) -> Iterator[ir.Node]:
    """Kernels' bodies, and the expressions of functions that they combine by and of computations."""
    for kernel in definition.kernels:
        yield kernel.ir.body
        for node in walk(kernel.ir.body):
            function = getattr(node, "operator", None)
            if isinstance(function, ir.Combine):
                yield from (*[let.value for let in function.lets], *function.values)
    if isinstance(definition, ProgramDefinition):
        callees = [call.callee for call in definition.ir.calls]
        yield from [callee.value for callee in callees if isinstance(callee, Computation)]


def comparison_across_targets(definition: Definition) -> str:
    """How closely two targets must agree: as two schedules, except that math functions differ."""
    kinds = {comparison_of(kernel.ir) for kernel in definition.kernels}
    operators = {
        node.operator
        for body in _bodies(definition)
        for node in walk(body)
        if isinstance(node, ir.Unary | ir.Binary)
    }
    if "none" in kinds:
        return "none"
    return "close" if "close" in kinds or operators & MATH_FUNCTIONS else "exact"
