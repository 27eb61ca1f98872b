"""Mistakes planted in the derivation of gradients: each is caught by a comparison with differences.

A mistake replaces a function, or a line of a table, for as long as a program of the list is checked.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import taskc as tc
from taskc import f64, i64, op
from taskc.gradients import derivatives, index_maps, rules, rules_images, straight, walk
from taskc.ir import nodes as ir
from tests.gradients.by_numpy import check


def program(body, **types):
    return tc.trace("one", types, body)


def made(body, *shapes):
    """A function that makes a program of arrays of these shapes, and numbers for it."""
    random = np.random.default_rng(0)
    types = {f"x{n}": f64[shape] for n, shape in enumerate(shapes)}
    return lambda: (program(body, **types), [random.standard_normal(shape) for shape in shapes])


def several(x):
    a = tc.compute(6, lambda i: tc.sin(x[i]) * x[i])
    return tc.compute(4, lambda i: a[i] * a[i + 2] + x[i] * x[5 - i])


def parts(x):
    whole = tc.empty(f64[4, 3])
    tc.compute((2, 3), lambda i, j: x[i, j] * x[i, j], out=whole[0:2])
    tc.compute((2, 3), lambda i, j: x[i + 1, j] * x[i, j], out=whole[2:4])
    rows = whole.reshape(6, 2)
    row = whole[2]
    return tc.compute((6, 2), lambda i, j: rows[i, j] * row[j])


def in_place(x):
    y = tc.compute(4, lambda i: x[i] * x[i])
    z = tc.compute(4, lambda i: tc.exp(y[i]))
    tc.compute(4, lambda i: y[i] * x[3 - i], out=y)
    return tc.compute(4, lambda i: y[i] * z[i])


def loop(x, w):
    h = tc.compute((1, 3), lambda i, j: f64(1))
    for t in tc.steps(3):
        p, row = op.MatMul(h, w), x[t : t + 1]
        tc.compute((1, 3), lambda i, j: tc.tanh(p[i, j] + row[i, j] * (t + 1)), out=h)
    return tc.compute((1, 3), lambda i, j: h[i, j])


def data(x, at):
    return tc.compute((5, 2), lambda i, j: x[at[i], j] * (i + j).to(f64))


PROGRAMS = {
    "several": made(several, (6,)),
    "parts": made(parts, (3, 3)),
    "in place": made(in_place, (4,)),
    "loop": made(loop, (3, 3), (3, 3)),
    "guard": made(
        lambda x, w: tc.compute(4, lambda i: x[i + 1] * w[i + 1] if i + 1 < 4 else x[0] * w[i]), (4,), (4,)
    ),
    "digits": made(lambda x: tc.compute(23, lambda q: x[q // 6, q // 3 % 2, q % 3] * q.to(f64)), (4, 2, 3)),
    "strides": made(lambda x: tc.compute((3, 3), lambda i, k: x[2 * i + k, k] * (i + 1).to(f64)), (7, 3)),
    "turned": made(lambda x: tc.compute((3, 4), lambda i, j: x[3 - j, i] * x[0, i] * (i + 2 * j).to(f64)), (4, 3)),
    "data": lambda: (
        program(data, x0=f64[4, 2], at=i64[5]),
        [np.random.default_rng(1).standard_normal((4, 2)), np.array([1, 1, 3, 0, 1])],
    ),
    "product": made(lambda a, b: op.MatMul(a, b), (2, 3, 3), (2, 3, 3)),
    "repeated": made(lambda a, b: op.MatMul(a, b), (2, 1, 3, 4), (2, 4, 3)),
    "affine": made(lambda a, b, c: op.Gemm(a, b, c), (3, 4), (4, 2), (2,)),
    "softmax": made(lambda x: op.Softmax(x, axis=-1), (3, 4)),
    "norm": made(lambda x, s, b: op.LayerNormalization(x, s, b, axis=-1), (3, 4), (4,), (4,)),
    "mean": made(lambda x: op.ReduceMean(x, [1], keepdims=0), (3, 4)),
    "largest": made(lambda x: op.ReduceMax(x, [1], keepdims=0), (3, 4)),
    "scan": made(lambda x: op.CumSum(x, 1, exclusive=1), (3, 4)),
    "images": made(
        lambda x, w: op.Conv(x, w, strides=[2, 1], pads=[1, 0, 0, 1], dilations=[1, 2]), (1, 2, 5, 6), (3, 2, 2, 2)
    ),
    "average": made(lambda x: op.AveragePool(x, kernel_shape=[2, 2], pads=[1, 0, 0, 0]), (1, 2, 4, 5)),
}  # fmt: skip


def verdict(name):
    """Check a program's gradient with respect to its floats."""
    one, arrays = PROGRAMS[name]()
    wrt = [item.name for item in one.ir.parameters if item.name.startswith("x")]
    check(one, "out", wrt, arrays)


@pytest.mark.parametrize("name", [*PROGRAMS])
def test_without_a_mistake(name):
    verdict(name)


def table(name, line, value):
    return mock.patch.dict(getattr(derivatives, name), {line: value})


def replaced(owner, name, change):
    """`change` gets the function that it replaces, and that one's arguments."""
    old = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **options: change(old, *args, **options))


def without_conditions(old, value, gradient):
    return [derivatives.Term(one.read, (), one.value) for one in old(value, gradient)]


def turned_without(field):
    def change(old, *args):
        back = old(*args)
        getattr(back, field).clear()
        return back

    return change


def overwritten(self, tensor, gradient, loc):
    view = self.views.get(tensor)
    if view is not None:
        gradient, tensor = walk.embedded(self.trace, gradient, view, None, loc), view.of
    self.gradients[tensor] = gradient


