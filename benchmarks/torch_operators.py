"""Operators that PyTorch's users met as slow: transposed convolutions of three axes, 4-D products and group norms at
odd sizes, against PyTorch's eager calls and `torch.compile`. A row is against the faster of the two.

    python benchmarks/torch_operators.py [--quick] [--json FILE]

Convolutions are a template's kernel with packed filters, and a model of one node. `torch.compile` needs a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from processes import is_measuring, rows_of, write_rows
from report import Row, finish, parse_options

CALM = 0.05  # seconds, in which the other side's threads stop waiting for work
# Channels, features, extents of images and of filters; strides, padding, and what the results are longer by.
TRANSPOSED = (
    (32, 16, (16, 16, 16), 3, 2, 1, 1),
    (64, 32, (8, 14, 14), 2, 2, 0, 0),
    (16, 16, (16, 28, 28), 3, 1, 1, 0),
    (24, 10, (7, 13, 17), 4, 2, 1, 0),
    (128, 64, (4, 8, 8), 4, 2, 1, 0),
)
PRODUCTS = (  # batches, m, n, k
    ((8, 12), 128, 128, 64),
    ((8, 12), 128, 64, 128),
    ((4, 8), 62, 65, 33),
    ((2, 3), 300, 300, 300),
    ((1, 16), 512, 512, 64),
    ((16, 16), 17, 17, 17),
)
NORMS = (  # shapes and groups
    ((1, 64, 62, 62), 8),
    ((4, 64, 62, 62), 16),
    ((2, 32, 31, 31), 8),
    ((8, 96, 7, 7), 12),
    ((1, 320, 61, 63), 32),
    ((2, 48, 9, 13, 11), 6),
    ((2, 64, 64, 64), 32),
)

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]


def cases(quick: bool) -> Iterator[tuple[str, str, Call, Call, Call]]:
    """A benchmark and a case; ours; what eager calls and what `torch.compile` makes of them."""
    few = slice(2) if quick else slice(None)
    for benchmark, make, sizes in (
        ("transposed convolution, template", partial(transposed, False), TRANSPOSED),
        ("transposed convolution, ONNX", partial(transposed, True), TRANSPOSED),
        ("4-D product", product, PRODUCTS),
        ("group norm", norm, NORMS),
    ):
        for size in sizes[few]:
            ours, function, operands = make(*size)
            yield benchmark, " ".join(map(str, size)), ours, *_torch(function, operands)


def _torch(function: Callable[..., Any], operands: list[Array]) -> tuple[Call, Call]:
    import torch

    given = [torch.from_numpy(array) for array in operands]
    return partial(function, *given), partial(torch.compile(function, dynamic=False), *given)


def transposed(
    is_model: bool,
    channels: int,
    features: int,
    extents: tuple[int, int, int],
    size: int,
    stride: int,
    padding: int,
    longer: int,
) -> tuple[Call, Callable[..., Any], list[Array]]:
    import torch

    import taskc as tc
    from taskc.kernels.convolution import convolution_3d

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, channels, *extents), np.float32)
    w = rng.standard_normal((channels, features, size, size, size), np.float32) / np.float32(9)
    b = rng.standard_normal(features, np.float32)
    options = {"stride": stride, "padding": padding, "output_padding": longer}
    function = partial(torch.nn.functional.conv_transpose3d, **options)
    y = np.empty(function(*map(torch.from_numpy, (x, w, b))).shape, np.float32)
    if is_model:
        model = tc.compile(_model(w, b, x.shape, y.shape, stride, padding, longer))
        return lambda: model.run(None, {"x": x})[0], function, [x, w, b]
    kernel = convolution_3d(
        1, *extents, channels, features,
        size=size, order="NCHW", filters="IOHW", transposed=True, packed=True, bias=True,
        dtype=tc.f32, **options,
    )  # fmt: skip
    return partial(kernel, x, kernel.pack(w), b, out=y), function, [x, w, b]


def _model(
    w: Array, b: Array, given: tuple[int, ...], made: tuple[int, ...],
    stride: int, padding: int, longer: int,
) -> bytes:  # fmt: skip
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"],
        strides=[stride] * 3, pads=[padding] * 6, output_padding=[longer] * 3,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "transposed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return model


def product(
    batches: tuple[int, int], m: int, n: int, k: int
) -> tuple[Call, Callable[..., Any], list[Array]]:
    import torch

    from taskc.kernels.matmul import batch_matmul

    rng = np.random.default_rng(0)
    a = rng.standard_normal((*batches, m, k), np.float32)
    b = rng.standard_normal((*batches, k, n), np.float32)
    y = np.empty((*batches, m, n), np.float32)
    return partial(batch_matmul((batches, batches), m, n, k), a, b, out=y), torch.matmul, [a, b]


def norm(shape: tuple[int, ...], groups: int) -> tuple[Call, Callable[..., Any], list[Array]]:
    import torch

    from taskc.kernels.rows import group_norm

    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    scale, shift = rng.standard_normal((2, shape[1]), np.float32)

    def function(x: Any, scale: Any, shift: Any) -> Any:
        return torch.nn.functional.group_norm(x, groups, scale, shift)

    return (
        partial(group_norm(shape, groups), x, scale, shift, out=np.empty_like(x)),
        function,
        [x, scale, shift],
    )


def measure(threads: int, flags: list[str]) -> Iterator[Row]:
    import torch

    from taskc.tune.timing import Probe, pairs

    torch.set_num_threads(threads)
    probe, calm = Probe(threads), CALM if threads > 1 else 0.0
    budget = 0.3 if "--quick" in flags else 1.0
    with torch.inference_mode():
        for benchmark, case, ours, eager, compiled in cases("--quick" in flags):
            expected = eager().numpy()
            for result in (ours(), compiled().numpy()):
                np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
            found = [
                (name, pairs(ours, peer, probe, budget=budget, calm=calm))
                for name, peer in (("eager", eager), ("torch.compile", compiled))
            ]
            peer, least = min(found, key=lambda pair: pair[1].ratio)
            yield Row.paired(benchmark, case, threads, peer, least)


def main() -> None:
    if is_measuring():
        write_rows(measure)
        return
    options = parse_options(__doc__ or "")
    finish(rows_of(__file__, ["--quick"] * options.quick), options.json)


if __name__ == "__main__":
    main()
