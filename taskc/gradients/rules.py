"""The gradients of templates: a rule for each class of problem, or a program of simpler calls that it is equivalent to.

A rule gets the gradient of a template's result, and returns those of its inputs. It reads whatever inputs and results
it likes: what it reads is kept, and the rest is not. Sums are of f32 where numbers have 16 bits, as the template's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import taskc as tc
from taskc.dataclass import dataclass
from taskc.ir.build import index
from taskc.ir.nodes import Expression
from taskc.ir.rewrite import substitute
from taskc.kernels import attention, losses, matmul, reductions, rows, scans, transpose
from taskc.kernels.matmul import batch_matmul
from taskc.kernels.signatures import Function, Value, wide
from taskc.lang.definition import Definition
from taskc.lang.sizes import OfSizes
from taskc.operators.op import op
from taskc.operators.operands import converted, kernel_of
from taskc.operators.products import rows_times
from taskc.operators.tensors import computed
from taskc.programs.tracing import TensorHandle, current_trace

AnyProblem = TypeVar("AnyProblem")
Gradients = Sequence["TensorHandle | None"]


@dataclass(frozen=True, slots=True)
class Pullback:
    """A call whose result has a gradient.

    inputs    the handles of its tensors, and its scalars
    gradient  of its result
    wanted    whether the gradient of an input is needed
    """

    definition: Definition
    inputs: tuple[Any, ...]
    result: TensorHandle
    gradient: TensorHandle
    wanted: tuple[bool, ...]

    @property
    def problem(self) -> Any:
        return self.definition.problem

    def size(self, extent: Any) -> Any:
        """An extent of the problem, whose dimensions are the template's own, as the program that is traced has it."""
        if not isinstance(extent, OfSizes):
            return extent
        trace, own = current_trace(), self.definition.dimensions
        assert trace is not None
        sizes: dict[Any, Expression | int] = {}
        pairs = zip(self.definition.ir.parameters, self.inputs, strict=False)
        for parameter, handle in pairs:
            if isinstance(handle, TensorHandle):
                sizes |= dict(zip(parameter.argument_shape, handle.tensor.shape, strict=True))  # type: ignore[union-attr]
        expression = extent.over(lambda dimension: own[dimension])
        return trace.number(
            substitute(expression, {a: index(b) for a, b in sizes.items() if a in own.values()})
        )


Rule = Callable[[Pullback], Gradients]
Condition = Callable[[Any], bool]
RULES: dict[type, tuple[Rule, Condition]] = {}
EQUIVALENTS: dict[type, Callable[[Any], Definition | None]] = {}


def rule(problem: type, where: Condition = lambda problem: True) -> Callable[[Rule], Rule]:
    """Register the rule of a class of problems, or of those where a condition holds."""

    def register(function: Rule) -> Rule:
        RULES[problem] = function, where
        return function

    return register


def rule_of(problem: object) -> Rule | None:
    function, where = RULES.get(type(problem), (None, None))
    return function if where is not None and where(problem) else None


def equivalent_of(problem: object) -> Definition | None:
    """A program of simpler calls with the same parameters as a problem's template; None if the problem has a rule."""
    make = EQUIVALENTS.get(type(problem))
    return None if make is None else make(problem)


# Products.


def product(x: TensorHandle, y: TensorHandle, turned_x: bool, turned_y: bool) -> TensorHandle:
    """x @ y, whose last two axes may be given in the other order; batch axes broadcast."""
    dtype = x.dtype
    y = converted(y, dtype)
    if len(x.shape) == len(y.shape) == 2:
        return rows_times(x, y, transpose_a=turned_x, transpose_b=turned_y)
    *before, m, k = x.shape
    *others, _, n = y.shape
    if turned_x:
        m, k = k, m
    if turned_y:
        n = y.shape[-2]
    made: TensorHandle = kernel_of(
        batch_matmul, (tuple(before), tuple(others)), m, n, k, dtype=dtype, total=wide(dtype), result=dtype,
        transpose_a=turned_x, transpose_b=turned_y,
    )(x, y)  # fmt: skip
    return made


