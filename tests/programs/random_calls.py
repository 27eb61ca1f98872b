"""Random programs of calls on parts of tensors, what they compute, and what a plan of them does with memory.

The kernels differ in how much work they look like, by which plans are made: one block or several, and loops of lengths
that nobody knows, which are 1. What a call computes is the same for a list of its inputs, so that NumPy can tell.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

import taskc as tc
from taskc import f32, i64
from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor
from taskc.programs.ir import Call, Program, View, kernels_of
from taskc.programs.plan import Given, InArena, Plan, Word
from taskc.programs.planning import Busy

q = tc.dim("q")


@tc.kernel(workers=4)
def little(x: f32[q], z: f32[q], y: tc.out[f32[q]]):
    for start in range(0, q, 4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[start + i] * 0.5 + z[q - 1 - start - i]


@tc.kernel(workers=4)
def large(x: f32[q], z: f32[q], once: i64, y: tc.out[f32[q]]):
    for start in range(0, q, 4):
        for i in tc.spatial(4):
            if start + i < q:
                s = f32(0)
                for _ in range(once):
                    for _ in range(once):
                        s = s * 0.25 + z[q - 1 - start - i]
                y[start + i] = x[start + i] * 0.5 + s


@tc.kernel(workers=1)
def wide(x: f32[q], z: f32[q], once: i64, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=1):
        for i in tc.spatial(1):
            s = f32(0)
            for _ in range(once):
                for _ in range(once):
                    for _ in range(once):
                        s = s * 0.25 + z[q - 1 - start - i]
            y[start + i] = x[start + i] * 0.5 + s


@tc.kernel(workers=4)
def added(z: f32[q], once: i64, y: tc.inout[f32[q]]):
    for start in range(0, q, 4):
        for i in tc.spatial(4):
            if start + i < q:
                s = f32(0)
                for _ in range(once):
                    for _ in range(once):
                        s = s * 0.25 + z[q - 1 - start - i]
                y[start + i] = y[start + i] * 0.5 + s


def random_program(choose: random.Random) -> Program:
    """Calls on parts of parameters and temporaries: what one reads is written, what it writes it reads nowhere else."""
    size = choose.randint(1, 8)
    parameters = tuple([_tensor(f"p{n}", size, choose.choice(["in", "inout"])) for n in range(3)])
    temporaries = tuple([_tensor(f"t{n}", size, "in") for n in range(choose.randint(1, 6))])
    written = {tensor: np.full(size, tensor in parameters) for tensor in parameters + temporaries}
    views: list[View] = []

    def part(tensor: Tensor, start: int, count: int) -> Tensor:
        if count == size and choose.random() < 0.8:
            return tensor
        views.append(View(_tensor(f"v{len(views)}", count, "in"), tensor, start))
        return views[-1].tensor

    calls = []
    for _ in range(choose.randint(1, 16)):
        count = choose.choice([size, size, choose.randint(1, size)])
        places = [(one, k) for one in written for k in range(size - count + 1)]
        kernel = choose.choice([little, large, large, large, wide, added]).ir
        outputs = [it for it in places if it[0] in temporaries or it[0].role == "inout"]
        if kernel is added.ir:
            outputs = [it for it in outputs if written[it[0]][it[1] : it[1] + count].all()]
        output = choose.choice(outputs) if outputs else None
        inputs = [
            (one, start)
            for one, start in places
            if written[one][start : start + count].all()
            and (output is None or one is not output[0] or abs(start - output[1]) >= count)
        ]
        if output is None or not inputs:
            continue
        given = [part(*choose.choice(inputs), count) for it in kernel.parameters if it.name in "xz"]
        once = [ir.Constant(1, i64)] * (kernel is not little.ir)
        calls.append(Call(kernel, (*given, *once, part(*output, count))))
        written[output[0]][output[1] : output[1] + count] = True
    return Program("calls", parameters, (), temporaries, tuple(calls), tuple(views))


def _tensor(name: str, size: int, role: str) -> Tensor:
    return Tensor(name, f32, (size,), ir.GLOBAL, role=role)


def values_of(program: Program, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [
        random.integers(-99, 99, tensor.shape).astype(np.float32) for tensor in program.parameters
    ]


def _computed(kernel: ir.Kernel, inputs: Sequence[np.ndarray], before: np.ndarray) -> np.ndarray:
    x, z = (before, *inputs) if kernel is added.ir else inputs
    return x * np.float32(0.5) + z[::-1]


def in_order(program: Program, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the parameters are in the end: each call on the tensors that it names."""
    arrays = dict(zip(program.parameters, [value.copy() for value in values], strict=True))
    arrays |= {it: np.full(it.shape, np.nan, np.float32) for it in program.temporaries}
    for view in program.views:
        arrays[view.tensor] = arrays[view.of][view.offset : view.offset + view.tensor.shape[0]]
    for call in program.calls:
        *inputs, output = [arrays[it] for it in call.arguments if isinstance(it, Tensor)]
        output[:] = _computed(call.callee, inputs, output)
    return [arrays[it] for it in program.parameters]


def as_planned(
    program: Program, planned: Plan, values: Sequence[np.ndarray], choose: random.Random
) -> list[np.ndarray]:
    """The same by the words of a plan, in an arena full of NaN: calls beside each other read, and then all write."""
    groups: list[list[int]] = []
    for number, call in enumerate(planned.calls):
        if not groups or not planned.calls[number - 1].beside:
            groups.append([])
        groups[-1].append(number)
        rest = planned.calls[number : number + call.beside + 1]
        assert [one.beside for one in rest] == [*reversed(range(call.beside + 1))]
    return _in_groups(program, planned, groups, values, choose)


def as_awaited(
    program: Program,
    planned: Plan,
    waits: Sequence[set[int]],
    values: Sequence[np.ndarray],
    choose: random.Random,
) -> list[np.ndarray]:
    """The same by the words of a plan, in an order by chance: each call behind those that it waits for."""
    order: list[int] = []
    left = {*range(len(waits))}
    while left:
        order.append(choose.choice([number for number in left if not waits[number] & left]))
        left.remove(order[-1])
    return _in_groups(program, planned, [[number] for number in order], values, choose)


def _in_groups(
    program: Program,
    planned: Plan,
    groups: Sequence[Sequence[int]],
    values: Sequence[np.ndarray],
    choose: random.Random,
) -> list[np.ndarray]:
    memory = [value.copy() for value in values]
    arena = np.full(planned.arena // 4, np.nan, np.float32)
    kernels = [*kernels_of(program).values()]

    def part(word: Word, count: int) -> np.ndarray:
        match word:
            case Given():
                whole = memory[word.parameter]
            case InArena():
                whole = arena
            case _:
                raise AssertionError(word)
        found = whole[word.offset // 4 :][:count]
        assert len(found) == count
        return found

    for group in groups:
        writes = []
        for call in [planned.calls[number] for number in group]:
            kernel, count = kernels[call.kernel], call.words[-1]
            words = zip(kernel.parameters, call.words, strict=False)
            *inputs, output = [part(word, count) for it, word in words if isinstance(it, Tensor)]
            writes.append((output, _computed(kernel, inputs, output)))
        choose.shuffle(writes)
        for output, value in writes:
            output[:] = value
    return memory


def busy_of(program: Program) -> Busy:
    """What the calls' kernels look like: as many blocks as elements, one, or hardly any work."""
    kernels = [*kernels_of(program).values()]

    def busy(kernel: int, words: Sequence[int]) -> int:
        return {"little": 0, "wide": words[-1]}.get(kernels[kernel].name, 1)

    return busy
