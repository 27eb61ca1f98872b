"""The tuner: how good the plans are that it finds, and those that are chosen without it.

All plans of a workload are measured once, and their seconds kept: what the cost model chooses, and what a search
finds, are looked up there. A figure is the best plan's time, as a fraction: 1 is as fast.

    python benchmarks/tuning.py FOLDER [NUMBER ...]

measures the workloads whose tables the folder doesn't have, all or those of these numbers, and shows the figures.
"""

from __future__ import annotations

import json
import sys
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean, geometric_mean, median, quantiles
from time import perf_counter
from typing import Any

import numpy as np
from tuning_cases import Workload, ordinary, workloads
from tuning_tables import Measured

import taskc as tc
from taskc.tune.space import Operator, Space, least, model, plans

MEASUREMENTS = 16  # of a search
REPLAYS = 200  # of random ones


def main() -> None:
    folder, wanted = Path(sys.argv[1]), {int(number) for number in sys.argv[2:]}
    folder.mkdir(parents=True, exist_ok=True)
    drawn, found = workloads(), []
    for number, workload in enumerate([*drawn, *ordinary()]):
        file = folder / f"{number}.json"
        if (number in wanted or not wanted) and not file.exists():
            file.write_text(json.dumps(measured(workload)))
        if file.exists() and (number in wanted or not wanted):
            figures = judged(workload, json.loads(file.read_text()))
            print(workload.name, *[f"{name} {n:.3f}" for name, n in figures.items()], sep="  ")
            found += [figures] if number < len(drawn) else []
    for name in ("untuned", "searched", "random") if found else ():
        values = [figures[name] for figures in found]
        print(f"{name}: {min(values):.3f} at least, {geometric_mean(values):.3f} in the mean")


def measured(workload: Workload) -> dict[str, float]:
    """The seconds of all plans, by their texts."""
    start = perf_counter()
    space = list(plans(workload.candidates, workload.problem, tc.machine()))
    table = Measured(workload, workload.operands()).table(space)
    print(f"{workload.name}: {len(space)} plans in {perf_counter() - start:.0f} s", flush=True)
    return table


def judged(workload: Workload, table: dict[str, float]) -> dict[str, float]:
    """plans     how many
    median    of all
    untuned   what is chosen
    searched  what is found by a few measurements, from predictions
    random    what is found by as many at random, by the best tenth of such searches
    rank      the correlation of ranks, predicted and measured
    error     of predictions: the mean of absolute ones, relative to what was measured
    """
    machine, problem = tc.machine(), workload.problem
    space = [plan for plan in plans(workload.candidates, problem, machine) if str(plan) in table]
    seconds = np.array([table[str(plan)] for plan in space])
    predicted = np.array([plan.cost(problem, machine) for plan in space])
    best, times = seconds.min(), list(seconds)
    chosen = table[str(least(workload.candidates, problem, machine))]
    random = [min(Random(n).sample(times, min(MEASUREMENTS, len(times)))) for n in range(REPLAYS)]
    operator = Operator("workload", workload.candidates, workload.build, ())
    finds = searched(Space(operator, problem, machine), table)
    return {
        "plans": len(space),
        "median": best / median(times),
        "untuned": best / chosen,
        "searched": best / min(finds.values()),
        "random": best / quantiles(random, n=10)[0],
        "rank": np.corrcoef(np.argsort(np.argsort(predicted)), np.argsort(np.argsort(seconds)))[
            0, 1
        ],
        "error": fmean(abs(predicted / seconds - 1)),
    }


def searched(space: Space[Any, Any], table: dict[str, float]) -> dict[Any, float]:
    """The plans that the default strategy measures, with their times; the default plan is the first."""
    found = {space.default: table[str(space.default)]}
    for proposed in model(space, found, Random(0)):
        for plan in proposed:
            if len(found) == MEASUREMENTS:
                return found
            if plan not in found:
                found[plan] = table.get(str(plan), inf)
    return found


if __name__ == "__main__":
    main()
