"""The cost of programs beyond their kernels: their own calls, small kernels in them, edges between large ones, memory.

    python benchmarks/programs.py [--quick] [--json FILE]

The peer of a program is its kernels called one after another, in arrays that are there already: a ratio of 1 says
that what lies between them costs nothing. Of eight elementwise steps it is the same program with its calls kept
apart, and PyTorch, where that is installed; of two chains the same chains in two calls. Each number of threads is a
process of its own, and so is the one whose memory is measured: the peak of it beside what its plan says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from processes import is_measuring, rows_of, write_rows
from report import Row, finish, parse_options

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.format import bytes_text, time_text

CALLS = 200
LINKS, ROUNDS = 30, 10_000
LAYERS, ELEMENTS = 12, 1 << 22
# Images and channels; of the features of each layer every one is read by the next.
BLOCKED = ((1, 64, 56, 56), (1, 256, 14, 14))

Case = tuple[str, str, Callable[[], object], str, Callable[[], object], int]


@tc.kernel(workers=16)
def add(a: f32[16], b: f32[16], c: tc.out[f32[16]]):
    for i in spatial(16):
        c[i] = a[i] + b[i]


def small() -> Iterator[Case]:
    """A program of one small kernel against that, and of many: each of their calls."""

    @tc.program
    def one(a: f32[16], b: f32[16], c: tc.out[f32[16]]):
        add(a, b, out=c)

    @tc.program
    def many(a: f32[16], b: f32[16], c: tc.out[f32[16]]):
        t = add(a, b)
        for _ in range(CALLS - 2):
            t = add(t, b)
        add(t, b, out=c)

    a, b, c = (np.ones(16, np.float32) for _ in range(3))
    kernel = partial(add, a, b, out=c)

    def called() -> None:
        for _ in range(CALLS):
            kernel()

    yield (
        "own call",
        "one kernel of 16 elements",
        partial(one, a, b, out=c),
        "the kernel",
        kernel,
        1,
    )
    case = f"{CALLS} kernels of 16 elements, each"
    yield "small kernels", case, partial(many, a, b, out=c), "called from Python", called, CALLS


@tc.kernel(workers=16)
def rounds(x: f32[128], y: tc.out[f32[128]]):
    """One block, which takes some fifteen microseconds."""
    own = repeat(8) * spatial(16)
    s = tc.tile(f32, own, 0.0)
    for i in own:
        s[i] = x[i]
    for _ in range(ROUNDS):
        for i in own:
            s[i] = tc.fma(s[i], 0.5, 1.0)
    for i in own:
        y[i] = s[i]


def chains() -> Iterator[Case]:
    """Two chains of kernels of one block, in whatever order they stand, against one chain after the other."""
    row, both = f32[128], f32[2, 128]

    @tc.program
    def one(x: row, y: tc.out[row]):
        for _ in range(LINKS - 1):
            x = rounds(x)
        rounds(x, out=y)

    @tc.program
    def behind(x: row, y: tc.out[both]):
        one(x, out=y[0])
        one(x, out=y[1])

    @tc.program
    def in_turn(x: row, y: tc.out[both]):
        v = w = x
        for _ in range(LINKS - 1):
            v, w = rounds(v), rounds(w)
        rounds(v, out=y[0])
        rounds(w, out=y[1])

    x, y = np.ones(128, np.float32), np.empty((2, 128), np.float32)

    def called() -> None:
        one(x, out=y[0])
        one(x, out=y[1])

    for order, program in (("one behind the other", behind), ("in turn", in_turn)):
        case = f"two of {LINKS} kernels of one block, {order}"
        yield "chains", case, partial(program, x, out=y), "two calls", called, 1


def edges() -> Iterator[Case]:
    """Three convolutions whose images are blocked, against the three kernels."""
    from taskc.kernels.convolution import blocked, convolution

    for images, channels, height, width in BLOCKED:
        kind = blocked(images, channels, height, width)
        convolutions = [
            convolution(
                images, height, width, channels, channels,
                size=size, padding=size // 2, order="NCHWc", packed=True, dtype=f32,
            )
            for size in (1, 3, 1)
        ]  # fmt: skip
        random = np.random.default_rng(0)
        x = tc.pack(random.standard_normal((images, channels, height, width), np.float32), kind)
        weights = [
            kernel.pack(random.standard_normal((channels, size, size, channels), np.float32))
            for kernel, size in zip(convolutions, (1, 3, 1), strict=True)
        ]
        yield chained(convolutions, kind, x, weights, f"{channels} x {height} x {width}")


def chained(kernels: list[Any], kind: Any, x: Any, weights: list[Any], shape: str) -> Case:
    @tc.program
    def program(x: kind, y: tc.out[kind]):
        first, second, third = kernels
        third(second(first(x, weights[0]), weights[1]), weights[2], out=y)

    between = [tc.empty(kind) for _ in range(4)]
    calls = [
        partial(kernel, given, w, out=made)
        for kernel, given, w, made in zip(
            kernels, [x, *between], weights, between[:3], strict=False
        )
    ]

    def called() -> None:
        for call in calls:
            call()

    called()
    program(x, out=between[3])
    assert np.array_equal(between[2], between[3])
    return (
        "edges",
        f"three convolutions, {shape}",
        partial(program, x, out=between[3]),
        "its kernels",
        called,
        1,
    )


def steps() -> Iterator[Case]:
    """Eight elementwise steps, and the same with a sum along rows behind them."""
    from taskc.kernels.reductions import reduction

    m, n = 4096, 1024
    shape = m, n
    total = reduction("sum", shape, (1,))

    def eight(x: Any, bias: Any, scale: Any, residual: Any, out: Any = None) -> Any:
        a = tc.compute(shape, lambda i, j: x[i, j] + bias[j])
        b = tc.compute(shape, lambda i, j: tc.gelu(a[i, j]))
        c = tc.compute(shape, lambda i, j: b[i, j] * scale[j])
        d = tc.compute(shape, lambda i, j: c[i, j] if c[i, j] < 3 else 3.0)
        e = tc.compute(shape, lambda i, j: d[i, j] + residual[i, j])
        f = tc.compute(shape, lambda i, j: max(e[i, j], 0.0))
        g = tc.compute(shape, lambda i, j: f[i, j] * 0.5)
        return tc.compute(shape, lambda i, j: g[i, j] - 1.0, out=out)

    def program(fuse: bool, is_summed: bool) -> Any:
        whole, row, made = f32[shape], f32[n], f32[m] if is_summed else f32[shape]

        @tc.program(fuse=fuse)
        def run(x: whole, bias: row, scale: row, residual: whole, y: tc.out[made]):
            if is_summed:
                total(eight(x, bias, scale, residual), out=y)
            else:
                eight(x, bias, scale, residual, out=y)

        return run

    random = np.random.default_rng(0)
    arrays = [random.standard_normal(s, np.float32) for s in (shape, (n,), (n,), shape)]
    for is_summed in (False, True):
        y, z = (np.empty(m if is_summed else shape, np.float32) for _ in range(2))
        start = perf_counter()
        ours = partial(program(True, is_summed), *arrays, out=y)
        ours()
        cold = perf_counter() - start
        apart = partial(program(False, is_summed), *arrays, out=z)
        apart()
        assert np.array_equal(y, z)
        case = f"{m}x{n}{', then the sum of each row' if is_summed else ''}"
        print(f"  eight steps, {case}: traced, compiled and run in {time_text(cold)}", flush=True)
        yield "eight steps", case, ours, "kept apart", apart, 1
        if torch := torch_steps(arrays, is_summed):
            yield "eight steps", case, ours, "torch", torch, 1


def torch_steps(arrays: list[Any], is_summed: bool) -> Callable[[], object] | None:
    """PyTorch's eager calls: where it can compile, a C++ compiler is needed, which machines may lack."""
    if find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(int(os.environ["TASKC_THREADS"]))
    x, bias, scale, residual = map(torch.from_numpy, arrays)

    def eight() -> object:
        with torch.inference_mode():
            h = torch.nn.functional.gelu(x + bias) * scale
            made = torch.relu(h.clamp(max=3) + residual) * 0.5 - 1
            return made.sum(1) if is_summed else made

    if shutil.which("g++") is None:
        return eight
    compiled = torch.compile(eight)
    compiled()
    return compiled


