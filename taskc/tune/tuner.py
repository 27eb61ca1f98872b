"""Tuning: a strategy names plans, and each is built, compiled, checked and timed once, unless the database has it.

Plans whose kernels have the same text are one candidate, as are those with the same machine code. All candidates of a
batch are timed briefly, and the best ones longer. In the end, the best three and the default plan run interleaved, and
a tie goes to the default. Measurements are stored at once, so interrupting a tuner loses nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import inf
from random import Random
from statistics import median, quantiles
from typing import Any, Protocol, TypeAlias

from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.tune.choose import fingerprint, version
from taskc.tune.database import Database
from taskc.tune.model import Judged
from taskc.tune.rows import Row, now as today
from taskc.tune.space import Space, Strategy
from taskc.tune.worker import Parcel, parcel_of

Plan: TypeAlias = Any
AnySpace: TypeAlias = "Space[Any, Any]"

_LONGEST_NOTE = 500  # characters
_MOST_IDLE = 1000  # times that a strategy may propose nothing new
_SAMPLES = (3, 6, 12)  # for all candidates, the better half, and its better half
_FINALISTS = 3
_FINAL_SAMPLES = 25


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a candidate: "measured", or the reason why it wasn't.

    digest   of the machine code
    """

    outcome: str
    seconds: float = inf
    spread: float = 0.0
    samples: int = 0
    note: str = ""
    digest: str = ""

    @property
    def is_measured(self) -> bool:
        return self.outcome in ("measured", "chosen")


