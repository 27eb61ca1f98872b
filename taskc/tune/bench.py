"""A bench of worker processes, in which the tuner compiles, checks and times candidates of one space.

Inputs are drawn once, and the expected outputs are computed once, by the operator's own kernel in float64. All
candidates get the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, TypeVar

import numpy as np

from taskc.errors import CompileError, InternalError
from taskc.ir.arithmetic import convert
from taskc.ir.nodes import Tensor
from taskc.ir.signature import inputs_of
from taskc.ir.target import GPUS
from taskc.ir.types import DType, f64
from taskc.lang.definition import Definition, KernelDefinition
from taskc.runtime.machine import Machine, machine
from taskc.tune.choose import fingerprint
from taskc.tune.database import Database, database as shared
from taskc.tune.gpu_worker import workers_for
from taskc.tune.model import corrected, judged
from taskc.tune.operands import operands_of, results_of, write_operands
from taskc.tune.space import STRATEGIES, AnySpace, Measured, Space, Strategy, batches
from taskc.tune.timing import Disturbances
from taskc.tune.tuner import Outcome, Trial, Tuned, Tuner
from taskc.tune.worker import Parcel, parcel_of
from taskc.tune.workers import Failed, Workers

Array = np.ndarray[Any, Any]
Reference = Callable[..., Any]
B = TypeVar("B", bound="_Bench")


class _Bench:
    """A context with worker processes and a folder of operands.

    stages  the number of times each stage of compilation ran
    notes   of compiled candidates, such as their resources
    """

    def __init__(self, workers: Workers, limit: float) -> None:
        self._workers, self._limit = workers, limit
        self.stages: Counter[str] = Counter()
        self.notes: dict[Parcel, str] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="taskc-tune-"))

    def __enter__(self: B) -> B:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._workers.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def compile(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        answers = self._workers.compile_all(parcels, limit=self._limit)
        for parcel, answer in answers.items():
            if not isinstance(answer, Failed):
                self.stages.update(answer.seconds.keys())
                self.notes[parcel] = answer.note
        return [
            outcome_of(answer)
            if isinstance(answer, Failed)
            else Outcome("compiled", digest=answer.code)
            for answer in (answers[parcel] for parcel in parcels)
        ]


class WorkerBench(_Bench):
    """A bench that checks and times candidates.

    reference  a function from inputs to the right outputs; by default the operator computes them
    limit      seconds for one stage of one candidate
    """

    def __init__(
        self,
        space: Space[Any, Any],
        seed: int = 0,
        reference: Reference | None = None,
        workers: Workers | None = None,
        limit: float = 20.0,
    ) -> None:
        super().__init__(workers or Workers(), limit)
        self._seen: list[Disturbances] = []
        try:
            prepare(self.folder, space, seed, reference)
        except BaseException:
            self.close()
            raise

    @property
    def warnings(self) -> tuple[str, ...]:
        """The worst disturbances of the measurements."""
        return Disturbances(
            max((seen.others or 0.0 for seen in self._seen), default=0.0),
            sum(seen.throttled or 0 for seen in self._seen),
            median([seen.discarded for seen in self._seen] or [0.0]),
        ).warnings

    def check(self, parcel: Parcel) -> Outcome:
        found = self._workers.check(parcel, self.folder, limit=self._limit)
        return outcome_of(found) if isinstance(found, Failed) else Outcome("right")

    def time(self, parcel: Parcel, samples: int) -> list[float] | Outcome:
        found = self.race([parcel], samples)
        return found if isinstance(found, Outcome) else found[0]

    def race(self, parcels: Sequence[Parcel], samples: int) -> list[list[float]] | Outcome:
        found = self._workers.race(
            parcels, self.folder, samples=samples, limit=self._limit * len(parcels)
        )
        if isinstance(found, Failed):
            return outcome_of(found)
        self._seen.append(found[0].disturbances)
        return [list(timed.seconds) for timed in found]


def outcome_of(found: Failed) -> Outcome:
    return Outcome(found.state, note=found.note)


def prepare(
    folder: Path, space: Space[Any, Any], seed: int = 0, reference: Reference | None = None
) -> None:
    """Write inputs of a problem to a folder, with the right outputs, computed on the processor at hand."""
    here = Space(space.operator, space.problem, machine())
    if space.machine != here.machine:
        space = here
    definition = space.definition(space.default)
    inputs = inputs_for(definition, seed)
    if reference is not None:
        result = reference(*inputs)
        outputs = list(result) if isinstance(result, tuple) else [result]
    else:
        outputs = _computed(_reference_of(space), inputs, folder / "reference")
    write_operands(folder, inputs, outputs)


def _reference_of(space: Space[Any, Any]) -> Definition:
    try:
        return space.reference
    except (CompileError, TypeError, ValueError):  # a template for one type alone
        return space.definition(space.default)


def inputs_for(definition: Definition, seed: int) -> list[Any]:
    """Example arguments of a definition; unpacked ones for packed parameters."""
    random = np.random.default_rng(seed)
    inputs: list[Any] = []
    parameters = inputs_of(definition.ir.parameters)
    for parameter, given in zip(parameters, definition.example(seed), strict=True):
        pack = definition.packs.get(parameter.name)
        if pack is None:
            inputs.append(given)
        elif isinstance(pack, KernelDefinition):
            (source,) = (item for item in inputs_of(pack.ir.parameters) if isinstance(item, Tensor))
            inputs.append(_drawn(random, source.dtype, source.argument_shape))
        else:
            inputs.append(_drawn(random, parameter.dtype, pack))
    return inputs


def _drawn(random: np.random.Generator, dtype: DType, shape: Sequence[Any]) -> Array:
    if dtype.is_float:
        return convert(np.asarray(random.standard_normal(shape)), f64, dtype)
    most = min(10, int(dtype.maximum) + 1)
    return np.asarray(random.integers(0, most, shape)).astype(dtype.numpy)


def _computed(definition: Definition, inputs: Sequence[Any], folder: Path) -> list[Array]:
    """The results of a definition for inputs, which are converted to its own types."""
    parameters = inputs_of(definition.ir.parameters)
    converted = [
        np.asarray(value).astype(parameter.dtype.numpy)
        for value, parameter in zip(inputs, parameters, strict=True)
    ]
    write_operands(folder, converted, [])
    operands = operands_of(definition, folder)
    operands.call_of(definition)()
    return [value for value, _ in results_of(definition, operands)]


# --- A bench without a GPU: candidates for one that isn't present are compiled, and checked in the simulator
# The assembler's report of registers, spills and shared memory decides which candidates are refused. The simulator runs
# the smallest problem that takes the same code paths; the operator names it. It can't measure time.


_LIMIT_OF_COMPILING, _LIMIT = 60.0, 300.0  # seconds for a candidate, and for a check


class DryBench(_Bench):
    """A bench that compiles and simulates. Its tuner must use its `space`, which records the plan of each parcel."""

    def __init__(
        self, space: Space[Any, Any], seed: int = 0, workers: Workers | None = None
    ) -> None:
        self.target, self.seed = space.machine.name, seed
        super().__init__(workers or workers_for(self.target, "simulator"), _LIMIT_OF_COMPILING)
        operator = replace(space.operator, build=self._build)
        self.given, self.space = space, replace(space, operator=operator)
        self._plans: dict[Parcel, Any] = {}
        self._checked: dict[Parcel, Outcome] = {}
        self._folders: dict[str, Path] = {}
        self._codes: set[str] = set()

    @property
    def warnings(self) -> tuple[str, ...]:
        return (
            f"nothing was timed, and no plan is chosen: that takes a GPU that runs code for {self.target}."
            " There the same command without --dry-run measures",
        )

    def compile(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Compile all; candidates that fit are checked at once, on all processors."""
        outcomes = super().compile(parcels)
        fitting: list[Parcel] = []
        for parcel, outcome in zip(parcels, outcomes, strict=True):
            if outcome.digest and outcome.digest not in self._codes:
                self._codes.add(outcome.digest)
                fitting.append(parcel)
        self._check(fitting)
        return outcomes

    def check(self, parcel: Parcel) -> Outcome:
        return self._checked[parcel]

    def time(self, parcel: Parcel, samples: int) -> Outcome:
        return Outcome("not measured", note=self.notes[parcel])

    def race(self, parcels: Sequence[Parcel], samples: int) -> Outcome:
        return Outcome("not measured")

    # --- checks ------------------------------------------------------------------------------

    def _build(self, problem: Any, plan: Any, machine: Machine) -> Definition:
        definition = self.given.operator.build(problem, plan, machine)
        self._plans.setdefault(parcel_of(definition), plan)
        return definition

    def _check(self, parcels: Sequence[Parcel]) -> None:
        """Check each candidate's plan on a small problem; several may share the check."""
        smaller = {parcel: self._smaller(parcel) for parcel in parcels}
        folders = dict([small for small in smaller.values() if isinstance(small, tuple)])
        answers = self._workers.check_all(folders, limit=_LIMIT)
        for parcel, small in smaller.items():
            if isinstance(small, Outcome):
                self._checked[parcel] = small
                continue
            check = answers[small[0]]
            if isinstance(check, Failed):
                self._checked[parcel] = outcome_of(check)
            else:
                self._checked[parcel] = Outcome("right")

    def _smaller(self, parcel: Parcel) -> tuple[Parcel, Path] | Outcome:
        """The simulated candidate and the folder of its operands, or the outcome if there is none."""
        plan = self._plans[parcel]
        try:
            problem = self._smallest(plan)
            if problem is None:
                self._note(parcel, "not checked: its operator names no problem to simulate")
                return Outcome("right")
            definition = self.given.operator.build(problem, plan, self.given.machine)
            small, folder = parcel_of(definition), self._prepared(problem)
        except (CompileError, InternalError, ValueError, TypeError) as error:
            return Outcome("not checked", note=str(error).splitlines()[0])
        self._note(parcel, f"right in the simulator of {self._difference(problem)}")
        return small, folder

    def _smallest(self, plan: Any) -> Any:
        smallest = self.given.operator.smallest
        return smallest and smallest(self.given.problem, plan, self.given.machine)

    def _prepared(self, problem: Any) -> Path:
        """A folder with a small problem's inputs and right outputs."""
        space = replace(self.given, problem=problem, machine=machine(), cost=None)
        folder = self._folders.get(space.problem_text)
        if folder is None:
            folder = self._folders[space.problem_text] = self.folder / str(len(self._folders))
            prepare(folder, space, self.seed)
        return folder

    def _note(self, parcel: Parcel, said: str) -> None:
        self.notes[parcel] = "; ".join(part for part in (self.notes[parcel], said) if part)

    def _difference(self, problem: Any) -> str:
        """The changed fields of a problem: `m = 128, n = 64`."""
        pairs = [(f.name, getattr(problem, f.name)) for f in fields(problem) if f.compare]
        changed = [(name, new) for name, new in pairs if new != getattr(self.given.problem, name)]
        return ", ".join(f"{name} = {value}" for name, value in changed) or "the problem itself"


