"""Bugs to plant in passes, by the pass."""

from __future__ import annotations

from tests.programs.mutations import (
    algebra,
    loops,
    lowering,
    memory,
    pipelines,
    proofs,
    selection,
)
from tests.programs.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *proofs.MUTATIONS,
    *algebra.MUTATIONS,
    *selection.MUTATIONS,
    *pipelines.MUTATIONS,
    *memory.MUTATIONS,
    *lowering.MUTATIONS,
    *loops.MUTATIONS,
)
