"""Operators that PyTorch's users met as slow: transposed convolutions of three axes, 4-D products and group norms at
odd sizes, against PyTorch's eager calls and `torch.compile`.

    python benchmarks/torch_operators.py [--quick] [--json FILE]

Convolutions are a template's kernel with packed filters, and a model of one node. `torch.compile` needs a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from processes import Call, Cases, compare

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


def cases(threads: int, quick: bool) -> Cases:
    import torch

    torch.set_num_threads(threads)
    few = slice(2) if quick else slice(None)
    for benchmark, make, sizes in (
        ("transposed convolution, template", partial(transposed, False), TRANSPOSED),
        ("transposed convolution, ONNX", partial(transposed, True), TRANSPOSED),
        ("4-D product", product, PRODUCTS),
        ("group norm", norm, NORMS),
    ):
        for size in sizes[few]:
            ours, function, arrays = make(*size)
            with (
                torch.inference_mode()
            ):  # which the calls are in, too, while this waits for the next case
                yield benchmark, " ".join(map(str, size)), ours, peers_of(ours, function, arrays)


def peers_of(ours: Call, function: Callable[..., Any], arrays: list[Array]) -> dict[str, Call]:
    import torch

    # Operators of one function, of other shapes, are compiled but so often.
    torch._dynamo.reset()
    given = [torch.from_numpy(array) for array in arrays]
    compiled = torch.compile(function, dynamic=False)
    peers = {"torch": partial(function, *given), "torch.compile": partial(compiled, *given)}
    for peer in peers.values():
        np.testing.assert_allclose(ours(), peer().numpy(), rtol=1e-3, atol=1e-3)
    return dict(peers)


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


if __name__ == "__main__":
    compare(__file__, __doc__ or "", cases)
