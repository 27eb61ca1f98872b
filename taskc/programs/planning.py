"""Make the plan of a program at given sizes: its calls in order, as words, and its temporaries in one arena."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from taskc.arrays.packed import slots_of
from taskc.dataclass import dataclass
from taskc.errors import assert_never
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Kernel, Tensor, Variable
from taskc.programs.arena import Block, most_alive, placed
from taskc.programs.hazards import ByteRange, hazards, list_schedule
from taskc.programs.ir import Program, kernels_of
from taskc.programs.plan import (
    Given,
    InArena,
    InConstant,
    Jump,
    Plan,
    PlannedCall,
    PlannedStep,
    Word,
)
from taskc.programs.specialize import Leap, Sized, SizedCall, SizedStep, sized

# The number of threads that a call keeps busy, by its kernel's number and its words (without addresses).
Busy: TypeAlias = Callable[[int, Sequence[int]], int]


def plan(
    program: Program,
    blocks: list[Block],
    sizes: Mapping[Variable, Any],
    threads: int = 1,
    busy: Busy = lambda kernel, words: 0,
) -> Plan:
    """The plan of a program of kernels; for the parameters see `arrange`."""
    arranged = arrange(program, blocks, sizes, threads, busy)
    known, laid = arranged.known, arranged.arena
    places: dict[Tensor | Variable, Word] = {
        item: Given(number) for number, item in enumerate(program.parameters)
    }
    places |= {tensor: InConstant(number) for number, (tensor, _) in enumerate(program.constants)}
    for block, offset in zip(blocks, laid.offsets, strict=True):
        places |= dict.fromkeys(block.tensors, InArena(offset))
    for view, of in known.views.items():
        if of in places:  # a temporary that no call names has no place
            places[view] = _offset_by(places[of], view.dtype.bytes_of(known.starts[view]))
    numbers = _numbers_of_kernels(program)
    planned: list[PlannedStep] = []
    for group in arranged.groups:
        for others, number in zip(reversed(range(len(group))), group, strict=True):
            match step := known.steps[number]:
                case SizedCall():
                    kernel = numbers[id(step.call.callee)]
                    planned.append(PlannedCall(kernel, _words(step, places), others))
                case Leap():
                    unless = None if step.unless is None else places[step.unless]
                    planned.append(Jump(step.to, unless))
                case _:
                    assert_never(step)
    order = tuple([number for group in arranged.groups for number in group])
    return Plan(tuple(planned), laid.size, laid.alive, order)


def _numbers_of_kernels(program: Program) -> dict[int, int]:
    return {id(kernel): n for n, kernel in enumerate(kernels_of(program).values())}


@dataclass(frozen=True, slots=True)
class Arranged:
    """A program at given sizes: the order of its steps, and the places of its temporaries.

    groups  numbers of steps, in order: the steps of a group may run at the same time
    """

    known: Sized
    groups: list[list[int]]
    arena: Laid

    @property
    def calls(self) -> list[tuple[int, SizedCall]]:
        """The calls in order, each with the number of its group."""
        steps = self.known.steps
        return [
            (time, step)
            for time, group in enumerate(self.groups)
            for number in group
            if isinstance(step := steps[number], SizedCall)
        ]


def arrange(
    program: Program,
    blocks: Sequence[Block],
    sizes: Mapping[Variable, Any],
    threads: int = 1,
    busy: Busy = lambda kernel, words: 0,
) -> Arranged:
    """Order a program's calls, and place its temporaries.

    blocks   the memory of its temporaries, the same for all sizes
    sizes    the sizes that a plan depends on: `taskc.programs.plan.deciding`
    threads  the number of threads for its calls
    busy     the number of threads that a call keeps busy; 0 if it has too little work for another thread
    """
    known = sized(program, sizes)
    numbers = _numbers_of_kernels(program)
    written: dict[Tensor, Hashable] = {
        tensor: number for number, block in enumerate(blocks) for tensor in block.tensors
    }
    written |= {
        item: item for item in program.parameters if isinstance(item, Tensor) and item.role != "in"
    }
    accesses = [list(_accesses(step, written, known)) for step in known.steps]
    amounts = [max(bytes_of(tensor, known) for tensor in block.tensors) for block in blocks]
    groups = [[number] for number in range(len(known.steps))]
    laid = _laid(amounts, accesses, groups, known.turns)
    if threads > 1:
        together: list[list[int]] = []
        for run in _runs(known.steps):
            counts = [busy(numbers[id(call.call.callee)], _numbers(call)) for call in run.calls]
            groups_of_run = [[number] for number in range(run.stop - run.start)]
            if sum(0 < count < threads for count in counts) > 1:
                groups_of_run = list_schedule(
                    hazards(accesses[run.start : run.stop]), counts, threads
                )
            together += [[run.start + number for number in group] for group in groups_of_run]
        if together != groups:
            wider = _laid(amounts, accesses, together, known.turns)
            if wider.size <= laid.size * (1 + threads):  # at most as much again for each thread
                groups, laid = together, wider
    return Arranged(known, groups, laid)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive calls without a leap into or out of them."""

    start: int
    stop: int
    calls: list[SizedCall]


def _runs(steps: Sequence[SizedStep]) -> Iterator[_Run]:
    """All steps, in runs of calls; a leap is a run without calls."""
    leaps = {number for number, step in enumerate(steps) if isinstance(step, Leap)}
    ends = {step.to for step in steps if isinstance(step, Leap)}
    bounds = sorted({0, len(steps), *ends, *leaps, *[number + 1 for number in leaps]})
    for start, stop in pairwise(bounds):
        calls = [step for step in steps[start:stop] if isinstance(step, SizedCall)]
        yield _Run(start, stop, calls)


