"""CUDA graphs: calls that are captured once and replayed with one launch.

What was captured goes on using the same memory: arrays that captured calls were given, or that they made, stay for
as long as the graph. New inputs are put into them by `Array.set`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from taskc.backend.cuda.array import Array
from taskc.backend.cuda.context import context
from taskc.backend.cuda.streams import Stream, current_stream


class Graph:
    """The calls of a function, captured.

        graph = Graph(lambda: scale(x, out=y))
        graph.replay()

    result  what the function returned: arrays that every replay writes anew
    """

    def __init__(self, function: Callable[[], Any], *, device: int = 0) -> None:
        self.context = context(device)
        # Whatever is compiled, loaded and looked up at a first call would be in the way of capturing.
        function()
        stream = Stream(device)
        stream.wait(current_stream(self.context))
        self._kept: list[object] = []
        self._names: list[str] = []
        self._looks: dict[Callable[[], None], None] = {}
        self._executable: Any = None
        api = self.context.api
        # Other threads, and allocations, go on as ever.
        mode = api.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self.context.current(), stream, self.context.parking.capture():
            api.cuStreamBeginCapture(stream.number, mode)
            stream.captured_by = self
            try:
                self.result = function()
            except BaseException:
                with suppress(Exception):  # a capture that was cut short has its own error
                    api.cuGraphDestroy(api.cuStreamEndCapture(stream.number))
                raise
            else:
                graph = api.cuStreamEndCapture(stream.number)
            finally:
                stream.captured_by = None
            try:
                self._executable = api.cuGraphInstantiate(graph, 0)
            finally:
                api.cuGraphDestroy(graph)
        self._memories = {one.memory for one in self._kept if isinstance(one, Array)}

    def replay(self, stream: Stream | None = None) -> None:
        """Runs it once more, in a stream: the current one if none is given."""
        stream = stream or current_stream(self.context)
        for memory in self._memories:
            memory.used(stream)
        with self.context.current():
            self.context.api.cuGraphLaunch(self._executable, stream.number)
        for name in self._names:
            self.context.api.launched.append((stream.number, name))
        stream.assertions.update(self._looks)

    # --- the stream tells what it captures ---

    def keep(self, *things: object) -> None:
        self._kept += things

    def launched(self, name: str, look: Callable[[], None] | None, kept: Sequence[object]) -> None:
        self._kept += kept
        if name not in self._names:
            self._names.append(name)
        if look is not None:
            self._looks[look] = None

    def __del__(self) -> None:
        if getattr(self, "_executable", None) is not None and not sys.is_finalizing():
            with suppress(Exception), self.context.current():
                self.context.api.cuGraphExecDestroy(self._executable)
