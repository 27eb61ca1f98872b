"""Broken convolutions: of every small break the checker reports it, or says why it is no bug."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.mutants_convolutions import convolutions, two_processors
from taskc.ir.nodes import Kernel
from taskc.lang.definition import Definition
from taskc.mutation import Mutant, inputs_of, mutate
from taskc.programs.ir import map_kernels
from taskc.runtime.checking import for_target


def mutants_of(definition: Definition, target: str) -> list[Mutant]:
    made = definition.ir
    broken = (
        for_target(made, target)
        if isinstance(made, Kernel)
        else map_kernels(made, lambda kernel: for_target(kernel, target))
    )
    return list(mutate(broken, inputs_of(definition)))


@pytest.mark.parametrize("name", ["strided", "depthwise", "few pixels"])
def test_every_break_is_reported_or_is_none(name: str) -> None:
    with two_processors():
        definition, target = next(
            given for case, *given in convolutions() if case == f"convolution: {name}"
        )
        mutants = mutants_of(definition, target)
    assert mutants
    assert [m.description for m in mutants if not (m.reported or m.reason)] == []


@pytest.mark.sweep
def test_of_all_mutants_95_in_100_are_reported() -> None:
    counts: Counter[bool] = Counter()
    with two_processors():
        for _, definition, target in convolutions():
            mutants = mutants_of(definition, target)
            counts.update(mutant.reported for mutant in mutants)
            assert [m.description for m in mutants if not (m.reported or m.reason)] == []
    assert counts[True] >= 0.95 * counts.total(), counts
