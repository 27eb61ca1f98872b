"""Sums and products of all elements so far, along any axis.

A `Problem` is what is computed, a plan how. The algorithms, one after the other below:

lines    along the innermost axis, by a block's workers together
ranges   of few long lines, which are cut, by a program
look_back  of few long lines on a GPU, in one pass
serial   each worker by itself, along any axis
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

import taskc as tc
from taskc import (
    CompileError,
    DType,
    KernelDefinition,
    Machine,
    Mapping,
    ProgramDefinition,
    TensorType,
    boolean,
    f32,
    repeat,
    spatial,
    u32,
    u64,
)
from taskc.dataclass import dataclass
from taskc.kernels.machine_facts import GPU, PROCESSOR, seconds_of_bytes
from taskc.kernels.operator import KernelOperator, operator
from taskc.kernels.owners import boxes_of, owners_of_boxes, power, width
from taskc.kernels.signatures import Function, Value, Values, known, parameters_of, wide

__all__ = ["Lines", "LookBack", "Problem", "Ranges", "Serial", "build", "cumprod", "cumsum"]


def cumsum(
    shape: Sequence[Any],
    axis: int,
    *,
    dtype: DType = f32,
    exclusive: bool = False,
    reverse: bool = False,
    machine: Machine | None = None,
) -> KernelDefinition | ProgramDefinition:
    """The sum of each element and those before it along the axis.

    exclusive  without the element itself, so the first is 0
    reverse    of those behind it, from the last one on

    Numbers of 16 bits are added up in f32, and each sum is rounded; integers wrap. In which order sums of floats are
    added up is the plan's: one after another along other axes than the innermost, and there as `tc.scan` does.
    """
    return SCAN(operator="sum", **locals())


@parameters_of(cumsum)
def cumprod(**options: Any) -> KernelDefinition | ProgramDefinition:
    """The product of each element and those before it, as `cumsum` has the sum; the first exclusive one is 1."""
    return SCAN(operator="prod", **options)


# --- What a scan computes, and how kernels see it: as `[outer, along, inner]`, with neighbouring axes joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """operator  "sum" or "prod"
    given     the type of x, and of y, of three axes
    """

    operator: str
    given: TensorType
    exclusive: bool = False
    reverse: bool = False

    @property
    def wide(self) -> DType:
        """The type of sums."""
        return wide(self.given.dtype)

    @property
    def behind(self) -> int:
        """How far an element lies behind the place of the first sum that it is in."""
        return 1 if self.exclusive else 0

    @property
    def place(self) -> Function:
        """Where along the axis the sum of a place is, counted as the scan goes."""
        along = self.given.shape[1]

        return tc.function(lambda p: along - 1 - p if self.reverse else p)

    @property
    def element(self) -> Function:
        """Where along the axis the last element is of the sum of a place."""
        place = self.place

        return tc.function(lambda p: place(p - self.behind))

    @property
    def start(self) -> int | float:
        """The neutral element: of sums -0.0, where it isn't itself a result."""
        if self.operator == "prod":
            return 1
        return 0 if self.exclusive or not self.wide.is_float else -0.0

    @property
    def symbol(self) -> str:
        """The operator as `tc.scan` and `tc.reduce` spell it."""
        return "*" if self.operator == "prod" else "+"

    @property
    def folded(self) -> Function:
        """The fold of two numbers."""
        if self.operator == "prod":
            return tc.function(lambda a, b: a * b)
        return tc.function(lambda a, b: a + b)


def problem_of(
    operator: str, shape: Sequence[Any], axis: int, dtype: DType, *, exclusive: bool, reverse: bool
) -> Problem:
    """Check options and complete them: the problem of a user's call."""
    rank = len(shape)
    if not -rank <= axis < rank:
        raise CompileError(f"axis {axis} is not one of {rank}")
    if dtype is boolean:
        raise CompileError(f"there is no {operator} of {dtype}")
    at = axis % rank
    view = prod(shape[:at]), shape[at], prod(shape[at + 1 :])
    given = dtype[tuple(shape)].reshape(*view)
    return Problem(operator=operator, given=given, exclusive=exclusive, reverse=reverse)


# --- How a scan is computed, as data: each worker goes along the axis by itself, or all of a block's together


