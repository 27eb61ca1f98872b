"""The parts of a program's memory that calls have written, with bounds that are sizes.

    kernel(x, out=y[0:n])          y is written from 0 to n
    kernel(z, out=y[n:n + m])      and from 0 to n + m, whatever n and m are

All answers hold for all sizes; a part that can't be decided counts as not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from taskc.errors import Location
from taskc.ir.linear import Affine
from taskc.ir.nodes import Tensor
from taskc.programs.sizes import Sizes, Steps


class Span(NamedTuple):
    """Elements of a tensor's memory from `low` to before `high`, and where they were written."""

    low: Affine
    high: Affine
    site: Location


class Need(NamedTuple):
    """A part that a call in a loop reads and that earlier steps must have written: else it is an error.

    written  the spans that this step has written before the call
    """

    memory: Tensor
    span: Span
    written: tuple[Span, ...]
    error: Exception


class Written:
    """The written parts of each tensor's memory, in a program or in one iteration of a body of its steps.

    outer     the state around the body
    is_loop   whether the body is a loop's: earlier steps may have written what a step reads
    spans     the parts that are surely written
    perhaps   the parts that may be written, as by only one body of a branch
    repeated  memory of which calls may have written an element as their `out` more than once, and where
    needs     the parts that earlier steps must have written
    """

    def __init__(
        self, sizes: Sizes, outer: Written | None = None, *, is_loop: bool = False
    ) -> None:
        self.sizes = sizes
        self.outer = outer
        self.is_loop = is_loop
        self.spans: dict[Tensor, list[Span]] = {}
        self.perhaps: dict[Tensor, list[Span]] = {}
        self.repeated: dict[Tensor, Location] = {} if outer is None else outer.repeated
        self.needs: list[Need] = []

    def copy(self) -> Written:
        """The same state, to go on from later."""
        copy = Written(self.sizes, self.outer, is_loop=self.is_loop)
        copy.state, copy.repeated, copy.needs = self.state, self.repeated, [*self.needs]
        return copy

    def of(self, memory: Tensor) -> list[Span]:
        """The spans that are surely written: before the enclosing bodies, and in this iteration of each."""
        outer = [] if self.outer is None else self.outer.of(memory)
        return [*outer, *self.spans.get(memory, ())]

    def perhaps_of(self, memory: Tensor) -> list[Span]:
        """The spans that may be written, beyond those that surely are."""
        outer = [] if self.outer is None else self.outer.perhaps_of(memory)
        return [*outer, *self.perhaps.get(memory, ())]

    def add(self, memory: Tensor, span: Span) -> None:
        """Record a part that a call writes as its `out`."""
        self._check_first(memory, span)
        self._note(memory, span)

    def _check_first(self, memory: Tensor, span: Span) -> None:
        if self.overlapping(memory, span) is not None:
            self.repeated.setdefault(memory, span.site)

    def _note(self, memory: Tensor, span: Span) -> None:
        spans = [*self.spans.get(memory, ()), span]
        # The spans of a step aren't merged: each may move differently from step to step.
        self.spans[memory] = self._merged(spans) if self.outer is None else spans

    def _note_perhaps(self, memory: Tensor, span: Span) -> None:
        self.perhaps[memory] = [*self.perhaps.get(memory, ()), span]

    def overlapping(self, memory: Tensor, span: Span) -> Span | None:
        """A part that may be written and may overlap this one."""
        known = [*self.of(memory), *self.perhaps_of(memory)]
        return next((own for own in known if not self.are_apart(own, span)), None)

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
        """Whether two spans surely have no element in common."""
        return self._le(one.high, other.low) or self._le(other.high, one.low)

    def rename(self, memory: Tensor, new: Tensor) -> None:
        for spans in (self.spans, self.perhaps):
            if memory in spans:
                spans[new] = spans.pop(memory)

    def _le(self, left: Affine, right: Affine) -> bool:
        return self.sizes.is_natural(right - left)

    def _merged(self, spans: Iterable[Span]) -> list[Span]:
        """The same elements in fewer spans, where ends surely meet."""
        merged_spans: list[Span] = []
        for span in spans:
            merged = span
            again = True
            while again:
                again = False
                for other in merged_spans:
                    both = self._union(merged, other)
                    if both is not None:
                        merged_spans.remove(other)
                        merged, again = both, True
                        break
            merged_spans.append(merged)
        return merged_spans

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

    # --- branches ---

    @property
    def state(self) -> tuple[dict[Tensor, list[Span]], dict[Tensor, list[Span]]]:
        """The current spans, to restore later."""
        return dict(self.spans), dict(self.perhaps)

    @state.setter
    def state(self, before: tuple[dict[Tensor, list[Span]], dict[Tensor, list[Span]]]) -> None:
        self.spans, self.perhaps = before

    def join(self, one: Written, other: Written) -> None:
        """Add the writes of a branch, one of whose bodies ran: surely those of both, perhaps those of either."""
        for branch, other_branch in ((one, other), (other, one)):
            for memory, spans in branch.spans.items():
                for span in spans:
                    if not other_branch.has(memory, span):
                        self._note_perhaps(memory, span)
                    elif not self.has(memory, span):
                        self._note(memory, span)
            for memory, spans in branch.perhaps.items():
                for span in spans:
                    self._note_perhaps(memory, span)

    def repeat(self, body: Written) -> None:
        """Add the writes of a body that ran any number of times, or never."""
        for written in (body.spans, body.perhaps):
            for memory, spans in written.items():
                for span in spans:
                    self.repeated.setdefault(memory, span.site)
                    self._note_perhaps(memory, span)

    # --- loops ---

    def need(
        self, memory: Tensor, span: Span, error: Exception, written: tuple[Span, ...] = ()
    ) -> None:
        """Raise the error of a read before its span is surely written.

        In a loop an earlier step may have written the span: the error is kept until the whole body is known.

        written  the spans written in the bodies inside this one that enclose the reader
        """
        written = (*self.spans.get(memory, ()), *written)
        if self.is_loop:
            self.needs.append(Need(memory, span, written, error))
        elif self.outer is not None:
            self.outer.need(memory, span, error, written)
        else:
            raise error

    def end(self, steps: Steps) -> None:
        """End the loop of this body: check its needs, and add its writes to the outer state."""
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
        for memory, spans in self.perhaps.items():
            for span in spans:
                whole = next(_swept([span], steps), None)
                if whole is None and not self.sizes.is_natural(-steps.count + 1):
                    outer.repeated.setdefault(memory, span.site)
                whole = whole or Span(steps.first(span.low), steps.first(span.high), span.site)
                outer._check_first(memory, whole)
                outer._note_perhaps(memory, whole)

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
    """The union over all steps of each span that advances by its own length."""
    for low, high, site in spans:
        if steps.next(low) == high:
            yield Span(steps.first(low), steps.end(low), site)
        elif steps.next(high) == low:
            yield Span(steps.end(high), steps.first(high), site)


def _before(spans: Iterable[Span], steps: Steps) -> Iterator[Span]:
    """The union over the earlier steps of each span that advances by its own length."""
    for low, high, site in spans:
        if steps.next(low) == high:
            yield Span(steps.first(low), low, site)
        elif steps.next(high) == low:
            yield Span(high, steps.first(high), site)


def _moves(span: Span, steps: Steps) -> bool:
    return (steps.next(span.low), steps.next(span.high)) != (span.low, span.high)
