"""Convolutions by ONNX Runtime and PyTorch; operands, and results in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from convolution_layers import Layer
from cpu_cases import Call, bound, onnx_found, session_on, torch_on

Array = np.ndarray[Any, Any]
_NEIGHBOUR = 16  # channels on the other side of it


@dataclass(frozen=True)
class Operands:
    """As NCHW and OIHW. residual: one, or none."""

    x: Array
    weights: Array
    bias: Array
    residual: list[Array]
    expected: Array

    def checked(self, result: Any, bound: float) -> float:
        """The largest error, which has to be within the bound."""
        error = float(np.abs(np.asarray(result, np.float64) - self.expected).max())
        assert error <= bound, f"wrong by {error}, more than {bound}"
        return error


def operands_of(layer: Layer) -> Operands:
    """Results are about as large as a normal distribution's numbers."""
    random = np.random.default_rng(1)
    deep = layer.channels // layer.groups
    outer = (layer.channels, layer.features // layer.groups)
    shape = (*(outer if layer.is_transposed else (layer.features, deep)), *layer.size)
    x = random.standard_normal((1, layer.channels, *layer.extents), np.float32)
    weights = random.standard_normal(shape, np.float32)
    weights /= np.float32(np.sqrt(deep * np.prod(layer.size)))
    bias = random.standard_normal(layer.features, np.float32)
    made = 1, layer.features, *layer.outputs
    residual = [random.standard_normal(made, np.float32)] * layer.residual
    sums = _sums(layer, x.astype(np.float64), weights.astype(np.float64))
    sums += bias.reshape(-1, *[1] * len(layer.size))
    return Operands(x, weights, bias, residual, np.maximum(sum(residual, sums), 0))


def _sums(layer: Layer, x: Array, weights: Array) -> Array:
    """A product of matrices for each tap."""
    axes, stride, padding = len(layer.size), layer.stride, layer.padding
    if layer.is_transposed:
        # A convolution of what has zeros between, with the filters turned round.
        apart = np.zeros((1, layer.channels, *[(n - 1) * stride + 1 for n in layer.extents]))
        apart[(..., *[slice(None, None, stride)] * axes)] = x
        x, stride = apart, 1
        weights = np.flip(weights, range(2, 2 + axes)).swapaxes(0, 1)
        padding = tuple([taps - 1 - n for taps, n in zip(layer.size, padding, strict=True)])
    x = np.pad(x, [(0, 0), (0, 0), *[(n, n) for n in padding]])
    groups = layer.groups
    total = np.zeros((groups, layer.features // groups, np.prod(layer.outputs)))
    for tap in np.ndindex(*layer.size):
        first = [index * layer.dilation for index in tap]
        ends = zip(first, layer.outputs, strict=True)
        seen = x[(..., *[slice(a, a + (n - 1) * stride + 1, stride) for a, n in ends])]
        filters = weights[(..., *tap)].reshape(groups, -1, layer.channels // groups)
        total += filters @ seen.reshape(groups, layer.channels // groups, -1)
    return total.reshape(1, layer.features, *layer.outputs)


def on_arrays(layer: Layer, operands: Operands, threads: int) -> dict[str, Call]:
    """NCHW in and out."""
    peers: dict[str, Call] = {}
    if onnx_found():
        given = dict(zip(("x", "residual"), (operands.x, *operands.residual), strict=False))
        session = session_on(threads, _model(layer, operands, is_chain=False))
        peers["onnxruntime"] = bound(session, given, operands.expected.shape)
        operands.checked(peers["onnxruntime"]()[0], 1e-3)
    if torch := torch_on(threads):
        peers["torch"] = _eager(torch, layer, operands)
        if len(layer.size) == 2 and not layer.is_transposed:
            peers["torch, packed"] = _packed(torch, layer, operands, torch.contiguous_format)
        for name, call in peers.items():
            if name.startswith("torch"):
                operands.checked(call().numpy(), 1e-3)
    return peers


def in_a_chain(layer: Layer, operands: Operands, threads: int) -> dict[str, Call]:
    """Each has images as its own kernels leave them."""
    peers: dict[str, Call] = {}
    if onnx_found():
        peers["onnxruntime, node"] = Node(layer, operands, threads)
    if torch := torch_on(threads):
        peers["torch, packed"] = _packed(torch, layer, operands, torch.channels_last)
        operands.checked(peers["torch, packed"]().numpy(), 1e-3)
    return peers


class Node:
    """ONNX Runtime's kernel of one layer, between cheap ones that take and leave its images blocked.

    A call runs them all. `seconds` are the kernel's own, of every call so far, from the profile: there is no
    more of one then.
    """

    def __init__(self, layer: Layer, operands: Operands, threads: int) -> None:
        self._folder = TemporaryDirectory()
        model = _model(layer, operands, is_chain=True)
        self._session = session_on(threads, model, str(Path(self._folder.name) / "profile"))
        random = np.random.default_rng(2)
        given = {"x": operands.x}
        if layer.channels >= _NEIGHBOUR:
            given["x"] = random.standard_normal((1, _NEIGHBOUR, *layer.extents), np.float32)
        if layer.residual:
            beside = random.standard_normal((1, _NEIGHBOUR, *layer.outputs), np.float32)
            given["residual"] = beside
        self._call = bound(self._session, given, (1, _NEIGHBOUR, *layer.outputs))

    def __call__(self) -> object:
        return self._call()

    def seconds(self) -> list[float]:
        """The events of a run come before its own, in whole microseconds; reorders are the neighbours'."""
        events = json.loads(Path(self._session.end_profiling()).read_text())
        self._folder.cleanup()
        found, total = [], 0.0
        for event in events:
            name = event["name"]
            if name == "model_run":
                found.append(total * 1e-6)
                total = 0.0
            elif name.startswith("layer") and name.endswith("_kernel_time"):
                total += event["dur"]
        assert all(found), "no node of the profile is the layer's"
        return found


def _model(layer: Layer, operands: Operands, *, is_chain: bool) -> Any:
    """In a chain x and the residual come from 1×1 convolutions, and another one takes the result."""
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    random = np.random.default_rng(3)
    nodes, constants = [], []

    def convolve(given: str, made: str, weights: Array, bias: Array, **attributes: Any) -> None:
        for name, array in (("weights", weights), ("bias", bias)):
            constants.append(onnx.numpy_helper.from_array(array, f"{made} {name}"))
        operator = attributes.pop("operator", "Conv")
        names = [given, f"{made} weights", f"{made} bias"]
        nodes.append(helper.make_node(operator, names, [made], name=made, **attributes))

    def neighbour(given: str, made: str, channels: int, features: int) -> None:
        shape = features, channels, *[1] * len(layer.size)
        convolve(given, made, random.standard_normal(shape, np.float32), np.zeros(features, "f4"))

    x, residual, y = "x", "residual", "y"
    channels, features, beside = layer.channels, layer.features, layer.features
    if is_chain:
        if channels >= _NEIGHBOUR:
            neighbour(x, "before", _NEIGHBOUR, channels)
            x, channels = "before", _NEIGHBOUR
        if layer.residual:
            neighbour(residual, "beside", _NEIGHBOUR, features)
            residual, beside = "beside", _NEIGHBOUR
        y = "layer result"
    convolve(
        x, "layer", operands.weights, operands.bias,
        operator="ConvTranspose" if layer.is_transposed else "Conv",
        kernel_shape=layer.size, strides=[layer.stride] * len(layer.size), pads=layer.padding * 2,
        dilations=[layer.dilation] * len(layer.size), group=layer.groups,
    )  # fmt: skip
    last = "layer"
    if layer.residual:
        nodes.append(helper.make_node("Add", [last, residual], ["layer sum"], name="layer sum"))
        last = "layer sum"
    nodes.append(helper.make_node("Relu", [last], [y], name="layer result"))
    if is_chain:
        neighbour(y, "y", features, _NEIGHBOUR)
        features = _NEIGHBOUR
    shapes = {"x": (channels, *layer.extents)}
    if layer.residual:
        shapes["residual"] = beside, *layer.outputs
    inputs = [
        helper.make_tensor_value_info(name, kind, (1, *shape)) for name, shape in shapes.items()
    ]
    made = helper.make_tensor_value_info("y", kind, (1, features, *layer.outputs))
    graph = helper.make_graph(nodes, "layer", inputs, [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    return model


def _eager(torch: Any, layer: Layer, operands: Operands) -> Callable[[], Any]:
    kind = "conv_transpose" if layer.is_transposed else "conv"
    run = getattr(torch.nn.functional, f"{kind}{len(layer.size)}d")
    x, w, b = (torch.from_numpy(a) for a in (operands.x, operands.weights, operands.bias))
    residual = [torch.from_numpy(array) for array in operands.residual]
    options = {
        "stride": layer.stride, "padding": layer.padding,
        "dilation": layer.dilation, "groups": layer.groups,
    }  # fmt: skip

    def call() -> Any:
        y = run(x, w, b, **options)
        for other in residual:
            y += other
        return y.relu_()

    return call


def _packed(torch: Any, layer: Layer, operands: Operands, order: Any) -> Callable[[], Any]:
    """As torch.compile calls oneDNN with constant filters: bias, residual and ReLU are its own."""
    x, b = torch.from_numpy(operands.x), torch.from_numpy(operands.bias)
    x, w = (t.contiguous(memory_format=order) for t in (x, torch.from_numpy(operands.weights)))
    residual = [torch.from_numpy(a).contiguous(memory_format=order) for a in operands.residual]
    stride, dilation = [layer.stride] * 2, [layer.dilation] * 2
    settings = list(layer.padding), stride, dilation, layer.groups
    run = torch.ops.mkldnn._convolution_pointwise
    filters = torch.ops.mkldnn._reorder_convolution_weight(w, *settings, list(x.shape))

    def call() -> Any:
        if residual:
            y = run.binary(x, residual[0], filters, b, *settings, "add", 1.0, "relu", [], "")
        else:
            y = run(x, filters, b, *settings, "relu", [], "")
        return y.contiguous(memory_format=order)  # oneDNN leaves channels last, whatever x has

    return call
