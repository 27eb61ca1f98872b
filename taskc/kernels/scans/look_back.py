"""A scan of few long lines in one pass: each block looks back at what the blocks before it have come to.

A block publishes the sum of its own elements as soon as it has it. As many blocks as a warp has lanes are a group. A
block needs the sums of those before it in its group, a word for each lane, and the prefix of the group before, which
that group's last block publishes. So blocks wait in a chain with a step for each group, and not for each block. What is
folded in which order doesn't depend on who came first: the same bits each time. Blocks wait only for those of lower
numbers, which a GPU starts first.

A word holds 32 bits of a sum above a lowest bit that says it is there. Another kernel sets all words to zero before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import taskc as tc
from taskc import KernelDefinition, ProgramDefinition, TensorType, spatial, u32, u64
from taskc.kernels.scans.plan import ROW, WARP, LookBack
from taskc.kernels.scans.problem import Problem

Function = Callable[..., Any]


def look_back(problem: Problem, plan: LookBack) -> ProgramDefinition:
    given = problem.given.as_given
    outer, along, _ = problem.given.shape
    groups = tc.cdiv(tc.cdiv(along, plan.size), WARP)
    words = u64[outer, groups, WARP + 1]
    clear, scan = _cleared(outer * groups * (WARP + 1), words), _scan(problem, plan, words)

    @tc.program
    def cumsum(x: tc.typed[given], y: tc.out[given]) -> None:
        state = tc.empty(words)
        clear(out=state)
        scan(x, state, out=y)

    return cumsum


def _cleared(count: int, words: TensorType) -> KernelDefinition:
    own = spatial(256)

    @tc.kernel(workers=own.workers)
    def cleared(state: tc.out[words.reshape(count)]) -> None:
        for start in tc.tiles(count, by=own.shape[0]):
            for i in own:
                if start + i < count:
                    state[start + i] = 0

    return cleared


def _scan(problem: Problem, plan: LookBack, words: TensorType) -> KernelDefinition:
    """A group's words are its blocks' sums, and then the prefix that it ends with."""
    given, wide, behind = problem.given, problem.wide, problem.behind
    outer, along, _ = given.shape
    size, warps, rows, folded = plan.size, plan.warps, plan.rows, problem.folded
    wait, all_lanes, row_scan = (
        _waited(problem),
        _folded_by_lanes(problem),
        _scanned_rows(problem, plan),
    )

    @tc.cuda.kernel(workers=WARP * warps)
    def scan(x: tc.typed[given], state: tc.inout[words], y: tc.out[given]) -> None:
        for line, start in tc.tiles((outer, along), by=(1, size)):
            w = tc.worker()
            place, group = start // size % WARP, start // size // WARP
            lane, first = w % WARP, start + w // WARP * rows * ROW + w % WARP * 4
            sums, before = tc.shared(wide[warps]), tc.shared(wide[1])
            t = tc.local(wide[rows * 4], problem.start)
            for r in tc.static(range(rows)):
                for s in range(4):
                    p = first + r * ROW + s
                    if p >= behind and p < along + behind:
                        t[r * 4 + s] = x[line, problem.element(p), 0].to(wide)
            total = row_scan(t, lane)
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
                if w == 0:
                    tc.cuda.store_release(state[line, group, place], word(every))
                mine = wide(problem.start)
                if lane < place:
                    mine = wait(state, line, group, lane)
                seen = all_lanes(mine)
                if group > 0:
                    prefix = wait(state, line, group - 1, WARP)
                    seen = folded(prefix, seen)
                if w == 0:
                    if place == WARP - 1:
                        tc.cuda.store_release(state[line, group, WARP], word(folded(seen, every)))
                    before[0] = seen
            tc.sync()
            base = folded(before[0], own)
            for r in tc.static(range(rows)):
                for s in range(4):
                    p = first + r * ROW + s
                    if p < along:
                        y[line, problem.place(p), 0] = folded(base, t[r * 4 + s]).to(given.dtype)

    return scan


@tc.function
def word(value: Any) -> Any:
    return value.bitcast(u32).to(u64) << 1 | 1


def _waited(problem: Problem) -> Function:
    """A word's sum, once it is there."""

    @tc.function
    def wait(state: Any, line: Any, group: Any, at: Any) -> Any:
        found = u64(0)
        while found == 0:
            found = tc.cuda.load_acquire(state[line, group, at])
        return (found >> 1).to(u32).bitcast(problem.wide)

    return wait


def _folded_by_lanes(problem: Problem) -> Function:
    folded = problem.folded

    @tc.function
    def all_lanes(value: Any) -> Any:
        for distance in tc.static([1, 2, 4, 8, 16]):
            value = folded(value, tc.cuda.shuffle_xor(value, distance))
        return value

    return all_lanes


def _scanned_rows(problem: Problem, plan: LookBack) -> Function:
    """A warp's rows become prefixes, each of four elements a lane; the last lane's result is the sum of all."""
    folded, rows = problem.folded, plan.rows

    @tc.function
    def scanned(t: Any, lane: Any) -> Any:
        carried = problem.wide(problem.start)
        for r in tc.static(range(rows)):
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

    return scanned
