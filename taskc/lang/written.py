"""What calls have written of a program's memory, where parts of it have bounds that are sizes.

    kernel(x, out=y[0:n])          y is written from 0 to n
    kernel(z, out=y[n:n + m])      and from 0 to n + m, whatever n and m are

Whatever is said here holds for all sizes; what can't be decided counts as not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from taskc.errors import CompileError, Location
from taskc.ir.linear import Affine
from taskc.ir.nodes import Tensor
from taskc.lang.sizes import Sizes
from taskc.lang.steps import Steps


class Span(NamedTuple):
    """Elements of a tensor's memory from `low` to before `high`, and where they were written."""

    low: Affine
    high: Affine
    site: Location


class Need(NamedTuple):
    """What a call in a loop reads, if earlier steps have written what is missing: else it is an error.

    written  what this step has before the call
    """

    memory: Tensor
    span: Span
    written: tuple[Span, ...]
    error: CompileError


class Written:
    """What has been written of each tensor's memory, in a program or in one step of a loop.

    outer     what was written before the loop
    repeated  memory of which calls may have written an element as their `out` more than once, and where
    needs     what has to have been written by earlier steps
    """

    def __init__(self, sizes: Sizes, outer: Written | None = None) -> None:
        self.sizes = sizes
        self.outer = outer
        self.spans: dict[Tensor, list[Span]] = {}
        self.repeated: dict[Tensor, Location] = {} if outer is None else outer.repeated
        self.needs: list[Need] = []

    def of(self, memory: Tensor) -> list[Span]:
        """What is written of it: before the loops around, and in this step of each."""
        outer = [] if self.outer is None else self.outer.of(memory)
        return [*outer, *self.spans.get(memory, ())]

    def add(self, memory: Tensor, span: Span) -> None:
        """A call writes a part as its `out`."""
        if self.overlapping(memory, span) is not None:
            self.repeated.setdefault(memory, span.site)
        spans = [*self.spans.get(memory, ()), span]
        # Those of a step stay apart, for each may move on in another way.
        self.spans[memory] = self._merged(spans) if self.outer is None else spans

    def overlapping(self, memory: Tensor, span: Span) -> Span | None:
        """A part that is written and may overlap this one."""
        return next((own for own in self.of(memory) if not self.are_apart(own, span)), None)

    def has(self, memory: Tensor, span: Span, more: Iterable[Span] = ()) -> bool:
        """Whether all of a part is surely written."""
        low, high, _ = span
        if low == high:
            return True
        known = [*self.of(memory), *more]
        if self._holds(known, span):
            return True
        return len(known) > 1 and self._holds(self._merged(known), span)

    def _holds(self, spans: Iterable[Span], span: Span) -> bool:
        return any(self._le(own.low, span.low) and self._le(span.high, own.high) for own in spans)

    def are_apart(self, one: Span, other: Span) -> bool:
        """Whether no element is surely in both."""
        return self._le(one.high, other.low) or self._le(other.high, one.low)

    def rename(self, memory: Tensor, new: Tensor) -> None:
        self.spans[new] = self.spans.pop(memory)

    def _le(self, left: Affine, right: Affine) -> bool:
        return self.sizes.is_natural(right - left)

    def _merged(self, spans: Iterable[Span]) -> list[Span]:
        """The same elements in fewer spans, where ends surely meet."""
        found: list[Span] = []
        for span in spans:
            merged = span
            again = True
            while again:
                again = False
                for other in found:
                    both = self._union(merged, other)
                    if both is not None:
                        found.remove(other)
                        merged, again = both, True
                        break
            found.append(merged)
        return found

    def _union(self, one: Span, other: Span) -> Span | None:
        if not (self._le(one.low, other.high) and self._le(other.low, one.high)):
            return None
        first = one if self._le(one.low, other.low) else other
        last = one if self._le(other.high, one.high) else other
        if not (self._le(first.low, one.low) and self._le(first.low, other.low)):
            return None
        if not (self._le(one.high, last.high) and self._le(other.high, last.high)):
            return None
        return Span(first.low, last.high, one.site)

    # --- loops ---

    def need(self, memory: Tensor, span: Span, error: CompileError) -> None:
        """A part that is read before it is surely written: in a loop earlier steps may have written it."""
        if self.outer is None:
            raise error
        self.needs.append(Need(memory, span, tuple(self.spans.get(memory, ())), error))

    def end(self, steps: Steps) -> None:
        """The loop is over whose body this is of: what it needs is there, and what it writes counts outside."""
        outer = self.outer
        assert outer is not None
        for need in self.needs:
            self._check(need, steps)
        for memory, spans in self.spans.items():
            merged = self._merged(spans)
            swept = list(_swept(merged, steps))
            if len(swept) < len(merged):  # some don't move on by their own length
                if not self.sizes.is_natural(-steps.count + 1):  # there may be a second step
                    outer.repeated.setdefault(memory, spans[-1].site)
                is_run = self.sizes.is_natural(steps.count - 1)
                still = [span for span in spans if is_run and not _moves(span, steps)]
                swept = [*dict.fromkeys([*swept, *_swept(spans, steps), *still])]
            for span in swept:
                outer.add(memory, span)

    def _check(self, need: Need, steps: Steps) -> None:
        assert self.outer is not None
        before = _before(self._merged(self.spans.get(need.memory, ())), steps)
        if self.outer.has(need.memory, need.span, [*need.written, *before]):
            return
        whole = list(_swept([need.span], steps)) if _moves(need.span, steps) else [need.span]
        if not whole:
            raise need.error
        self.outer.need(need.memory, whole[0], need.error)


def _swept(spans: Iterable[Span], steps: Steps) -> Iterator[Span]:
    """What all steps write together, of the spans that move on by their own length."""
    for low, high, site in spans:
        if steps.next(low) == high:
            yield Span(steps.first(low), steps.end(low), site)
        elif steps.next(high) == low:
            yield Span(steps.end(high), steps.first(high), site)


def _before(spans: Iterable[Span], steps: Steps) -> Iterator[Span]:
    """What the steps before this one have written, of the same."""
    for low, high, site in spans:
        if steps.next(low) == high:
            yield Span(steps.first(low), low, site)
        elif steps.next(high) == low:
            yield Span(high, steps.first(high), site)


def _moves(span: Span, steps: Steps) -> bool:
    return (steps.next(span.low), steps.next(span.high)) != (span.low, span.high)