@dataclass(frozen=True, slots=True)
class Serial:
    """own  who has which lines of a block, of [outer, inner]"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element twice, and where lines lie along vectors each lane for itself."""
        outer, along, inner = map(known, problem.given.shape)
        seconds = _seconds(problem, machine)
        if not machine.is_processor:  # few lines are few workers
            seconds /= min(1, max(1, outer * inner) / (GPU.block_workers * _fewest(machine)))
        if inner > 1 or along == 1:
            return seconds
        if not machine.is_processor:
            return seconds * GPU.access_bytes / problem.given.dtype.nbytes
        lines = ceil(outer / machine.lanes) * machine.lanes
        return seconds + _shared(lines * along * PROCESSOR.gathered_cycles, outer, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Serial]:
        outer, _, inner = problem.given.shape
        for accesses in (1, 2, 4, 8):
            wide = width(inner, problem.given.dtype)
            yield Serial(boxes_of((outer, inner), wide, machine, accesses))


@dataclass(frozen=True, slots=True)
class Lines:
    """own  who has what of a step of a block's lines, of [outer, along]"""

    own: Mapping

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes, and then the vectors' prefixes, for which a line has one thread."""
        outer = known(problem.given.shape[0])
        rows, step = self.own.shape
        if not machine.is_processor:
            blocks = max(1, ceil(outer / rows))
            return _seconds(problem, machine) / min(1, blocks / _fewest(machine))
        steps = outer * ceil(known(problem.given.shape[1]) / step)
        cycles = steps * step / machine.lanes * PROCESSOR.scan_cycles
        return _seconds(problem, machine) + _shared(cycles, outer, machine)

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Lines]:
        for most in (1, 2, 4, 8, 16) if machine.is_processor else (32, 128, 256, 512, 1024):
            yield Lines(_walkers(problem, machine, most))


