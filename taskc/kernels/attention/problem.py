"""Attention as a problem, whichever kernel computes it: y = softmax(q @ k.T * scale + mask) @ v for each head.

The operands, their order and their types are written down here, what a mask adds to a score, and which keys a query
sees. Kernels pass on the operands that a problem may lack as one tuple, `extra`: the mask, the lengths and the sinks.
"""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import CompileError, DType, TensorType, boolean, i32, i64
from taskc.dataclass import dataclass
from taskc.kernels.signatures import (
    Decorator,
    Extent,
    Function,
    Made,
    Value,
    Values,
    require_numbers,
    wide,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """share  how many neighbouring heads have a head of k and v in common
    offset  the query i sees keys up to i + offset; None if it sees all. Where a batch has fewer keys, by its length,
            it sees as many fewer
    window  the most keys that a query sees, the last ones up to i + offset
    lengths, sinks  whether there are these operands
    cap     scores are cap * tanh(score / cap); 0: as they are
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
    window: Extent | None = None
    lengths: bool = False
    sinks: bool = False
    cap: float = 0.0

    @property
    def wide(self) -> DType:
        """The type of scores and sums."""
        return wide(self.dtype)

    @property
    def factor(self) -> float:
        """Queries times it have the scores whose tanh is taken, if there is a cap."""
        return self.scale / self.cap if self.cap else self.scale

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

    @property
    def limits(self) -> Function:
        """The number of a batch's keys, and the offset of its queries (0 if they see all): a function of `extra` and
        the batch."""
        keys, offset = self.keys, self.offset
        has_lengths = self.lengths

        @tc.function
        def limits(extra: Value, batch: Value) -> Any:
            if has_lengths:
                count = extra[1][batch].to(i64)
                return count, 0 if offset is None else count + (offset - keys)
            else:
                return keys, 0 if offset is None else offset

        return limits

    @property
    def span(self) -> Function:
        """The keys that some queries of a batch see, from the first one of any to the end of the last one's: a
        function of the batch's limits, the first query and the last one."""
        keys, window, is_causal = self.keys, self.window, self.offset is not None

        @tc.function
        def span(count: Value, offset: Value, first: Value, last: Value) -> Any:
            begin = 0 if window is None else max(0, first + offset + 1 - window)
            return begin, min(keys, min(count, last + 1 + offset) if is_causal else count)

        return span

    @property
    def is_seen(self) -> Function:
        """Whether a query sees a key in the span: a function of the key, and the last key that the query sees."""
        window = self.window

        @tc.function
        def is_seen(key: Value, last: Value) -> Any:
            return key <= last if window is None else key <= last and key > last - window

        return is_seen

    def kernel(self, workers: int, blocks: Function) -> tc.KernelDefinition:
        """blocks(q, k, v, extra, y) as a kernel, with the parameters that the problem has."""
        return self._defined(tc.kernel(workers=workers), blocks)

    def program(self, steps: Function) -> tc.ProgramDefinition:
        """steps(q, k, v, extra, y) as a program, with the same parameters."""
        return self._defined(tc.program, steps)

    def _defined(self, decorate: Decorator[Made], run: Function) -> Made:
        queries, keys, values, result = self.types
        masks, counts, scores = self.extra

        @decorate
        def attention(
            q: tc.typed[queries],
            k: tc.typed[keys],
            v: tc.typed[values],
            mask: tc.typed[masks],
            lengths: tc.typed[counts],
            sinks: tc.typed[scores],
            y: tc.out[result],
        ) -> None:
            run(q, k, v, present(mask, lengths, sinks), y)

        return attention

    @property
    def extra(self) -> tuple[tuple[TensorType, ...], ...]:
        """The types of the mask, the lengths and the sinks: of each one or none."""
        return (
            () if self.mask is None else (self.mask,),
            (i32[self.batches],) if self.lengths else (),
            (self.dtype[self.heads],) if self.sinks else (),
        )


@tc.function
def present(mask: Value, lengths: Value, sinks: Value) -> Values:
    """The operands that a problem may lack, from tuples of each one or none; None for one that it lacks."""
    return (
        mask[0] if len(mask) else None,
        lengths[0] if len(lengths) else None,
        sinks[0] if len(sinks) else None,
    )


def problem_of(
    batches: Extent, heads: int, length: Extent, keys: Extent, features: int,
    *, kv_heads: int | None, value_features: int | None, causal: bool, offset: Extent | None,
    mask: TensorType | None, scale: float | None, dtype: DType, window: Extent | None = None, lengths: bool = False,
    sinks: bool = False, cap: float = 0.0, ahead: int = 0,
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
    if window is not None and (not causal or (isinstance(window, int) and window < 1)):
        raise CompileError("a window is at least one key, and ends where a causal attention does")
    if cap < 0:
        raise CompileError(f"scores between {-cap} and {cap} are none")
    if mask is not None:
        _check_mask(mask, (batches, heads, length, keys))
    offset = (keys - length if offset is None else offset) + ahead
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
        window=window if offset is not None else None,
        lengths=lengths,
        sinks=sinks,
        cap=cap,
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
