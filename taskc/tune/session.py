"""A tuning session: a space, a bench of worker processes for it, and the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from taskc.tune.bench import WorkerBench
from taskc.tune.database import Database, database as shared
from taskc.tune.gpu_worker import workers_for
from taskc.tune.model import corrected, judged
from taskc.tune.space import Space
from taskc.tune.strategies import STRATEGIES, Strategy
from taskc.tune.tuner import Trial, Tuned, Tuner
from taskc.tune.versions import fingerprint
from taskc.tune.workers import Workers

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
    """Tunes one problem on the machine at hand: the processor, or the GPU whose target the space's machine names.

    reference  a function of the inputs that says what is right, where the operator has none
    strategy   a name, or a function as strategies.py has them; if not said, "model" where there are costs
    budget     seconds
    most       plans that are tried
    workers    that compile, check and time; of this machine, if not said
    afresh     what the database has is measured again
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
        found = tuner.run()
    return replace(found, model=judged(rows.rows(operator=space.operator.name, machine=machine)))
