"""One encoder layer of BERT-base, and one bottleneck of ResNet-50, as ONNX models against ONNX Runtime.

    python benchmarks/layers.py [--quick] [--json FILE]

Beside the times: the bytes of what the calls of kernels read and write, fused and unfused. Each number of threads is a
process of its own; ONNX Runtime has all of its optimizations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from models_bf16 import CALM, Size, onnx_model, weights_of
from onnx import TensorProto, helper, numpy_helper
from processes import is_measuring, rows_of, write_rows
from report import Row, finish, parse_options

TOKENS = (128, 512)
BOTTLENECKS = ((56, 256, 64), (14, 1024, 256))  # extent of images, channels outside and inside

Array = np.ndarray[Any, Any]


def cases() -> Iterator[tuple[str, str, bytes, Array]]:
    """Names, a model, and its input."""
    random = np.random.default_rng(0)
    size = Size(1, 768, 12, 3072)
    for tokens in TOKENS:
        x = random.standard_normal((1, tokens, size.features), np.float32)
        yield "encoder layer", f"{tokens} tokens", onnx_model(size, tokens, weights_of(size)), x
    for extent, outside, inside in BOTTLENECKS:
        x = random.standard_normal((1, outside, extent, extent), np.float32)
        case = f"{outside}-{inside}-{outside}@{extent}x{extent}"
        yield "bottleneck", case, bottleneck(extent, outside, inside), np.maximum(x, 0)


def bottleneck(extent: int, outside: int, inside: int) -> bytes:
    """Three convolutions, each with its batch norm, and the residual."""
    random = np.random.default_rng(1)
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, *shape: int, around: float = 0.0, spread: float = 0.1) -> str:
        array = around + spread * random.standard_normal(shape)
        constants.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def node(operator: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    def normed(x: str, name: str, features: int, channels: int, size: int) -> str:
        spread = (channels * size * size) ** -0.5
        w = constant(f"{name}/w", features, channels, size, size, spread=spread)
        x = node("Conv", x, w, kernel_shape=[size, size], pads=[size // 2] * 4)
        scale, mean, variance = (
            constant(f"{name}/{it}", features, around=1) for it in ("scale", "mean", "variance")
        )
        return node(
            "BatchNormalization", x, scale, constant(f"{name}/bias", features), mean, variance
        )

    h = node("Relu", normed("x", "first", inside, outside, 1))
    h = node("Relu", normed(h, "second", inside, inside, 3))
    y = node("Relu", node("Add", normed(h, "third", outside, inside, 1), "x"))
    shape = [1, outside, extent, extent]
    graph = helper.make_graph(
        nodes, "bottleneck",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, shape)],
        constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return made


def measure(threads: int, flags: list[str]) -> Iterator[Row]:
    import taskc as tc
    from taskc.commands.explain import traffic_of
    from taskc.commands.verify import error_of
    from taskc.format import bytes_text, share_text
    from taskc.onnx.partitions import RuntimeSession
    from taskc.tune.timing import Probe, pairs

    probe = Probe(threads)
    for benchmark, case, serialized, x in cases():
        model, session = tc.compile(serialized), RuntimeSession(serialized, threads)
        feeds = {"x": x}
        off = error_of(model.run(None, feeds)[0], session.run(feeds)[0])
        moved = traffic_of(model.program(feeds).program)
        print(
            f"  {benchmark}, {case}: off by {off:.1e}; {bytes_text(moved.after)} moved, {bytes_text(moved.before)}"
            f" unfused, {bytes_text(moved.least)} at least: {share_text(1 - moved.after / moved.before)} less",
            flush=True,
        )
        found = pairs(
            lambda model=model, feeds=feeds: model.run(None, feeds),  # type: ignore[misc]
            lambda session=session, feeds=feeds: session.run(feeds),  # type: ignore[misc]
            probe,
            budget=0.5 if "--quick" in flags else 5.0,
            calm=CALM if threads > 1 else 0.0,
        )
        yield Row.paired(benchmark, case, threads, "onnxruntime", found)


def main() -> None:
    if is_measuring():
        write_rows(measure)
        return
    options = parse_options(__doc__ or "")
    rows = rows_of(__file__, ["--quick"] * options.quick)
    finish(rows, options.json)


if __name__ == "__main__":
    main()
