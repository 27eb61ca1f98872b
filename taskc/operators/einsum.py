"""Einsum: diagonals and sums of single operands, then products of matrices, two operands at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from taskc.operators.call import Call, Made, operator
from taskc.operators.movement import transposed
from taskc.operators.operands import are_equal, element, ones
from taskc.operators.products import multiplied
from taskc.operators.reductions import folded
from taskc.operators.tensors import Extent, Shape, computed
from taskc.programs.tracing import TensorHandle


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor whose axes have labels, no two the same."""

    x: TensorHandle
    labels: tuple[str, ...]

    def ordered(self, labels: Sequence[str]) -> TensorHandle:
        """The tensor with its axes in this order."""
        order = [self.labels.index(label) for label in labels]
        return self.x if order == [*range(len(order))] else transposed(self.x, order, "ordered")

    def extents(self, labels: Sequence[str]) -> Shape:
        return tuple([self.x.shape[self.labels.index(label)] for label in labels])


@operator("Einsum", since=12)
def einsum(call: Call) -> Made:
    call.require_kernel()
    inputs = [call.tensor(position) for position in range(len(call.inputs))]
    terms, result = _parsed(call, [len(x.shape) for x in inputs])
    extents = _extents(call, inputs, terms)
    if unknown := {*result} - extents.keys():
        raise call.node.error(f"its result has {sorted(unknown)}, and no operand has")
    operands = [_distinct(x, labels, extents) for x, labels in zip(inputs, terms, strict=True)]
    result_so_far, *others = operands
    while others:
        needed = {*result}.union(*(other.labels for other in others[1:]))
        result_so_far = _product(
            _summed(result_so_far, {*others[0].labels, *needed}),
            _summed(others[0], {*result_so_far.labels, *needed}),
            needed,
        )
        del others[0]
    return _summed(result_so_far, {*result}).ordered(result)


def _parsed(call: Call, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the result; dots become the labels ".0", ".1", ... from the last axis on."""
    equation = call.attribute("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    written = left.split(",")
    if len(written) != len(ranks):
        raise call.node.error(f"its equation '{equation}' has {len(written)} operands")
    terms = []
    for term, rank in zip(written, ranks, strict=True):
        labels = _labels(term, rank - len(term.replace("...", "")))
        if len(labels) != rank:
            raise call.node.error(f"'{term}' doesn't name the axes of {rank} dimensions")
        terms.append(labels)
    every = [label for labels in terms for label in labels]
    dots = sorted({label for label in every if label[0] == "."}, reverse=True)
    if arrow:
        return terms, _labels(right, len(dots))
    return terms, dots + sorted({label for label in every if every.count(label) == 1} - {*dots})


def _labels(term: str, count: int) -> list[str]:
    before, dots, behind = term.partition("...")
    hidden = [f".{number}" for number in reversed(range(count))] if dots else []
    return [*before, *hidden, *behind]


def _extents(
    call: Call, inputs: Sequence[TensorHandle], terms: Sequence[Sequence[str]]
) -> dict[str, Extent]:
    """The extent of each label; an extent of 1 broadcasts."""
    extents: dict[str, Extent] = {}
    for x, labels in zip(inputs, terms, strict=True):
        for label, extent in zip(labels, x.shape, strict=True):
            known = extents.get(label, 1)
            if not (are_equal(known, 1) or are_equal(extent, 1) or are_equal(known, extent)):
                raise call.node.error(f"'{label}' stands for {known} and for {extent} elements")
            extents[label] = extent if are_equal(known, 1) else known
    return extents


def _distinct(x: TensorHandle, labels: Sequence[str], extents: dict[str, Extent]) -> _Operand:
    """The operand with each label once, at its full extent: a label that occurs twice is a diagonal."""
    distinct = tuple(dict.fromkeys(labels))
    shape = tuple([extents[label] for label in distinct])
    same = all(are_equal(one, other) for one, other in zip(shape, x.shape, strict=False))
    if len(distinct) == len(labels) and same:
        return _Operand(x, distinct)
    place, once = tuple([distinct.index(label) for label in labels]), ones(x.shape)
    made = computed(
        shape, lambda *at: element(x, once, tuple(at[axis] for axis in place)), name="diagonal"
    )
    return _Operand(made, distinct)


def _summed(operand: _Operand, kept: set[str]) -> _Operand:
    """The sum over all labels but these."""
    axes = tuple([axis for axis, label in enumerate(operand.labels) if label not in kept])
    if not axes:
        return operand
    labels = tuple([label for label in operand.labels if label in kept])
    return _Operand(folded("sum", operand.x, axes, False), labels)


def _product(a: _Operand, b: _Operand, needed: set[str]) -> _Operand:
    """The product, summed over the labels that both have and nothing else needs."""
    both = [label for label in a.labels if label in b.labels]
    batch = [label for label in both if label in needed]
    inner = [label for label in both if label not in needed]
    rows = [label for label in a.labels if label not in both]
    columns = [label for label in b.labels if label not in both]
    outer, m, k = a.extents(batch), prod(a.extents(rows)), prod(a.extents(inner))
    n = prod(b.extents(columns))
    left = a.ordered([*batch, *rows, *inner]).reshape(*outer, m, k)
    right = b.ordered([*batch, *inner, *columns]).reshape(*outer, k, n)
    shape = (*outer, *a.extents(rows), *b.extents(columns))
    product = multiplied(left, right).reshape(*shape)
    return _Operand(product, (*batch, *rows, *columns))