def by_cost(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """Plans of least cost; of plans with equal costs one comes first, and the others after all else."""
    candidates = space.operator.candidates(space.problem, space.machine)
    yield from batches(
        list(dict.fromkeys((*sorted(candidates, key=space.predicted), *space.ranked)))
    )


def dry_run(
    space: Space[Any, Any],
    *,
    strategy: str | Strategy | None = None,
    budget: float = inf,
    most: int | None = 32,
    seed: int = 0,
    progress: Callable[[Trial], None] = lambda trial: None,
) -> Tuned:
    """Compile and check plans for a GPU that need not be present. The database isn't used.

    strategy  a name, or a function as in space.py; by default plans of least cost come first
    """
    if space.machine.name not in [gpu.name for gpu in GPUS]:
        raise CompileError(f"a dry run is for a GPU, and not for {space.machine.name}")
    chosen = STRATEGIES[strategy] if isinstance(strategy, str) else strategy or by_cost
    with DryBench(space, seed) as bench:
        tuner = Tuner(
            bench.space, bench, None, chosen,
            most=most, budget=budget, seed=seed, progress=progress,
        )  # fmt: skip
        return tuner.run()


# --- A tuning session: a space, a bench of worker processes for it, and the database ------------


OPTIONS = ("strategy", "budget", "most", "seed", "afresh", "progress", "database", "workers")


def tuned(
    space: Space[Any, Any],
    *,
    reference: Callable[..., Any] | None = None,
    strategy: str | Strategy | None = None,
    budget: float = inf,
    most: int | None = 32,
    seed: int = 0,
    afresh: bool = False,
    progress: Callable[[Trial], None] = lambda trial: None,
    database: Database | None = None,
    workers: Workers | None = None,
) -> Tuned:
    """Tune one problem on the machine at hand: the processor, or the GPU that the space's machine names.

    reference  a function from inputs to the right outputs, if the operator can't compute them
    strategy   a name, or a function as in space.py; by default "model" if costs are in seconds
    budget     seconds
    most       the most plans to try
    workers    worker processes; by default on this machine
    afresh     measure again, whatever the database has
    """
    if strategy is None:
        strategy = "model" if space.operator.is_counted else "evolutionary"
    chosen = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
    rows = database or shared()
    machine = fingerprint(space.machine)
    space = corrected(space, rows.rows(operator=space.operator.name, machine=machine))
    if workers is None and not space.machine.is_processor:
        workers = workers_for(space.machine.name)
    with WorkerBench(space, seed, reference, workers) as bench:
        tuner = Tuner(
            space, bench, rows, chosen,
            most=most, budget=budget, seed=seed, afresh=afresh, progress=progress,
        )  # fmt: skip
        result = tuner.run()
    return replace(result, model=judged(rows.rows(operator=space.operator.name, machine=machine)))