@dataclass(frozen=True, slots=True)
class Ranges:
    """own  who has what of a step of a range, of [1, along]
    ranges  of a line, at most
    chunks  of a range, of whole steps: each is added up by a block before
    """

    own: Mapping
    ranges: int
    chunks: int = 4

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As Lines, but by all threads, and all ranges but the last are read once more, by a step of its own."""
        outer, along = map(known, problem.given.shape[:2])
        more = 1 + (1 - 1 / self.ranges) / 2
        if not machine.is_processor:
            blocks = max(1, outer) * self.ranges
            return _seconds(problem, machine) * more / min(1, blocks / _fewest(machine))
        cycles = outer * along / machine.lanes * (PROCESSOR.scan_cycles + PROCESSOR.sum_cycles)
        seconds = _seconds(problem, machine) * more
        shared = _shared(cycles, outer * self.ranges, machine)
        return seconds + shared + PROCESSOR.step_seconds

    def variations(self, problem: Problem, machine: Machine) -> Iterator[Ranges]:
        step, along = self.own.shape[1], known(problem.given.shape[1])
        for chunks in (1, 2, 4, 8, 16):
            for ranges in (self.ranges // 2, self.ranges, 2 * self.ranges):
                if ranges > 1 and along >= ranges * chunks * step:
                    yield replace(self, ranges=ranges, chunks=chunks)


WARP = 32
ROW = 4 * WARP  # elements of a warp, four of each lane


@dataclass(frozen=True, slots=True)
class LookBack:
    """A block of `warps`, each with so many `rows` of four elements a lane, of a GPU."""

    warps: int
    rows: int

    @property
    def size(self) -> int:
        return self.warps * self.rows * ROW

    def cost(self, problem: Problem, machine: Machine) -> float:
        """As long as memory takes for each element twice, behind a kernel that clears the words."""
        outer, along = map(known, problem.given.shape[:2])
        busy = min(1, max(1, outer) * along / self.size / _fewest(machine))
        return _seconds(problem, machine) / busy + GPU.next_kernel_cycles / GPU.cycles_per_second

    def variations(self, problem: Problem, machine: Machine) -> Iterator[LookBack]:
        for warps in (4, 8, 16):
            for rows in (2, 4, 8):
                yield LookBack(warps, rows)


Plan = Serial | Lines | Ranges | LookBack


def candidates(problem: Problem, machine: Machine) -> Iterator[Plan]:
    outer, _, inner = problem.given.shape
    wide = width(inner, problem.given.dtype)
    if isinstance(inner, int) and inner == 1:
        own = _walkers(problem, machine, 8 if machine.is_processor else GPU.scan_workers)
        yield Lines(own)
        yield from _ranges(problem, own, machine)
        yield from _look_back(problem, machine)
    yield Serial(owners_of_boxes((outer, inner), wide, machine, accesses=1))


def _walkers(problem: Problem, machine: Machine, most: int) -> Mapping:
    """Up to so many vectors of a processor, or workers, who scan a part of a line; no more than it has."""
    _, along, _ = problem.given.shape
    if machine.is_processor:
        while isinstance(along, int) and most > 1 and most // 2 * machine.lanes >= along:
            most //= 2
        return repeat(1, most) * spatial(1, machine.lanes)
    wide = width(along, problem.given.dtype)
    workers = min(most, power(ceil(along / wide))) if isinstance(along, int) else most
    rows = max(1, GPU.block_workers // most, machine.lanes // workers)
    return spatial(rows, 1) * spatial(1, workers) * repeat(1, wide)


def _ranges(problem: Problem, own: Mapping, machine: Machine) -> Iterator[Ranges]:
    """Plans with a range for each thread without a line, or enough blocks to keep a GPU's memory busy."""
    outer, along, _ = problem.given.shape
    rows, step = own.shape
    if not isinstance(outer, int) or not isinstance(along, int) or rows > 1 or not outer:
        return
    wanted = machine.threads if machine.is_processor else _fewest(machine)
    most = min(ceil(wanted / outer), along // (4 * step))
    if most > 1:
        yield Ranges(own, most)


def _look_back(problem: Problem, machine: Machine) -> Iterator[LookBack]:
    """Of lines so long that each has several groups of blocks, in sums that fit in half a word."""
    outer, along, _ = problem.given.shape
    if machine.is_processor or not isinstance(outer, int) or not isinstance(along, int):
        return
    plan = LookBack(8, 4)
    if problem.wide.nbytes == 4 and 0 < outer <= _fewest(machine) and along > 8 * plan.size:
        yield plan


def _seconds(problem: Problem, machine: Machine) -> float:
    count = prod(map(known, problem.given.shape))
    return seconds_of_bytes(2 * count * problem.given.dtype.nbytes, machine)


def _shared(cycles: float, parts: int, machine: Machine) -> float:
    """Seconds of work that so many threads may share."""
    return cycles / PROCESSOR.cycles_per_second / max(1, min(parts, machine.threads))


def _fewest(machine: Machine) -> int:
    """Blocks that keep a GPU's memory busy."""
    return GPU.streaming_blocks * machine.threads


# --- A scan along the innermost axis whose workers go over a line together ----------------------
# Each step scans as much of a line as the block's workers have, and takes in the sum of all before it (of `cumprod`
# their product, here and below). Backwards the line is read from its end on; exclusively each place takes the element
# before it.


def lines(
    problem: Problem,
    plan: Lines | Ranges,
    size: int | None = None,
    between: TensorType | None = None,
) -> KernelDefinition:
    """`size` elements of a line are a block's, which is given sums of as many chunks of each range before; or all."""
    given, wide, behind, own = problem.given, problem.wide, problem.behind, plan.own
    outer, along, _ = given.shape
    rows, step = own.shape
    symbol, folded = problem.symbol, problem.folded
    ranges = 1 if size is None else tc.cdiv(along, size)
    before = () if between is None else (between,)

    @tc.kernel(workers=own.workers)
    def scan(x: tc.typed[given], sums: tc.typed[before], y: tc.out[given]) -> None:
        for a, r in tc.tiles((outer, ranges), by=(rows, 1)):
            start = 0 if size is None else r * size
            first = wide(problem.start)
            if sums:
                for c in range(sums[0].shape[1] // (ranges - 1) * r):
                    first = folded(first, sums[0][a, c])
            last = tc.shared(wide[rows])
            for w in spatial(own.workers):
                if w < rows:
                    last[w] = first
            for at in range(0, along if size is None else size, step):
                t = tc.tile(wide, own, problem.start)
                for i, j in own:
                    p = start + at + j
                    if a + i < outer and p >= behind and p < along + behind:
                        t[i, j] = x[a + i, problem.element(p), 0].to(wide)
                prefixes = tc.scan(t, 1, symbol)
                for i, j in own:
                    prefixes[i, j] = folded(prefixes[i, j], last[i])
                    p = start + at + j
                    if a + i < outer and p < along:
                        y[a + i, problem.place(p), 0] = prefixes[i, j].to(given.dtype)
                for i, j in own:
                    if j == step - 1:
                        last[i] = prefixes[i, j]

    return scan


def chunk_sums(problem: Problem, own: Mapping, chunk: int, between: TensorType) -> KernelDefinition:
    """The sums of the first chunks of each line, as it is scanned."""
    given, wide, behind = problem.given, problem.wide, problem.behind
    _, step = own.shape
    symbol, folded = problem.symbol, problem.folded

    @tc.kernel(workers=own.workers)
    def chunk_sums(x: tc.typed[given], sums: tc.out[between]) -> None:
        for a, c in tc.tiles(between.shape, by=(1, 1)):
            totals = tc.tile(wide, own, problem.start)
            for at in range(0, chunk, step):
                for i, j in own:
                    p = c * chunk + at + j
                    if p >= behind:
                        totals[i, j] = folded(totals[i, j], x[a, problem.element(p), 0].to(wide))
            total = tc.reduce(totals, 1, symbol)
            tc.store(sums[a : a + 1, c], total)

    return chunk_sums


# --- A scan whose elements are folded one after another, each line's by one worker; neighbours have neighbouring lines


def serial(problem: Problem, plan: Serial) -> KernelDefinition:
    given, wide, own = problem.given, problem.wide, plan.own
    outer, along, inner = given.shape
    folded = problem.folded

    @tc.kernel(workers=own.workers)
    def scan(x: tc.typed[given], y: tc.out[given]) -> None:
        for a, col in tc.tiles((outer, inner), by=own.shape):
            total = tc.tile(wide, own, problem.start)
            for step in range(along):
                q = along - 1 - step if problem.reverse else step
                for i, j in own:
                    if a + i < outer and col + j < inner:
                        more = folded(total[i, j], x[a + i, q, col + j].to(wide))
                        y[a + i, q, col + j] = (total[i, j] if problem.exclusive else more).to(
                            given.dtype
                        )
                        total[i, j] = more

    return scan


# --- A scan of few long lines: each is cut into ranges, whose blocks begin with the sum of those before
# All ranges but the last are added up first, in chunks that all threads share; with two ranges that is half of the
# array.


def ranges(problem: Problem, plan: Ranges) -> ProgramDefinition:
    given = problem.given.as_given
    outer, along, _ = problem.given.shape
    step = plan.own.shape[1]
    chunk = step * tc.cdiv(along, plan.ranges * plan.chunks * step)
    size = plan.chunks * chunk
    between = problem.wide[outer, (tc.cdiv(along, size) - 1) * plan.chunks]
    add_up = chunk_sums(problem, plan.own, chunk, between)
    scan = lines(problem, plan, size, between)

    @tc.program
    def cumsum(x: tc.typed[given], y: tc.out[given]) -> None:
        sums = tc.empty(between)
        add_up(x, out=sums)
        scan(x, sums, out=y)

    return cumsum


# --- A scan of few long lines in one pass: each block looks back at what the blocks before it have come to
# A block publishes the sum of its own elements as soon as it has it. As many blocks as a warp has lanes are a group,
# whose last block publishes the group's sum, and as many groups a row, whose last block publishes the prefix that the
# row ends with. A block needs the sums of those before it in its group, and of the groups before in its row, a word
# for each lane, and the prefix of the row before. So blocks wait in a chain with a step for each row, of 1,024 blocks:
# a step is what a word takes from one multiprocessor to another, and with one for each group the chain took longer than
# the elements. What is folded in which order doesn't depend on who came first: the same bits each time. Blocks wait
# only for those of lower numbers, which a GPU starts first.
#
# A word holds 32 bits of a sum above a lowest bit that says it is there. It says all itself, so it is exchanged, which
# waits for no earlier store. Another kernel sets all words to zero before. Words of rows lie behind those of groups.


def look_back(problem: Problem, plan: LookBack) -> ProgramDefinition:
    given, outer = problem.given.as_given, problem.given.shape[0]
    groups = _groups(problem, plan)
    count = groups + tc.cdiv(groups, WARP)
    words = u64[outer, count, WARP + 1]
    clear, scan = _cleared(outer * count * (WARP + 1), words), _scan_of_parts(problem, plan, words)

    @tc.program
    def cumsum(x: tc.typed[given], y: tc.out[given]) -> None:
        state = tc.empty(words)
        clear(out=state)
        scan(x, state, out=y)

    return cumsum


def _groups(problem: Problem, plan: LookBack) -> Any:
    return tc.cdiv(tc.cdiv(problem.given.shape[1], plan.size), WARP)


def _cleared(count: int, words: TensorType) -> KernelDefinition:
    own = spatial(256)

    @tc.kernel(workers=own.workers)
    def cleared(state: tc.out[words.reshape(count)]) -> None:
        for start in tc.tiles(count, by=own.shape[0]):
            for i in own:
                if start + i < count:
                    state[start + i] = 0

    return cleared


def _scan_of_parts(problem: Problem, plan: LookBack, words: TensorType) -> KernelDefinition:
    """A group's words are its blocks' sums; a row's are its groups', and then the prefix that it ends with."""
    given, wide, behind = problem.given, problem.wide, problem.behind
    outer, along, _ = given.shape
    size, warps, rows, folded = plan.size, plan.warps, plan.rows, problem.folded
    groups = _groups(problem, plan)

    @tc.function
    def before(state: Value, line: Value, row: Value, place: Value, lane: Value) -> Any:
        """The fold of a row's first words, as many as `place`."""
        theirs = wide(problem.start)
        if lane < place:
            theirs = _waited(state, line, row, lane, wide)
        return _folded_by_lanes(theirs, folded)

    @tc.cuda.kernel(workers=WARP * warps)
    def scan(x: tc.typed[given], state: tc.inout[words], y: tc.out[given]) -> None:
        for line, start in tc.tiles((outer, along), by=(1, size)):
            w = tc.worker()
            place, group = start // size % WARP, start // size // WARP
            lane, first = w % WARP, start + w // WARP * rows * ROW + w % WARP * 4
            sums, seen_before = tc.shared(wide[warps]), tc.shared(wide[1])
            t = tc.local(wide[rows * 4], problem.start)
            for r in tc.static(range(rows)):
                for s in range(4):
                    p = first + r * ROW + s
                    if p >= behind and p < along + behind:
                        t[r * 4 + s] = x[line, problem.element(p), 0].to(wide)
            total = _scanned_rows(problem, plan, t, lane)
            if lane == WARP - 1:
                sums[w // WARP] = total
            tc.sync()
            own = wide(problem.start)
            every = wide(problem.start)
            for warp in range(warps):
                if warp == w // WARP:
                    own = every
                every = folded(every, sums[warp])
            if w < WARP:
                row, last = groups + group // WARP, group % WARP
                if w == 0:
                    tc.atomic_exchange(state[line, group, place], word(every))
                seen = before(state, line, group, place, lane)
                if w == 0 and place == WARP - 1:
                    tc.atomic_exchange(state[line, row, last], word(folded(seen, every)))
                theirs = before(state, line, row, last, lane)
                if group >= WARP:
                    prefix = _waited(state, line, row - 1, WARP, wide)
                    theirs = folded(prefix, theirs)
                seen = folded(theirs, seen)
                if w == 0:
                    if place == WARP - 1 and last == WARP - 1:
                        tc.atomic_exchange(state[line, row, WARP], word(folded(seen, every)))
                    seen_before[0] = seen
            tc.sync()
            base = folded(seen_before[0], own)
            for r in tc.static(range(rows)):
                for s in range(4):
                    p = first + r * ROW + s
                    if p < along:
                        y[line, problem.place(p), 0] = folded(base, t[r * 4 + s]).to(given.dtype)

    return scan


@tc.function
def word(value: Value) -> Any:
    return value.bitcast(u32).to(u64) << 1 | 1


@tc.function
def _waited(state: Value, line: Value, group: Value, at: Values, wide: DType) -> Any:
    """A word's sum, once it is there."""
    found = u64(0)
    while found == 0:
        found = tc.cuda.load_acquire(state[line, group, at])
    return (found >> 1).to(u32).bitcast(wide)


@tc.function
def _folded_by_lanes(value: Value, folded: Function) -> Value:
    for distance in tc.static([1, 2, 4, 8, 16]):
        value = folded(value, tc.cuda.shuffle_xor(value, distance))
    return value


@tc.function
def _scanned_rows(problem: Problem, plan: LookBack, t: Value, lane: Value) -> Any:
    """A warp's rows become prefixes, each of four elements a lane; the last lane's result is the sum of all."""
    folded = problem.folded
    carried = problem.wide(problem.start)
    for r in tc.static(range(plan.rows)):
        for s in tc.static(range(1, 4)):
            t[r * 4 + s] = folded(t[r * 4 + s - 1], t[r * 4 + s])
        prefix = t[r * 4 + 3]
        for distance in tc.static([1, 2, 4, 8, 16]):
            other = tc.cuda.shuffle_up(prefix, distance)
            prefix = folded(other, prefix) if lane >= distance else prefix
        other = tc.cuda.shuffle_up(prefix, 1)
        base = folded(carried, other) if lane > 0 else carried
        for s in tc.static(range(4)):
            t[r * 4 + s] = folded(base, t[r * 4 + s])
        carried = folded(carried, tc.cuda.shuffle_index(prefix, WARP - 1))
    return carried


SCAN: KernelOperator[Problem, Plan, KernelDefinition | ProgramDefinition] = operator(
    "scan", problem_of, candidates,
    {Serial: serial, Lines: lines, Ranges: ranges, LookBack: look_back},
)  # fmt: skip
build = SCAN.build
