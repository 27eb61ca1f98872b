"""A program at sizes that are known becomes a plan: its calls in order, as words, its temporaries in one arena."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from taskc.arrays.packed import slots_of
from taskc.errors import assert_never
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Kernel, Tensor, Variable
from taskc.ir.plan import (
    Given,
    InArena,
    InConstant,
    Jump,
    Plan,
    PlannedCall,
    PlannedStep,
    Word,
)
from taskc.ir.program import Program, kernels_of
from taskc.programs.arena import most_alive, placed
from taskc.programs.hazards import Access, hazards
from taskc.programs.lifetimes import Block
from taskc.programs.list_scheduling import beside
from taskc.programs.specialize import Sized, SizedBranch, SizedCall, SizedStep, SizedWhile, sized

# How many threads a call keeps busy: a kernel, by its number, on words of which no address is known yet.
Busy: TypeAlias = Callable[[int, Sequence[int]], int]


def plan(
    program: Program,
    blocks: list[Block],
    sizes: Mapping[Variable, Any],
    threads: int = 1,
    busy: Busy = lambda kernel, words: 0,
) -> Plan:
    """The plan of a program of kernels, of what `arrange` is given."""
    made = arrange(program, blocks, sizes, threads, busy)
    known, line, laid = made.known, made.line, made.arena
    places: dict[Tensor | Variable, Word] = {
        item: Given(number) for number, item in enumerate(program.parameters)
    }
    places |= {tensor: InConstant(number) for number, (tensor, _) in enumerate(program.constants)}
    for block, offset in zip(blocks, laid.offsets, strict=True):
        places |= dict.fromkeys(block.tensors, InArena(offset))
    for view, of in known.views.items():
        if of in places:  # a temporary that no call names is nowhere
            places[view] = _behind(places[of], view.dtype.bytes_of(known.starts[view]))
    numbers = _numbers_of_kernels(program)
    planned: list[PlannedStep] = []
    for group in made.groups:
        for others, number in zip(reversed(range(len(group))), group, strict=True):
            match step := line.steps[number]:
                case SizedCall():
                    kernel = numbers[id(step.call.callee)]
                    planned.append(PlannedCall(kernel, _words(step, places), others))
                case _Leap():
                    unless = None if step.unless is None else places[step.unless]
                    planned.append(Jump(step.to, unless))
                case _:
                    assert_never(step)
    return Plan(tuple(planned), laid.size, laid.alive)


def _numbers_of_kernels(program: Program) -> dict[int, int]:
    return {id(kernel): n for n, kernel in enumerate(kernels_of(program).values())}


@dataclass(frozen=True, slots=True)
class Arranged:
    """A program at sizes that are known: the order of its steps, and where its temporaries lie meanwhile.

    groups  numbers of steps, in order: those of one may be made at the same time
    """

    known: Sized
    line: _Line
    groups: list[list[int]]
    arena: Laid

    @property
    def calls(self) -> list[tuple[int, SizedCall]]:
        """In order, each with the number of its group."""
        steps = self.line.steps
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
    """The order of a program's calls.

    blocks   the memory of its temporaries: they are the same for all sizes
    sizes    of what a plan depends on: `taskc.ir.plan.deciding`
    threads  that there are for its calls
    busy     how many of them a call keeps busy; 0 where its work is too little for another one
    """
    known = sized(program, sizes)
    line, numbers = _in_line(known.steps), _numbers_of_kernels(program)
    written: dict[Tensor, Hashable] = {
        tensor: number for number, block in enumerate(blocks) for tensor in block.tensors
    }
    written |= {
        item: item for item in program.parameters if isinstance(item, Tensor) and item.role != "in"
    }
    accesses = [list(_accesses(step, written, known)) for step in line.steps]
    amounts = [max(bytes_of(tensor, known) for tensor in block.tensors) for block in blocks]
    groups = [[number] for number in range(len(line.steps))]
    laid = _laid(amounts, accesses, groups, line.turns)
    if threads > 1:
        together: list[list[int]] = []
        for run in line.runs():
            counts = [busy(numbers[id(call.call.callee)], _numbers(call)) for call in run.calls]
            found = [[number] for number in range(run.stop - run.start)]
            if sum(0 < count < threads for count in counts) > 1:
                found = beside(hazards(accesses[run.start : run.stop]), counts, threads)
            together += [[run.start + number for number in group] for group in found]
        if together != groups:
            wider = _laid(amounts, accesses, together, line.turns)
            if wider.size <= laid.size * (1 + threads):  # as much again for what each thread runs
                groups, laid = together, wider
    return Arranged(known, line, groups, laid)


@dataclass(frozen=True, slots=True)
class _Leap:
    """A jump, whose flag has no place yet."""

    to: int
    unless: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """Steps that are calls, and are always made together."""

    start: int
    stop: int
    calls: list[SizedCall]


@dataclass(frozen=True, slots=True)
class _Line:
    """Steps with jumps for branches and whiles; `turns` are where each while begins and jumps back."""

    steps: list[SizedCall | _Leap] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)

    def runs(self) -> Iterator[_Run]:
        """All steps, in runs of calls; a jump is one of no calls."""
        leaps = {number for number, step in enumerate(self.steps) if isinstance(step, _Leap)}
        ends = {step.to for step in self.steps if isinstance(step, _Leap)}
        bounds = sorted({0, len(self.steps), *ends, *leaps, *[number + 1 for number in leaps]})
        for start, stop in pairwise(bounds):
            calls = [step for step in self.steps[start:stop] if isinstance(step, SizedCall)]
            yield _Run(start, stop, calls)


def _in_line(steps: Sequence[SizedStep]) -> _Line:
    line = _Line()
    _add_steps(line, steps)
    return line


def _add_steps(line: _Line, steps: Sequence[SizedStep]) -> None:
    """Puts steps behind those that there are, with jumps for branches and whiles."""
    made = line.steps
    for step in steps:
        match step:
            case SizedCall():
                made.append(step)
            case SizedBranch():
                start = _begin(made)
                _add_steps(line, step.then)
                over = _begin(made) if step.otherwise else None
                made[start] = _Leap(len(made), step.condition)
                _add_steps(line, step.otherwise)
                if over is not None:
                    made[over] = _Leap(len(made))
            case SizedWhile():
                start = _begin(made)
                _add_steps(line, step.body)
                line.turns.append((start, len(made)))
                made.append(_Leap(start))
                made[start] = _Leap(len(made), step.condition)
            case _:
                assert_never(step)


def _begin(made: list[SizedCall | _Leap]) -> int:
    """The number of a jump to what isn't known yet."""
    made.append(_Leap(0))
    return len(made) - 1


