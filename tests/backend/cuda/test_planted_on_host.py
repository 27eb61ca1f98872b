"""The corpus of planted bugs on the host: what is asynchronous or another block's works there as the simulator says.

A correct twin computes the same, whatever is late or early. Most bugs show in a run: what they compute is wrong, or
the host refuses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from tests import test_corpus as corpus
from tests.backend.cuda import host

pytestmark = pytest.mark.skipif(
    host.COMPILER is None, reason="there is no g++ to compile for the host"
)

RUNS = range(7)
FOLDERS = ("asynchronous", "bulk", "clusters", "mbarriers", "registers", "wgmma")

# What can't show on the host, or not in a few runs.
UNSEEN = {
    "asynchronous": {  # a ring's slots are the same, however it is misused
        "ring_begun_anew.txt", "ring_not_acquired.txt", "ring_without_a_release.txt",
    },
    "bulk": {"refilled_while_read.py"},
    "clusters": {"reached_before_it_has_begun.py", "released_before_its_product_has_retired.py"},
    "mbarriers": {  # threads that take turns see each other's stores
        "arrival_before_the_store.py", "not_set_up.py", "released_too_early.py", "set_up_by_everybody.py",
        "set_up_unseen.py", "too_many_arrivals.py",
    },
    "registers": {"nobody_gives_any_up.py", "taken_back.py"},  # which aren't counted
    "wgmma": {  # registers are read when a product is issued
        "left_in_flight.py", "left_operand_without_a_fence.py", "left_operand_written_in_flight.py",
        "no_barrier_behind_the_stores.py", "no_fence_at_first.py", "no_fence_of_registers.py",
    },
}  # fmt: skip


def lowered(loaded: corpus.Loaded) -> ir.Kernel:
    kernel = loaded.kernel
    return lower(kernel if kernel.target.startswith("sm_") else for_target(kernel, "sm_90a"))


def is_right(loaded: corpus.Loaded, runnable: host.Runnable, expected: list[Any], run: int) -> bool:
    arguments = loaded.arguments(0)
    try:
        assert runnable.run(arguments, run) == 0
    except AssertionError:
        return False
    return all(  # a function such as tanh is another one here
        np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=2e-6, equal_nan=True)
        for a, b in zip(arguments, expected, strict=True)
    )


@pytest.mark.parametrize(
    "folder",
    [one if one == "clusters" else pytest.param(one, marks=pytest.mark.sweep) for one in FOLDERS],
)
def test_planted_bugs(folder: str, tmp_path: Path) -> None:
    # Those at the last stage name no parameters that a launch could pass.
    cases = [
        case
        for case in corpus.CASES
        if case.path.parent.name == folder and not case.path.name.startswith("lean_")
    ]
    pairs = []
    for case in cases:
        path = tmp_path / case.path.name
        path.write_text(case.twin, encoding="utf-8")
        pairs.append((corpus.load(path), corpus.load(case.path)))
    runnables = iter(host.build([lowered(loaded) for pair in pairs for loaded in pair]))
    unseen = set()
    for case, (twin, broken) in zip(cases, pairs, strict=True):
        expected = twin.arguments(0)
        runnable = next(runnables)
        assert not sim.run(runnable.kernel, expected).findings
        assert all(is_right(twin, runnable, expected, run) for run in RUNS), case.name
        runnable = next(runnables)
        if all(is_right(broken, runnable, expected, run) for run in RUNS):
            unseen.add(case.path.name)
    assert unseen <= UNSEEN[folder]
