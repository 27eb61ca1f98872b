"""A kernel on its way through the passes, held to what it computes as it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from taskc.backend.sim import run
from taskc.ir import nodes as ir
from taskc.ir.compare import program_difference
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.verify import verify
from taskc.passes.pipeline import Step, lower_steps

_FREE = ir.STAGES.index("synchronized")  # from here on a schedule makes a difference


def changes(kernel: ir.Kernel) -> Iterator[Step]:
    """The steps that change the kernel: what held before one that doesn't holds after it."""
    for step in lower_steps(kernel):
        if step.kernel is not kernel:
            yield step
        kernel = step.kernel


def results(
    kernel: ir.Kernel, arguments: Sequence[Any], *, seed: int | None = None, where: str = ""
) -> list[Any]:
    """Copies of the arguments, after a run on them that finds nothing."""
    made = [np.copy(one) if isinstance(one, np.ndarray) else one for one in arguments]
    report = run(kernel, made, seed=seed)
    assert not report.findings, f"{where}, seed {seed}:\n{report}\n{to_text(kernel)}"
    return made


def same_after_every_pass(
    kernel: ir.Kernel,
    arguments: Sequence[Any],
    *,
    seeds: Sequence[int | None] = (None,),
    expected: Sequence[Any] | None = None,
    seen: set[str] | None = None,
) -> list[ir.Kernel]:
    """The kernel as it is written and after each pass that changes it; all compute the same bits.

    Each of them obeys its stage's rules and runs without a finding; the last one of each stage is also read back from
    its text. Where schedules make a difference, the first one and the last run under all of them, and those between
    under one each, in turn: a race that a pass makes is there at the end. `expected` is what the arguments are then,
    where another program says so.
    What is in `seen`, or comes to be there, is not run again for another target.
    """
    seen = set() if seen is None else seen
    bits = None if expected is None else _bits(expected)
    kernels = [kernel]
    steps = [("as written", kernel), *((s.name, s.kernel) for s in changes(kernel))]
    free = [n for n, (_, now) in enumerate(steps) if ir.STAGES.index(now.stage) >= _FREE]
    for number, (where, now) in enumerate(steps):
        if now is not kernel:
            kernels.append(now)
        verify(now)
        anywhere = to_text(replace(now, target="generic"))
        if anywhere in seen:
            continue
        seen.add(anywhere)
        text = to_text(now)
        if number + 1 == len(steps) or steps[number + 1][1].stage != now.stage:
            assert (found := program_difference(parse(text), now)) is None, (
                f"{where}: {found}\n{text}"
            )
        if number in (*free[:1], *free[-1:]):
            some = seeds
        else:
            some = [seeds[number % len(seeds)] if number in free else seeds[0]]
        for seed in some:
            made = _bits(results(now, arguments, seed=seed, where=where))
            bits = made if bits is None else bits
            assert made == bits, f"another result: {where}, seed {seed}\n{text}"
    return kernels


def _bits(arguments: Sequence[Any]) -> list[bytes]:
    return [one.tobytes() for one in arguments if isinstance(one, np.ndarray)]