@rule(matmul.Problem, lambda problem: problem.activation is None and not problem.scale)
def of_products(call: Pullback) -> Gradients:
    problem, (a, b, *_), g = call.problem, call.inputs, call.gradient
    turned_a, turned_b = problem.transpose_a, problem.transpose_b
    if problem.packed or problem.pitched:
        k, n = (a.shape[-2 if turned_a else -1], g.shape[-1])
        packed = b
        b = computed((k, n), lambda q, j: packed[q, j])
    gradients: list[TensorHandle | None] = [None, None]
    of_sums = converted(g, a.dtype)
    x, y, z = a, b, of_sums
    if all(isinstance(n, int) and n == 1 for n in problem.batch[1]) and not turned_a:
        x, y, z = flat(a), b.reshape(*b.shape[-2:]), flat(of_sums)  # one matrix for all rows
    if call.wanted[0]:
        of_a = product(y, z, turned_b, True) if turned_a else product(z, y, False, not turned_b)
        gradients[0] = shrunk(of_a, a)
    if call.wanted[1]:
        of_b = product(z, x, True, turned_a) if turned_b else product(x, z, not turned_a, False)
        gradients[1] = converted(shrunk(of_b, b), b.dtype)
    features = len(g.shape) - (2 if problem.by_rows else 1)
    if problem.bias:
        others = [axis for axis in range(len(g.shape)) if axis != features]
        offset: TensorHandle = call.inputs[2]
        gradients.append(
            converted(op.ReduceSum(converted(g, offset.dtype), others, keepdims=0), offset.dtype)
        )
    if problem.residual:
        gradients.append(g)
    return gradients


def flat(x: TensorHandle) -> TensorHandle:
    *before, rows, columns = x.shape
    for extent in before:
        rows = rows * extent
    return x.reshape(rows, columns)


def shrunk(x: TensorHandle, like: TensorHandle) -> TensorHandle:
    """A gradient summed over the axes along which an operand was repeated, in the operand's shape."""
    missing = len(x.shape) - len(like.shape)
    own = [1] * max(missing, 0) + [*like.shape]
    axes = [
        axis
        for axis, extent in enumerate(x.shape[: len(own)])
        if missing >= 0 and isinstance(own[axis], int) and own[axis] == 1
        and not (isinstance(extent, int) and extent == 1)
    ]  # fmt: skip
    summed: TensorHandle = op.ReduceSum(x, axes, keepdims=1) if axes else x
    return summed.reshape(*like.shape)


def _plain_product(problem: matmul.Problem) -> Definition | None:
    """The product without what is done to its sums, which a computation does."""
    if problem.activation is None and not problem.scale:
        return None
    offsets, scales, residual = problem.of_sums.operands
    plain = replace(
        problem, bias=False, scale=False, residual=False, activation=None, result=problem.total
    )
    left, right, _, made = problem.types
    operator = matmul.BATCH_MATMUL if any(problem.batch) else matmul.MATMUL
    kernel = operator.build(plain, None, tc.machine())
    epilogue, shape = problem.epilogue, made.shape

    @tc.program
    def with_epilogue(
        a: tc.typed[left],
        b: tc.typed[right],
        offsets: tc.typed[offsets],
        scales: tc.typed[scales],
        residual: tc.typed[residual],
        c: tc.out[made],
    ) -> None:
        sums, further = kernel(a, b), (*offsets, *scales, *residual)
        tc.compute(shape, lambda *at: epilogue(sums[at], further, at[-1], at), out=c)

    return with_epilogue


# Rows: softmax and normalizations.


@rule(rows.Problem)
def of_rows(call: Pullback) -> Gradients:
    problem, x = call.problem, call.inputs[0]
    if problem.groups is not None:
        images, count = x.shape[0], problem.groups.count
        shape: tuple[Any, ...] = (images * count, problem.n, 1)
    else:
        shape = (*x.shape, 1)[:3]
    total = problem.wide
    x, y, g = (converted(t.reshape(*shape), total) for t in (x, call.result, call.gradient))
    of_x: Any = _ROWS[problem.function](call, x, y, g)
    own = call.inputs[0]
    gradients = [converted(one, own.dtype) for one in of_x]
    return [gradients[0].reshape(*own.shape), *gradients[1:]]


def along(x: TensorHandle, operator: str = "Sum") -> Any:
    return getattr(op, f"Reduce{operator}")(x, [1], keepdims=1)


def _softmax(call: Pullback, x: TensorHandle, y: TensorHandle, g: TensorHandle) -> Gradients:
    sums = along(computed(g.shape, lambda r, c, i: g[r, c, i] * y[r, c, i]))
    return [computed(g.shape, lambda r, c, i: (g[r, c, i] - sums[r, 0, i]) * y[r, c, i])]


def _log_softmax(call: Pullback, x: TensorHandle, y: TensorHandle, g: TensorHandle) -> Gradients:
    sums = along(g)
    return [computed(g.shape, lambda r, c, i: g[r, c, i] - tc.exp(y[r, c, i]) * sums[r, 0, i])]