def memory(threads: int) -> None:
    """Prints a row with the memory that a program's first call at a large size takes: arrays, arena and all else.

    Its kernels are compiled and its threads run before: a call at another size was there.
    """
    from taskc.runtime.driver import whole_program

    n = tc.dim("n")

    def turned(t: Any, by: float, out: Any = None) -> Any:
        return tc.compute((n,), lambda i: t[n - 1 - i] * by, out=out)

    def products(s: Any, t: Any, rest: Any) -> Any:
        return tc.compute((n,), lambda i: s[i] * t[n - 1 - i] + rest[n - 1 - i])

    @tc.program(fuse=False)
    def layers(x: f32[n], y: tc.out[f32[n]]):
        for _ in range(LAYERS):
            a = turned(x, 0.5)
            x = products(a, turned(a, 0.25), x)
        turned(x, 2.0, out=y)

    layers(np.ones(1000, np.float32))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = _status("VmHWM")
    x, y = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    start = perf_counter()
    layers(x, out=y)
    seconds = perf_counter() - start
    peak = _status("VmHWM") - before
    runner = whole_program(layers)
    assert runner is not None
    arena = runner.code.plan(dict.fromkeys(layers.ir.dimensions, ELEMENTS)).arena
    case = f"{3 * LAYERS} temporaries of {bytes_text(x.nbytes)}"
    row = Row("peak memory", case, threads, 1e3 * seconds)
    print(
        json.dumps(asdict(row) | {"peak_bytes": peak, "planned_bytes": arena + x.nbytes + y.nbytes})
    )


def _status(name: str) -> int:
    """Bytes that Linux counts for this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found) << 10


def measure(threads: int, flags: list[str]) -> Iterator[Row]:
    from taskc.tune.timing import Probe, pairs

    probe = Probe(threads)
    for section in (small, chains, edges, steps):
        for benchmark, case, ours, peer, theirs, parts in section():
            found = pairs(ours, theirs, probe, budget=0.5 if "--quick" in flags else 3.0)
            yield Row.paired(benchmark, case, threads, peer, found, parts)
    if Path("/proc/self/clear_refs").exists():
        command = [sys.executable, __file__, "--memory", str(threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        yield Row(**json.loads(done.stdout))


def main() -> None:
    if "--memory" in sys.argv:
        memory(int(sys.argv[-1]))
        return
    if is_measuring():
        write_rows(measure)
        return
    options = parse_options(__doc__ or "")
    rows = rows_of(__file__, ["--quick"] * options.quick)
    finish(rows, options.json)


if __name__ == "__main__":
    main()
