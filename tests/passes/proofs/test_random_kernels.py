"""What the proofs accept is right at every small size, 0 among them: held to plain loops and to the simulator."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from taskc.backend.sim import run
from taskc.errors import CompileError, InternalError
from taskc.ir import nodes as ir
from taskc.ir.verify import verify
from taskc.passes.common_strides import common_strides
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.passes.proofs.coverage import coverage_findings
from taskc.passes.proofs.races import race_findings
from tests.passes.proofs.random_kernels import BrokenPromiseError, RandomKernel

FEW = ((0, 0), (0, 3), (1, 0), (1, 1), (1, 4), (2, 5), (3, 1), (5, 2), (7, 7))
ALL = tuple(product(range(8), range(8)))


def what_is_wrong(kernel: RandomKernel, proved: set[str], m: int, n: int, flag: int) -> set[str]:
    """Of what was proved, at one size."""
    try:
        done, shape = kernel.run(m, n, flag)
    except BrokenPromiseError:
        return set()
    if any(extent < 0 for extent in shape):
        return set()
    wrong = set()
    inside = [s for s in done.stores if all(0 <= i < e for i, e in zip(s[3], shape, strict=True))]
    if len(inside) != len(done.stores):
        wrong.add("inside")
    counts = Counter(place for *_, place in inside)
    if len(counts) != prod(shape) or any(count > 1 for count in counts.values()):
        wrong.add("covered")
    agents: dict[Any, set[Any]] = {}
    for phase, block, worker, place in inside:
        agents.setdefault((phase, place), set()).add(worker)
        agents.setdefault(place, set()).add(block)
    if any(len(own) > 1 for own in agents.values()):
        wrong.add("apart")
    return wrong & proved


def check(seed: int, sizes: tuple[tuple[int, int], ...], *, simulate: bool) -> set[str]:
    """What was proved, and holds."""
    kernel = RandomKernel(seed)
    try:
        stored, updated = (kernel.case(role).kernel() for role in ("out", "inout"))
    except CompileError:
        return set()  # a name that isn't bound, and the like
    found = collect(common_strides(stored, proving=True))
    proved = {
        what
        for what, errors in (
            ("covered", coverage_findings(found)),
            ("inside", bounds_findings(found)),
            ("apart", race_findings(collect(common_strides(updated, proving=True)))),
        )
        if not list(errors)
    }
    flags = (0, 1) if any("flag" in line for line in kernel.lines) else (0,)
    for (m, n), flag in product(sizes if proved else (), flags):
        m, n = m * kernel.multiples[0], n * kernel.multiples[1]
        where = f"seed {seed}\n{kernel.case('out').text}\nm = {m}, n = {n}, flag = {flag}"
        assert not what_is_wrong(kernel, proved, m, n, flag), where
        if simulate and len(proved) == 3 and _is_allowed(stored):
            _simulate(stored, kernel, m, n, flag, where)
    return proved


def _is_allowed(kernel: ir.Kernel) -> bool:
    """Proofs ask for nothing, but a grid inside of another statement is no kernel for those that run it."""
    try:
        verify(kernel)
    except InternalError:
        return False
    return True


def _simulate(
    stored: ir.Kernel, kernel: RandomKernel, m: int, n: int, flag: int, where: str
) -> None:
    try:
        _, shape = kernel.run(m, n, flag)
    except BrokenPromiseError:
        return
    if any(extent < 0 for extent in shape):
        return
    result = np.full(shape, -7, np.float32)
    values = {
        "a": np.zeros(m, np.float32), "b": np.zeros(n, np.float32), "c": result, "flag": flag,
    }  # fmt: skip
    report = run(stored, [values[parameter.name] for parameter in stored.parameters])
    assert report.ok, f"{where}\n{report}"
    assert (result != -7).all(), where


@pytest.mark.parametrize("part", range(4))
def test_accepted_kernels(part: int) -> None:
    proved = Counter[str]()
    for seed in range(part * 25, part * 25 + 25):
        proved.update(check(seed, FEW, simulate=seed % 5 == 0))
    assert min(proved[what] for what in ("covered", "inside", "apart")) >= 5, proved


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(40))
def test_many_accepted_kernels(part: int) -> None:
    for seed in range(1_000 + part * 250, 1_250 + part * 250):
        check(seed, ALL, simulate=seed % 10 == 0)
