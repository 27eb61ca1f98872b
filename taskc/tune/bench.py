"""A bench of worker processes: what the tuner has compiled, checked and timed there, for one space.

Inputs are drawn once, and what should come out is computed once, by the operator's own kernel in float64: all
candidates get the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from taskc.errors import CompileError
from taskc.ir.nodes import Tensor
from taskc.ir.rounding import convert
from taskc.ir.signature import inputs_of
from taskc.ir.types import DType, f64
from taskc.lang.definition import Definition, KernelDefinition
from taskc.runtime.machine import machine
from taskc.tune.disturbances import Disturbances
from taskc.tune.operands import operands_of, write_operands
from taskc.tune.parcel import Parcel
from taskc.tune.process import Failed
from taskc.tune.results import results_of
from taskc.tune.space import Space
from taskc.tune.tuner import Outcome
from taskc.tune.workers import Workers

Array = np.ndarray[Any, Any]
Reference = Callable[..., Any]


class WorkerBench:
    """`with` it the processes and a folder of operands are there.

    reference  a function of the inputs that says what is right; if there is none, the operator does
    limit      seconds that one stage of one candidate may take
    stages     how many times a stage of compilation ran
    """

    def __init__(
        self,
        space: Space[Any, Any],
        seed: int = 0,
        reference: Reference | None = None,
        workers: Workers | None = None,
        limit: float = 20.0,
    ) -> None:
        self._workers, self._limit = workers or Workers(), limit
        self.stages: Counter[str] = Counter()
        self._folder = Path(tempfile.mkdtemp(prefix="taskc-tune-"))
        self._seen: list[Disturbances] = []
        try:
            prepare(self._folder, space, seed, reference)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WorkerBench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._workers.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What disturbed measurements, at its worst."""
        return Disturbances(
            max((seen.others or 0.0 for seen in self._seen), default=0.0),
            sum(seen.throttled or 0 for seen in self._seen),
            median([seen.discarded for seen in self._seen] or [0.0]),
        ).warnings

    def compile(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        made = self._workers.compile_all(parcels, limit=self._limit)
        for found in made.values():
            if not isinstance(found, Failed):
                self.stages.update(found.seconds.keys())
        return [
            outcome_of(found)
            if isinstance(found, Failed)
            else Outcome("compiled", digest=found.code)
            for found in (made[parcel] for parcel in parcels)
        ]

    def check(self, parcel: Parcel) -> Outcome:
        found = self._workers.check(parcel, self._folder, limit=self._limit)
        return outcome_of(found) if isinstance(found, Failed) else Outcome("right")

    def time(self, parcel: Parcel, samples: int) -> list[float] | Outcome:
        found = self.race([parcel], samples)
        return found if isinstance(found, Outcome) else found[0]

    def race(self, parcels: Sequence[Parcel], samples: int) -> list[list[float]] | Outcome:
        found = self._workers.race(
            parcels, self._folder, samples=samples, limit=self._limit * len(parcels)
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
    """Puts inputs of a problem into a folder, and what is right, which the processor at hand computes."""
    here = Space(space.operator, space.problem, machine())
    if space.machine != here.machine:
        space = here
    definition = space.definition(space.default)
    inputs = inputs_for(definition, seed)
    if reference is not None:
        made = reference(*inputs)
        outputs = list(made) if isinstance(made, tuple) else [made]
    else:
        outputs = _computed(_reference_of(space), inputs, folder / "reference")
    write_operands(folder, inputs, outputs)


def _reference_of(space: Space[Any, Any]) -> Definition:
    try:
        return space.reference
    except (CompileError, TypeError, ValueError):  # a template that is for its own type only
        return space.definition(space.default)


def inputs_for(definition: Definition, seed: int) -> list[Any]:
    """Its example arguments; of parameters that are packed from something, that."""
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
    """What a definition makes of inputs, which are converted to its own types."""
    parameters = inputs_of(definition.ir.parameters)
    own = [
        np.asarray(value).astype(parameter.dtype.numpy)
        for value, parameter in zip(inputs, parameters, strict=True)
    ]
    write_operands(folder, own, [])
    operands = operands_of(definition, folder)
    operands.call_of(definition)()
    return [value for value, _ in results_of(definition, operands)]
