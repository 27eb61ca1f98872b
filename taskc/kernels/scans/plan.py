"""How a scan is computed, as data: each worker goes along the axis by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from taskc import Machine, Mapping
from taskc.kernels.machine_facts import seconds_of_bytes
from taskc.kernels.owners import boxes_of, owners_of_boxes, width
from taskc.kernels.scans.problem import Problem

_MANY = 1 << 10  # for an extent that is known only at a call


@dataclass(frozen=True, slots=True)
class Serial:
    """own  who has which lines of a block, of [outer, inner]"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element twice."""
        count = prod(n if isinstance(n, int) else _MANY for n in problem.given.shape)
        return seconds_of_bytes(2 * count * problem.given.dtype.nbytes, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Serial]:
        outer, _, inner = problem.given.shape
        for accesses in (1, 2, 4, 8):
            wide = width(inner, problem.given.dtype)
            yield Serial(boxes_of((outer, inner), wide, machine, accesses))


def candidates(problem: Problem, machine: Machine) -> Iterator[Serial]:
    outer, _, inner = problem.given.shape
    wide = width(inner, problem.given.dtype)
    yield Serial(owners_of_boxes((outer, inner), wide, machine, accesses=1))
