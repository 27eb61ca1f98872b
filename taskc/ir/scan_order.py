"""The order in which a scan folds: a function of the mapping alone.

A coordinate along the axis is a number with digits of the worker's and the slot's number. From the innermost out,
neighbouring digits of one kind form a *level*: it joins `size` blocks of `stride` elements each, whose prefixes are
known, into one block. For spatial(4, 32).repeat(1, 8), along axis 1, the levels are 8 slots and 32 workers.

    slots     one block after another folds in the last prefix of the block before it
    workers   the blocks' totals are scanned as a tree: the i-th folds in, for each set bit k of i from the lowest
              on, the total of the 2**k blocks up to the multiple of 2**k below i. Blocks of one element then have
              their prefixes; the elements of larger blocks fold in the prefix of the previous block
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import prod

import numpy as np

from taskc.dataclass import dataclass
from taskc.ir.mapping import Mapping
from taskc.ir.mapping_forms import Mode

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """One level; `modes` are its digits, slowest first."""

    modes: tuple[Mode, ...]
    is_workers: bool

    @property
    def size(self) -> int:
        return prod(mode.size for mode in self.modes)

    @property
    def stride(self) -> int:
        return self.modes[-1].stride


def scan_levels(owners: Mapping, axis: int) -> tuple[Level, ...]:
    """The levels, innermost first. A mapping without digits counts as one worker's, from left to right."""
    if not owners.is_composed or owners.limit is not None:
        return (Level((Mode(axis, owners.iterated[axis], 1),), False),)
    assert owners.worker_modes is not None
    assert owners.slot_modes is not None
    digits = [(mode, True) for mode in owners.worker_modes if mode.dimension == axis]
    digits += [(mode, False) for mode in owners.slot_modes if mode.dimension == axis]
    digits.sort(key=lambda digit: digit[0].stride)
    return tuple(
        Level(tuple([mode for mode, _ in group])[::-1], is_workers)
        for is_workers, group in groupby(digits, key=lambda digit: digit[1])
    )


def scanned(
    levels: tuple[Level, ...], lines: Arrays, combine: Callable[[Arrays, Arrays], Arrays]
) -> Arrays:
    """The inclusive prefixes along the last axis of arrays."""
    prefixes = tuple([line.copy() for line in lines])
    for level in levels:
        blocks = tuple(
            [it.reshape(*it.shape[:-1], -1, level.size, level.stride) for it in prefixes]
        )
        if level.is_workers:
            _tree(blocks, combine)
            continue
        for s in range(1, level.size):
            before = tuple([it[..., s - 1, -1:] for it in blocks])
            _take_in(before, tuple([it[..., s, :] for it in blocks]), combine)
    return prefixes


def _tree(blocks: Arrays, combine: Callable[[Arrays, Arrays], Arrays]) -> None:
    size, stride = blocks[0].shape[-2:]
    totals = tuple([it[..., -1].copy() for it in blocks])
    bit = 1
    while bit < size:
        takers = np.array([i for i in range(size) if i & bit])
        lower = tuple([it[..., takers // bit * bit - 1] for it in totals])
        results = combine(lower, tuple([it[..., takers] for it in totals]))
        for total, result in zip(totals, results, strict=True):
            total[..., takers] = result
        bit *= 2
    if stride == 1:
        for block, total in zip(blocks, totals, strict=True):
            block[..., 0] = total
    else:
        before = tuple([it[..., :-1, None] for it in totals])
        _take_in(before, tuple([it[..., 1:, :] for it in blocks]), combine)


def _take_in(before: Arrays, own: Arrays, combine: Callable[[Arrays, Arrays], Arrays]) -> None:
    before = tuple([np.broadcast_to(b, o.shape) for b, o in zip(before, own, strict=True)])
    for place, result in zip(own, combine(before, own), strict=True):
        place[...] = result
