"""lifetimes: between which calls each temporary is needed, and which may lie where another one ends.

    t = add(x, y)          t: 0..1
    u = exp(t)             u: 1..2, in t's memory: exp reads t[i] only where it writes u[i]
    out = sum(u)

What a loop or a while touches is needed as long as it lasts: a step may want what the one before has left. Of a
branch's bodies, one of which is run, the first counts as coming before the other.

A view's memory is that of the tensor it looks at. Only tensors of equal types share memory so, whatever the sizes are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from taskc.errors import assert_never
from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.nodes import Expression, Tensor
from taskc.ir.program import (
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
from taskc.ir.rewrite import expressions, tensors_of, walk, walk_statements


@dataclass(slots=True)
class Block:
    """Memory of temporaries, one after another, and the first and the last call that it is needed in."""

    tensors: list[Tensor]
    first: int
    last: int


def blocks_of(program: Program) -> list[Block]:
    """The memory that a program's temporaries need; one that no call names needs none."""
    owners = {view.tensor: view.of for view in program.views}
    found: dict[Tensor, Block] = {}
    for first, last, step in _spans(program.calls, count()):
        for tensor in _named(step):
            owner = owners.get(tensor, tensor)
            block = found.setdefault(owner, Block([owner], first, last))
            block.last = last
    temporaries = {*program.temporaries}
    found = {tensor: block for tensor, block in found.items() if tensor in temporaries}
    for number, last, step in _spans(program.calls, count()):
        # In a loop the next step may want what this one's last call would replace.
        if number == last and isinstance(step, Call):
            for before, after in _replacing(step, owners):
                if before in found and after in found:
                    _join(found, before, after, number)
    return list({id(block): block for block in found.values()}.values())


def _spans(steps: Sequence[Step], numbers: Iterator[int]) -> Iterator[tuple[int, int, Step]]:
    """Calls and conditions in order, each with the first and the last number that it stands for: of a loop, all."""
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
                # One more of a loop: its calls are no single ones, however few they are.
                inner = [*steps_of((step,))]
                last = max([number, *islice(numbers, len([*calls_of((step,))]))])
                yield from [(number, last, one) for one in inner if not isinstance(one, Loop)]
            case _:
                assert_never(step)


def _named(step: Step) -> list[Tensor]:
    """What a step names itself."""
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
    """Has a tensor lie where another one does, if that ends in the call in which this one begins."""
    old, new = found[before], found[after]
    if old.last == number == new.first and old is not new:
        old.tensors += new.tensors
        old.last = new.last
        found[after] = old


def _replacing(call: Call, owners: dict[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The arguments that a call's outputs may take the place of, each with the output."""
    kernel = call.callee
    assert isinstance(kernel, ir.Kernel)
    arguments = dict(zip(kernel.parameters, call.arguments, strict=True))
    named = [owners.get(it, it) for it in call.arguments if isinstance(it, Tensor)]
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
    """Whether each element of an input is read only for the element of the output at the same address.

    Nothing but the values of stores to the output may name the input, and each at the store's own indices; a
    `tc.out` is stored exactly once.
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
