"""A program at sizes that are known becomes a plan: its calls in order, as words, its temporaries in one arena."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from taskc.ir.nodes import Kernel, Tensor, Variable
from taskc.ir.plan import Given, InArena, InConstant, Plan, PlannedCall, Word
from taskc.ir.program import Program, kernels_of
from taskc.packed import slots_of
from taskc.passes.programs.arena import most_alive, placed
from taskc.passes.programs.beside import beside
from taskc.passes.programs.hazards import Access, hazards
from taskc.passes.programs.lifetimes import Block
from taskc.sized import Sized, SizedCall, sized

# How many threads a call keeps busy: a kernel, by its number, on words of which no address is known yet.
Busy: TypeAlias = Callable[[int, Sequence[int]], int]


def plan(
    program: Program,
    blocks: list[Block],
    sizes: Mapping[Variable, Any],
    threads: int = 1,
    busy: Busy = lambda kernel, words: 0,
) -> Plan:
    """The plan of a program of kernels.

    blocks   the memory of its temporaries: they are the same for all sizes
    sizes    of what a plan depends on: `taskc.ir.plan.deciding`
    threads  that there are for its calls
    busy     how many of them a call keeps busy; 0 where its work is too little for another one
    """
    known = sized(program, sizes)
    numbers = {id(kernel): n for n, kernel in enumerate(kernels_of(program).values())}
    calls = [(numbers[id(call.call.callee)], call) for call in known.calls]
    memory = {tensor: n for n, block in enumerate(blocks) for tensor in block.tensors}
    accesses = [list(_accesses(call, memory, known)) for call in known.calls]
    amounts = [max(_bytes(tensor, known) for tensor in block.tensors) for block in blocks]
    groups = [[number] for number in range(len(calls))]
    laid = _laid(amounts, accesses, groups)
    if threads > 1:
        counts = [busy(kernel, _numbers(call)) for kernel, call in calls]
        together = beside(hazards(accesses), counts, threads)
        wide = _laid(amounts, accesses, together)
        if wide.size <= threads * laid.size:  # what runs at one time is alive at one time
            groups, laid = together, wide
    places: dict[Tensor | Variable, Word] = {
        item: Given(number) for number, item in enumerate(program.parameters)
    }
    places |= {tensor: InConstant(number) for number, (tensor, _) in enumerate(program.constants)}
    for block, offset in zip(blocks, laid.offsets, strict=True):
        places |= dict.fromkeys(block.tensors, InArena(offset))
    for view, of in known.views.items():
        if of in places:  # a temporary that no call names is nowhere
            places[view] = _behind(places[of], known.starts[view] * view.dtype.nbytes)
    planned = []
    for group in groups:
        for others, number in zip(reversed(range(len(group))), group, strict=True):
            kernel, call = calls[number]
            planned.append(PlannedCall(kernel, _words(call, places), others))
    return Plan(tuple(planned), laid.size, laid.alive)


def _accesses(call: SizedCall, blocks: Mapping[Tensor, int], known: Sized) -> Iterator[Access]:
    """What a call touches: of temporaries the number of their block is the memory, of all others they are."""
    for parameter, argument in zip(call.call.callee.parameters, call.arguments, strict=True):
        if isinstance(parameter, Tensor):
            memory = known.views.get(argument, argument)
            start = known.starts.get(argument, 0) * parameter.dtype.nbytes
            end = start + _bytes(argument, known)
            yield Access(blocks.get(memory, memory), start, end, parameter.role != "in")


@dataclass(frozen=True, slots=True)
class _Laid:
    """Where blocks lie in an arena, its size, and how much of it is alive at once."""

    offsets: list[int]
    size: int
    alive: int


def _laid(
    amounts: Sequence[int], accesses: Sequence[Sequence[Access]], groups: Sequence[Sequence[int]]
) -> _Laid:
    """Blocks of so many bytes, each needed from the first group that touches it to the last one."""
    firsts, lasts = [0] * len(amounts), [-1] * len(amounts)
    for time, group in enumerate(groups):
        for access in [access for number in group for access in accesses[number]]:
            if isinstance(access.memory, int):
                if lasts[access.memory] < 0:
                    firsts[access.memory] = time
                lasts[access.memory] = time
    used = [n for n, last in enumerate(lasts) if last >= 0]
    sizes, spans = [amounts[n] for n in used], [(firsts[n], lasts[n]) for n in used]
    offsets, (places, size) = [0] * len(amounts), placed(sizes, spans)
    for number, place in zip(used, places, strict=True):
        offsets[number] = place
    return _Laid(offsets, size, most_alive(sizes, spans))


def _bytes(tensor: Tensor, known: Sized) -> int:
    shape, layout = known.shapes[tensor], tensor.layout
    count = prod(shape) if layout is None else slots_of(shape, layout)
    return count * tensor.dtype.nbytes


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
