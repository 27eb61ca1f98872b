"""An operator in the form of the library's: squared distances, as a problem, plans with a cost, and an algorithm.

`repeat(rows, vectors) * spatial(1, lanes)` says: neighbouring lanes have neighbouring centres, and each has those
of `rows` points; `choose` takes the rows and vectors that tuning found best, or else those of least cost, and `plans`
lists all that there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import taskc as tc
from taskc import Machine, Mapping, f32, repeat, spatial
from taskc.tune.choose import choose
from taskc.tune.space import Operator, plans


@dataclass(frozen=True)
class Problem:
    points: int
    centres: int
    features: int


@dataclass(frozen=True)
class Plan:
    """own  who has which distances of a block"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """Seconds, at two instructions a nanosecond: what a block loads and adds in each step, for all blocks."""
        rows, columns = self.own.shape
        extents = problem.points, problem.centres, problem.features
        points, centres, features = (getattr(n, "example", n) for n in extents)  # a tc.dim's
        blocks = tc.cdiv(points, rows) * tc.cdiv(centres, columns)
        vectors = columns // machine.lanes
        turns = tc.cdiv(blocks, machine.threads)
        return turns * features * (rows + vectors + 2 * rows * vectors) * 0.5e-9

    def variations(self, problem: Problem, machine: Machine) -> tuple[Plan, ...]:
        return ()


def candidates(problem: Problem, machine: Machine) -> list[Plan]:
    """Tiles of distances that stay in registers, beside a vector of centres and a point."""
    return [
        Plan(repeat(rows, vectors) * spatial(1, machine.lanes))
        for rows in (1, 2, 4, 6, 8)
        for vectors in (1, 2, 4)
        if (rows + 1) * vectors + 1 <= machine.registers
    ]


def build(problem: Problem, plan: Plan, machine: Machine) -> tc.KernelDefinition:
    m, n, k, own = problem.points, problem.centres, problem.features, plan.own
    rows, columns = own.shape

    @tc.kernel(workers=own.workers)
    def distances(x: f32[m, k], centres: f32[k, n], y: tc.out[f32[m, n]]) -> None:
        for row, column in tc.tiles((m, n), by=(rows, columns)):
            total = tc.tile(f32, own, 0)
            for q in range(k):
                for i, j in own:
                    if row + i < m and column + j < n:
                        apart = x[row + i, q] - centres[q, column + j]
                        total[i, j] += apart * apart
            tc.store(y[row : row + rows, column : column + columns], total)

    return distances


OPERATOR = Operator("distances", candidates, build, (Plan,))


def distances(points: int, centres: int, features: int) -> tc.KernelDefinition:
    """y[i, j] = sum((x[i, :] - centres[:, j]) ** 2), by the best plan known for this machine."""
    problem, here = Problem(points, centres, features), tc.machine()
    return build(problem, choose(OPERATOR, problem, here), here)


kernel = distances(61, 37, 19)


def main() -> None:
    problem = Problem(61, 37, 19)
    x, centres = kernel.example()
    expected = ((x[:, :, None] - centres) ** 2).sum(1)
    here = tc.machine()
    every = list(plans(candidates, problem, here))
    error = max(np.abs(build(problem, plan, here)(x, centres) - expected).max() for plan in every)
    print(f"operator: largest error {error:.1e}, whichever plan it is")


if __name__ == "__main__":
    main()
