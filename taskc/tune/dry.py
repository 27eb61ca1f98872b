"""A bench without a machine: candidates for a GPU that isn't here are compiled, and checked in the simulator.

What the assembler says of registers, spills and shared memory decides who is refused. The simulator runs the smallest
problem that a plan computes as it does the one that is tuned; operators say which that is. What it can't tell is time.
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
from typing import Any

from taskc.errors import CompileError, InternalError
from taskc.ir.target import GPUS
from taskc.lang.definition import Definition
from taskc.runtime.machine import Machine, machine
from taskc.tune.bench import outcome_of, prepare
from taskc.tune.gpu_worker import workers_for
from taskc.tune.parcel import Parcel, parcel_of
from taskc.tune.process import Failed
from taskc.tune.space import Space
from taskc.tune.strategies import STRATEGIES, AnySpace, Measured, Strategy, batches
from taskc.tune.tuner import Outcome, Trial, Tuned, Tuner
from taskc.tune.workers import Workers

_LIMIT = 300.0  # seconds of a check


class DryBench:
    """`with` it the processes are there. A tuner goes through its `space`: it notes which plans parcels are of."""

    def __init__(
        self, space: Space[Any, Any], seed: int = 0, workers: Workers | None = None
    ) -> None:
        operator = replace(space.operator, build=self._build)
        self.given, self.space = space, replace(space, operator=operator)
        self.target, self.seed = space.machine.name, seed
        self.folder = Path(tempfile.mkdtemp(prefix="taskc-tune-"))
        self._workers = workers or workers_for(self.target, "simulator")
        self._plans: dict[Parcel, Any] = {}
        self._notes: dict[Parcel, str] = {}
        self._checked: dict[Parcel, Outcome] = {}
        self._folders: dict[str, Path] = {}
        self._codes: set[str] = set()
        self.stages: Counter[str] = Counter()

    def __enter__(self) -> DryBench:
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def warnings(self) -> tuple[str, ...]:
        return (
            f"nothing was timed, and no plan is chosen: that takes a GPU that runs code for {self.target}."
            " There the same command without --dry-run measures",
        )

    def compile(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Those that fit are checked at once, too, which takes all processors."""
        outcomes: list[Outcome] = []
        fitting: list[Parcel] = []
        made = self._workers.compile_all(parcels)
        for parcel in parcels:
            found = made[parcel]
            if isinstance(found, Failed):
                outcomes.append(outcome_of(found))
            else:
                self.stages.update(found.seconds.keys())
                self._notes[parcel] = found.note
                outcomes.append(Outcome("compiled", digest=found.code))
                if found.code not in self._codes:
                    self._codes.add(found.code)
                    fitting.append(parcel)
        self._check(fitting)
        return outcomes

    def check(self, parcel: Parcel) -> Outcome:
        return self._checked[parcel]

    def time(self, parcel: Parcel, samples: int) -> Outcome:
        return Outcome("not measured", note=self._notes[parcel])

    def race(self, parcels: Sequence[Parcel], samples: int) -> Outcome:
        return Outcome("not measured")

    # --- checks ------------------------------------------------------------------------------

    def _build(self, problem: Any, plan: Any, machine: Machine) -> Definition:
        made = self.given.operator.build(problem, plan, machine)
        self._plans.setdefault(parcel_of(made), plan)
        return made

    def _check(self, parcels: Sequence[Parcel]) -> None:
        """Each by what its plan makes of a small problem; several may make the same of it."""
        smaller = {parcel: self._smaller(parcel) for parcel in parcels}
        folders = dict([small for small in smaller.values() if isinstance(small, tuple)])
        found = self._workers.check_all(folders, limit=_LIMIT)
        for parcel, small in smaller.items():
            if isinstance(small, Outcome):
                self._checked[parcel] = small
                continue
            check = found[small[0]]
            if isinstance(check, Failed):
                self._checked[parcel] = outcome_of(check)
            else:
                self._checked[parcel] = Outcome("right")

    def _smaller(self, parcel: Parcel) -> tuple[Parcel, Path] | Outcome:
        """What is simulated, and the folder of its operands; or what is to be said in its place."""
        plan = self._plans[parcel]
        try:
            problem = self._smallest(plan)
            if problem is None:
                self._note(parcel, "not checked: its operator names no problem to simulate")
                return Outcome("right")
            made = self.given.operator.build(problem, plan, self.given.machine)
            small, folder = parcel_of(made), self._prepared(problem)
        except (CompileError, InternalError, ValueError, TypeError) as error:
            return Outcome("not checked", note=str(error).splitlines()[0])
        self._note(parcel, f"right in the simulator of {self._difference(problem)}")
        return small, folder

    def _smallest(self, plan: Any) -> Any:
        smallest = self.given.operator.smallest
        return smallest and smallest(self.given.problem, plan, self.given.machine)

    def _prepared(self, problem: Any) -> Path:
        """A folder with its inputs, and what is right."""
        space = replace(self.given, problem=problem, machine=machine(), cost=None)
        folder = self._folders.get(space.problem_text)
        if folder is None:
            folder = self._folders[space.problem_text] = self.folder / str(len(self._folders))
            prepare(folder, space, self.seed)
        return folder

    def _note(self, parcel: Parcel, said: str) -> None:
        self._notes[parcel] = "; ".join(part for part in (self._notes[parcel], said) if part)

    def _difference(self, problem: Any) -> str:
        """`m = 128, n = 64`: what isn't as it was asked for."""
        pairs = [(f.name, getattr(problem, f.name)) for f in fields(problem) if f.compare]
        changed = [(name, new) for name, new in pairs if new != getattr(self.given.problem, name)]
        return ", ".join(f"{name} = {value}" for name, value in changed) or "the problem itself"


def by_cost(space: AnySpace, measured: Measured, random: Random) -> Iterator[Sequence[Any]]:
    """Plans of least cost; of those that costs don't tell apart one comes first, and the others after all else."""
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
    """Compiles and checks plans for a GPU that need not be here. The database is neither asked nor told.

    strategy  a name, or a function as strategies.py has them; if not said, those of least cost are tried first
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
