"""How attention by matrix products is cut into blocks, warps and steps, chosen by the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from taskc import CompileError, DType, Machine, Mapping, repeat, spatial
from taskc.kernels.attention_problem import Problem

_SQUARE = repeat(4, 4) * spatial(4, 8)  # where no instruction fits: fused multiply-adds
_DEEP = 16  # features, which a step of every instruction divides
_CACHED = 1 << 25  # bytes of keys and values that a GPU's second cache surely keeps
_USUAL = 4096  # keys, where they are not known
_LEAST = 256  # keys of a part
_SHARED = 4  # blocks of a processor
_HELD = 176  # registers of a worker for sums, scores and powers, where a producer gives up its own
_MASKED = 128  # the same beside a mask


@dataclass(frozen=True, slots=True)
class Plan:
    """warps   of a block, each with its own queries
    rows    fragments of queries that a warp has
    keys    a step's, a multiple of 32, or, by instructions, of 16
    stages  steps whose keys and values there is memory for
    ahead   a producer warpgroup loads them, and a step's powers are found while those of the step before
            are multiplied by their values
    part    keys, a multiple of a step's, that blocks of their own go through; 0: all
    """

    warps: int
    rows: int
    keys: int
    stages: int
    ahead: bool = False
    part: int = 0


def choose_plan(problem: Problem, machine: Machine) -> Plan:
    """The tallest tile that queries fill by half, in the memory of a block."""
    tall = fragment_of(problem, machine).shape[0]
    count = joined(problem) * problem.length if isinstance(problem.length, int) else 1 << 20
    # Two rows of fragments would read keys once for both, but take more registers than there are.
    filled = next(w for w in (8, 4, 2, 1) if w == 1 or w * tall < 2 * count)
    plans = [
        Plan(warps, 1, step, stages)
        for warps in (8, 4, 2, 1)
        for step, stages in ((64, 3), (32, 3), (32, 2), (32, 1))
        if step == 32 or filled > 1  # of a single warp several blocks share a processor
    ]
    if _is_taken_beside_work(problem, machine):
        ahead = [Plan(8, 1, step, 2, ahead=True) for step in (128, 64)]
        plans = [plan for plan in ahead if _pays(problem, plan)] + plans
    for plan in plans:
        nbytes = _bytes(problem, plan, tall)
        if plan.warps <= filled and nbytes <= machine.near:
            return replace(plan, part=_part(problem, plan, plan.warps * tall, machine, nbytes))
    raise CompileError(
        f"{problem.features} features, and {problem.results} of the results, are more than a block has memory for"
    )


def fragment_of(problem: Problem, machine: Machine) -> Mapping:
    """Who has which part of a piece of the scores, and of the results."""
    row = next(iter(machine.instructions(*_types(problem))), None)
    return row.accumulator_fragment if row else _SQUARE


def joined(problem: Problem) -> int:
    """How many heads that share keys have their queries in one tile: all, where queries are few."""
    length = problem.length
    return problem.share if isinstance(length, int) and length <= 8 else 1


def order_of(problem: Problem, machine: Machine) -> tuple[str, int] | None:
    """Of the blocks of (heads, queries): in a causal attention the last queries come first, for they see most
    keys. So many heads take turns as have their keys and values in the cache.
    """
    if problem.ahead is None or joined(problem) > 1:
        return None
    keys = problem.keys if isinstance(problem.keys, int) else _USUAL
    of_head = max(1, keys) * sum(padded(problem)) * problem.dtype.nbytes
    return "backwards", min(max(1, _CACHED // of_head) * problem.share, machine.threads)


def padded(problem: Problem, unit: int = _DEEP) -> tuple[int, int]:
    """The features of keys and of values as instructions take them."""
    unit = max(_DEEP, unit)
    return ceil(problem.features / _DEEP) * _DEEP, ceil(problem.results / unit) * unit


def _types(problem: Problem) -> tuple[DType, DType, DType]:
    return problem.dtype, problem.dtype, problem.wide


def _is_taken_beside_work(problem: Problem, machine: Machine) -> bool:
    """Whether products run beside their workers, on rows that bulk copies take."""
    rows = problem.features * problem.dtype.nbytes, problem.results * problem.dtype.nbytes
    is_beside = any(row.asynchronous for row in machine.instructions(*_types(problem)))
    return is_beside and not any(nbytes % 16 for nbytes in rows)


def _pays(problem: Problem, plan: Plan) -> bool:
    """A step more than there are keys for is worth what it hides, and registers suffice."""
    _, deep = padded(problem)
    is_long = not isinstance(problem.keys, int) or problem.keys >= 4 * plan.keys
    most = _HELD if problem.mask is None else _MASKED
    return is_long and deep // 2 + plan.keys * 3 // 4 <= most


def _part(problem: Problem, plan: Plan, height: int, machine: Machine, nbytes: int) -> int:
    """The keys of a part, where so many blocks fill the machine: as many to a processor as it has memory for."""
    if plan.ahead or not isinstance(problem.length, int):
        return 0
    together = joined(problem)
    batches = problem.batches if isinstance(problem.batches, int) else 1
    keys = problem.keys if isinstance(problem.keys, int) else _USUAL
    tiles = batches * (problem.heads // together) * ceil(together * problem.length / height)
    blocks = machine.threads * max(1, min(_SHARED, machine.near // nbytes))
    parts = max(1, min(blocks // max(1, tiles), keys // _LEAST))
    return 0 if parts == 1 else ceil(keys / parts / plan.keys) * plan.keys


def _bytes(problem: Problem, plan: Plan, tall: int) -> int:
    """What a block has in shared memory: queries, rings of keys and values, and powers on their way."""
    across, deep = padded(problem)
    height = plan.warps * plan.rows * tall
    elements = height * across + plan.stages * plan.keys * (across + deep)
    if plan.ahead:  # nothing is padded, and powers stay where they are
        return elements * problem.dtype.nbytes + 1024
    return (elements + height * plan.keys) * problem.dtype.nbytes * 9 // 8
