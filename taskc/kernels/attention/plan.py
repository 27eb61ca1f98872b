"""How an attention is computed, as data: a plan has every choice that changes speed and not the result.

A plan's type is its algorithm: `Schedule` and `FewQueries` are plans of processors, `Plan` those of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil, gcd

import numpy as np

from taskc import CompileError, DType, Machine, Mapping, repeat, spatial
from taskc.dataclass import dataclass
from taskc.kernels.attention.problem import Problem
from taskc.kernels.machine_facts import GPU, PROCESSOR
from taskc.kernels.owners import VectorTile
from taskc.kernels.signatures import ASSUMED_KEYS, ASSUMED_MANY, known

# of FewQueries, over all heads that share one of k and v; more fill the lanes of a tile
MOST_QUERIES = 10
_SQUARE = repeat(4, 4) * spatial(4, 8)  # where no instruction fits: fused multiply-adds
_DEEP = 16  # features, which a step of every instruction divides


@dataclass(frozen=True, slots=True)
class FewQueries:
    """together  keys that are scored at a time
    vectors   of the result that are summed at a time
    step      keys that are scored, raised and multiplied at a time
    parts     that keys are cut into, for blocks of their own
    """

    lanes: int
    together: int
    vectors: int
    step: int = 256
    parts: int = 1

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the thread with the most blocks."""
        blocks = self.parts * problem.groups * known(problem.batches, 1)
        most = ceil(blocks / machine.threads) * machine.threads / max(1, blocks)
        seconds = _seconds(problem.share * _queries(problem), problem, machine)
        return seconds * most + (self.parts > 1) * PROCESSOR.step_seconds

    def variations(self, problem: Problem, machine: Machine) -> Iterator[FewQueries]:
        for step in (256, 128, 512):
            for together in {self.together, 2 * self.together}:
                yield replace(self, step=step, together=together)


