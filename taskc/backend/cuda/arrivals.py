"""Words in which blocks count who has come to a barrier of the grid.

A barrier leaves its word as the next one wants it, in the same launch or in a later one, so it is zeroed once only,
in the order of the stream. Launches of a stream come one after another, and have one word; what may run beside them
has others: other streams, other threads (for whom the per-thread default stream is another one), and each launch that
a graph captures, since graphs run beside each other. There the zeroing is captured, too.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial

from taskc.backend.cuda.context import Context
from taskc.backend.cuda.streams import Stream

_BYTES = 4


class Word:
    def __init__(self, context: Context, stream: Stream) -> None:
        self.context = context
        # Not in the order of the stream: the stream may be gone before it is given back.
        self.pointer = context.allocate(_BYTES, stream.number, ordered=False)
        with context.current():
            context.api.cuMemsetD32Async(self.pointer, 0, 1, stream.number)

    def __del__(self) -> None:
        if hasattr(self, "pointer") and not sys.is_finalizing():
            with suppress(Exception):  # nobody to tell
                free = partial(self.context.free, self.pointer, 0, ordered=False)
                self.context.parking.add(free, None)


def arrivals_of(context: Context, stream: Stream) -> int:
    """The address of the word for a launch in a stream."""
    recorder = stream.recorder
    if recorder is not None:
        captured = Word(context, stream)
        recorder.keep(captured)
        return captured.pointer
    word: Word | None = getattr(stream.of_thread, "arrivals", None)
    if word is None:
        word = stream.of_thread.arrivals = Word(context, stream)
    return word.pointer
