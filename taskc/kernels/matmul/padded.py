"""GEMM of matrices that don't lie as they should: copies that do, and a product of those.

Wide accesses and bulk copies want rows at multiples of 16 bytes: a copy has zeros behind odd rows. Instructions
for operands that aren't of 16 bits want neighbours along k: a copy of others is turned. Copies take as
long as reading and writing each operand once; of large matrices that is little beside the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import taskc as tc
from taskc import Machine
from taskc.kernels.machine_facts import GPU
from taskc.kernels.matmul.problem import Problem
from taskc.kernels.padding import pad, pitch
from taskc.kernels.transpose import transpose


def is_worth_copying(problem: Problem, machine: Machine) -> bool:
    """Whether an operand lies badly, and the product is much more than a copy."""
    extents = problem.m, problem.n, problem.k
    if machine.is_processor or problem.pitched or problem.gathered is not None:
        return False
    if not all(
        isinstance(extent, int) and extent >= GPU.shortest_copied_extent for extent in extents
    ):
        return False
    a, b, _, _ = problem.types
    is_odd = any(pitch(x.shape[1], x.dtype) != x.shape[1] for x in (a, b))
    is_across = problem.transpose_a or not problem.transpose_b
    return is_odd or (is_across and _wants_k(problem, machine))


def _wants_k(problem: Problem, machine: Machine) -> bool:
    """Whether operands with neighbours along k are worth a copy.

    Of 8 bits others would be put together from single bytes; of 32 bits they rule out the instructions that
    run beside their workers.
    """
    rows = machine.instructions(problem.dtype, problem.right, problem.total)
    size = problem.dtype.nbytes
    return bool(rows) and (size == 1 or (size == 4 and any(row.asynchronous for row in rows)))


def lying_well(problem: Problem, machine: Machine) -> Problem:
    """The product of the copies."""
    if _wants_k(problem, machine):
        problem = replace(problem, transpose_a=False, transpose_b=True)
    return replace(problem, pitched=True)


def with_copies(
    problem: Problem, product: Callable[..., Any], machine: Machine
) -> tc.ProgramDefinition:
    """A program around the product of `lying_well`; operands that lie well are taken as they are."""
    is_transposed = _wants_k(problem, machine)

    def copied(x: Any, *, is_across: bool) -> Any:
        """Copies a matrix so that neighbours are along k, if they have to be and are not, and rows are even."""
        if is_across and is_transposed:
            x = transpose(x.shape, dtype=x.dtype, machine=machine)(x)
        rows, columns = x.shape
        wide = pitch(columns, x.dtype)
        if wide == columns:
            return x
        copy = tc.empty(x.dtype[rows, wide])
        pad(rows, columns, x.dtype, machine)(x, out=copy)
        return copy

    def steps(a: Any, b: Any, further: tuple[Any, ...], c: Any) -> None:
        laid_well = (
            copied(a, is_across=problem.transpose_a),
            copied(b, is_across=not problem.transpose_b),
        )
        product(*laid_well, *further, out=c)

    return problem.program(steps)
