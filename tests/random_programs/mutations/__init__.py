"""Bugs to plant in passes, by the pass."""

from __future__ import annotations

from tests.random_programs.mutations import (
    algebra,
    loops,
    lowering,
    memory,
    pipelines,
    proofs,
    selection,
)
from tests.random_programs.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *proofs.MUTATIONS,
    *algebra.MUTATIONS,
    *selection.MUTATIONS,
    *pipelines.MUTATIONS,
    *memory.MUTATIONS,
    *lowering.MUTATIONS,
    *loops.MUTATIONS,
)

# Bugs that no program of the first 2,000 shows: what the generator has still to learn.
NOT_SHOWN = (
    "simplify: the rule int: -x < a -> x > -a",
    "select: the tree's last levels come first",
    "lower_rings: mbarriers are set up again while some wait for them",
)
