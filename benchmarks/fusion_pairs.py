"""Random pairs of a template and an expression, fused and apart: no fusion should cost more than it saves.

    python benchmarks/fusion_pairs.py [--count 200] [--first 0] [--quick] [--json FILE]

The expression reads what the template made, or makes what it reads, along axes that seldom suit vectors: ragged and
prime extents, broadcast operands, other shapes of the same elements, axes in another order. "Ours" is the program
as it is fused, the peer the same one with `fuse=False`: below 0.95 a pair is slower fused than its parts. A pair below
0.97 is measured again for five times as long, and that is its row: of many short measurements some are unlucky.
Times are the processor's, on one thread.
"""

from __future__ import annotations

import argparse
import linecache
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from report import Row, finish

import taskc as tc
from taskc import f32
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import batch_matmul, matmul
from taskc.kernels.pooling import average_pool, max_pool
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.scans import cumsum
from taskc.kernels.transpose import transpose
from taskc.tune.timing import Probe, pairs

Shape = tuple[int, ...]
EXTENTS = (1, 2, 3, 5, 7, 9, 14, 16, 17, 28, 31, 49, 62, 64, 97, 100, 127, 197, 256, 300)


@dataclass(frozen=True)
class Producer:
    """A template's kernel; its first input, which an expression may make, and its other inputs and its output."""

    name: str
    kernel: Any
    inputs: tuple[Shape, ...]
    output: Shape


