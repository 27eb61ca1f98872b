"""Kernels for GPUs, run on this machine's processor: see tests/backend/cuda/host.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskc.arrays.arguments import Signature
from taskc.ir import nodes as ir
from taskc.ir.types import TensorType
from taskc.lang.definition import Definition
from taskc.passes.pipeline import lower
from taskc.programs.ir import Program, kernels_of, map_kernels
from taskc.programs.specialize import launches
from taskc.runtime.checking import for_target
from tests.backend.cuda import host

NUMBERS = (0, 1, 2, 3)  # of runs: what is asynchronous takes effect late, at once, by chance


@dataclass(frozen=True)
class Problem:
    """A kernel or a program, what it is called with, and what comes out, within a bound."""

    definition: Definition
    target: str
    arguments: Sequence[Any]
    expected: np.ndarray[Any, Any]
    bound: Any = 0


def check(problems: Sequence[Problem]) -> None:
    """All of them are compiled together."""
    called = [_lowered(problem) for problem in problems]
    kernels = [kernel for one in called for kernel in _kernels(one)]
    runnables = {id(k): made for k, made in zip(kernels, host.build(kernels), strict=True)}
    for problem, one in zip(problems, called, strict=True):
        for number in NUMBERS:
            bound = Signature(one).bind(problem.arguments, {})
            _forget(bound.returned)
            for kernel, values in _launches(one, bound.values):
                assert runnables[id(kernel)].run(values, number) == 0
            made = bound.returned.astype(np.float64)
            assert made.shape == problem.expected.shape
            wrong = ~(np.abs(made - problem.expected) <= problem.bound) & ~np.isnan(
                problem.expected
            )
            assert not wrong.any(), (
                f"{one.name} for {problem.target}, run {number}: wrong are {wrong.sum()} of"
                f" {made.size} elements, the first at {np.argwhere(wrong)[0]}"
            )


def _lowered(problem: Problem) -> ir.Kernel | Program:
    def lowered(kernel: ir.Kernel) -> ir.Kernel:
        return lower(for_target(kernel, problem.target))

    called = problem.definition.ir
    return map_kernels(called, lowered) if isinstance(called, Program) else lowered(called)


def _kernels(called: ir.Kernel | Program) -> Iterator[ir.Kernel]:
    yield from kernels_of(called).values() if isinstance(called, Program) else (called,)


def _launches(
    called: ir.Kernel | Program, values: Sequence[Any]
) -> Iterator[tuple[ir.Kernel, Sequence[Any]]]:
    if isinstance(called, Program):
        for launch in launches(called, values, _unknown):
            yield launch.kernel, launch.bound.values
    else:
        yield called, values


def _unknown(described: TensorType) -> np.ndarray[Any, Any]:
    return _forget(np.empty(described.shape, described.dtype.numpy))


def _forget(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What nobody stores is no result."""
    array.reshape(-1).view(np.uint8)[...] = 0x6B
    return array
