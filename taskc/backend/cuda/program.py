"""A program on a device: a plan for each set of sizes, replayed as a graph or launched call by call.

`KernelGraph` is a plan's calls as a CUDA graph; `Graph`, for users, has the calls that a function makes while it is
captured. A replay of either is one launch, and uses the memory of the captured calls: arrays that they were passed,
or that they allocated, live as long as the graph. `Array.set` puts new inputs into them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.cuda.array import Array, array, to_host
from taskc.backend.cuda.compiled import count
from taskc.backend.cuda.context import Context, context
from taskc.backend.cuda.launch import DeviceKernel, PreparedLaunch
from taskc.backend.cuda.memory import DeviceMemory
from taskc.backend.cuda.streams import Stream, current_stream
from taskc.dataclass import dataclass
from taskc.errors import assert_never
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.reentry import Turn
from taskc.programs.ir import Program
from taskc.programs.plan import Given, InArena, InConstant, Jump, Plan, PlannedCall, Word, deciding

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
        for owned in self._places.arrays:
            owned.memory.used(stream)
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
        if hasattr(self, "_executable"):  # a replay that is under way still completes
            self.context.destroy("cuGraphExecDestroy", self._executable)
        if hasattr(self, "_graph"):  # its nodes name those of the executable
            self.context.destroy("cuGraphDestroy", self._graph)


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
                # Ending a capture that was cut short raises an error of its own.
                with suppress(Exception):
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
        self.context.do.cuGraphLaunch(self._executable, stream.number)
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
        if getattr(self, "_executable", None) is not None:
            self.context.destroy("cuGraphExecDestroy", self._executable)


Busy: TypeAlias = Callable[[int, Sequence[int]], int]
Waits: TypeAlias = Callable[[Plan], list[set[int]]]

_MOST_PLANS = 8  # sets of sizes; with one more, the least recently used one is dropped
_MOST_GRAPHS = 4  # graphs of a plan, which may run at the same time


class DeviceProgram:
    """A program whose kernels are loaded.

    kernels  in a plan's order
    planned  makes the plan for given sizes and number of processors, from how many processors each call keeps busy
    waits    for each call of a plan, the calls that it depends on
    """

    def __init__(
        self,
        program: Program,
        kernels: Sequence[DeviceKernel],
        planned: Callable[[Mapping[Variable, Any], int, Busy], Plan],
        waits: Waits,
    ) -> None:
        self.parameters, self.dimensions = program.parameters, program.dimensions
        self.context = kernels[0].context
        self._kernels = kernels
        self._planned = planned
        self._waits = waits
        ordinal = self.context.ordinal
        self._constants = [array(memory, device=ordinal) for _, memory in program.constants]
        scalars = [item for item in deciding(program) if item in program.parameters]
        self._scalars = [(item, program.parameters.index(item)) for item in scalars]
        self._plans: dict[tuple[int, ...], PreparedPlan] = {}
        self._turn = Turn()

    def form(self, shapes: tuple[Any, ...], dimensions: dict[Variable, int]) -> ProgramForm:
        """The program at given sizes, ready to launch; its shapes follow from them."""
        return ProgramForm(self, dimensions)

    def launch(
        self,
        dimensions: Mapping[Variable, int],
        given: Sequence[Any],
        stream: Stream,
        kept: Sequence[object],
    ) -> None:
        sizes = {item: dimensions[item] for item in self.dimensions}
        sizes |= {item: int(given[number]) for item, number in self._scalars}
        # A graph's nodes are updated and launched by one thread at a time.
        with self._turn.taken() as is_alone:
            plan = self._plan(sizes)
            if is_alone and plan.has_graphs and not stream.is_capturing:
                plan.graph(given, stream).replay(given, stream)
                return
        plan.launch(given, stream, kept)

    def _plan(self, sizes: dict[Variable, int]) -> PreparedPlan:
        key = tuple(sizes.values())
        prepared = self._plans.pop(key, None)
        if prepared is None:
            plan = self._planned(sizes, self.context.processors, self._busy)
            prepared = PreparedPlan(self._kernels, plan, self._constants, self._waits)
        self._plans[key] = prepared
        for old in [*self._plans][:-_MOST_PLANS]:
            self._plans.pop(old, None)
        return prepared

    def _busy(self, kernel: int, words: Sequence[int]) -> int:
        """The number of processors that a call's blocks fill."""
        loaded = self._kernels[kernel]
        sizes = (*words[len(loaded.parameters) :], self.context.processors)
        blocks = count(loaded.compiled.blocks, sizes, words)
        return -(-blocks // max(1, loaded.resident))


@dataclass(frozen=True, slots=True)
class ProgramForm:
    """Launches at known sizes."""

    loaded: DeviceProgram
    dimensions: dict[Variable, int]

    def launch(self, values: Sequence[Any], stream: Stream, kept: Sequence[object] = ()) -> None:
        """values  for each parameter the address of a tensor's memory, or a scalar of its storage type
        kept    objects to keep alive as long as a graph that captures this launch
        """
        self.loaded.launch(self.dimensions, values, stream, kept)


class PreparedPlan:
    """A plan whose calls have prepared launches.

    graphs  its graphs, each with its own arena; the least recently used one comes first
    """

    def __init__(
        self, kernels: Sequence[DeviceKernel], plan: Plan, constants: Sequence[Array], waits: Waits
    ) -> None:
        self._context = kernels[0].context
        self._arena_bytes = plan.arena
        self._constants = constants
        self._steps = [
            _prepared(kernels[step.kernel], step) if isinstance(step, PlannedCall) else step
            for step in plan.steps
        ]
        self._calls = [step for step in self._steps if isinstance(step, PreparedCall)]
        # A graph can't branch on a flag, and can't contain every launch.
        self.has_graphs = len(self._calls) == len(self._steps) and all(
            call.launch.can_be_node for call in self._calls
        )
        self._waits = waits(plan) if self.has_graphs else []
        self._graphs: list[KernelGraph] = []

    def graph(self, given: Sequence[Any], stream: Stream) -> KernelGraph:
        """The graph last used in this stream, or else another one, so that other streams can go on at the same time."""
        chosen = next((one for one in self._graphs if one.stream is stream), None)
        if chosen is None and len(self._graphs) < _MOST_GRAPHS:
            places = self._places(stream)
            chosen = KernelGraph(self._context, self._calls, self._waits, given, places, stream)
        elif chosen is None:
            chosen = self._graphs[0]
        self._graphs = [*[one for one in self._graphs if one is not chosen], chosen]
        return chosen

    def launch(self, given: Sequence[Any], stream: Stream, kept: Sequence[object]) -> None:
        """Launch the calls one after another, with a new arena for temporaries."""
        places = self._places(stream)
        for one in places.arrays:
            one.memory.used(stream)
        number = 0
        while number < len(self._steps):
            step = self._steps[number]
            match step:
                case PreparedCall():
                    arrays = *kept, *places.arrays
                    step.launch.launch(step.values(given, places), stream, arrays)
                    number += 1
                case Jump(to=to, unless=unless):
                    is_left_out = unless is not None and _flag(unless, given, places, stream)
                    number = number + 1 if is_left_out else to
                case _:
                    assert_never(step)

    def _places(self, stream: Stream) -> Places:
        memory = DeviceMemory(self._context, self._arena_bytes, stream)
        arena = Array(memory.pointer, (self._arena_bytes,), np.dtype(np.uint8), memory)
        return Places(arena, self._constants)


def _prepared(loaded: DeviceKernel, call: PlannedCall) -> PreparedCall:
    total = len(loaded.parameters)
    dimensions: dict[Variable, Any] = dict(zip(loaded.dimensions, call.words[total:], strict=True))
    shapes: list[tuple[int, ...]] = []
    passed: list[Passed] = []
    for parameter, word in zip(loaded.parameters, call.words, strict=False):
        if isinstance(parameter, Tensor):
            shape = [extent_value(extent, dimensions) for extent in parameter.argument_shape]
            shapes.append(tuple(shape))
        else:
            shapes.append(())
        passed.append(_scalar(word, parameter) if isinstance(word, int) else word)
    return PreparedCall(loaded.form(tuple(shapes), dimensions), tuple(passed))


def _scalar(bits: int, parameter: Any) -> np.generic:
    content = bits.to_bytes(8, "little")
    scalar: np.generic = np.frombuffer(content, parameter.dtype.numpy, 1)[0]
    return scalar


def _flag(word: Passed, given: Sequence[Any], places: Places, stream: Stream) -> bool:
    """The flag's value, after all earlier work in the stream."""
    flag: np.ndarray = np.empty((), np.bool_)
    to_host(flag, value_of(word, given, places), stream)
    return bool(flag)