def _normalized(call: Pullback, x: TensorHandle, y: TensorHandle, g: TensorHandle) -> Gradients:
    """With z = (x - mean) * s and h = g * scale: s * (h - mean(h) - z * mean(h * z)); rms_norm takes no means away."""
    problem, shape, epsilon = call.problem, x.shape, call.problem.epsilon
    centred, given = x, x
    if problem.is_centred:
        mean = along(x, "Mean")
        centred = computed(shape, lambda r, c, i: given[r, c, i] - mean[r, 0, i])
    squares = along(computed(shape, lambda r, c, i: centred[r, c, i] * centred[r, c, i]), "Mean")
    factor = computed(squares.shape, lambda r, c, i: tc.rsqrt(squares[r, c, i] + epsilon))
    z = computed(shape, lambda r, c, i: centred[r, c, i] * factor[r, 0, i])
    parameter, h = problem.parameter_of, g
    if problem.scaled:
        scale, total = call.inputs[1], problem.wide
        h = computed(shape, lambda r, c, i: g[r, c, i] * scale[parameter(r, c)].to(total))
    of_squares = along(computed(shape, lambda r, c, i: h[r, c, i] * z[r, c, i]), "Mean")
    if problem.is_centred:
        means = along(h, "Mean")
        of_x = computed(
            shape,
            lambda r, c, i: factor[r, 0, i] * (h[r, c, i] - means[r, 0, i] - z[r, c, i] * of_squares[r, 0, i]),
        )  # fmt: skip
    else:
        of_x = computed(
            shape, lambda r, c, i: factor[r, 0, i] * (h[r, c, i] - z[r, c, i] * of_squares[r, 0, i])
        )
    gradients = [of_x]
    if problem.scaled:
        gradients.append(
            _of_parameter(call, computed(shape, lambda r, c, i: g[r, c, i] * z[r, c, i]))
        )
    if problem.shifted:
        gradients.append(_of_parameter(call, g))
    return gradients


def _of_parameter(call: Pullback, x: TensorHandle) -> TensorHandle:
    """The sums of all that is multiplied by a parameter of a normalization."""
    groups = call.problem.groups
    axes = [0, 2]
    if groups is not None:
        x = x.reshape(call.inputs[0].shape[0], groups.channels, groups.pixels)
    summed: TensorHandle = op.ReduceSum(x, axes, keepdims=0)
    return summed


_ROWS: dict[str, Callable[..., Gradients]] = {
    "softmax": _softmax, "log_softmax": _log_softmax, "layer_norm": _normalized, "rms_norm": _normalized,
}  # fmt: skip


# Reductions and scans.


@rule(reductions.Problem, lambda problem: problem.operator not in reductions.problem.PLACES)
def of_reductions(call: Pullback) -> Gradients:
    """Of several largest numbers each has an equal share, as of PyTorch's amax."""
    problem, (x,) = call.problem, call.inputs
    view = tuple(map(call.size, problem.view))
    outer, apart, middle, along_, inner = view
    total, dtype = problem.wide, x.dtype
    kept = (outer, 1, middle, 1, inner)
    g, y = (t.reshape(*kept) for t in (call.gradient, call.result))
    whole = x.reshape(*view)
    operator = problem.operator
    if operator in ("sum", "mean"):
        count = apart * along_ if operator == "mean" else 1
        made = computed(
            view, lambda a, p, b, q, c: (g[a, 0, b, 0, c].to(total) / total(count)).to(dtype)
        )
    elif operator in ("max", "min"):
        is_it = computed(
            view,
            lambda a, p, b, q, c: (
                total(1) if whole[a, p, b, q, c] == y[a, 0, b, 0, c].to(dtype) else total(0)
            ),
        )
        ties: TensorHandle = op.ReduceSum(is_it, [1, 3], keepdims=1)
        shares = computed(kept, lambda *at: g[at].to(total) / ties[at])
        made = computed(
            view, lambda a, p, b, q, c: (is_it[a, p, b, q, c] * shares[a, 0, b, 0, c]).to(dtype)
        )
    else:
        made = _of_factors(whole, g)
    return [made.reshape(*x.shape)]


def _of_factors(x: TensorHandle, g: TensorHandle) -> TensorHandle:
    """The product of all other numbers, which is 0 if one of these is."""
    view, dtype = x.shape, x.dtype
    total = wide(dtype)
    zeros = op.ReduceSum(
        computed(view, lambda *at: total(1) if x[at] == dtype(0) else total(0)), [1, 3], keepdims=1
    )
    others = op.ReduceProd(
        computed(view, lambda *at: total(1) if x[at] == dtype(0) else x[at].to(total)),
        [1, 3],
        keepdims=1,
    )
    share = tc.function(
        lambda value, count, product: (
            (product / value if count == total(0) else total(0))
            if value != total(0)
            else (product if count == total(1) else total(0))
        )
    )
    return computed(
        view,
        lambda a, p, b, q, c: (
            share(x[a, p, b, q, c].to(total), zeros[a, 0, b, 0, c], others[a, 0, b, 0, c])
            * g[a, 0, b, 0, c].to(total)
        ).to(dtype),
    )


