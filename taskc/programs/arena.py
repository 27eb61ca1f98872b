"""arena: the offsets of pieces of memory with different lifetimes in one arena.

In the order of its lifetime, each piece goes into the smallest gap that fits it between pieces alive at the same time.
If that wastes much memory and pieces are few, other orders are tried. Then every second piece also goes to the far end
of its gap, which suits chains, where each piece is alive together with the one before and the one after:

    1 2 3 1 2 3 …       |1  2 2|  then  |3 3 3 2 2|  then  |3 3 3 . 1|  then  |2 2 . . 1|

lifetimes: the calls between which each temporary is alive, and the temporaries that may share memory.

    t = add(x, y)          t: 0..1
    u = exp(t)             u: 1..2, in t's memory: exp reads t[i] only where it writes u[i]
    out = sum(u)

Memory that a loop or a while accesses is alive throughout, since a step may read values of the one before. The two
bodies of a branch count as one after the other.

A view's memory is that of its tensor. Only tensors of equal types share memory this way, whatever the sizes are.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np

from taskc.dataclass import dataclass
from taskc.errors import assert_never
from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.nodes import Expression, Tensor
from taskc.ir.rewrite import expressions, tensors_of, walk, walk_statements
from taskc.programs.ir import (
    Branch,
    Call,
    Loop,
    Program,
    Step,
    While,
    bodies_of,
    calls_of,
    steps_of,
)

ALIGNMENT = 64  # bytes: a cache line
_MAX_ORDERED = 1000  # pieces for which other orders are tried: these take quadratic time
_END = 1 << 62  # beyond the end of any memory
_GOOD = 1.02  # times the least possible size: no other order is tried


def most_alive(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    """The most bytes alive at once; a span is the first and the last time of a lifetime."""
    if not sizes:
        return 0
    changes = np.zeros(max(last for _, last in spans) + 2, np.int64)
    for size, (first, last) in zip(sizes, spans, strict=True):
        changes[first] += size
        changes[last + 1] -= size
    return int(changes.cumsum().max())


def placed(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """The offset of each piece, and the size of the arena."""
    rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    least = most_alive(rounded, spans)
    numbers = range(len(sizes))
    orders = (
        sorted(numbers, key=lambda n: (-rounded[n], spans[n])),
        sorted(numbers, key=lambda n: (spans[n], -rounded[n])),
        sorted(numbers, key=lambda n: (spans[n][0] - spans[n][1], spans[n], -rounded[n])),
        sorted(numbers, key=lambda n: (-rounded[n] * (1 + spans[n][1] - spans[n][0]), spans[n])),
    )
    best = _by_time(rounded, spans)
    if len(sizes) > _MAX_ORDERED:
        return best
    for end in (None, least):
        for order in orders:
            if best[1] <= least * _GOOD:
                return best
            candidate = _in_order(rounded, spans, order, end)
            best = min(best, candidate, key=lambda layout: layout[1])
    return best


def _by_time(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Place each piece at its first time, in the smallest gap free then."""
    offsets, total = [0] * len(sizes), 0
    gaps = [(0, _END)]  # in order, and never adjacent
    ending = deque(sorted(range(len(sizes)), key=lambda n: spans[n][1]))
    for number in sorted(range(len(sizes)), key=lambda n: (spans[n], -sizes[n])):
        while spans[ending[0]][1] < spans[number][0]:
            over = ending.popleft()
            _add_gap(gaps, offsets[over], offsets[over] + sizes[over])
        size = sizes[number]
        extents = [stop - start for start, stop in gaps]
        at = extents.index(min(extent for extent in extents if extent >= size))
        start, stop = gaps[at]
        gaps[at : at + 1] = [(start + size, stop)] if start + size < stop else []
        offsets[number] = start if size else 0  # an empty piece must not lie within another
        total = max(total, start + size)
    return offsets, total


def _add_gap(gaps: list[tuple[int, int]], start: int, stop: int) -> None:
    at = bisect(gaps, (start, stop))
    if at < len(gaps) and gaps[at][0] == stop:
        stop = gaps.pop(at)[1]
    if at and gaps[at - 1][1] == start:
        at -= 1
        start = gaps.pop(at)[0]
    if start < stop:
        gaps.insert(at, (start, stop))


def _in_order(
    sizes: Sequence[int],
    spans: Sequence[tuple[int, int]],
    order: Sequence[int],
    end: int | None,
) -> tuple[list[int], int]:
    """end  size of an arena that should do: every second piece goes to the far end of its gap"""
    offsets, total = [0] * len(sizes), 0
    lying: list[tuple[int, int, int, int]] = []  # sorted: start, stop, and the span
    for turn, number in enumerate(order):
        size, (first, last) = sizes[number], spans[number]
        others = [piece for piece in lying if piece[2] <= last and piece[3] >= first]
        free, stop = _gap(others, size, end)
        offset = stop - size if end is not None and turn % 2 == 1 else free
        insort(lying, (offset, offset + size, first, last))
        offsets[number] = offset
        total = max(total, offset + size)
    return offsets, total


