"""GroupQueryAttention over a cache against ONNX Runtime's, on one and two threads.

    python benchmarks/grouped_queries.py [--quick] [--json FILE]

One node of 16 heads of 64 features, 4 of them for keys and values: a token after some keys, and prompts. taskc's
session keeps the cache as states. ONNX Runtime's past and present are one buffer, bound once, as ONNX Runtime GenAI
calls it. Both write the new rows in place. Each number of threads is a process of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from processes import Cases, compare

HEADS, KV_HEADS, FEATURES, CAPACITY = 16, 4, 64, 4096
PLACES = ((1, 128), (1, 1024), (1, 4000), (128, 0), (1024, 0))  # new rows, and keys before them


def cases(threads: int, quick: bool) -> Cases:
    import onnxruntime

    import taskc as tc

    data, random = model(), np.random.default_rng(0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    theirs = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    for rows, before in PLACES[:2] if quick else PLACES:
        session = tc.compile(data, states={"present.*": "past.*"}, capacity=CAPACITY)
        cache = {
            f"past.{name}": random.standard_normal((1, KV_HEADS, CAPACITY, FEATURES), np.float32)
            for name in "kv"
        }
        feeds = {
            "q": random.standard_normal((1, rows, HEADS * FEATURES), np.float32),
            "k": random.standard_normal((1, rows, KV_HEADS * FEATURES), np.float32),
            "v": random.standard_normal((1, rows, KV_HEADS * FEATURES), np.float32),
            "lengths": np.array([before + rows - 1], np.int32),
            "total": np.array(before + rows, np.int32),
        }
        if before:
            session.run(
                None, feeds | {"lengths": feeds["lengths"] * 0, "total": feeds["total"] * 0 + rows}
            )
            for name, memory in cache.items():
                session.memory[name][:] = memory

        def run(session: Any = session, feeds: Any = feeds, before: int = before) -> Any:
            session.length = before
            return session.run(None, feeds)

        binding = theirs.io_binding()
        shared = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in cache.items()}
        for name, value in shared.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past", "present"), value)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        y = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(feeds["q"]))
        binding.bind_ortvalue_output("y", y)

        def peer(binding: Any = binding, kept: Any = (feeds, shared)) -> Any:
            return theirs.run_with_iobinding(binding)

        (ours,), _ = run(), peer()
        np.testing.assert_allclose(ours, y.numpy(), rtol=1e-3, atol=1e-5)
        tc.finish_compiling()
        yield "attention", f"{rows} rows after {before} keys", run, {"onnxruntime": peer}


def model() -> bytes:
    """A node whose sequence, cache and lengths are inputs."""
    from onnx import TensorProto, helper

    def tensor(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    width, kv_width = HEADS * FEATURES, KV_HEADS * FEATURES
    caches = [f"{when}.{name}" for when in ("past", "present") for name in "kv"]
    node = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", *caches[:2], "lengths", "total"], ["y", *caches[2:]],
        domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS,
    )  # fmt: skip
    pasts, presents = (
        [tensor(name, 1, KV_HEADS, extent, FEATURES) for name in names]
        for names, extent in ((caches[:2], "past"), (caches[2:], "total"))
    )
    inputs = [
        tensor("q", 1, "new", width), tensor("k", 1, "new", kv_width), tensor("v", 1, "new", kv_width), *pasts,
        tensor("lengths", 1, kind=TensorProto.INT32), tensor("total", kind=TensorProto.INT32),
    ]  # fmt: skip
    graph = helper.make_graph(
        [node], "attention", inputs, [tensor("y", 1, "new", width), *presents]
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())


if __name__ == "__main__":
    compare(__file__, __doc__ or "", cases)