@rule(scans.Problem, lambda problem: problem.operator == "sum")
def of_scans(call: Pullback) -> Gradients:
    """Sums in the other direction."""
    problem, (x,) = call.problem, call.inputs
    shape = tuple(map(call.size, problem.given.shape))
    g = call.gradient.reshape(*shape)
    made = op.CumSum(g, 1, exclusive=int(problem.exclusive), reverse=int(not problem.reverse))
    return [made.reshape(*x.shape)]


@rule(transpose.Problem, lambda problem: not problem.digits)
def of_transposes(call: Pullback) -> Gradients:
    order = call.problem.order
    back = [order.index(axis) for axis in range(len(order))]
    return [op.Transpose(call.gradient, perm=back)]


@rule(losses.LogSumExp)
def of_logsumexp(call: Pullback) -> Gradients:
    problem, (x,), g, y = call.problem, call.inputs, call.gradient, call.result
    kept = [1 if axis in problem.axes else n for axis, n in enumerate(x.shape)]
    y, g = y.reshape(*kept), g.reshape(*kept)
    first: Function = tc.function(
        lambda *at: tuple(0 if axis in problem.axes else at[axis] for axis in range(len(kept)))
    )
    total = wide(x.dtype)
    return [
        computed(
            x.shape,
            lambda *at: (tc.exp(x[at].to(total) - y[first(*at)].to(total)) * g[first(*at)].to(total)).to(x.dtype),
        )
    ]  # fmt: skip


# Attention.


def _plain_attention(problem: attention.Problem) -> Definition | None:
    """Products, a softmax of all scores, and products again: memory for a score of each query and key."""
    if problem.sinks or problem.is_empty:
        return None
    queries, keys, values, made = problem.types
    masks, counts, _ = problem.extra
    batches, groups, share = problem.batches, problem.groups, problem.share
    length, count, total = problem.length, problem.keys, problem.wide
    pairs, together = batches * groups, share * length
    dtype, least = problem.dtype, wide(problem.dtype).minimum / 2
    limits, is_seen, added = problem.limits, problem.is_seen, problem.added
    is_causal, cap, factor = problem.offset is not None, problem.cap, problem.factor
    mask_kind = None if problem.mask is None else problem.mask.dtype

    @tc.function
    def sees(extra: Value, batch: Value, head: Value, query: Value, key: Value) -> Any:
        of_batch, offset = limits(extra, batch)
        in_range = key < of_batch and (is_seen(key, query + offset) if is_causal else key >= 0)
        if mask_kind is None:
            return in_range
        else:
            return in_range and added(extra[0], batch, head, query, key) > -tc.inf

    @tc.program
    def attention_by_products(
        q: tc.typed[queries],
        k: tc.typed[keys],
        v: tc.typed[values],
        mask: tc.typed[masks],
        lengths: tc.typed[counts],
        y: tc.out[made],
    ) -> None:
        extra = (mask[0] if mask else None, lengths[0] if lengths else None, None)
        features, results = problem.features, problem.results
        scores = product(
            q.reshape(pairs, together, features), k.reshape(pairs, count, features), False, True
        ).reshape(batches, problem.heads, length, count)

        def score(b: Value, h: Value, i: Value, j: Value) -> Any:
            value = scores[b, h, i, j].to(total) * total(factor)
            capped = tc.tanh(value) * total(cap) if cap else value
            if mask_kind is None:
                offset = total(0)
            else:
                offset = added(extra[0], b, h, i, j)
            return capped + offset if sees(extra, b, h, i, j) else total(least)

        whole = computed((batches, problem.heads, length, count), tc.function(score))
        shares = op.Softmax(whole, axis=-1)
        seen = computed(
            shares.shape,
            lambda b, h, i, j: (shares[b, h, i, j] if sees(extra, b, h, i, j) else total(0)).to(
                dtype
            ),
        )
        rows = product(
            seen.reshape(pairs, together, count), v.reshape(pairs, count, results), False, False
        )
        flat_rows = rows.reshape(batches, problem.heads, length, results)
        tc.compute(made.shape, lambda *at: flat_rows[at], out=y)

    return attention_by_products


EQUIVALENTS |= {matmul.Problem: _plain_product, attention.Problem: _plain_attention}
