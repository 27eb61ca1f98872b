"""Sums so far, the place of the largest and the eight largest, against NumPy, torch and ONNX Runtime; and a copy.

    python benchmarks/scans.py [--quick] [--json FILE]

2**24 numbers, as one line or as rows: the first two by the library's kernels, the third by one that stands here, for
numbers of which no two are equal. Each number of threads is a process of its own; NumPy has one. A peer that isn't
installed is named.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
from processes import Call, Cases, compare

COUNT = 1 << 24
EXAMPLES = Path(__file__).parents[1] / "examples"

Array = np.ndarray[Any, Any]


def top(m: int, n: int, count: int = 8) -> Any:
    """Each lane's largest numbers and their places, in order; then those of the lanes."""
    import taskc as tc
    from taskc import f32, i32, repeat, spatial

    lanes = spatial(16)
    own = repeat(count, 1) * spatial(1, 16)
    names = runpy.run_path(str(EXAMPLES / "15_combine.py"))
    first_of, second_of = names["first_of"], names["second_of"]
    halves = [1 << k for k in reversed(range(count.bit_length() - 1))]

    @tc.function
    def sorted_pairs(pairs, half):
        return [
            first_of(pairs[k], pairs[k + half])
            if k & half == 0
            else second_of(pairs[k - half], pairs[k])
            for k in range(count)
        ]

    @tc.function
    def largest(a, b):
        """Of two falling lists: one and the other backwards, pair by pair, are those and rise once."""
        pairs = [
            first_of((a[k], a[k + count]), (b[count - 1 - k], b[2 * count - 1 - k]))
            for k in range(count)
        ]
        four = sorted_pairs(pairs, halves[0])
        two = sorted_pairs(four, halves[1])
        one = sorted_pairs(two, halves[2])
        return [one[k % count][k // count] for k in range(2 * count)]

    @tc.kernel(workers=16)
    def top(x: f32[m, n], y: tc.out[f32[m, count]], place: tc.out[i32[m, count]]):
        for row in tc.tiles(m, by=1):
            best = tc.tile(f32, own, float("-inf"))
            places = tc.tile(i32, own, n)
            for at in range(0, n, 16):
                for i in lanes:
                    value, here = x[row, at + i], (at + i).to(i32)
                    for k in range(count):
                        larger = value > best[k, i]
                        falls, there = best[k, i], places[k, i]
                        best[k, i] = value if larger else falls
                        places[k, i] = here if larger else there
                        value = falls if larger else value
                        here = there if larger else here
            tiles = [tc.tile(f32 if k < count else i32, lanes, 0) for k in range(2 * count)]
            for k in tc.static(range(count)):
                for i in lanes:
                    tiles[k][i] = best[k, i]
                    tiles[k + count][i] = places[k, i]
            found = tc.reduce(tiles, 0, largest)
            for k in tc.static(range(count)):
                tc.store(y[row : row + 1, k], found[k])
                tc.store(place[row : row + 1, k], found[k + count])

    return top


def cases(threads: int, quick: bool) -> Cases:
    from taskc.kernels.scans import cumsum

    x = np.random.default_rng(0).standard_normal(COUNT, np.float32)
    sums, y, copied = cumsum((COUNT,), 0), np.empty_like(x), np.empty_like(x)
    peers: dict[str, Call] = {
        "numpy": lambda: np.cumsum(x, out=copied),
        "copy": lambda: np.copyto(copied, x),
    }
    torch = torch_with(threads)
    if torch is not None:
        given, made = torch.from_numpy(x), torch.empty(COUNT)
        peers["torch"] = lambda: torch.cumsum(given, 0, out=made)
        peers["copy"] = lambda: made.copy_(given)
    yield "cumsum", f"{COUNT}", lambda: sums(x, out=y), peers
    assert np.allclose(y, np.cumsum(x.astype(np.float64)), atol=0.1)

    for n in (1000 * 64,) if quick else (1024, 4096, 1000 * 64):
        m = COUNT // n
        rows = x[: m * n].reshape(m, n)
        yield "argmax", f"{m} x {n}", *argmax_of(rows, threads, torch)
        yield "top-8", f"{m} x {n}", *top_of(rows, threads, torch)


def argmax_of(rows: Array, threads: int, torch: Any) -> tuple[Call, dict[str, Call]]:
    from taskc.kernels.reductions import argmax

    kernel, places = argmax(rows.shape, 1), np.empty(len(rows), np.int64)
    kernel(rows, out=places)
    assert (places == rows.argmax(1)).all()
    peers: dict[str, Call] = {"numpy": lambda: np.argmax(rows, 1)}
    session = session_of("ArgMax", rows.shape, threads, axis=1, keepdims=0)
    peers["onnxruntime"] = lambda: session.run({"x": rows})
    if torch is not None:
        given = torch.from_numpy(rows)
        peers["torch"] = lambda: torch.argmax(given, 1)
    return lambda: kernel(rows, out=places), peers


def top_of(rows: Array, threads: int, torch: Any) -> tuple[Call, dict[str, Call]]:
    kernel = top(*rows.shape)
    values, places = np.empty((len(rows), 8), np.float32), np.empty((len(rows), 8), np.int32)
    kernel(rows, out=(values, places))
    assert (values == -np.partition(-rows, np.arange(8), 1)[:, :8]).all()
    session = session_of("TopK", rows.shape, threads, count=8)
    peers: dict[str, Call] = {
        "numpy": lambda: np.argpartition(rows, -8, 1),
        "onnxruntime": lambda: session.run({"x": rows}),
    }
    if torch is not None:
        given = torch.from_numpy(rows)
        peers["torch"] = lambda: torch.topk(given, 8)
    return lambda: kernel(rows, out=(values, places)), peers


def session_of(
    operator: str, shape: tuple[int, ...], threads: int, count: int = 0, **attributes: int
) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    from taskc.onnx.partitions import RuntimeSession

    names = ["values", "places"] if count else ["places"]
    node = helper.make_node(operator, ["x", "count"] if count else ["x"], names, **attributes)
    constants = [numpy_helper.from_array(np.array([count]), "count")] if count else []
    types = [TensorProto.FLOAT, TensorProto.INT64][-len(names) :]
    graph = helper.make_graph(
        [node],
        operator,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(*pair, None) for pair in zip(names, types, strict=True)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return RuntimeSession(model.SerializeToString(), threads)


def torch_with(threads: int) -> Any:
    try:
        import torch
    except ImportError:
        print("torch isn't installed")
        return None
    torch.set_num_threads(threads)
    return torch


if __name__ == "__main__":
    compare(__file__, __doc__ or "", cases)
