"""CUDA graphs: calls that are captured once and replayed with one launch.

A replay uses the memory of the captured calls: arrays that they were passed, or that they allocated, live as long
as the graph. `Array.set` puts new inputs into them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.cuda.array import Array
from taskc.backend.cuda.context import Context, context
from taskc.backend.cuda.launch import PreparedLaunch
from taskc.backend.cuda.streams import Stream, current_stream
from taskc.ir.plan import Given, InArena, InConstant, Word

# --- Planned calls as a CUDA graph: each waits only for its dependencies, and one launch runs them all
#     a = f(x)
#     b = g(y)             f(x)   g(y)
#     c = h(a)       ->      |      |
#     d = k(c, b)          h(a)     |
#                             \    /
#                            k(c, b)
#
# A node has its own copy of its arguments. A replay with other arrays updates the nodes that use these, tensor
# maps included; replays that are under way keep the old arguments. CUDA runs one replay of a graph at a time,
# whatever the streams, so the memory of the temporaries belongs to the graph.


# A word, or a scalar of its storage type.
Passed: TypeAlias = "Word | np.generic"


@dataclass(frozen=True, slots=True)
class Places:
    """The memory of a plan besides its arguments: temporaries and constants."""

    arena: Array
    constants: Sequence[Array]

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.arena, *self.constants


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """One call of a plan; `passed` has an entry for each parameter of the kernel."""

    launch: PreparedLaunch
    passed: tuple[Passed, ...]

    def values(self, given: Sequence[Any], places: Places) -> list[Any]:
        """The launch's values; `given` are the addresses and scalars passed to the program."""
        return [value_of(word, given, places) for word in self.passed]


def value_of(word: Passed, given: Sequence[Any], places: Places) -> Any:
    match word:
        case Given(parameter=number, offset=offset):
            return given[number] + offset if offset else given[number]
        case InArena(offset=offset):
            return places.arena.pointer + offset
        case InConstant(number=number, offset=offset):
            return places.constants[number].pointer + offset
        case _:
            return word


class KernelGraph:
    """Calls that share one arena for their temporaries.

    waits   for each call, the numbers of earlier ones that it depends on
    given   the values that its nodes are first created with
    stream  the stream of the last launch
    """

    def __init__(
        self,
        context: Context,
        calls: Sequence[PreparedCall],
        waits: Sequence[Collection[int]],
        given: Sequence[Any],
        places: Places,
        stream: Stream,
    ) -> None:
        self.context = context
        self.stream = stream
        self._calls = calls
        self._places = places
        self._nodes: dict[int, Any] = {}  # by the number of the call
        self._bits: list[Any] | None = _bits(given)
        with context.current():
            self._graph = context.api.cuGraphCreate(0)
            self._add_nodes(waits, given)
            self._executable = context.api.cuGraphInstantiate(self._graph, 0)
        self._users = self._by_parameter(len(given))
        kernels = dict.fromkeys([calls[number].launch.loaded for number in self._nodes])
        self._names = list(dict.fromkeys([loaded.kernel.name for loaded in kernels]))
        looks = [loaded.look for loaded in kernels if loaded.status]
        self._looks: dict[Callable[[], None], None] = dict.fromkeys(looks)
        self._bind(stream)

    def _add_nodes(self, waits: Sequence[Collection[int]], given: Sequence[Any]) -> None:
        # For each call, the nodes that end it; a call that launches nothing takes those of its dependencies.
        ends: list[set[int]] = []
        for number, (call, others) in enumerate(zip(self._calls, waits, strict=True)):
            before = {end for other in others for end in ends[other]}
            if not call.launch.is_empty:
                nodes = [self._nodes[other] for other in sorted(before)]
                values = call.values(given, self._places)
                self._nodes[number] = call.launch.add_node(self._graph, nodes, values)
                before = {number}
            ends.append(before)

    def _by_parameter(self, count: int) -> list[list[int]]:
        """For each of the program's parameters, the calls with a node that uses it."""
        users: list[list[int]] = [[] for _ in range(count)]
        for number in self._nodes:
            for word in self._calls[number].passed:
                if isinstance(word, Given):
                    users[word.parameter].append(number)
        return users

    def _bind(self, stream: Stream) -> None:
        self.stream = stream
        for array in self._places.arrays:
            array.memory.used(stream)
        self._launched = [(stream.number, name) for name in self._names]

    def replay(self, given: Sequence[Any], stream: Stream) -> None:
        """Run the calls in stream order, on other arrays and scalars."""
        api = self.context.api
        if stream is not self.stream:
            self._bind(stream)
        with self.context.current():
            self._patch(given)
            api.cuGraphLaunch(self._executable, stream.number)
        api.launched.extend(self._launched)
        stream.assertions.update(self._looks)

    def _patch(self, given: Sequence[Any]) -> None:
        bits = _bits(given)
        if bits == self._bits:
            return
        # If an update fails, the nodes' contents are unknown, and the next replay updates all.
        before, self._bits = self._bits, None
        changed = [
            number for number, one in enumerate(bits) if before is None or one != before[number]
        ]
        for number in sorted({user for one in changed for user in self._users[one]}):
            call = self._calls[number]
            values = call.values(given, self._places)
            call.launch.set_node(self._executable, self._nodes[number], values)
        self._bits = bits

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        with suppress(Exception), self.context.current():  # there is nobody to report it to
            api = self.context.api
            if hasattr(self, "_executable"):  # a replay that is under way still completes
                api.cuGraphExecDestroy(self._executable)
            if hasattr(self, "_graph"):  # its nodes name those of the executable
                api.cuGraphDestroy(self._graph)


def _bits(given: Sequence[Any]) -> list[Any]:
    """Addresses, and the bytes of scalars: equal numbers may differ in their bytes."""
    return [one if isinstance(one, int) else np.asarray(one).tobytes() for one in given]


class Graph:
    """The captured calls of a function.

        graph = Graph(lambda: scale(x, out=y))
        graph.replay()

    result  the function's result: arrays that every replay overwrites
    """

    def __init__(self, function: Callable[[], Any], *, device: int = 0) -> None:
        self.context = context(device)
        # A first call compiles, loads and looks up, which a capture doesn't allow.
        function()
        stream = Stream(device)
        stream.wait(current_stream(self.context))
        self._kept: list[object] = []
        self._names: list[str] = []
        self._looks: dict[Callable[[], None], None] = {}
        self._executable: Any = None
        api = self.context.api
        # Other threads, and allocations, are not restricted.
        mode = api.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self.context.current(), stream, self.context.parking.capture():
            api.cuStreamBeginCapture(stream.number, mode)
            stream.captured_by = self
            try:
                self.result = function()
            except BaseException:
                with suppress(
                    Exception
                ):  # ending a capture that was cut short raises an error of its own
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
        """Replay the calls once more, by default in the current stream."""
        stream = stream or current_stream(self.context)
        for memory in self._memories:
            memory.used(stream)
        with self.context.current():
            self.context.api.cuGraphLaunch(self._executable, stream.number)
        for name in self._names:
            self.context.api.launched.append((stream.number, name))
        stream.assertions.update(self._looks)

    # --- called by the stream that is capturing ---

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
