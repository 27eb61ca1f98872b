"""Products with weights of 4 bits against ONNX Runtime's MatMulNBits, on one and two threads.

    python benchmarks/quantized.py [--quick] [--json FILE]

4096 x 4096 weights in groups with a scale and a zero point each. `onnxruntime` is at accuracy level 1, sums of f32 as
ours; `onnxruntime, int8` at level 4, which rounds activations to 8 bits, and is another result. Weights are packed
before, on both sides. Each number of threads is a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from processes import Call, Cases, compare

FEATURES = INPUTS = 4096
ROWS = (1, 16, 128)
GROUPS = (32, 128)
LEVELS = {"onnxruntime": 1, "onnxruntime, int8": 4}

Array = np.ndarray[Any, Any]


def cases(threads: int, quick: bool) -> Cases:
    from taskc import u4
    from taskc.ir.bits import into_bytes
    from taskc.kernels.quantized import quantized_matmul

    random = np.random.default_rng(0)
    n, k = FEATURES, INPUTS
    weights = random.integers(0, 16, (k, n), np.uint8)
    for group in GROUPS[:1] if quick else GROUPS:
        scales = (random.random((k // group, n), np.float32) + 0.5) / 100
        zeros = random.integers(0, 16, (k // group, n), np.uint8)
        wide = (weights - np.repeat(zeros, group, 0).astype(np.float32)) * np.repeat(
            scales, group, 0
        )
        for m in ROWS:
            a, c = random.standard_normal((m, k), np.float32), np.empty((m, n), np.float32)
            kernel = quantized_matmul(m, n, k, right=u4, group=group, zeros=True)
            packed = kernel.pack(weights.view(u4.numpy), "b")
            points = into_bytes(zeros.view(u4.numpy), u4).reshape(-1, n // 2)

            def ours(
                kernel: Any = kernel, a: Array = a, packed: Any = packed, scales: Array = scales,
                points: Array = points, c: Array = c,
            ) -> Any:  # fmt: skip
                return kernel(a, packed, scales, points, out=c)

            expected = a.astype(np.float64) @ wide
            np.testing.assert_allclose(ours(), expected, atol=1e-3)
            peers: dict[str, Call] = {}
            for name, level in LEVELS.items():
                session = session_of(weights, scales, zeros, m, group, threads, level)
                peers[name] = lambda session=session, a=a: session.run({"a": a})
            yield "w4", f"{m} x {n} x {k}, groups of {group}", ours, peers


def session_of(
    weights: Array, scales: Array, zeros: Array, m: int, group: int, threads: int, level: int
) -> Any:
    """MatMulNBits, whose weights lie column by column, two to a byte."""
    from onnx import TensorProto, helper, numpy_helper

    from taskc.onnx.partitions import RuntimeSession

    def in_bytes(codes: Array) -> Array:
        return np.ascontiguousarray(codes[..., ::2] | codes[..., 1::2] << 4)

    (k, n), blocks = weights.shape, len(scales)
    constants = {
        "b": in_bytes(weights.T.reshape(n, blocks, group)),
        "scales": np.ascontiguousarray(scales.T).reshape(-1),
        "zeros": in_bytes(zeros.T).reshape(-1),
    }
    node = helper.make_node(
        "MatMulNBits", ["a", *constants], ["c"], domain="com.microsoft",
        K=k, N=n, bits=4, block_size=group, accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [m, k])],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [m, n])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return RuntimeSession(model.SerializeToString(), threads)


if __name__ == "__main__":
    compare(__file__, __doc__ or "", cases)
