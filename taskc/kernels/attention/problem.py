"""Attention as a problem, whichever kernel computes it: y = softmax(q @ k.T * scale + mask) @ v for each head.

The operands, their order and their types are written down here, and what a mask adds to a score.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType, boolean
from taskc.dataclass import dataclass
from taskc.kernels.signatures import Decorator, Extent, Function, Made, Value, require_numbers, wide


@dataclass(frozen=True, slots=True)
class Problem:
    """share  how many neighbouring heads have a head of k and v in common
    offset  the query i sees keys up to i + offset; None if it sees all
    """

    batches: Extent
    groups: int
    share: int
    length: Extent
    keys: Extent
    features: int
    results: int
    offset: Extent | None
    mask: TensorType | None
    scale: float
    dtype: DType

    @property
    def wide(self) -> DType:
        """The type of scores and sums."""
        return wide(self.dtype)

    @property
    def heads(self) -> int:
        return self.groups * self.share

    @property
    def is_empty(self) -> bool:
        extents = self.batches, self.heads, self.length, self.results
        return any(isinstance(n, int) and n == 0 for n in extents)

    @property
    def once(self) -> tuple[bool, ...]:
        """Whether the mask is the same for all batches, heads, queries, keys."""
        shape = () if self.mask is None else self.mask.shape
        own = tuple(isinstance(extent, int) and extent == 1 for extent in shape)
        return (True,) * (4 - len(own)) + own

    @property
    def types(self) -> tuple[TensorType, TensorType, TensorType, TensorType]:
        """The types of q, k, v and y."""
        of_queries = self.batches, self.heads, self.length
        of_keys = self.batches, self.groups, self.keys
        shapes = (
            (*of_queries, self.features),
            (*of_keys, self.features),
            (*of_keys, self.results),
            (*of_queries, self.results),
        )
        q, k, v, y = (self.dtype[shape] for shape in shapes)
        return q, k, v, y

    @property
    def added(self) -> Function:
        """The mask's addend of a score: a function of the mask, batch, head, query and key."""
        once, wide = self.once, self.wide
        rank = 0 if self.mask is None else self.mask.rank
        is_flag = self.mask is not None and self.mask.dtype is boolean

        @tc.function
        def place(batch: Value, head: Value, query: Value, key: Value) -> Any:
            return (
                0 if once[0] else batch,
                0 if once[1] else head,
                0 if once[2] else query,
                0 if once[3] else key,
            )[-rank:]

        @tc.function
        def added(mask: Value, batch: Value, head: Value, query: Value, key: Value) -> Any:
            return (
                (wide(0) if mask[place(batch, head, query, key)] else wide(-tc.inf))
                if is_flag
                else mask[place(batch, head, query, key)].to(wide)
            )

        return added

    def place(self, together: int) -> Function:
        """The head of a query, and which one of that head's it is, where so many heads have theirs in a tile."""
        length = self.length

        @tc.function
        def place(head: Value, row: Value) -> Any:
            return (head, row) if together == 1 else (head * together + row // length, row % length)

        return place

    def kernel(self, workers: int, blocks: Function) -> tc.KernelDefinition:
        """blocks(q, k, v, mask or None, y) as a kernel, with the parameters that the problem has."""
        return self._defined(tc.kernel(workers=workers), blocks)

    def program(self, steps: Function) -> tc.ProgramDefinition:
        """steps(q, k, v, mask or None, y) as a program, with the same parameters."""
        return self._defined(tc.program, steps)

    def _defined(self, decorate: Decorator[Made], run: Function) -> Made:
        queries, keys, values, result = self.types
        masks = self.masks

        @decorate
        def attention(
            q: tc.typed[queries],
            k: tc.typed[keys],
            v: tc.typed[values],
            mask: tc.typed[masks],
            y: tc.out[result],
        ) -> None:
            run(q, k, v, mask[0] if len(mask) else None, y)

        return attention

    @property
    def masks(self) -> tuple[TensorType, ...]:
        """The type of the mask, if there is one."""
        return () if self.mask is None else (self.mask,)


def problem_of(
    batches: Extent, heads: int, length: Extent, keys: Extent, features: int,
    *, kv_heads: int | None, value_features: int | None, causal: bool, offset: Extent | None,
    mask: TensorType | None, scale: float | None, dtype: DType,
) -> Problem:  # fmt: skip
    """Check options and complete them: the problem of a user's call."""
    require_numbers("attention", heads=heads, features=features)
    groups = heads if kv_heads is None else kv_heads
    if (groups < 1 or heads % groups) and groups != heads:
        raise CompileError(f"{heads} heads can't share {groups} heads of k and v evenly")
    if features < 1:
        raise CompileError(f"scores are products of features, of which there are {features}")
    if offset is not None and not causal:
        raise CompileError("an offset says what a causal attention sees: causal=True is missing")
    if mask is not None:
        _check_mask(mask, (batches, heads, length, keys))
    offset = keys - length if offset is None else offset
    if not causal or (isinstance(keys, int) and keys == 0):
        offset = None
    return Problem(
        batches=batches,
        groups=groups,
        share=heads // groups if groups else 1,
        length=length,
        keys=keys,
        features=features,
        results=features if value_features is None else value_features,
        offset=offset,
        mask=mask,
        scale=features**-0.5 if scale is None else scale,
        dtype=dtype,
    )


def _check_mask(mask: TensorType, whole: tuple[Extent, ...]) -> None:
    if not (mask.dtype.is_float or mask.dtype is boolean):
        raise CompileError(f"a mask has floats, which are added, or bools; {mask} has neither")
    pairs = zip(mask.shape[::-1], whole[::-1], strict=False)
    fits = all(extent == 1 or extent is full or extent == full for extent, full in pairs)
    if not fits or not 1 <= mask.rank <= 4:
        raise CompileError(
            f"a mask {mask} can't be broadcast to {whole}",
            hint="its axes are batches, heads, queries and keys, or the last of these",
        )
