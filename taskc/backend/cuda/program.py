"""A program on a device: a plan for each set of sizes, replayed as a graph or launched call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taskc.backend.cuda.array import Array, array
from taskc.backend.cuda.compiled import count
from taskc.backend.cuda.copies import to_host
from taskc.backend.cuda.graphs import KernelGraph, Passed, Places, PreparedCall, value_of
from taskc.backend.cuda.launch import Loaded
from taskc.backend.cuda.memory import Memory
from taskc.backend.cuda.streams import Stream
from taskc.errors import assert_never
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor, Variable
from taskc.ir.plan import Jump, Plan, PlannedCall, deciding
from taskc.ir.program import Program
from taskc.ir.reentry import Turn

Busy: TypeAlias = Callable[[int, Sequence[int]], int]
Waits: TypeAlias = Callable[[Plan], list[set[int]]]

_MOST_PLANS = 8  # sets of sizes; with one more, the least recently used one is dropped
_MOST_GRAPHS = 4  # graphs of a plan, which may run at the same time


class LoadedProgram:
    """A program whose kernels are loaded.

    kernels  in a plan's order
    planned  makes the plan for given sizes and number of processors, from how many processors each call keeps busy
    waits    for each call of a plan, the calls that it depends on
    """

    def __init__(
        self,
        program: Program,
        kernels: Sequence[Loaded],
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
        """How many processors a call's blocks fill."""
        loaded = self._kernels[kernel]
        sizes = (*words[len(loaded.parameters) :], self.context.processors)
        blocks = count(loaded.compiled.blocks, sizes, words)
        return -(-blocks // max(1, loaded.resident))


@dataclass(frozen=True, slots=True)
class ProgramForm:
    """Launches at known sizes."""

    loaded: LoadedProgram
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
        self, kernels: Sequence[Loaded], plan: Plan, constants: Sequence[Array], waits: Waits
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
        memory = Memory(self._context, self._arena_bytes, stream)
        arena = Array(memory.pointer, (self._arena_bytes,), np.dtype(np.uint8), memory)
        return Places(arena, self._constants)


def _prepared(loaded: Loaded, call: PlannedCall) -> PreparedCall:
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