def near(rng: random.Random, elements: int) -> int:
    """An extent around a number, seldom a round one."""
    return max(1, rng.choice((elements, elements - 1, elements + 3, elements * 7 // 8 | 1)))


def producer(rng: random.Random) -> Producer:
    """A template of 2**15 to 2**19 elements."""
    size = 1 << rng.randrange(15, 20)
    inner = rng.choice(EXTENTS[3:])
    kind = rng.randrange(10)
    if kind == 0:
        normalize = rng.choice((softmax, log_softmax))
        n = near(rng, rng.choice((33, 196, 500, 1000, 4000)))
        m = max(1, size // n)
        return Producer(normalize.__name__, normalize(m, n), ((m, n),), (m, n))
    if kind == 1:
        normalize = rng.choice((layer_norm, rms_norm))
        groups, channels = rng.choice((4, 8, 16)), rng.choice((2, 3, 4, 8))
        pixels = rng.choice((7 * 7, 14 * 14, 28 * 28, 31 * 31, 62 * 62, 9 * 9, 5 * 5))
        m = max(groups, size // (channels * pixels) // groups * groups)
        n = channels * pixels
        options = {"scaled": False} | ({"shifted": False} if normalize is layer_norm else {})
        return Producer(normalize.__name__, normalize(m, n, **options), ((m, n),), (m, n))
    if kind == 2:
        m, n = near(rng, rng.choice((8, 64))), near(rng, 40)
        middle = max(1, size // (m * inner))
        shape = m, middle, inner
        made = softmax(m, middle, inner=inner)
        return Producer("softmax of columns", made, (shape,), shape)
    if kind == 3:
        m, n, k = (
            near(rng, 200),
            near(rng, max(8, size // 200)),
            near(rng, rng.choice((16, 64, 200))),
        )
        return Producer("matmul", matmul(m, n, k), ((m, k), (k, n)), (m, n))
    if kind == 4:
        batches, m, k = rng.choice((2, 7, 12)), near(rng, 60), near(rng, 32)
        n = near(rng, max(8, size // (batches * m)))
        made = batch_matmul(((batches,), (batches,)), m, n, k)
        return Producer("batch_matmul", made, ((batches, m, k), (batches, k, n)), (batches, m, n))
    if kind == 5:
        side, channels, features = (
            rng.choice((7, 14, 28, 31)),
            rng.choice((8, 20)),
            rng.choice((24, 32)),
        )
        order = rng.choice(("NHWC", "NCHW"))
        pixels = (side, side)
        images = max(1, size // (side * side * features))
        at = (*pixels, channels) if order == "NHWC" else (channels, *pixels)
        end = (*pixels, features) if order == "NHWC" else (features, *pixels)
        filters = (features, 3, 3, channels)
        made = convolution(
            images, side, side, channels, features, padding=1, order=order, dtype=f32
        )
        return Producer(f"convolution {order}", made, ((images, *at), filters), (images, *end))
    if kind == 6:
        side, channels = rng.choice((14, 28, 31, 56)), rng.choice((3, 16, 20, 64))
        order = rng.choice(("NHWC", "NCHW"))
        images = max(1, size // (side * side * channels))
        pool, out = rng.choice((max_pool, average_pool)), (side - 3) // 2 + 1
        at = (side, side, channels) if order == "NHWC" else (channels, side, side)
        end = (out, out, channels) if order == "NHWC" else (channels, out, out)
        made = pool(images, side, side, channels, size=3, stride=2, order=order)
        return Producer(f"{pool.__name__} {order}", made, ((images, *at),), (images, *end))
    if kind == 7:
        shape = near(rng, 20), max(1, size // (20 * inner)), inner
        axis = rng.randrange(3)
        made = reduction(rng.choice(("sum", "max", "mean")), shape, [axis])
        return Producer(
            f"reduction of axis {axis}", made, (shape,), shape[:axis] + shape[axis + 1 :]
        )
    if kind == 8:
        shape = near(rng, 20), max(1, size // (20 * inner)), inner
        order = rng.choice(((0, 2, 1), (1, 0, 2), (2, 1, 0), (2, 0, 1)))
        made = transpose(shape, order)
        return Producer(f"transpose {order}", made, (shape,), tuple(shape[k] for k in order))
    shape = max(1, size // (20 * inner)), near(rng, 20), inner
    if rng.random() < 0.5:
        axis = rng.randrange(3)
        return Producer(f"cumsum of axis {axis}", cumsum(shape, axis), (shape,), shape)

    made = tc.trace(
        "squares",
        {"x": f32[shape], "y": f32[shape[-1:]]},
        lambda x, y: tc.compute(shape, lambda *at: tc.sqrt(x[at] * x[at] + y[at[-1]] * y[at[-1]])),
    )
    return Producer("elementwise", made, (shape, shape[-1:]), shape)


def seen(rng: random.Random, shape: Shape) -> Shape:
    """Another shape of as many elements: an axis taken apart, or two axes as one."""
    axes = list(shape)
    if len(axes) > 1 and rng.random() < 0.4:
        place = rng.randrange(len(axes) - 1)
        axes[place : place + 2] = [axes[place] * axes[place + 1]]
    divisors = [
        (place, n) for place, extent in enumerate(axes) for n in range(2, 70) if extent % n == 0
    ]
    if divisors and rng.random() < 0.7:
        place, n = rng.choice(divisors)
        axes[place : place + 1] = [axes[place] // n, n]
    return tuple(axes)


ACTIVATIONS = {
    "plain": "{}",
    "relu": "max({}, 0.0)",
    "tanh": "tc.tanh({})",
    "half": "{} * 0.5 + 1.0",
}


@dataclass(frozen=True)
class Consumer:
    """An expression of an array seen as `shape`: broadcast operands by the axes that each has, and a residual.

    order  the axes of the result, by those of what is read
    """

    shape: Shape
    order: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    has_residual: bool
    activation: str

    @property
    def output(self) -> Shape:
        return tuple(self.shape[axis] for axis in self.order)

    @property
    def inputs(self) -> tuple[Shape, ...]:
        of_axes = tuple(tuple(self.shape[axis] for axis in axes) for axes in self.operands)
        return (*of_axes, *((self.output,) if self.has_residual else ()))

    def text(self, read: str, operands: list[str]) -> str:
        """The lambda, of names of what is read."""
        names = [f"i{axis}" for axis in range(len(self.shape))]
        value = f"{read}[{', '.join(names)}]"
        for number, (other, axes) in enumerate(zip(operands, self.operands, strict=False)):
            sign = "*" if number % 2 == 0 else "+"
            value = f"{value} {sign} {other}[{', '.join(names[axis] for axis in axes)}]"
        at = ", ".join(names[axis] for axis in self.order)
        if self.has_residual:
            value += f" + {operands[-1]}[{at}]"
        return f"lambda {at}: {ACTIVATIONS[self.activation].format(f'({value})')}"

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        turned = "" if self.order == tuple(range(len(self.shape))) else f" order {self.order}"
        rest = " + residual" if self.has_residual else ""
        return f"{self.activation} of {sizes}{turned} by axes {self.operands}{rest}"


def consumer(rng: random.Random, shape: Shape) -> Consumer:
    shape = seen(rng, shape)
    axes = range(len(shape))
    order = tuple(axes)
    if len(shape) > 1 and rng.random() < 0.25:
        order = tuple(rng.sample(axes, len(shape)))
    operands = tuple(
        tuple(sorted(rng.sample(axes, rng.randrange(1, min(3, len(shape)) + 1))))
        for _ in range(rng.randrange(3))
    )
    return Consumer(shape, order, operands, rng.random() < 0.3, rng.choice(list(ACTIVATIONS)))


def pair(number: int) -> tuple[str, Callable[[bool], Any], tuple[Shape, ...]]:
    """The pair of this number: its name, the program as it is fused or not, and the shapes of its inputs."""
    rng = random.Random(number)
    first = producer(rng)
    is_before = rng.random() < 0.3
    if is_before:
        made = consumer(rng, first.inputs[0])
        inputs = (made.shape, *made.inputs, *first.inputs[1:])
        result = first.output
    else:
        made = consumer(rng, first.output)
        inputs = (*first.inputs, *made.inputs)
        result = made.output

    names = [f"x{place}" for place in range(len(inputs))]
    others = names[1 + len(made.inputs) :] if is_before else names[1 : len(first.inputs)]
    own = [name for name in names[1:] if name not in others]
    if is_before:
        lines = [
            f"value = tc.compute({made.output}, {made.text('x0', own)})",
            f"first({', '.join([f'value.reshape{first.inputs[0]}', *others])}, out=y)",
        ]
    else:
        lines = [
            f"value = first({', '.join(['x0', *others])}).reshape{made.shape}",
            f"tc.compute({made.output}, {made.text('value', own)}, out=y)",
        ]
    header = ", ".join(f"{name}: f32[{shape}]" for name, shape in zip(names, inputs, strict=True))
    source = [
        "@tc.program(fuse=fuse)",
        f"def pair(x0, {header}, y: tc.out[f32[{result}]]) -> None:".replace("x0, ", "", 1),
        *[f"    {line}" for line in lines],
    ]

    def program(fuse: bool) -> Any:
        """The source is a file's to the language, which reads it."""
        file, text = f"<pair {number}>", "\n".join(source) + "\n"
        linecache.cache[file] = len(text), None, text.splitlines(True), file
        scope = {"tc": tc, "f32": f32, "first": first.kernel, "fuse": fuse}
        exec(compile(text, file, "exec"), scope)
        return scope["pair"]

    name = f"{made} -> {first.name}" if is_before else f"{first.name} -> {made}"
    return f"{number}: {name}", program, inputs


def measured(numbers: Iterator[int], budget: float) -> Iterator[Row]:
    probe = Probe(1)
    for number in numbers:
        name, program, shapes = pair(number)
        rng = np.random.default_rng(number)
        arrays = [rng.random(shape, np.float32) for shape in shapes]
        fused, apart = program(True), program(False)
        y = fused(*arrays)
        np.testing.assert_allclose(y, apart(*arrays), rtol=1e-4, atol=1e-4)
        # Both write to the same memory: where that lies makes a difference of up to 10%.
        calls = [partial(called, *arrays, out=y) for called in (fused, apart)]
        found = pairs(*calls, probe, budget=budget, least=9, of_processor=True)
        if found.ratio < 0.97:
            found = pairs(*calls, probe, budget=5 * budget, least=45, of_processor=True)
        yield Row.paired("fusion", name, 1, "apart", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="40 pairs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    options = parser.parse_args()
    os.environ.setdefault("TASKC_THREADS", "1")
    count = 40 if options.quick else options.count
    rows = list(measured(iter(range(options.first, options.first + count)), 0.1))
    finish(rows, options.json)


if __name__ == "__main__":
    main()
