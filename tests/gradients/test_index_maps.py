"""Index maps turned round: for random maps, each element that is read has exactly its readers."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc.gradients.index_maps import turned
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Binary, Constant, Variable
from taskc.ir.rewrite import substitute
from tests.each_value import few


def value(node, at):
    whole = substitute(node, {variable: Constant(int(n)) for variable, n in at.items()})
    return condition(whole) if whole.dtype is tc.boolean else extent_value(whole, {})


def condition(node):
    left, right = (extent_value(side, {}) for side in (node.left, node.right))
    return {"==": left == right, "<": left < right, "<=": left <= right}[node.operator]


def random_map(random):
    """Indices of a tensor, its shape, and the extents of the variables in them."""
    variables = [Variable(name) for name in "ijk"]
    extents = {one: int(random.integers(1, 6)) for one in variables[: random.integers(1, 4)]}
    indices = []
    for _ in range(random.integers(1, 4)):
        at = Constant(int(random.integers(0, 3)))
        for _ in range(random.integers(0, 3)):
            part = list(extents)[random.integers(len(extents))]
            kind = random.integers(6)
            number = int(random.integers(2, 4))
            if kind == 0:
                part = Binary("*", part, Constant(number))
            elif kind == 1:
                part = Binary("//", part, Constant(number))
            elif kind == 2:
                part = Binary("%", part, Constant(number))
            elif kind == 3:
                part = Binary("-", Constant(extents[part] - 1), part)
            elif kind == 4:
                part = Binary("*", part, part)
            at = Binary("+", at, part)
        indices.append(at)
    return indices, extents


def readers(indices, extents):
    """By each element that is read, the elements that read it."""
    found = {}
    for place in np.ndindex(*extents.values()):
        at = dict(zip(extents, place, strict=True))
        found.setdefault(tuple([value(one, at) for one in indices]), []).append(place)
    return found


@pytest.mark.parametrize("seed", few(range(300), 40))
def test_random_maps(seed):
    indices, extents = random_map(np.random.default_rng(seed))
    expected = readers(indices, extents)
    shape = [max(place[axis] for place in expected) + 1 for axis in range(len(indices))]
    back = turned(indices, shape, extents)
    for place in np.ndindex(*shape):
        found = []
        for summed in np.ndindex(*back.summed.values()):
            at = dict(zip((*back.places, *back.summed), (*place, *summed), strict=True))
            if all(value(one, at) for one in (*back.conditions, *back.late)):
                found.append(tuple(value(back.applied(variable), at) for variable in extents))
        assert sorted(found) == sorted(expected.get(place, []))


A, K, Q = (Variable(name) for name in "akq")
BY_4 = Binary("//", Q, Constant(4))
# Indices, extents, and the number of variables that are summed over: no more than have to be.
FORMS = [
    ([Binary("+", A, Constant(1))], {A: 8}, 0),
    ([Binary("//", Q, Constant(12)), Binary("%", BY_4, Constant(3)), Binary("%", Q, Constant(4))], {Q: 24}, 0),
    ([Binary("+", Binary("*", A, Constant(4)), K)], {A: 10, K: 4}, 0),
    ([Binary("+", A, K), K], {A: 10, K: 3}, 0),
    ([Binary("+", A, K)], {A: 10, K: 3}, 1),
    ([A, A], {A: 4}, 0),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_is_determined_is_not_summed(form):
    indices, extents, count = form
    shape = [max(at) + 1 for at in zip(*readers(indices, extents), strict=True)]
    assert len(turned(indices, shape, extents).summed) == count