def stale(self, tensor, handle, loc):
    if tensor in self.views:
        view = self.view(tensor)
        tensor, handle = (
            view.of,
            straight.embedded(self.trace, handle, view, self.versions.get(view.of), loc),
        )
    self.versions.setdefault(tensor, handle)


def scaled_rule(problem, factor, place=0):
    """One gradient of a rule is too large."""
    function, where = rules.RULES[problem]

    def wrong(call):
        found = [*function(call)]
        x = found[place]
        if x is not None:
            found[place] = tc.compute(x.shape, lambda *at: x[at] * factor)
        return found

    return mock.patch.dict(rules.RULES, {problem: (wrong, where)})


def wrong_sums(old, x, operator="Sum"):
    return old(x, "Sum" if operator == "Mean" else operator)


def other_offset(self, tensor):
    view = self.views.get(tensor) or straight.View(tensor, tensor)
    return straight.View(view.tensor, view.of, 0)


def no_shift(self, axis, known, order):
    return OLD_SOLVE(self, axis, known - known.constant, order)


OLD_SOLVE = index_maps._Turning.solve

MISTAKES = {
    "accumulation is missing": ("several", lambda: mock.patch.object(walk._Walk, "accumulate", overwritten)),
    "the sine's derivative has no cosine": ("several", lambda: table("UNARY", "sin", lambda x, y: y)),
    "a product gives one factor": ("several", lambda: table("BINARY", "*", lambda a, b, y: (b, b))),
    "the exponential is taken for constant": ("in place", lambda: table("UNARY", "exp", None)),
    "tanh is taken for a sigmoid": ("loop", lambda: table("UNARY", "tanh", lambda x, y: y * (1.0 - y))),
    "conditions are lost": ("guard", lambda: replaced(walk, "terms", without_conditions)),
    "bounds of places are lost": ("several", lambda: replaced(walk, "turned", turned_without("conditions"))),
    "equal indices are not asked for": ("turned", lambda: replaced(walk, "turned", turned_without("late"))),
    "a limit of digits is lost": ("digits", lambda: replaced(walk, "turned", turned_without("conditions"))),
    "a shift is lost": ("several", lambda: mock.patch.object(index_maps._Turning, "solve", no_shift)),
    "remainders of strides are lost": ("strides", lambda: replaced(walk, "turned", turned_without("conditions"))),
    "the first version of memory is read": ("in place", lambda: mock.patch.object(straight.Straight, "write", stale)),
    "a part begins at 0": ("parts", lambda: mock.patch.object(straight.Straight, "view", other_offset)),
    "a part is written where another one is": ("parts", lambda: replaced(straight, "embedded", elsewhere)),
    "a loop's number stays 0": (
        "loop", lambda: mock.patch.object(straight, "range", lambda count: [0] * count, create=True),
    ),
    "all updates go to one place": (
        "data", lambda: mock.patch.object(walk, "_within", return_value=ir.Constant(0, i64)),
    ),
    "a factor isn't transposed": ("product", lambda: replaced(rules, "product", upright)),
    "a repeated operand isn't summed": ("repeated", lambda: mock.patch.object(rules, "shrunk", first_of)),
    "a bias has a factor": ("affine", lambda: scaled_rule(rules.matmul.Problem, 2.0, 2)),
    "the sums of softmax are missing": ("softmax", lambda: mock.patch.object(rules, "along", nothing)),
    "means are sums": ("norm", lambda: replaced(rules, "along", wrong_sums)),
    "a scale's gradient is doubled": ("norm", lambda: scaled_rule(rules.rows.Problem, 2.0, 1)),
    "a mean isn't divided": ("mean", lambda: scaled_rule(rules.reductions.Problem, 4.0)),
    "a maximum's share goes to all": ("largest", lambda: scaled_rule(rules.reductions.Problem, 0.5)),
    "a scan goes the same way": ("scan", lambda: mock.patch.object(rules, "op", SameWay())),
    "padding is on the other side": (
        "images", lambda: mock.patch.object(rules_images._Windows, "attributes", property(other_side)),
    ),
    "dilations are ignored": ("images", lambda: replaced(rules_images._Windows, "of_filters", undilated)),
    "an average counts padding": ("average", lambda: mock.patch.object(rules_images, "_shares", counted)),
}  # fmt: skip


def elsewhere(old, trace, part, view, rest, loc):
    return old(trace, part, straight.View(view.tensor, view.of), rest, loc)


def upright(old, x, y, turned_x, turned_y):
    return old(x, y, turned_x, turned_y if turned_x else not turned_y)


def first_of(x, like):
    missing = len(x.shape) - len(like.shape)
    own = [1] * max(missing, 0) + [*like.shape]
    part = tc.compute(tuple(own), lambda *at: x[at])
    return part.reshape(*like.shape)


def nothing(x, operator="Sum"):
    shape = (x.shape[0], 1, *x.shape[2:])
    return tc.compute(shape, lambda *at: f64(0))


class SameWay:
    def __getattr__(self, name):
        if name != "CumSum":
            return getattr(op, name)
        return lambda x, axis, **options: op.CumSum(
            x, axis, **options | {"reverse": 1 - options["reverse"]}
        )


def other_side(self):
    return {
        "kernel_shape": [*self.size], "strides": [*self.stride], "dilations": [*self.dilation],
        "pads": [*self.behind, *self.before],
    }  # fmt: skip


def undilated(old, self, image, result):
    self.dilation = (1, 1)
    return old(self, image, result)


def counted(problem, g, windows, extents):
    return tc.compute(g.shape, lambda *at: g[at] / 4)


@pytest.mark.parametrize("mistake", [*MISTAKES])
def test_each_mistake_is_caught(mistake):
    name, plant = MISTAKES[mistake]
    with plant(), pytest.raises(AssertionError):
        verdict(name)