def _gap(others: Sequence[tuple[int, ...]], size: int, end: int | None) -> tuple[int, int]:
    """The smallest gap of at least `size` bytes between others, which are sorted, or the space after them all."""
    best, free, least = None, 0, max(size, 1)
    for start, stop, *_ in others:
        if start - free >= least and (best is None or start - free < best[1] - best[0]):
            best = free, start
        free = max(free, stop)
    if end is not None and end - free >= least and (best is None or end - free < best[1] - best[0]):
        best = free, end
    return best or (free, free + size)


@dataclass(slots=True)
class Block:
    """Temporaries that use the same memory one after another, and the first and the last call that need it."""

    tensors: list[Tensor]
    first: int
    last: int


def blocks_of(program: Program) -> list[Block]:
    """The memory of a program's temporaries; a temporary that no call names has none."""
    owners = {view.tensor: view.of for view in program.views}
    blocks: dict[Tensor, Block] = {}
    for first, last, step in _spans(program.calls, count()):
        for tensor in _named(step):
            owner = owners.get(tensor, tensor)
            block = blocks.setdefault(owner, Block([owner], first, last))
            block.last = last
    temporaries = {*program.temporaries}
    blocks = {tensor: block for tensor, block in blocks.items() if tensor in temporaries}
    for number, last, step in _spans(program.calls, count()):
        # In a loop, the next step may read memory that the last call of this one would replace.
        if number == last and isinstance(step, Call):
            for before, after in _replacing(step, owners):
                if before in blocks and after in blocks:
                    _join(blocks, before, after, number)
    return list({id(block): block for block in blocks.values()}.values())


def _spans(steps: Sequence[Step], numbers: Iterator[int]) -> Iterator[tuple[int, int, Step]]:
    """Calls and conditions in order, each with its first and last number: inside a loop, those of the whole loop."""
    for step in steps:
        number = next(numbers)
        match step:
            case Call():
                yield number, number, step
            case Branch():
                yield number, number, step
                for body in bodies_of(step):
                    yield from _spans(body, numbers)
            case Loop() | While():
                # The loop itself has a number, so that a loop's only call isn't taken for a single call.
                inner = [*steps_of((step,))]
                last = max([number, *islice(numbers, len([*calls_of((step,))]))])
                yield from [(number, last, one) for one in inner if not isinstance(one, Loop)]
            case _:
                assert_never(step)


def _named(step: Step) -> list[Tensor]:
    """The tensors that a step itself names."""
    match step:
        case Call():
            return [given for given in step.arguments if isinstance(given, Tensor)]
        case Branch() | While():
            return [step.condition]
        case Loop():
            return []
        case _:
            return assert_never(step)


def _join(found: dict[Tensor, Block], before: Tensor, after: Tensor, number: int) -> None:
    """Put a tensor into the memory of another one whose lifetime ends at the call in which this one's begins."""
    old, new = found[before], found[after]
    if old.last == number == new.first and old is not new:
        old.tensors += new.tensors
        old.last = new.last
        found[after] = old


def _replacing(call: Call, owners: dict[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of an argument and an output of a call that may use the argument's memory."""
    kernel = call.callee
    assert isinstance(kernel, ir.Kernel)
    arguments = dict(zip(kernel.parameters, call.arguments, strict=True))
    named = [owners.get(item, item) for item in call.arguments if isinstance(item, Tensor)]
    for output in kernel.parameters:
        if not isinstance(output, Tensor) or output.role != "out":
            continue
        for parameter in kernel.parameters:
            before, after = arguments[parameter], arguments[output]
            if (
                isinstance(before, Tensor)
                and isinstance(after, Tensor)
                and named.count(before) == named.count(after) == 1
                and isinstance(parameter, Tensor)
                and is_read_in_place(kernel, parameter, output)
            ):
                yield before, after


def is_read_in_place(kernel: ir.Kernel, given: Tensor, output: Tensor) -> bool:
    """Whether each element of an input is read only for the output element at the same address.

    Only values of stores to the output may read the input, each at the store's own indices; a `tc.out` is stored
    exactly once.
    """
    same_type = given.dtype.bits == output.dtype.bits and given.layout == output.layout
    if given.role != "in" or not same_type or not _equal(given.shape, output.shape):
        return False
    for statement in walk_statements(kernel.body):
        is_store = isinstance(statement, ir.Store) and statement.tensor is output
        if given in tensors_of(statement):
            return False
        for part in expressions(statement):
            places = [
                node.indices if isinstance(node, ir.Read) else ()
                for node in walk(part)
                if given in tensors_of(node)
            ]
            if not places:
                continue
            if not isinstance(statement, ir.Store) or not is_store or part is not statement.value:
                return False
            if not all(_equal(place, statement.indices) for place in places):
                return False
    return True


def _equal(some: tuple[int | Expression, ...], others: tuple[int | Expression, ...]) -> bool:
    if len(some) != len(others):
        return False
    return all(
        a is b
        or (a == b if isinstance(a, int) or isinstance(b, int) else constant_difference(a, b) == 0)
        for a, b in zip(some, others, strict=True)
    )
