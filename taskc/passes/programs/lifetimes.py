"""lifetimes: between which calls each temporary is needed, and which may lie where another one ends.

    t = add(x, y)          t: 0..1
    u = exp(t)             u: 1..2, in t's memory: exp reads t[i] only where it writes u[i]
    out = sum(u)

A view's memory is that of the tensor it looks at. Only tensors of equal types share memory so, whatever the sizes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taskc.ir import nodes as ir
from taskc.ir.affine import constant_difference
from taskc.ir.nodes import Expression, Tensor
from taskc.ir.program import Call, Loop, Program, calls_of
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
    for first, last, call in _spans(program):
        for argument in call.arguments:
            if isinstance(argument, Tensor):
                owner = owners.get(argument, argument)
                block = found.setdefault(owner, Block([owner], first, last))
                block.last = last
    temporaries = {*program.temporaries}
    found = {tensor: block for tensor, block in found.items() if tensor in temporaries}
    for number, last, call in _spans(program):
        # In a loop the next step may want what this one's last call would replace.
        for before, after in _replacing(call, owners) if number == last else ():
            if before in found and after in found:
                _join(found, before, after, number)
    return list({id(block): block for block in found.values()}.values())


def _spans(program: Program) -> Iterator[tuple[int, int, Call]]:
    """The calls in order, each with the numbers of the first and the last one that it stands for: of a loop, all."""
    number = 0
    for step in program.calls:
        # One more of a loop: its calls are no single ones, however few they are.
        last = number + (len(list(calls_of(step.body))) if isinstance(step, Loop) else 0)
        for call in calls_of((step,)):
            yield number, last, call
        number = last + 1


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
    same_type = given.dtype.nbytes == output.dtype.nbytes and given.layout == output.layout
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
