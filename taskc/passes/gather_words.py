"""Words that are combined from 4-bit elements are read as whole words.

b: i4[16, n]                                              b: i4[16, n].words()
x[i, w] = (b[i, w * 8].to(u32) & 15)              ->      x[i, w] = b[i, w]
    | (b[i, w * 8 + 1].to(u32) & 15) << 4 | ...

Elements are stored from the lowest bits on, so eight consecutive ones, from a multiple of eight, are one u32. Such
a move is a plain copy, which cp.async can do; the bits are unpacked where they are used. All reads of the
parameter have to be such words. The pass runs before instructions are selected, and after simplify, which brings
indices into a normal form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.bits import words_of
from taskc.ir.nodes import Binary, Cast, Constant, Expression, Kernel, Read, Tensor
from taskc.ir.rewrite import map_children, tensors_of, walk
from taskc.ir.target import TARGETS
from taskc.ir.types import u32

BITS = 4
TOGETHER = u32.bits // BITS


def gather_words(kernel: Kernel) -> Kernel:
    """Turn 4-bit parameters that are only read in words into parameters of words, as the head of this file shows."""
    if TARGETS[kernel.target].is_processor:
        return kernel  # arguments may begin at any byte there
    fitting: dict[Tensor | ir.Variable, Tensor] = {
        item: words_of(item)
        for item in kernel.parameters
        if isinstance(item, Tensor) and _has_words(item)
    }
    if not fitting:
        return kernel
    words = {id(node): found for node in walk(kernel.body) if (found := _word(node)) is not None}
    inside = {id(read) for _, reads in words.values() for read in reads}
    for node in walk(kernel.body):
        for tensor in tensors_of(node):
            if id(node) not in inside:
                fitting.pop(tensor, None)
    if not fitting:
        return kernel

    def visit(node: Any) -> Any:
        if id(node) in words:
            place, _ = words[id(node)]
            if place.tensor in fitting:
                return Read(fitting[place.tensor], place.indices, loc=place.loc)
        return map_children(node, visit)

    parameters = tuple([fitting.get(item, item) for item in kernel.parameters])
    return replace(kernel, parameters=parameters, body=visit(kernel.body))


def _has_words(item: Tensor) -> bool:
    last = item.shape[-1] if item.shape else 1
    is_row_major = item.layout is None and item.given is None
    is_whole = isinstance(last, int) and last % TOGETHER == 0
    return item.dtype.bits == BITS and not item.dtype.is_float and is_row_major and is_whole


def _word(node: Any) -> tuple[Read, list[Read]] | None:
    """The index of a word as a read, and the elements that it combines; None for other nodes."""
    if not isinstance(node, Binary) or node.operator != "|" or node.dtype is not u32:
        return None
    parts = dict(_parts(node, 0))
    if sorted(parts) != list(range(0, u32.bits, BITS)) or None in parts.values():
        return None
    reads = [read for _, read in sorted(parts.items()) if read is not None]
    *leading, last = reads[0].indices
    match last:
        case Binary(operator="*", left=place, right=Constant(value=8)):
            pass
        case Constant(value=value) if int(value) % TOGETHER == 0:
            place = Constant(int(value) // TOGETHER, last.dtype)
        case _:
            return None
    for number, read in enumerate(reads):
        if read.tensor is not reads[0].tensor or list(read.indices[:-1]) != leading:
            return None
        if number and read.indices[-1] != _behind(last, number):
            return None
    return Read(reads[0].tensor, (*leading, place), loc=reads[0].loc), reads


def _behind(index: Expression, number: int) -> Expression:
    if isinstance(index, Constant):
        return Constant(int(index.value) + number, index.dtype)
    return Binary("+", index, Constant(number, index.dtype))


def _parts(node: Expression, shift: int) -> Iterator[tuple[int, Read | None]]:
    """The elements by their shift; None for other operands."""
    match node:
        case Binary(operator="|", left=left, right=right):
            yield from _parts(left, shift)
            yield from _parts(right, shift)
        case Binary(operator="<<", left=left, right=Constant(value=by)):
            yield from _parts(left, shift + int(by))
        case Binary(operator="&", left=Cast(operand=Read() as read), right=Constant(value=15)):
            yield shift, read
        case Cast(operand=Read() as read) if read.tensor.dtype.kind == "uint":
            yield shift, read
        case _:
            yield shift, None
