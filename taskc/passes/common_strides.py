"""Strided loops that start apart get one common range for all workers.

    each w in spatial(16):
        for j in range(first + w, n, step=16):
            body
->
    each w in spatial(16):
        for turn in range(0, n - first, step=16):
            let j = turn + (first + w)
            if j < n:
                body

All workers then take the same turns, so that neighbours access neighbours, and proofs see a sum of loop variables,
whatever n is. This applies if the starts of all workers lie within one step, so that a worker gets at most one
extra turn, in which it does nothing. A GPU's workers count their own turns, without conditions.
`proving`: for any target, and for blocks that start apart, too.
"""

from __future__ import annotations

from dataclasses import replace

from taskc.analysis.facts import Facts
from taskc.analysis.touches import reads_memory
from taskc.ir import nodes as ir
from taskc.ir.build import ZERO, add, index, subtract
from taskc.ir.nodes import Constant, Expression, Statement, Variable
from taskc.ir.rewrite import all_below, map_statements, substitute, walk
from taskc.ir.target import TARGETS


def common_strides(kernel: ir.Kernel, *, proving: bool = False) -> ir.Kernel:
    if TARGETS[kernel.target].capabilities and not proving:
        return kernel
    strided = [loop for loop in all_below(kernel.body, ir.For) if loop.step > 1]
    if all(isinstance(loop.start, Constant) for loop in strided):
        return kernel
    body = _Strides(kernel, proving).changed(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Strides:
    """workers  variables that differ between workers of a block, with their values
    blocks   variables that differ between blocks
    tiles    the origins of tiles
    lets     the names bound within the loops over both
    """

    def __init__(self, kernel: ir.Kernel, of_blocks: bool) -> None:
        self.facts = Facts.empty(kernel)
        self.of_blocks = of_blocks
        self.workers: dict[Variable, Expression] = {}
        self.blocks: dict[Variable, Expression] = {}
        self.tiles: set[Variable] = set()
        self.lets: dict[Variable, Expression] = {}

    def changed(self, statement: Statement) -> Statement:
        self.facts.enter(statement)
        match statement:
            case ir.Each():
                self.workers |= dict.fromkeys(statement.variables, ZERO)
            case ir.Grid():
                self.tiles.update(statement.variables)
                if self.of_blocks:
                    self.blocks |= dict.fromkeys(statement.variables, ZERO)
            case ir.Let() if self.workers or self.blocks:
                self.lets[statement.variable] = substitute(statement.value, self.lets)
            case _:
                pass  # it gives no worker a value of its own
        result = map_statements(statement, self.changed)
        if isinstance(result, ir.For) and result.step > 1:
            everyone = {**self.workers, **self.blocks}
            changed = self._with_common_range(result, everyone)
            return (
                changed if changed is not result else self._with_common_range(result, self.workers)
            )
        return result

    def _with_common_range(self, loop: ir.For, apart: dict[Variable, Expression]) -> Statement:
        written = substitute(loop.start, self.lets)
        if isinstance(written, Constant) or reads_memory(written):
            return loop
        common = substitute(written, apart)
        low, high = self.facts.interval(subtract(written, common))
        if low is None or high is None or high == low or high - low >= loop.step:
            return loop
        loc, stop, names = loop.loc, loop.stop, list[Statement]()
        if reads_memory(stop):  # the body may store to that memory
            stop = Variable("stop", stop.dtype, loc=loc)
            names.append(ir.Let(stop, loop.stop, loc=loc))
        turn = Variable("turn", loop.variable.dtype, loc=loc)
        # Turns are counted from 0, so that they are multiples of the step; those of a tile from its origin.
        first = add(common, index(low))
        shift = ZERO if self.tiles.intersection(walk(common)) else first
        beyond = loop.start if shift is first else subtract(loop.start, first)
        value = ir.Let(loop.variable, add(turn, beyond), loc=loc)
        guarded = ir.If(ir.Binary("<", loop.variable, stop), loop.body, loc=loc)
        body = ir.Sequence((value, guarded), loc=loc)
        common_loop = replace(
            loop,
            variable=turn,
            start=ZERO if shift is first else first,
            stop=subtract(stop, shift),
            body=body,
        )
        return ir.Sequence((*names, common_loop), loc=loc) if names else common_loop
