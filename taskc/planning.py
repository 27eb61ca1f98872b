"""A program at sizes that are known becomes a plan: its temporaries in one arena, its calls as words."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from taskc.ir.nodes import Kernel, Tensor, Variable
from taskc.ir.plan import Given, InArena, InConstant, Plan, PlannedCall, Word
from taskc.ir.program import Program, kernels_of
from taskc.packed import slots_of
from taskc.passes.programs.arena import most_alive, placed
from taskc.passes.programs.lifetimes import Block
from taskc.sized import Sized, SizedCall, sized


def plan(program: Program, blocks: list[Block], sizes: Mapping[Variable, Any]) -> Plan:
    """The plan of a program of kernels.

    blocks  the memory of its temporaries: they are the same for all sizes
    sizes   of what a plan depends on: `taskc.ir.plan.deciding`
    """
    known = sized(program, sizes)
    amounts = [max(_bytes(tensor, known) for tensor in block.tensors) for block in blocks]
    spans = [(block.first, block.last) for block in blocks]
    offsets, arena = placed(amounts, spans)
    places: dict[Tensor | Variable, Word] = {
        item: Given(number) for number, item in enumerate(program.parameters)
    }
    places |= {tensor: InConstant(number) for number, (tensor, _) in enumerate(program.constants)}
    for block, offset in zip(blocks, offsets, strict=True):
        places |= dict.fromkeys(block.tensors, InArena(offset))
    for view, of in known.views.items():
        if of in places:  # a temporary that no call names is nowhere
            places[view] = _behind(places[of], known.starts[view] * view.dtype.nbytes)
    numbers = {id(kernel): n for n, kernel in enumerate(kernels_of(program).values())}
    calls = [PlannedCall(numbers[id(it.call.callee)], _words(it, places)) for it in known.calls]
    return Plan(tuple(calls), arena, most_alive(amounts, spans))


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
