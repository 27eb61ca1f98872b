"""Programs run by NumPy, call by call, in the types that they are in: an oracle that compiles nothing.

Computations are evaluated by taskc/programs/evaluate.py, which refuses reads out of bounds; templates by a function of
their problem, written here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import taskc as tc
from taskc.gradients import gradient
from taskc.gradients.straight import nodes_of
from taskc.ir import arithmetic
from taskc.ir.build import index
from taskc.ir.extents import extent_value
from taskc.ir.nodes import Tensor
from taskc.ir.rewrite import substitute
from taskc.ir.signature import is_output
from taskc.ir.types import from_numpy
from taskc.kernels import convolution, losses, matmul, pooling, reductions, rows, scans
from taskc.kernels.windows import Windows
from taskc.programs.evaluate import _elements, _HasToBeCompiledError
from taskc.programs.ir import Computation

Array = np.ndarray[Any, Any]


def run(program: tc.ProgramDefinition, *arrays: Array) -> Any:
    """The outputs of a program whose extents are numbers."""
    source = program.ir
    run = _Run(source)
    inputs = [item for item in source.parameters if not is_output(item)]
    for item, array in zip(inputs, arrays, strict=True):
        run.memory[item] = np.array(array, item.dtype.numpy)
    run.steps(source.calls, {})
    outputs = [run.memory[item] for item in source.parameters if is_output(item)]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Run:
    def __init__(self, source: Any) -> None:
        self.memory: dict[Tensor, Array] = dict(source.constants)
        self.views = {view.tensor: view for view in source.views}

    def part(self, tensor: Tensor, sizes: Any) -> Array:
        if tensor not in self.views:
            nothing = np.nan if tensor.dtype.is_float else 0
            self.memory.setdefault(tensor, np.full(tensor.shape, nothing, tensor.dtype.numpy))
            return self.memory[tensor]
        view = self.views[tensor]
        size = int(np.prod(tensor.shape, dtype=int))
        first = extent_value(substitute(index(view.offset), sizes), {})
        return self.part(view.of, sizes).reshape(-1)[first:][:size].reshape(tensor.shape)

    def steps(self, steps: Any, sizes: Any) -> None:
        for node in nodes_of(steps):
            step = node.steps[0]
            if node.callee is None:
                for turn in range(step.count):
                    self.steps(step.body, sizes | {step.variable: index(turn)})
                continue
            given = [self.part(argument, sizes) for _, argument in node.inputs]
            if isinstance(node.callee, Computation):
                named = dict(zip(node.callee.parameters[:-1], given, strict=True))
                callee = replace(node.callee, value=substitute(node.callee.value, sizes))
                try:
                    results = [_elements(callee, named, math)]
                except _HasToBeCompiledError:
                    raise AssertionError(f"{callee.name} reads out of bounds") from None
            else:
                results = _template(node.callee, given)
            for (_, argument), result in zip(node.outputs, results, strict=True):
                self.part(argument, sizes)[...] = np.asarray(result).reshape(argument.shape)


def math(name: str, operands: tuple[Array, ...]) -> Array:
    dtype = from_numpy(operands[0].dtype)
    with np.errstate(all="ignore"):
        if len(operands) == 1:
            return arithmetic.unary(name, *operands, dtype)
        return arithmetic.binary(name, *operands, dtype)


def _template(definition: Any, given: Sequence[Array]) -> list[Array]:
    if definition.name == "scatter_slices":
        places, updates, lines = given
        np.add.at(lines, tuple(places.T), updates)
        return [lines]
    if definition.problem is None:
        returned = definition.reference(*given)
        return [*returned] if isinstance(returned, tuple) else [returned]
    return [TEMPLATES[type(definition.problem)](definition.problem, *given)]


def _product(problem: Any, a: Array, b: Array, *further: Array) -> Array:
    a = np.swapaxes(a, -1, -2) if problem.transpose_a else a
    b = np.swapaxes(b, -1, -2) if problem.transpose_b else b
    left = [*further]
    sums = a @ b
    offset = left.pop(0) if problem.bias else 0
    scale = left.pop(0) if problem.scale else 1
    if problem.by_rows:
        offset, scale = np.expand_dims(offset, -1), np.expand_dims(scale, -1)
    made = sums * scale + offset + (left.pop(0) if problem.residual else 0)
    assert problem.activation in (None, tc.tanh)
    made = made if problem.activation is None else np.tanh(made)
    return made.astype(problem.result.numpy)


def _rows(problem: Any, x: Array, *parameters: Array) -> Array:
    shape, left = x.shape, [*parameters]
    groups = problem.groups
    x = x.reshape(problem.m, problem.n, problem.inner)
    if problem.has_peak:
        power = np.exp(x - x.max(1, keepdims=True))
        y = power / power.sum(1, keepdims=True)
        return (np.log(y) if problem.function == "log_softmax" else y).reshape(shape)
    if problem.is_centred:
        x = x - x.mean(1, keepdims=True)
    x = x / np.sqrt((x * x).mean(1, keepdims=True) + problem.epsilon)

    def each(parameter: Array) -> Array:
        if groups is None:
            return parameter[None, :, None]
        return np.repeat(parameter.reshape(groups.count, -1), groups.pixels, 1)[
            np.arange(problem.m) % groups.count
        ][..., None]

    x = x * (each(left.pop(0)) if problem.scaled else 1)
    return (x + (each(left.pop(0)) if problem.shifted else 0)).reshape(shape)


def _reduction(problem: Any, x: Array) -> Array:
    operator = {"argmax": "argmax", "argmin": "argmin"}.get(problem.operator, problem.operator)
    return getattr(np, operator)(x.reshape(problem.view), axis=(1, 3)).astype(
        problem.made.dtype.numpy
    )


def _scan(problem: Any, x: Array) -> Array:
    given = x.reshape(problem.given.shape)
    given = given[:, ::-1] if problem.reverse else given
    made = (np.cumsum if problem.operator == "sum" else np.cumprod)(given, 1)
    if problem.exclusive:
        made = np.concatenate([np.zeros_like(made[:, :1]), made[:, :-1]], 1)
    return (made[:, ::-1] if problem.reverse else made).reshape(x.shape)


def _pooling(problem: Any, x: Array) -> Array:
    nothing = -np.inf if problem.operator == "max" else 0
    taps = np.stack([*_taps(problem, x, nothing).values()])
    if problem.operator == "max":
        return taps.max(0)
    counted = problem.padding if problem.counts_padding else (0, 0, 0, 0)
    ones = np.ones((1, 1, *x.shape[2:]))
    top, left, down, right = counted
    ones = np.pad(ones, [(0, 0), (0, 0), (top, down), (left, right)], constant_values=1)
    inner = [a - b for a, b in zip(problem.padding, counted, strict=True)]
    count = sum(_taps(problem, ones, 0, inner).values())
    return taps.sum(0) / (count if problem.operator == "average" else 1)


def _taps(problem: Any, x: Array, fill: float, padding: Any = None) -> dict[tuple[int, int], Array]:
    """What each tap of all windows meets, of images of NCHW."""
    top, left, down, right = padding or problem.padding
    (rows, columns), (step, across) = problem.outputs, problem.stride
    spare = 64
    x = np.pad(
        x, [(0, 0), (0, 0), (top, down + spare), (left, right + spare)], constant_values=fill
    )
    taps = {}
    for r in range(problem.size[0]):
        for s in range(problem.size[1]):
            first, beside = r * problem.dilation[0], s * problem.dilation[1]
            taps[r, s] = x[:, :, first:, beside:][:, :, ::step, ::across][:, :, :rows, :columns]
    return taps


def _convolution(problem: Any, x: Array, w: Array, *further: Array) -> Array:
    """By loops over taps, of NCHW."""
    assert (problem.order, problem.results) == ("NCHW", "NCHW")
    shape = x.shape
    if problem.axes == 1:
        x, w = x[:, :, None], w[:, :, None]
    groups = problem.groups
    if problem.transposed:
        y = _transposed(problem, x, w)
    else:
        windows = Windows(
            problem.size, problem.stride, problem.dilation, problem.padding[:2], problem.padding[2:]
        )
        outputs = windows.counts(x.shape[2:])
        shown = type("Shown", (), {})()
        for name in ("size", "stride", "dilation", "padding"):
            setattr(shown, name, getattr(problem, name))
        shown.outputs = outputs
        y = np.zeros((x.shape[0], problem.features, *outputs), x.dtype)
        own, features = problem.channels // groups, problem.features // groups
        for (r, s), tap in _taps(shown, x, 0).items():
            for g in range(groups):
                y[:, g * features : (g + 1) * features] += np.einsum(
                    "nchw,oc->nohw", tap[:, g * own : (g + 1) * own], w[g * features : (g + 1) * features, :, r, s]
                )  # fmt: skip
    left = [*further]
    y = y + (left.pop(0)[:, None, None] if problem.bias else 0)
    y = y[:, :, 0] if len(shape) == 3 else y
    return y + (left.pop(0) if problem.residual else 0)


def _transposed(problem: Any, x: Array, w: Array) -> Array:
    (top, left, _, _), groups = problem.padding, problem.groups
    windows = Windows(
        problem.size, problem.stride, problem.dilation, problem.padding[:2], problem.padding[2:]
    )
    height, width = (
        n + more
        for n, more in zip(windows.extents(x.shape[2:]), problem.output_padding, strict=True)
    )
    y = np.zeros((x.shape[0], problem.features, height, width), x.dtype)
    own, features = problem.channels // groups, problem.features // groups
    for c in range(problem.channels):
        g = c // own
        for i in range(x.shape[2]):
            for j in range(x.shape[3]):
                for r in range(problem.size[0]):
                    for s in range(problem.size[1]):
                        h = i * problem.stride[0] + r * problem.dilation[0] - top
                        k = j * problem.stride[1] + s * problem.dilation[1] - left
                        if 0 <= h < height and 0 <= k < width:
                            y[:, g * features : (g + 1) * features, h, k] += (
                                x[:, c, i, j, None] * w[c, :, r, s]
                            )
    return y


def _logsumexp(problem: Any, x: Array) -> Array:
    return np.log(np.exp(x).sum(tuple(problem.axes)))


TEMPLATES: dict[type, Callable[..., Array]] = {
    matmul.Problem: _product,
    rows.Problem: _rows,
    reductions.Problem: _reduction,
    scans.Problem: _scan,
    pooling.Problem: _pooling,
    convolution.Problem: _convolution,
    losses.LogSumExp: _logsumexp,
}


def directional(
    program: tc.ProgramDefinition,
    of: str,
    wrt: Sequence[str],
    arrays: Sequence[Array],
    *,
    seed: int = 0,
    step: float = 1e-6,
) -> tuple[float, float, float]:
    """A derivative in a random direction: by the gradient, by differences, and the gradient's size in it."""
    random = np.random.default_rng(seed)
    names = [item.name for item in program.ir.parameters if not is_output(item)]
    made = gradient(program, of, wrt)
    output = next(item for item in program.ir.parameters if item.name == of)
    is_one = all(n == 1 for n in output.shape)
    weights = np.ones(output.shape) if is_one else random.standard_normal(output.shape)
    gradients = run(made, *arrays, *([] if is_one else [weights]))
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    directions = {name: random.standard_normal(arrays[names.index(name)].shape) for name in wrt}
    moved = []
    for sign in (1, -1):
        there = [
            array + sign * step * directions[name] if name in directions else array
            for name, array in zip(names, arrays, strict=True)
        ]
        value = run(program, *there)
        if isinstance(value, tuple):
            outputs = [item.name for item in program.ir.parameters if is_output(item)]
            value = value[outputs.index(of)]
        moved.append((value * weights).sum())
    parts = [g * directions[name] for name, g in zip(wrt, gradients, strict=True)]
    size = float(np.sqrt(sum((part**2).sum() for part in parts)))
    return float(sum(part.sum() for part in parts)), float(moved[0] - moved[1]) / (2 * step), size


def check(
    program: tc.ProgramDefinition,
    of: str,
    wrt: Sequence[str],
    arrays: Sequence[Array],
    *,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Check a gradient against differences in two random directions."""
    for number in range(2):
        mine, theirs, size = directional(program, of, wrt, arrays, seed=2 * seed + number)
        assert abs(mine - theirs) <= tolerance * (size + abs(theirs)) + 1e-9, (mine, theirs, size)
