"""Broken attentions: of every small break the checker reports it, or says why it is no bug."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.mutants_attention import attentions, inputs_of_attention
from benchmarks.mutants_convolutions import two_processors
from taskc.ir.nodes import Kernel
from taskc.mutation import Mutant, mutate
from taskc.programs.ir import map_kernels
from taskc.runtime.checking import for_target


def mutants_of(name: str) -> list[Mutant]:
    definition, target = next(given for case, *given in attentions() if case == name)
    made = definition.ir
    broken = (
        for_target(made, target)
        if isinstance(made, Kernel)
        else map_kernels(made, lambda kernel: for_target(kernel, target))
    )
    with two_processors():
        found = list(mutate(broken, inputs_of_attention(definition)))
    assert [m.description for m in found if not (m.reported or m.reason)] == []
    return found


def test_every_break_is_reported_or_is_none() -> None:
    assert len(mutants_of("attention: in parts")) > 100


@pytest.mark.sweep
def test_of_all_mutants_95_in_100_are_reported() -> None:
    counts: Counter[bool] = Counter()
    for name, _, _ in attentions():
        counts.update(mutant.reported for mutant in mutants_of(name))
    assert counts[True] >= 0.95 * counts.total(), counts