def _accesses(
    step: SizedStep, written: Mapping[Tensor, Hashable], known: Sized
) -> Iterator[ByteRange]:
    """A step's accesses to memory that any call writes; the memory of a temporary is the number of its block."""
    touched: list[tuple[Tensor, bool]] = []
    match step:
        case SizedCall():
            pairs = zip(step.call.callee.parameters, step.arguments, strict=True)
            touched += [
                (given, parameter.role != "in")
                for parameter, given in pairs
                if isinstance(parameter, Tensor)
            ]
        case Leap():
            touched += [(step.unless, False)] if step.unless else []
        case _:
            assert_never(step)
    for tensor, writes in touched:
        memory = written.get(known.views.get(tensor, tensor))
        if memory is not None:
            start = tensor.dtype.bytes_of(known.starts.get(tensor, 0))
            yield ByteRange(memory, start, start + bytes_of(tensor, known), writes)


@dataclass(frozen=True, slots=True)
class Laid:
    """An arena: the size of each block, its offset, and its first and last group (-1 for an unused block); the arena's
    size, and the most bytes alive at once."""

    amounts: Sequence[int]
    offsets: list[int]
    spans: list[tuple[int, int]]
    size: int
    alive: int


def _laid(
    amounts: Sequence[int],
    accesses: Sequence[Sequence[ByteRange]],
    groups: Sequence[Sequence[int]],
    turns: Sequence[tuple[int, int]],
) -> Laid:
    """Place blocks of these sizes, each alive from the first group that accesses it to the last one.

    Memory that a while accesses is alive throughout, since a turn may read values of the one before.
    """
    firsts, lasts = [0] * len(amounts), [-1] * len(amounts)
    times = {number: time for time, group in enumerate(groups) for number in group}
    around = [(times[begin], times[end]) for begin, end in turns]
    for time, group in enumerate(groups):
        whiles = [(begin, end) for begin, end in around if begin <= time <= end]
        begin, end = min(whiles, default=(time, time))  # the outermost one begins first
        for access in [access for number in group for access in accesses[number]]:
            if isinstance(access.memory, int):
                if lasts[access.memory] < 0:
                    firsts[access.memory] = begin
                lasts[access.memory] = max(end, lasts[access.memory])
    used = [n for n, last in enumerate(lasts) if last >= 0]
    sizes, spans = [amounts[n] for n in used], [(firsts[n], lasts[n]) for n in used]
    offsets, (places, size) = [0] * len(amounts), placed(sizes, spans)
    for number, place in zip(used, places, strict=True):
        offsets[number] = place
    return Laid(
        amounts, offsets, [*zip(firsts, lasts, strict=True)], size, most_alive(sizes, spans)
    )


def bytes_of(tensor: Tensor, known: Sized) -> int:
    """A tensor's size in memory, with the padding of its layout."""
    return _bytes(tensor, known.shapes[tensor])


def _bytes(tensor: Tensor, shape: tuple[int, ...]) -> int:
    count = prod(shape) if tensor.layout is None else slots_of(shape, tensor.layout)
    return tensor.dtype.bytes_of(count)


def waits(program: Program, plan: Plan) -> list[set[int]]:
    """For each call of a plan, the fewest earlier calls to wait for, by the bytes that they access.

    A call that reuses the memory of another temporary waits, too. The steps must have no jumps.
    """
    kernels = [*kernels_of(program).values()]
    touched = [[*_touched(kernels[call.kernel], call.words)] for call in plan.calls]
    waits_of: list[set[int]] = []
    before: list[int] = []  # for each call, all calls before it, as bits
    for others in hazards(touched):
        waits_of.append(set())
        before.append(0)
        for other in sorted(others, reverse=True):
            if not before[-1] >> other & 1:  # otherwise it waits indirectly
                waits_of[-1].add(other)
                before[-1] |= before[other] | 1 << other
    return waits_of


def _touched(kernel: Kernel, words: Sequence[Word]) -> Iterator[ByteRange]:
    """A call's accesses to memory that any call may write."""
    sizes = dict(zip(kernel.dimensions, words[len(kernel.parameters) :], strict=True))
    for parameter, word in zip(kernel.parameters, words, strict=False):
        memory: Hashable
        match word:
            case InArena(offset=start):
                memory = InArena
            case Given(parameter=memory, offset=start):
                pass
            case _:
                continue
        if isinstance(parameter, Tensor):
            shape = tuple([extent_value(extent, sizes) for extent in parameter.argument_shape])
            end = start + _bytes(parameter, shape)
            yield ByteRange(memory, start, end, parameter.role != "in")


def _offset_by(word: Word, offset: int) -> Word:
    match word:
        case Given():
            return Given(word.parameter, word.offset + offset)
        case InConstant():
            return InConstant(word.number, word.offset + offset)
        case InArena():
            return InArena(word.offset + offset)
        case int():
            return word + offset


def _numbers(call: SizedCall) -> list[int]:
    """The call's words, with 0 for addresses."""
    unknown: Mapping[Tensor | Variable, Word] = defaultdict(int)
    return [word for word in _words(call, unknown) if isinstance(word, int)]


def _words(call: SizedCall, places: Mapping[Tensor | Variable, Word]) -> tuple[Word, ...]:
    callee = call.call.callee
    assert isinstance(callee, Kernel)
    words = [
        places[item]
        if isinstance(item, Tensor | Variable)
        else int.from_bytes(item.tobytes(), "little")
        for item in call.arguments
    ]
    return (*words, *[call.dimensions[own] for own in callee.dimensions])
