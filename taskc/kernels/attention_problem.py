"""What an attention computes, whichever kernel does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import taskc as tc
from taskc import DType, TensorType, boolean, f32, f64

Extent = Any  # an int, or a tc.dim


@dataclass(frozen=True, slots=True)
class Problem:
    """share  how many neighbouring heads have a head of k and v in common
    ahead  the query i sees keys up to i + ahead; None if it sees all
    """

    batches: Extent
    groups: int
    share: int
    length: Extent
    keys: Extent
    features: int
    results: int
    ahead: Extent | None
    mask: TensorType | None
    scale: float
    dtype: DType

    @property
    def wide(self) -> DType:
        """What is computed in."""
        return f64 if self.dtype is f64 else f32

    @property
    def heads(self) -> int:
        return self.groups * self.share

    @property
    def once(self) -> tuple[bool, ...]:
        """Whether the mask is the same for all batches, heads, queries, keys."""
        shape = () if self.mask is None else self.mask.shape
        own = tuple(isinstance(extent, int) and extent == 1 for extent in shape)
        return (True,) * (4 - len(own)) + own


def types_of(problem: Problem) -> tuple[TensorType, TensorType, TensorType, TensorType]:
    """Of q, k, v and y."""
    of_queries = problem.batches, problem.heads, problem.length
    of_keys = problem.batches, problem.groups, problem.keys
    shapes = (
        (*of_queries, problem.features),
        (*of_keys, problem.features),
        (*of_keys, problem.results),
        (*of_queries, problem.results),
    )
    q, k, v, y = (problem.dtype[shape] for shape in shapes)
    return q, k, v, y


def added_by(problem: Problem) -> Callable[..., Any]:
    """What the mask, if there is one, adds to a score: a function of it, batch, head, query and key."""
    once, wide = problem.once, problem.wide
    rank = 0 if problem.mask is None else problem.mask.rank
    is_flag = problem.mask is not None and problem.mask.dtype is boolean

    @tc.function
    def place(batch, head, query, key):
        return (
            0 if once[0] else batch,
            0 if once[1] else head,
            0 if once[2] else query,
            0 if once[3] else key,
        )[-rank:]

    @tc.function
    def added(mask, batch, head, query, key):
        return (
            (wide(0) if mask[place(batch, head, query, key)] else wide(-tc.inf))
            if is_flag
            else mask[place(batch, head, query, key)].to(wide)
        )

    return added
