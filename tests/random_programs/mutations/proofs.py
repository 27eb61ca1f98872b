"""Bugs in `prove`: what it no longer knows makes it reject programs that are right.

A proof that accepts too much shows on no valid program; tests/corpus and tests/test_mutation.py are about those.
"""

from __future__ import annotations

from taskc.analysis import touches
from taskc.passes.proofs import accesses as flow, coverage, enumeration, tiles
from tests.random_programs.mutations.mutation import Mutation, always, edited

MUTATIONS = (
    Mutation("prove", "every owner of a task stores",
             enumeration, "first_owners", always(True)),
    Mutation("prove", "guards say nothing about indices",
             flow.State, "assume", lambda right: lambda self, condition, holds=True: self),
    Mutation("prove", "loops say nothing about their variables",
             flow.State, "enter", lambda right: lambda self, statement: self),
    Mutation("prove", "the right side of `and` knows nothing of the left",
             touches, "_add_reads",
             edited('decided = assume(known, node.left, node.operator == "and")', "decided = known")),
    Mutation("prove", "the branches of a Select know nothing of its condition",
             touches, "_add_reads",
             edited("_add_reads(node.then, assume(known, node.condition, True), assume, found)",
                    "_add_reads(node.then, known, assume, found)")),
    Mutation("prove", "stores under a condition and its negation are two",
             coverage, "_complementary", lambda right: list),
    Mutation("prove", "a mapping's empty slots have tasks",
             enumeration.Enumerator, "_each_frame",
             edited("valid = _spread(task_arrays(each.mapping)[1], number, axis)", "valid = True")),
    Mutation("prove", "replicas of a tile must have its own mapping",
             tiles, "_ownership", edited("missing = (slots < 0) & live", "missing = slots <= 0")),
)  # fmt: skip
