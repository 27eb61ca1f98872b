"""How an elementwise expression is computed, as data: who has which part of a block's box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from taskc import Machine, Mapping, repeat, spatial
from taskc.kernels.elementwise.problem import Problem
from taskc.kernels.extents import known
from taskc.kernels.machine_facts import seconds_of_bytes
from taskc.kernels.owners import boxes_of, owners_of_boxes, width


@dataclass(frozen=True, slots=True)
class Boxes:
    """own      who has which elements of a block
    at_ends  of a block that sticks out, element by element, where accesses of `own` would
    """

    own: Mapping
    at_ends: Mapping | None = None

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes."""
        nbytes = sum(
            x.dtype.nbytes * prod(known(n) for n in x.shape) for x in (*problem.given, problem.made)
        )
        return seconds_of_bytes(nbytes, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Boxes]:
        for accesses in (1, 2, 4, 8):
            own = boxes_of(problem.made.shape, _width(problem, machine), machine, accesses)
            yield _boxes(problem, machine, own)


def candidates(problem: Problem, machine: Machine) -> list[Boxes]:
    own = owners_of_boxes(problem.made.shape, _width(problem, machine), machine)
    return [_boxes(problem, machine, own)]


def _width(problem: Problem, machine: Machine) -> int:
    """Elements of an access.

    The blocks of a single axis begin at such an address as the widest accesses need, wherever it ends: only the
    last one goes element by element.
    """
    is_alone = all(isinstance(n, int) and n == 1 for n in problem.made.shape[:-1])
    is_wide = is_alone and not machine.is_processor
    return width(0 if is_wide else problem.made.shape[-1], *problem.dtypes)


def _boxes(problem: Problem, machine: Machine, own: Mapping) -> Boxes:
    wide = _width(problem, machine)
    if machine.is_processor or wide == width(problem.made.shape[-1], *problem.dtypes):
        return Boxes(own)
    return Boxes(own, repeat(1, 1, 1, own.slots) * spatial(1, 1, 1, own.workers))