class Bench(Protocol):
    """Compiles, checks and times candidates, and survives whatever they do."""

    def compile(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Compile on all cores; an outcome is "compiled", with the digest of the code, or an error."""

    def check(self, parcel: Parcel) -> Outcome:
        """Compare with the reference; the outcome is "right", or an error."""

    def time(self, parcel: Parcel, samples: int) -> list[float] | Outcome: ...

    def race(self, parcels: Sequence[Parcel], samples: int) -> list[list[float]] | Outcome:
        """Samples of all, interleaved: samples at the same index were taken one after another."""

    @property
    def warnings(self) -> Sequence[str]: ...

    @property
    def stages(self) -> Mapping[str, int]:
        """The number of times each stage of compilation ran."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan that was tried.

    is_new  it was measured now, and not found in the database
    """

    plan: Plan
    predicted: float
    result: Outcome
    is_new: bool


@dataclass(frozen=True, slots=True)
class Final:
    """A finalist, interleaved with the winner: `ratio` is its time over the winner's, with quartiles."""

    plan: Plan
    seconds: float
    spread: float
    ratio: float
    quartiles: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning. Without `finals`, nothing could be measured, or everything was known before.

    stages  the number of times each stage ran: compilation stages, checks and samples
    model   the quality of costs, over all problems of this operator
    """

    space: AnySpace
    winner: Plan
    trials: tuple[Trial, ...]
    finals: tuple[Final, ...]
    stages: dict[str, int]
    seconds: float
    warnings: tuple[str, ...]
    was_interrupted: bool = False
    model: Judged | None = None

    @property
    def default(self) -> Final | None:
        return next((final for final in self.finals if final.plan == self.space.default), None)


@dataclass(slots=True)
class Tuner:
    """Tunes one space on one bench.

    most      the most trials; `budget`: seconds after which no further batch begins
    progress  called with each trial
    afresh    measure again, whatever the database has
    database  None stores nothing
    """

    space: AnySpace
    bench: Bench
    database: Database | None
    strategy: Strategy
    most: int | None = None
    budget: float = inf
    seed: int = 0
    afresh: bool = False
    progress: Callable[[Trial], None] = lambda trial: None
    trials: dict[Plan, Trial] = field(default_factory=dict)
    stages: Counter[str] = field(default_factory=Counter)
    _seconds: dict[Plan, float] = field(default_factory=dict)  # of trials, as strategies see them
    _parcels: dict[Plan, Parcel] = field(default_factory=dict)
    _by_text: dict[str, Outcome] = field(default_factory=dict)
    _by_code: dict[str, Outcome] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)  # texts that the database had
    _kept: set[str] = field(default_factory=set)  # plans that it had
    _chosen: set[str] = field(default_factory=set)  # the chosen ones of these

    def run(self) -> Tuned:
        """Tune; Ctrl-C ends it with the best plan so far."""
        start, was_interrupted = time.monotonic(), False
        finals: list[Final] = []
        self._recall()
        try:
            for batch in self._batches(start):
                self._try(batch)
            finals = self._finals()
        except KeyboardInterrupt:
            was_interrupted = True
        winner = self._decide(finals)
        return Tuned(
            self.space, winner, tuple(self.trials.values()), tuple(finals), {**self.stages, **self.bench.stages},
            time.monotonic() - start, tuple(self.bench.warnings), was_interrupted,
        )  # fmt: skip

    # --- batches -----------------------------------------------------------------------------

    def _batches(self, start: float) -> Iterator[list[Plan]]:
        """The default first, for comparison, with plans chosen before; then the strategy's batches."""
        chosen = self._chosen
        before = (
            [plan for plan in self.space.plans if self.space.text(plan) in chosen] if chosen else []
        )
        yield list(dict.fromkeys([self.space.default, *before]))
        last, idle = time.monotonic(), 0
        for proposed in self.strategy(self.space, self._seconds, Random(self.seed)):
            left = None if self.most is None else self.most - len(self.trials)
            new = [plan for plan in dict.fromkeys(proposed) if plan not in self.trials][:left]
            now = time.monotonic()
            # The next batch would take as long as the last.
            is_late = now + (now - last) - start > self.budget
            idle = 0 if new else idle + 1
            if left == 0 or is_late or idle > _MOST_IDLE:
                return
            last = now
            yield new
            if len(self.trials) >= len(self.space.plans):
                return

    def _try(self, batch: Iterable[Plan]) -> None:
        waiting: dict[str, list[Plan]] = {}
        for plan in batch:
            parcel = self._built(plan)
            if parcel is None:
                continue
            digest = digest_of(parcel)
            if digest in self._by_text:
                self._note(plan, self._by_text[digest], is_new=digest not in self._known)
            else:
                waiting.setdefault(digest, []).append(plan)
        for digest, outcome in self._measured([plans[0] for plans in waiting.values()]):
            self._by_text[digest] = outcome
            for plan in waiting[digest]:
                self._note(plan, outcome, is_new=True)

    def _built(self, plan: Plan) -> Parcel | None:
        self.stages["build"] += 1
        try:
            parcel = parcel_of(self.space.definition(plan))
        except (CompileError, ValueError, TypeError) as error:
            said = str(error).splitlines() or [type(error).__name__]
            self._note(plan, Outcome("refused", note=said[0][:_LONGEST_NOTE]), is_new=True)
            return None
        self._parcels[plan] = parcel
        return parcel

    def _recall(self) -> None:
        """Load the database's results for this problem, by the texts that were measured."""
        if self.afresh or self.database is None:
            return
        rows = self.database.rows(
            operator=self.space.operator.name,
            problem=self.space.problem_text,
            machine=fingerprint(self.space.machine),
            version=version(),
        )
        for row in rows:
            self._kept.add(row.plan)
            if row.outcome == "chosen":
                self._chosen.add(row.plan)
            if row.digest:
                self._by_text[row.digest] = _outcome_of(row)
        self._known = set(self._by_text)

    def _note(self, plan: Plan, outcome: Outcome, *, is_new: bool) -> None:
        trial = self.trials[plan] = Trial(plan, self.space.predicted(plan), outcome, is_new)
        self._seconds[plan] = outcome.seconds
        if is_new or self.space.text(plan) not in self._kept:
            self._keep(trial)
        self.progress(trial)

    def _keep(self, trial: Trial) -> None:
        if self.database is None:
            return
        result, measured = trial.result, trial.result.is_measured
        self.database.add(
            Row(
                operator=self.space.operator.name,
                problem=self.space.problem_text,
                plan=self.space.text(trial.plan),
                machine=fingerprint(self.space.machine),
                version=version(),
                digest=digest_of(self._parcels[trial.plan]) if trial.plan in self._parcels else "",
                outcome=result.outcome,
                seconds=result.seconds if measured else None,
                spread=result.spread if measured else None,
                samples=result.samples,
                predicted=self.space.counted(trial.plan)
                if self.space.operator.is_counted
                else None,
                date=today(),
                note=result.note,
            )
        )

    # --- measurement -------------------------------------------------------------------------

    def _measured(self, plans: Sequence[Plan]) -> Iterator[tuple[str, Outcome]]:
        """The outcomes of plans with different texts, by the digests of these texts."""
        codes: dict[str, list[Parcel]] = {}
        parcels = [self._parcels[plan] for plan in plans]
        for parcel, outcome in zip(parcels, self.bench.compile(parcels), strict=True):
            if outcome.outcome != "compiled":
                yield digest_of(parcel), outcome
            elif outcome.digest in self._by_code:
                yield digest_of(parcel), self._by_code[outcome.digest]
            else:
                codes.setdefault(outcome.digest, []).append(parcel)
        for code, outcome in self._timed({code: same[0] for code, same in codes.items()}):
            self._by_code[code] = outcome
            for parcel in codes[code]:
                yield digest_of(parcel), outcome

    def _timed(self, parcels: dict[str, Parcel]) -> Iterator[tuple[str, Outcome]]:
        """Time correct candidates: all briefly, then the better half longer, and its better half again."""
        samples: dict[str, list[float]] = {}
        for code, parcel in parcels.items():
            self.stages["check"] += 1
            outcome = self.bench.check(parcel)
            if outcome.outcome != "right":
                yield code, outcome
            else:
                samples[code] = []
        alive = list(samples)
        for count in _SAMPLES:
            for code in alive:
                taken = self.bench.time(parcels[code], count)
                if isinstance(taken, Outcome):
                    del samples[code]
                    yield code, taken
                else:
                    self.stages["sample"] += count
                    samples[code] += taken
            alive = sorted(
                (code for code in alive if code in samples), key=lambda c: median(samples[c])
            )
            known = [outcome.seconds for outcome in self._by_code.values()]
            most = 1.25 * min([*known, *(median(samples[code]) for code in alive[:1])], default=inf)
            alive = [code for code in alive if median(samples[code]) <= most][: -(-len(alive) // 2)]
        for code, taken in samples.items():
            yield code, Outcome("measured", median(taken), spread_of(taken), len(taken))

    def _finals(self) -> list[Final]:
        """The winner, then the other finalists: the best few and the default, interleaved."""
        tried = [trial for trial in self.trials.values() if trial.result.is_measured]
        is_decided = any(trial.result.outcome == "chosen" for trial in tried)
        if is_decided and not any(trial.is_new for trial in tried):
            return []
        fastest = sorted(tried, key=lambda trial: trial.result.seconds)
        plans = self._distinct([self.space.default, *(trial.plan for trial in fastest)])
        plans = plans[: _FINALISTS + 1]
        if not plans:
            return []
        self.stages["final sample"] += len(plans) * _FINAL_SAMPLES
        taken = self.bench.race([self._parcels[plan] for plan in plans], _FINAL_SAMPLES)
        if isinstance(taken, Outcome):
            return []
        runs = dict(zip(plans, taken, strict=True))
        won = min(plans, key=lambda plan: median(runs[plan]))
        default = self.space.default
        if default in runs and quartiles_of(ratios(runs[default], runs[won]))[0] <= 1:
            won = default  # a tie
        others = (plan for plan in plans if plan != won)
        return [_final(plan, runs[plan], runs[won]) for plan in (won, *others)]

    def _distinct(self, plans: Iterable[Plan]) -> list[Plan]:
        """The measured plans, the first one of each machine code."""
        distinct: dict[int, Plan] = {}
        for plan in plans:
            trial = self.trials.get(plan)
            if trial is not None and trial.result.is_measured and plan in self._parcels:
                distinct.setdefault(id(trial.result), plan)
        return list(distinct.values())

    def _decide(self, finals: Sequence[Final]) -> Plan:
        """The winner, which the database stores as chosen."""
        tried = [trial for trial in self.trials.values() if trial.result.is_measured]
        if not finals:
            chosen = [trial for trial in tried if trial.result.outcome == "chosen"]
            best = min(chosen or tried, key=lambda trial: trial.result.seconds, default=None)
            return self.space.default if best is None else best.plan
        won = finals[0].plan
        for trial in tried:
            outcome = "chosen" if trial.plan == won else "measured"
            if trial.result.outcome != outcome:
                self._keep(replace(trial, result=replace(trial.result, outcome=outcome)))
        return won


def _outcome_of(row: Row) -> Outcome:
    seconds = inf if row.seconds is None else row.seconds
    return Outcome(row.outcome, seconds, row.spread or 0.0, row.samples, row.note, row.digest)


def digest_of(parcel: Parcel) -> str:
    """The digest of a candidate's text."""
    return hashlib.sha256(parcel.text.encode()).hexdigest()[:16]


def _final(plan: Plan, own: Sequence[float], best: Sequence[float]) -> Final:
    time_ratios = ratios(own, best)
    return Final(plan, median(own), spread_of(own), median(time_ratios), quartiles_of(time_ratios))


def ratios(own: Sequence[float], best: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(own, best, strict=True)]


def quartiles_of(samples: Sequence[float]) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0], samples[0]
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return low, high


def spread_of(samples: Sequence[float]) -> float:
    low, high = quartiles_of(samples)
    return (high - low) / median(samples)