@dataclass(frozen=True, slots=True)
class Schedule(VectorTile):
    """Tiles of `rows` x `vectors` * lanes; `step` keys are scored, raised and multiplied at a time.

    step is a multiple of rows, and lanes one of 4. `few` is how, where a call has one query: of a problem that
    doesn't know its queries.
    """

    rows: int
    vectors: int
    step: int
    lanes: int
    few: FewQueries | None = None

    @property
    def each(self) -> Mapping:
        """Who has which queries."""
        return repeat(self.vectors) * spatial(self.lanes)

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as the products of whole tiles."""
        tiles = ceil(problem.share * _queries(problem) / self.wide)
        return _seconds(tiles * self.wide, problem, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Schedule]:
        for keys in (self.step, self.step // 2, 2 * self.step):
            yield replace(self, step=max(1, keys // self.rows) * self.rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """warps   of a block, each with its own queries
    rows    fragments of queries that a warp has
    keys    a step's, a multiple of 32, or, by instructions, of 16
    stages  steps whose keys and values there is memory for
    specialize  a producer warpgroup loads them, and a step's powers are found while those of the step before
            are multiplied by their values
    part    keys, a multiple of a step's, that blocks of their own go through; 0: all
    turns   heads that take turns, from their last tiles of queries to their first, in a causal attention whose
            producer runs on from one tile of a block to the next; 0: each tile is a block
    alternate  beside a producer, one warpgroup finds powers while another one's products run
    """

    warps: int
    rows: int
    keys: int
    stages: int
    specialize: bool = False
    part: int = 0
    turns: int = 0
    alternate: bool = False

    def cost(self, problem: Problem, machine: Machine) -> float:
        """It takes as long as each block reads keys and values for its queries, and waits for others to end."""
        tall = fragment_of(problem, machine).shape[0]
        blocks = ceil(_tile_rows(problem) / (self.warps * self.rows * tall))
        keys = known(problem.keys, ASSUMED_KEYS)
        read = blocks * max(1, keys) * sum(padded(problem)) * problem.dtype.nbytes
        seconds = read / (machine.threads * GPU.operand_bytes_per_cycle * GPU.cycles_per_second)
        seconds *= 1 + GPU.keys_of_step / self.keys
        share = GPU.alternating_share if self.alternate and self.warps > 8 else 1.0
        return seconds * share * _waiting(problem, self, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Plan]:
        for stages in range(self.stages, 1, -1):
            yield replace(self, stages=stages)
        if self.specialize:
            yield replace(self, alternate=not self.alternate)
            yield from _in_turns(problem, replace(self, turns=0), machine)
        if self.part:
            for part in (0, self.part // (2 * self.keys) * self.keys, 2 * self.part):
                yield replace(self, part=part)


def candidates(problem: Problem, machine: Machine) -> Iterable[FewQueries | Schedule | Plan]:
    if not machine.is_processor:
        return _plans(problem, machine)
    few: list[FewQueries] = []
    if isinstance(problem.length, int) and 0 < problem.length * problem.share <= MOST_QUERIES:
        few = [*_in_parts(_few_queries(problem, machine), problem, machine)]
    return [*few, *_schedules(problem, machine)]


def _schedules(problem: Problem, machine: Machine) -> Iterator[Schedule]:
    """Tiles that leave registers for a row of queries and an element."""
    lanes = max(4, machine.lanes)
    keys = problem.keys if isinstance(problem.keys, int) else PROCESSOR.attention_step_keys
    few = None
    if not isinstance(problem.length, int):
        few = _few_queries(of_one_query(problem), machine)
    vector = lanes // machine.lanes  # registers to one of the lanes, which are 4 at the least
    for rows, vectors in PROCESSOR.attention_tiles[machine.registers]:
        step = max(1, ceil(min(keys, PROCESSOR.attention_step_keys) / rows)) * rows
        yield Schedule(rows, max(1, vectors // vector), step, lanes, few)


def _in_parts(plan: FewQueries, problem: Problem, machine: Machine) -> Iterator[FewQueries]:
    """The plan, and others with as many parts as threads get blocks from."""
    yield plan
    blocks = problem.groups * known(problem.batches, 1)
    longest = known(problem.keys, ASSUMED_KEYS) // plan.step
    for parts in sorted({machine.threads // gcd(machine.threads, max(1, blocks)), machine.threads}):
        if 1 < parts <= longest:
            yield replace(plan, parts=parts)


def of_one_query(problem: Problem) -> Problem:
    """The same attention to one query of the heads that share keys, or of as many of these as are few."""
    share = next(n for n in range(MOST_QUERIES, 0, -1) if problem.share % n == 0)
    return replace(problem, length=1, share=share)


def _few_queries(problem: Problem, machine: Machine) -> FewQueries:
    lanes, count = max(4, machine.lanes), problem.share * problem.length
    held = machine.registers // (count * max(1, lanes // machine.lanes))
    vectors = max(1, min(ceil(problem.results / lanes), held))
    return FewQueries(lanes, max(1, 4 // count), vectors)


def _plans(problem: Problem, machine: Machine) -> list[Plan]:
    """The tallest tiles that queries fill by half first, as far as they fit into the memory of a block."""
    tall = fragment_of(problem, machine).shape[0]
    # Two rows of fragments would read keys once for both, but take more registers than there are.
    filled = next(w for w in (12, 8, 4, 2, 1) if w == 1 or w * tall < 2 * _tile_rows(problem))
    plans = [
        Plan(warps, 1, step, stages)
        for warps in (8, 4, 2, 1)
        for step, stages in ((64, 3), (32, 3), (32, 2), (32, 1))
        if step == 32 or filled > 1  # of a single warp several blocks share a processor
    ]
    if _runs_asynchronously(problem, machine):
        specialized = [
            Plan(warps, 1, step, 2, specialize=True)
            for warps, step in ((12, 128), (12, 112), (8, 128), (8, 64))
            if warps == 8 or _fill_three(problem, tall)
        ]
        paying = [plan for plan in specialized if _pays(problem, plan)]
        paying += [p for plan in paying for p in _in_turns(problem, plan, machine)]
        plans = [*paying, *[replace(plan, alternate=True) for plan in paying], *plans]
    fitting = []
    for plan in plans:
        nbytes = _bytes(problem, plan, tall)
        if plan.warps <= filled and nbytes <= machine.fast_memory:
            part = _part(problem, plan, plan.warps * tall, machine, nbytes)
            fitting.append(replace(plan, part=part))
    if not fitting:
        raise CompileError(
            f"{problem.features} features, and {problem.results} of the results, are more than a block has memory for"
        )
    return fitting


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
    if problem.offset is None or joined(problem) > 1:
        return None
    keys = known(problem.keys, ASSUMED_KEYS)
    of_head = max(1, keys) * sum(padded(problem)) * problem.dtype.nbytes
    heads = max(1, GPU.cache_bytes // of_head) * problem.share
    return "backwards", min(heads, machine.threads)


def padded(problem: Problem, unit: int = _DEEP) -> tuple[int, int]:
    """The features of keys and of values as instructions take them."""
    unit = max(_DEEP, unit)
    return ceil(problem.features / _DEEP) * _DEEP, ceil(problem.results / unit) * unit


def _types(problem: Problem) -> tuple[DType, DType, DType]:
    return problem.dtype, problem.dtype, problem.wide


def _queries(problem: Problem) -> int:
    return problem.length if isinstance(problem.length, int) else ASSUMED_MANY // problem.share


def _tile_rows(problem: Problem) -> int:
    """Queries that tiles are made of."""
    return joined(problem) * problem.length if isinstance(problem.length, int) else ASSUMED_MANY


def _seconds(queries: int, problem: Problem, machine: Machine) -> float:
    """The time of the products of so many queries with keys and values, on all threads."""
    keys = known(problem.keys, ASSUMED_KEYS)
    batches = known(problem.batches, 1)
    products = queries * max(1, keys) * (problem.features + problem.results)
    heads = max(1, batches * problem.groups)
    return heads * products / (machine.lanes * machine.threads * PROCESSOR.cycles_per_second)


def _runs_asynchronously(problem: Problem, machine: Machine) -> bool:
    """Whether products run beside their workers, on rows that bulk copies take."""
    rows = problem.features * problem.dtype.nbytes, problem.results * problem.dtype.nbytes
    is_asynchronous = any(row.asynchronous for row in machine.instructions(*_types(problem)))
    return is_asynchronous and not any(nbytes % 16 for nbytes in rows)


def _fill_three(problem: Problem, tall: int) -> bool:
    """Whether tiles of three warpgroups have hardly more rows without a query than those of two."""
    rows = _tile_rows(problem)
    three, two = (ceil(rows / (warps * tall)) * warps for warps in (12, 8))
    return isinstance(problem.length, int) and 16 * three <= 17 * two


def _pays(problem: Problem, plan: Plan) -> bool:
    """A step more than there are keys for is worth what it hides, and registers suffice."""
    _, deep = padded(problem)
    is_long = not isinstance(problem.keys, int) or problem.keys >= 4 * plan.keys
    most = GPU.attention_registers if problem.mask is None else GPU.attention_registers_beside_mask
    if plan.warps > 8:  # a third warpgroup leaves each fewer
        most -= GPU.attention_registers_for_third
    return is_long and deep // 2 + plan.keys * 3 // 4 <= most


def _in_turns(problem: Problem, plan: Plan, machine: Machine) -> list[Plan]:
    """The plan by persistent blocks, with as many heads in turn as leave blocks the least to wait for."""
    order = order_of(problem, machine)
    if order is None:
        return []
    most = order[1]
    counts = range(max(1, most // 2), most + 1)
    plans = [replace(plan, turns=turns) for turns in counts]
    return [min(plans, key=lambda plan: _waiting(problem, plan, machine))]


def _waiting(problem: Problem, plan: Plan, machine: Machine) -> float:
    """How much longer a causal attention takes than the steps of its tiles, evenly dealt out.

    Persistent blocks get their tiles in turn, whatever these take. Another block is for whichever tile is next,
    when one has ended, and begins by waiting for its first keys.
    """
    heads, queries, keys = problem.batches, problem.length, problem.keys
    order = order_of(problem, machine)
    if order is None:
        return 1.0
    if not (isinstance(heads, int) and isinstance(queries, int) and isinstance(keys, int)):
        return 2.0 if plan.turns else 1.0  # nobody knows how many tiles there are
    assert isinstance(problem.offset, int)
    height, heads = plan.warps * plan.rows * 16, heads * problem.heads
    last = np.minimum(queries, np.arange(0, queries, height)[::-1] + height) + problem.offset
    steps = np.clip(last, 0, keys) // -plan.keys * -1 + 1
    ideal = heads * steps.sum() / machine.threads
    if not plan.turns:
        step = height * plan.keys * sum(padded(problem)) * problem.dtype.nbytes
        first = GPU.first_keys_cycles * GPU.byte_products_per_cycle / step
        return float(max(ideal + first * heads * len(steps) / machine.threads, steps.max()) / ideal)
    groups = [min(plan.turns, heads - first) for first in range(0, heads, plan.turns)]
    dealt = np.concatenate([np.repeat(steps, count) for count in groups])
    rounds = -(-len(dealt) // machine.threads)
    padded_up = np.pad(dealt, (0, rounds * machine.threads - len(dealt)))
    return float(padded_up.reshape(rounds, -1).sum(0).max() / ideal)


def _part(problem: Problem, plan: Plan, height: int, machine: Machine, nbytes: int) -> int:
    """The keys of a part, where so many blocks fill the machine: as many to a processor as it has memory for."""
    if plan.specialize or not isinstance(problem.length, int):
        return 0
    together = joined(problem)
    batches = known(problem.batches, 1)
    keys = known(problem.keys, ASSUMED_KEYS)
    tiles = batches * (problem.heads // together) * ceil(together * problem.length / height)
    blocks = machine.threads * max(1, min(GPU.part_blocks, machine.fast_memory // nbytes))
    parts = max(1, min(blocks // max(1, tiles), keys // GPU.least_part_keys))
    return 0 if parts == 1 else ceil(keys / parts / plan.keys) * plan.keys


def _bytes(problem: Problem, plan: Plan, tall: int) -> int:
    """Bytes of a block's shared memory: queries, rings of keys and values, and powers on their way."""
    across, deep = padded(problem)
    height = plan.warps * plan.rows * tall
    elements = height * across + plan.stages * plan.keys * (across + deep)
    if plan.specialize:  # nothing is padded, and powers stay where they are
        return elements * problem.dtype.nbytes + 1024
    return (elements + height * plan.keys) * problem.dtype.nbytes * 9 // 8
