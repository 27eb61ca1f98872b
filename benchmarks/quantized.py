"""Products with weights of 4 bits against ONNX Runtime's MatMulNBits, on one and two threads.

    python benchmarks/quantized.py [--quick] [--json FILE]

Both run the same model of one node: weights in groups with a scale and a zero point each, at each accuracy level. At
levels 0 and 1 sums are of floats; at level 4 activations are rounded to 8 bits. Weights are packed before, on both
sides. Each number of threads is a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from processes import Cases, compare

SHAPES = ((4096, 4096), (1024, 2816))  # features and inputs
ROWS = (1, 16, 128)
GROUPS = (32, 128)
LEVELS = (0, 1, 4)
PEERS = ("onnxruntime", "onnxruntime, int8")

Array = np.ndarray[Any, Any]


def cases(threads: int, quick: bool) -> Cases:
    import taskc as tc
    from taskc.onnx.partitions import RuntimeSession

    for n, k in SHAPES[:1] if quick else SHAPES:
        for group in GROUPS[:1] if quick else GROUPS:
            for level in LEVELS[1:] if quick else LEVELS:
                for m in ROWS:
                    model, exact = model_of(m, n, k, group, level)
                    a = np.random.default_rng(1).standard_normal((m, k), np.float32)
                    session, compiled = RuntimeSession(model, threads), tc.compile(model)
                    (ours,), (theirs,) = compiled.run(None, {"a": a}), session.run({"a": a})
                    # Where activations are rounded, each by half of its group's step at most.
                    rounding = (
                        np.abs(a).max() / 254 * np.abs(exact).sum(0).max() if level == 4 else 0
                    )
                    np.testing.assert_allclose(ours, a @ exact, rtol=1e-4, atol=1e-3 + rounding)
                    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-2)

                    def run(compiled: Any = compiled, a: Array = a) -> Any:
                        return compiled.run(None, {"a": a})

                    def peer(session: Any = session, a: Array = a) -> Any:
                        return session.run({"a": a})

                    tc.finish_compiling()
                    case = f"{m} x {n} x {k}, groups of {group}, level {level}"
                    yield "w4", case, run, {PEERS[level == 4]: peer}


def model_of(m: int, n: int, k: int, group: int, level: int) -> tuple[bytes, Array]:
    """A model whose weights lie column by column, two to a byte; and what these stand for, [k, n]."""
    from onnx import TensorProto, helper, numpy_helper

    random, blocks = np.random.default_rng(0), k // group
    codes = random.integers(0, 16, (n, blocks, group), np.uint8)
    zeros = random.integers(0, 16, (n, blocks), np.uint8)
    scales = (random.random((n, blocks), np.float32) + 0.5) / 100
    exact = (codes - zeros[..., None].astype(np.float32)) * scales[..., None]
    constants = {
        "b": codes[..., ::2] | codes[..., 1::2] << 4,
        "scales": scales.reshape(-1),
        "zeros": (zeros[:, ::2] | zeros[:, 1::2] << 4).reshape(-1),
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
    return model.SerializeToString(), exact.reshape(n, k).T


if __name__ == "__main__":
    compare(__file__, __doc__ or "", cases)
