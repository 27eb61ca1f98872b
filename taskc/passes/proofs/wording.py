"""The names of expressions, workers, tasks and elements in the proofs' messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from taskc.analysis.indices import Index
from taskc.ir import nodes as ir
from taskc.ir.nodes import Expression, Tensor
from taskc.ir.printer import expression_text
from taskc.passes.proofs.accesses import Access, Path, Program, tensors_read
from taskc.passes.proofs.enumeration import Enumerator


def spelled(node: Expression) -> str:
    """An expression as DSL text."""
    return expression_text(node)


def element(tensor: Tensor, indices: Iterable[Any]) -> str:
    return f"{tensor.name}[{', '.join(str(int(index)) for index in indices)}]"


def task_text(task: Sequence[Any]) -> str:
    numbers = [str(int(number)) for number in task]
    return f"({', '.join(numbers)}{',' if len(numbers) == 1 else ''})"


def at(array: Any, position: Sequence[int]) -> int:
    """An element of an array that may have to be broadcast to the shape of `position`."""
    array = np.asarray(array)
    position = (0,) * (array.ndim - len(position)) + tuple(position)
    own_position = position[len(position) - array.ndim :]
    return int(
        array[tuple(p if n > 1 else 0 for p, n in zip(own_position, array.shape, strict=True))]
    )


def first_true(mask: Any) -> tuple[int, ...]:
    """The position of a mask's first true element, of the lowest worker."""
    mask = np.atleast_1d(mask)
    flat = int(np.argmax(np.moveaxis(mask, -1, 0)))
    worker, *rest = np.unravel_index(flat, (mask.shape[-1], *mask.shape[:-1]))
    return (*(int(p) for p in rest), int(worker))


def task_of(enumerator: Enumerator, path: Path, position: Sequence[int]) -> tuple[int, ...] | None:
    """The task of the innermost mapping loop (or Move) at a place of the enumeration."""
    for frame in reversed(path):
        if isinstance(frame, (ir.Each, ir.Move)):
            forms = [enumerator.index(variable) for variable in frame.variables]
            if any(form is None for form in forms):
                return None
            return tuple(at(form.base, position) for form in forms if form is not None)
    return None


def index_text(form: Index, position: Sequence[int]) -> str:
    """An index at a place of the enumeration: its atoms, then the number."""
    number = at(form.base, position)
    text = ""
    for atom, coefficient in form.terms.items():
        size, divisor = abs(coefficient.numerator), coefficient.denominator
        part = spelled(atom) if size == divisor == 1 else f"({spelled(atom)})"
        if divisor != 1:
            part = f"{spelled(atom)} // {divisor}"
        part = part if size == 1 else f"{size} * {part}"
        sign = "-" if coefficient < 0 else "+"
        text = f"{text} {sign} {part}" if text else part if sign == "+" else f"-{part}"
    if not text:
        return str(number)
    if number == 0:
        return text
    return f"{text} {'+' if number > 0 else '-'} {abs(number)}"


_ATOMIC = {"+": "add", "min": "min", "max": "max", "&": "and", "|": "or", "^": "xor"}


def scatter_hint(access: Access, program: Program) -> str | None:
    """A hint that names the atomic to use, for a store whose index is read from memory."""
    store = access.statement
    if not isinstance(store, ir.Store):
        return None
    read = [tensor for index in access.indices for tensor in tensors_read(index, program.lets)]
    if all(tensor.scope == ir.LOCAL for tensor in read):
        return None
    # An index is widened implicitly.
    indices = [i.operand if isinstance(i, ir.Cast) else i for i in store.indices]
    place = f"{access.tensor.name}[{', '.join(map(spelled, indices))}]"
    match store.value:
        case ir.Binary(operator=operator, left=ir.Read() as old, right=value) if (
            operator in _ATOMIC and (old.tensor, old.indices) == (store.tensor, store.indices)
        ):
            return (
                "two tasks may have one place: update it with"
                f" `tc.atomic_{_ATOMIC[operator]}({place}, {spelled(value)})`"
            )
    return (
        "two tasks may have one place: if any of their values will do, write"
        f" `tc.atomic_exchange({place}, {spelled(store.value)})`; to combine them, tc.atomic_add and"
        " its like"
    )