def _accesses(
    step: SizedCall | _Leap, written: Mapping[Tensor, Hashable], known: Sized
) -> Iterator[Access]:
    """What a step touches of all that any call writes: of a temporary the number of its block is the memory."""
    touched: list[tuple[Tensor, bool]] = []
    match step:
        case SizedCall():
            pairs = zip(step.call.callee.parameters, step.arguments, strict=True)
            touched += [(it, own.role != "in") for own, it in pairs if isinstance(own, Tensor)]
        case _Leap():
            touched += [(step.unless, False)] if step.unless else []
        case _:
            assert_never(step)
    for tensor, writes in touched:
        memory = written.get(known.views.get(tensor, tensor))
        if memory is not None:
            start = tensor.dtype.bytes_of(known.starts.get(tensor, 0))
            yield Access(memory, start, start + bytes_of(tensor, known), writes)


@dataclass(frozen=True, slots=True)
class Laid:
    """Blocks in an arena: the bytes of each, where it lies, and from which group to which; one that none touches has
    no groups. And its size, and how much of it is alive at once."""

    amounts: Sequence[int]
    offsets: list[int]
    spans: list[tuple[int, int]]
    size: int
    alive: int


def _laid(
    amounts: Sequence[int],
    accesses: Sequence[Sequence[Access]],
    groups: Sequence[Sequence[int]],
    turns: Sequence[tuple[int, int]],
) -> Laid:
    """Blocks of so many bytes, each needed from the first group that touches it to the last one.

    What a while touches is needed as long as it lasts: a turn may want what the one before has left.
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
    """What a tensor takes in memory, with what pads its layout."""
    return _bytes(tensor, known.shapes[tensor])


def _bytes(tensor: Tensor, shape: tuple[int, ...]) -> int:
    count = prod(shape) if tensor.layout is None else slots_of(shape, tensor.layout)
    return tensor.dtype.bytes_of(count)


def waits(program: Program, plan: Plan) -> list[set[int]]:
    """For each call of a plan the earlier ones that it has to wait for, by the bytes that they touch, and no others.

    Temporaries lie where others have been before: who reuses their memory waits, too. No jump may be among the steps.
    """
    kernels = [*kernels_of(program).values()]
    touched = [[*_touched(kernels[call.kernel], call.words)] for call in plan.calls]
    found: list[set[int]] = []
    before: list[int] = []  # of each call all that come before it, as bits
    for others in hazards(touched):
        found.append(set())
        before.append(0)
        for other in sorted(others, reverse=True):
            if not before[-1] >> other & 1:  # else it waits for one that waits for it
                found[-1].add(other)
                before[-1] |= before[other] | 1 << other
    return found


def _touched(kernel: Kernel, words: Sequence[Word]) -> Iterator[Access]:
    """What a call touches of all that any call may write."""
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
            yield Access(memory, start, end, parameter.role != "in")


def _behind(word: Word, offset: int) -> Word:
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
    """The call's words where all that isn't known yet is 0."""
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
