"""Losses of neural networks, by expressions that a reduction reads: mean squared and absolute errors, smooth ones,
Kullback-Leibler divergence, binary and other cross-entropies; and logsumexp.

Each is a program; where it pays, its expression becomes a part of the reduction's loads. Numbers of 16 bits are
computed on as f32. `reduction` is "mean", "sum" or "none", as PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import taskc as tc
from taskc import CompileError, DType, Machine, ProgramDefinition, f32, i64
from taskc.dataclass import dataclass
from taskc.kernels.reductions import reduction as folded
from taskc.kernels.reductions.problem import folded_axes
from taskc.kernels.signatures import Extent, Function, Value, parameters_of, require_numbers, wide
from taskc.kernels.weights import weight_of

__all__ = [
    "bce_with_logits", "cross_entropy", "huber_loss", "kl_div", "l1_loss", "logsumexp", "mse_loss", "nll_loss",
    "smooth_l1_loss",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSumExp:
    """The problem of `logsumexp`, by its axes: the largest x is no part of its derivative."""

    axes: frozenset[int]


def mse_loss(
    shape: Sequence[Extent],
    *,
    reduction: str = "mean",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """(x - target)**2 of arrays of this shape."""

    squared = tc.function(lambda x, target: (x - target) ** 2)

    return _of_pairs(squared, shape, reduction, dtype, machine)


@parameters_of(mse_loss)
def l1_loss(**options: Any) -> ProgramDefinition:
    """abs(x - target)."""

    far = tc.function(lambda x, target: abs(x - target))

    return _of_pairs(far, **options)


def smooth_l1_loss(
    shape: Sequence[Extent],
    *,
    beta: float = 1.0,
    reduction: str = "mean",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """With d = abs(x - target): d**2 / (2 * beta) where d < beta, and else d - beta / 2."""
    if beta <= 0:
        return l1_loss(shape, reduction=reduction, dtype=dtype, machine=machine)

    @tc.function
    def smooth(x: Value, target: Value) -> Value:
        far = abs(x - target)
        return far * far * (0.5 / beta) if far < beta else far - 0.5 * beta

    return _of_pairs(smooth, shape, reduction, dtype, machine)


def huber_loss(
    shape: Sequence[Extent],
    *,
    delta: float = 1.0,
    reduction: str = "mean",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """With d = abs(x - target): d**2 / 2 where d < delta, and else delta * (d - delta / 2)."""

    @tc.function
    def huber(x: Value, target: Value) -> Value:
        far = abs(x - target)
        return far * far * 0.5 if far < delta else delta * (far - 0.5 * delta)

    return _of_pairs(huber, shape, reduction, dtype, machine)


def kl_div(
    shape: Sequence[Extent],
    *,
    log_target: bool = False,
    reduction: str = "mean",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """target * (log(target) - x), 0 where target is, of logarithms x; with log_target, targets are logarithms, too."""

    divergence = tc.function(lambda x, target: target * (tc.log(target) - x) if target > 0 else 0)

    of_logarithms = tc.function(lambda x, target: tc.exp(target) * (target - x))

    expression = of_logarithms if log_target else divergence
    return _of_pairs(expression, shape, reduction, dtype, machine)


@parameters_of(mse_loss)
def bce_with_logits(**options: Any) -> ProgramDefinition:
    """The cross-entropy of probabilities sigmoid(x) with targets between 0 and 1, for any x."""

    entropy = tc.function(lambda x, target: max(x, 0) - x * target + tc.log1p(tc.exp(-abs(x))))

    return _of_pairs(entropy, **options)


def logsumexp(
    shape: Sequence[Extent],
    axes: Iterable[int],
    *,
    keepdims: bool = False,
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """log(sum(exp(x))) along some axes, relative to the largest x of each sum."""
    shape = tuple(shape)
    gone = set(folded_axes(len(shape), axes))
    kept = tuple(1 if axis in gone else extent for axis, extent in enumerate(shape))
    made = kept if keepdims else tuple(n for axis, n in enumerate(shape) if axis not in gone)
    total = wide(dtype)
    weight = weight_of(total)
    peaks = folded("max", shape, gone, dtype=dtype, keepdims=True, machine=machine)
    sums = folded("sum", shape, gone, dtype=total, keepdims=True, machine=machine)

    first = tc.function(
        lambda *at: tuple(0 if axis in gone else at[axis] for axis in range(len(shape)))
    )

    finite = tc.function(lambda peak: peak if -tc.inf < peak and peak < tc.inf else 0)

    @tc.program
    def logsumexp(x: tc.typed[dtype[shape]], y: tc.typed[tc.out[dtype[made]]]) -> None:
        peak = peaks(x)

        power = tc.function(
            lambda *at: weight(x[at].to(total) - finite(peak[first(*at)].to(total)))
        )

        power_sums = sums(tc.compute(shape, power, name="power"))

        logarithm = tc.function(
            lambda *at: (tc.log(power_sums[at]) + finite(peak[at].to(total))).to(dtype)
        )

        whole = y if keepdims else y.reshape(*kept)
        tc.compute(kept, logarithm, name="logarithm", out=whole)

    logsumexp.problem = LogSumExp(frozenset(gone))
    return logsumexp


def nll_loss(
    rows: Extent,
    classes: int,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    dtype: DType = f32,
    machine: Machine | None = None,
) -> ProgramDefinition:
    """-x[i, label[i]] of logarithms x[rows, classes] and labels i64[rows], but for rows labelled `ignore_index`."""
    return _of_labels(are_logits=False, **locals())


@parameters_of(nll_loss)
def cross_entropy(**options: Any) -> ProgramDefinition:
    """logsumexp(x[i]) - x[i, label[i]] of logits x[rows, classes], as `nll_loss` has it of their log_softmax."""
    return _of_labels(are_logits=True, **options)


def _of_labels(
    rows: Extent,
    classes: int,
    *,
    are_logits: bool,
    ignore_index: int,
    reduction: str,
    dtype: DType,
    machine: Machine | None,
) -> ProgramDefinition:
    require_numbers("a loss by labels", classes=classes)
    _check(reduction)
    total = wide(dtype)
    logarithms = logsumexp((rows, classes), [1], dtype=total, machine=machine)
    sums = folded("sum", (rows,), [0], dtype=total, machine=machine)
    made = dtype[rows] if reduction == "none" else dtype[()]
    given, of_rows = dtype[rows, classes], i64[rows]

    @tc.program
    def loss(x: tc.typed[given], labels: tc.typed[of_rows], y: tc.typed[tc.out[made]]) -> None:
        scores = x
        if total is not dtype:
            scores = tc.compute((rows, classes), lambda i, j: x[i, j].to(total), name="widened")
        if are_logits:
            whole = logarithms(scores)
            single = tc.function(lambda i: whole[i] - scores[i, labels[i]])
        else:
            single = tc.function(lambda i: -scores[i, labels[i]])
        each = tc.compute(rows, lambda i: single(i) if labels[i] != ignore_index else total(0))
        if reduction == "none":
            tc.compute(rows, lambda i: each[i].to(dtype), out=y)
            return
        summed = sums(each)
        if reduction == "sum":
            tc.compute((), lambda: summed[()].to(dtype), out=y)
            return
        counted = sums(
            tc.compute(rows, lambda i: total(1) if labels[i] != ignore_index else total(0))
        )
        tc.compute((), lambda: (summed[()] / counted[()]).to(dtype), out=y)

    return loss


def _of_pairs(
    expression: Function,
    shape: Sequence[Extent],
    reduction: str,
    dtype: DType,
    machine: Machine | None,
) -> ProgramDefinition:
    """expression(x, target) of each pair, and the mean or the sum of all."""
    _check(reduction)
    shape, total = tuple(shape), wide(dtype)
    elements = prod(shape)
    sums: Any = None
    if reduction != "none":
        sums = folded(reduction, (elements,), [0], dtype=total, result=dtype, machine=machine)
    made = dtype[shape] if reduction == "none" else dtype[()]

    @tc.program
    def loss(
        x: tc.typed[dtype[shape]],
        target: tc.typed[dtype[shape]],
        y: tc.typed[tc.out[made]],
    ) -> None:
        given, wanted = x.reshape(elements), target.reshape(elements)
        single = tc.function(lambda i: expression(given[i].to(total), wanted[i].to(total)))
        if reduction == "none":
            tc.compute(elements, lambda i: single(i).to(dtype), out=y.reshape(elements))
        else:
            sums(tc.compute(elements, lambda i: single(i)), out=y)

    return loss


def _check(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise CompileError(
            f"there is no reduction {reduction!r} of a loss",
            hint="there is 'mean', 'sum' or 'none'",
        )
