"""Products of 8- and 16-bit numbers against PyTorch, ONNX Runtime and our own f32, on one thread.

The peak is that of the instruction: of a loop of it on operands that stay in the first cache. A peer that
isn't installed is named. `--quick` takes one shape and fewer pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TASKC_THREADS"), "1")

import numpy as np
from report import Row, finish, parse_options

import taskc as tc
from taskc import bf16, f32, i8, i32, repeat, spatial, u8
from taskc.kernels import matmul
from taskc.kernels.matmul import product
from taskc.tune.timing import Probe, pairs, seconds

SHAPES = ((1024, 1024, 1024), (128, 768, 768), (128, 3072, 768), (128, 768, 3072))
Case = tuple[str, str, Any, dict[str, Any], float, float]


def main() -> None:
    options = parse_options(__doc__ or "")
    probe = Probe(1)
    rows: list[Row] = []
    for benchmark, case, ours, theirs, work, peak in cases(SHAPES[: 1 if options.quick else None]):
        for peer, call in theirs.items():
            found = pairs(ours, call, probe, budget=0.5 if options.quick else 2.0)
            fraction = work / (found.ours * 1e-3) / 1e9 / peak
            print(f"  {benchmark} {case} {peer}: {found.ratio:.2f}, {fraction:.2f} of the peak")
            rows.append(
                Row(
                    benchmark, case, 1, found.ours, peer, found.theirs, found.ratio,
                    fraction_of_peak=fraction, quartiles=found.quartiles, kept=found.kept,
                    discarded=found.discarded,
                )
            )  # fmt: skip
    finish(rows, options.json)


def peak_of(left: tc.DType, right: tc.DType, total: tc.DType) -> float:
    """Thousands of millions of operations a second."""
    machine = tc.machine()
    own = repeat(8, 2) * spatial(1, machine.lanes)  # all of it stays in registers
    bm, bn = own.shape
    step, trips = 4 // left.nbytes, 200_000
    packs = right[step, bn].laid(repeat(1, bn) * repeat(step, 1))

    @tc.kernel(workers=machine.lanes)
    def loop(a: left[bm, step], b: packs, c: tc.out[total[bm, bn]]):
        acc = tc.tile(total, own, 0)
        for _ in range(trips):
            tc.mma(acc, a[0:bm, 0:step], b[0:step, 0:bn])
        tc.store(c[0:bm, 0:bn], acc)

    a, b = np.zeros((bm, step), left.numpy), loop.pack(np.zeros((step, bn), right.numpy))
    c = np.empty((bm, bn), total.numpy)
    loop(a, b, out=c)
    return (
        2
        * bm
        * bn
        * step
        * trips
        / min(seconds(lambda: loop(a, b, out=c)) for _ in range(20))
        / 1e9
    )


def cases(shapes: tuple[tuple[int, int, int], ...]) -> Iterator[Case]:
    """Benchmark, case, our call, the peers' calls, operations, and the peak."""
    torch = _torch()
    for left in (i8, u8, bf16):
        right, total = (bf16, f32) if left is bf16 else (i8, i32)
        into = bf16 if left is bf16 else i32  # as PyTorch's
        peak = peak_of(left, right, total)
        print(f"{left}: {peak:.0f} G/s in a loop of the instruction", flush=True)
        for m, n, k in shapes:
            a, b = _numbers(left, (m, k)), _numbers(right, (k, n))
            case, work = f"{left} {m}x{n}x{k}", 2.0 * m * n * k
            c, d = np.empty((m, n), into.numpy), np.empty((m, n), np.float32)
            plain = product(m, n, k, dtype=left, result=into)
            constant = product(m, n, k, dtype=left, result=into, packed=True)
            panels = constant.pack(b)
            expected = a.astype(np.float64) @ b.astype(np.float64)
            for found in (plain(a, b), constant(a, panels)):
                bound = 0.01 * np.abs(expected).max() if left is bf16 else 0
                np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=bound)
            per_call: dict[str, Any] = {}
            ahead: dict[str, Any] = {}
            if left is bf16:
                wide = matmul.matmul(m, n, k, packed=True)
                x, y = a.astype(np.float32), b.astype(np.float32)
                y = wide.pack(y)
                ahead["our own f32"] = lambda x=x, y=y, d=d, f=wide: f(x, y, out=d)
            if torch and left is not u8:
                to = torch.bfloat16 if left is bf16 else torch.int8
                x, y = (torch.from_numpy(v.astype(np.float32)).to(to) for v in (a, b))
                call = (lambda x=x, y=y: torch._int_mm(x, y)) if left is i8 else None
                ahead["torch"] = per_call["torch"] = call or (lambda x=x, y=y: torch.matmul(x, y))
            if left is not bf16 and (session := _session(a, b)):
                ahead["onnxruntime"] = session
            if per_call:
                ours = lambda a=a, b=b, c=c, f=plain: f(a, b, out=c)  # noqa: E731
                yield "product", case, ours, per_call, work, peak
            ours = lambda a=a, b=panels, c=c, f=constant: f(a, b, out=c)  # noqa: E731
            yield "constant b", case, ours, ahead, work, peak


def _numbers(dtype: tc.DType, shape: tuple[int, int]) -> Any:
    random = np.random.default_rng(shape)
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy)
    ends = np.iinfo(dtype.numpy)
    return random.integers(ends.min, ends.max + 1, shape).astype(dtype.numpy)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed")
        return None
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    return torch


def _session(a: Any, b: Any) -> Any:
    """MatMulInteger by a constant, with all optimizations and bound memory."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        print("ONNX Runtime is not installed")
        return None
    helper, kinds = onnx.helper, onnx.TensorProto
    kind = kinds.UINT8 if a.dtype == np.uint8 else kinds.INT8
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", kind, a.shape)],
        [helper.make_tensor_value_info("c", kinds.INT32, [a.shape[0], b.shape[1]])],
        [onnx.numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_cpu_input("a", a)
    binding.bind_output("c")
    return lambda: session.run_with_iobinding(binding)


if __name__ == "__main__":
    main()
