"""Random networks for detection and reading of text: 60 ONNX models, each made from its number.

    python benchmarks/random_networks.py FOLDER [--set-aside]

Five families, in the style of MobileNetV3, PP-LCNet, RepVGG, UNet and feature pyramids: depthwise and pointwise layers,
squeeze and excitation, hard-swish, Gelu, transposed convolutions, resizes, and attention at the end of those that read.
Images have 48 x 320 to 1024 x 1024 pixels. Widths, depths, activations and how batch norms and activations are written
differ from seed to seed.

Every fourth seed is set aside: nothing is developed on it. `--set-aside` writes these instead of the others.
benchmarks/models.py measures what is in the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEEDS = 60
PARTS = 4  # the last of so many seeds is set aside

LINES = ((48, 320), (48, 480), (48, 640), (32, 320))  # images of a line of text
PAGES = ((320, 320), (480, 640), (640, 640), (736, 960), (1024, 1024))


@dataclass(frozen=True)
class Image:
    """A tensor of one image, [1, channels, height, width]."""

    name: str
    channels: int
    height: int
    width: int


class Network:
    """Nodes and seeded weights of a model, layer by layer.

    is_split  hard-swish and Gelu are written as formulas, as exporters of older operator sets do
    has_norms  batch norms are nodes of their own, not folded into convolutions
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.is_split = bool(self.random.integers(2))
        self.has_norms = bool(self.random.integers(4) == 0)

    def choose(self, *options: Any) -> Any:
        return options[self.random.integers(len(options))]

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def scalar(self, value: float) -> str:
        return self.constant(np.float32(value))

    def weights(self, *shape: int, spread: float = 0.1, around: float = 0.0) -> str:
        noise = self.random.standard_normal(shape, np.float32)
        return self.constant(noise * np.float32(spread) + np.float32(around))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    # --- layers

    def convolution(
        self,
        x: Image,
        features: int,
        size: int = 1,
        stride: tuple[int, int] = (1, 1),
        groups: int = 1,
        activation: str = "",
    ) -> Image:
        inputs = x.channels // groups
        spread = ((2 if activation else 1) / (inputs * size * size)) ** 0.5
        weights = self.weights(features, inputs, size, size, spread=spread)
        bias = [] if self.has_norms else [self.weights(features)]
        y = self.node(
            "Conv", x.name, weights, *bias, kernel_shape=[size, size], strides=list(stride),
            pads=[size // 2] * 4, group=groups,
        )  # fmt: skip
        height, width = (-(-n // step) for n, step in zip((x.height, x.width), stride, strict=True))
        made = Image(y, features, height, width)
        return self.activated(self.normed(made) if self.has_norms else made, activation)

    def normed(self, x: Image) -> Image:
        around = self.weights(x.channels), self.weights(x.channels)
        sizes = [self.constant(self.random.uniform(0.8, 1.2, x.channels).astype(np.float32))]
        sizes.append(self.constant(self.random.uniform(0.8, 1.2, x.channels).astype(np.float32)))
        y = self.node("BatchNormalization", x.name, sizes[0], *around, sizes[1])
        return Image(y, x.channels, x.height, x.width)

    def transposed(self, x: Image, features: int, activation: str = "") -> Image:
        """Twice as high and wide, by filters of 2 x 2 that don't overlap."""
        weights = self.weights(x.channels, features, 2, 2, spread=x.channels**-0.5)
        y = self.node(
            "ConvTranspose", x.name, weights, self.weights(features), kernel_shape=[2, 2],
            strides=[2, 2],
        )  # fmt: skip
        return self.activated(Image(y, features, 2 * x.height, 2 * x.width), activation)

    def activated(self, x: Image, activation: str) -> Image:
        if not activation:
            return x
        y = ACTIVATIONS[activation](self, x.name)
        return Image(y, x.channels, x.height, x.width)

    def hard_swish(self, x: str) -> str:
        if not self.is_split:
            return self.node("HardSwish", x)
        moved = self.node("Add", x, self.scalar(3))
        cut = self.node("Clip", moved, self.scalar(0), self.scalar(6))
        return self.node("Div", self.node("Mul", x, cut), self.scalar(6))

    def gelu(self, x: str) -> str:
        if not self.is_split:
            return self.node("Gelu", x)
        erf = self.node("Erf", self.node("Div", x, self.scalar(2**0.5)))
        return self.node(
            "Mul", self.node("Mul", x, self.node("Add", erf, self.scalar(1))), self.scalar(0.5)
        )

    def excited(self, x: Image, share: int = 4) -> Image:
        """Squeeze and excitation: channels scaled by what their means say."""
        if self.is_split:
            means = self.node("ReduceMean", x.name, self.constant(np.array([2, 3])), keepdims=1)
        else:
            means = self.node("GlobalAveragePool", x.name)
        inner = max(8, x.channels // share)
        h = Image(means, x.channels, 1, 1)
        for features, activation in ((inner, "relu"), (x.channels, "hsigmoid")):
            weights = self.weights(features, h.channels, 1, 1, spread=h.channels**-0.5)
            y = self.node("Conv", h.name, weights, self.weights(features))
            h = self.activated(Image(y, features, 1, 1), activation)
        return Image(self.node("Mul", x.name, h.name), x.channels, x.height, x.width)

    def added(self, x: Image, y: Image) -> Image:
        return Image(self.node("Add", x.name, y.name), x.channels, x.height, x.width)

    def joined(self, *images: Image) -> Image:
        name = self.node("Concat", *[image.name for image in images], axis=1)
        channels = sum(image.channels for image in images)
        return Image(name, channels, images[0].height, images[0].width)

    def resized(self, x: Image, factor: int, mode: str = "nearest") -> Image:
        scales = self.constant(np.array([1, 1, factor, factor], np.float32))
        how = "asymmetric" if mode == "nearest" else "half_pixel"
        more = {"nearest_mode": "floor"} if mode == "nearest" else {}
        y = self.node(
            "Resize", x.name, "", scales, mode=mode, coordinate_transformation_mode=how, **more
        )
        return Image(y, x.channels, factor * x.height, factor * x.width)

    def pooled(self, x: Image, operator: str, size: int, stride: tuple[int, int]) -> Image:
        before = (size - 1) // 2
        y = self.node(
            operator, x.name, kernel_shape=[size, size], strides=list(stride), pads=[before] * 4
        )
        height, width = (
            (n + 2 * before - size) // step + 1
            for n, step in zip((x.height, x.width), stride, strict=True)
        )
        return Image(y, x.channels, height, width)

    # --- what comes last

    def read(self, x: Image) -> str:
        """Letters along a line: rows are averaged, then blocks of attention, then logits and their softmax."""
        mean = self.node("ReduceMean", x.name, self.constant(np.array([2])), keepdims=0)
        h, features = self.node("Transpose", mean, perm=[0, 2, 1]), x.channels
        if self.random.integers(2):
            features = self.choose(64, 96, 120)
            h = self.product(h, x.channels, features)
            for _ in range(self.choose(1, 2)):
                h = self.attention_block(h, x.width, features)
        return self.node("Softmax", self.product(h, features, self.choose(97, 438, 6625)), axis=-1)

    def product(self, x: str, inputs: int, features: int) -> str:
        y = self.node("MatMul", x, self.weights(inputs, features, spread=inputs**-0.5))
        return self.node("Add", y, self.weights(features))

    def normalized(self, x: str, features: int) -> str:
        scale, moved = self.weights(features, around=1), self.weights(features)
        return self.node("LayerNormalization", x, scale, moved, axis=-1, epsilon=1e-6)

    def attention_block(self, x: str, tokens: int, features: int) -> str:
        heads = 8 if features % 8 == 0 else 4
        own = features // heads
        joined = self.product(self.normalized(x, features), features, 3 * features)
        shape = self.constant(np.array([1, tokens, 3, heads, own]))
        by_head = self.node("Transpose", self.node("Reshape", joined, shape), perm=[2, 0, 3, 1, 4])
        q, k, v = (
            self.node("Gather", by_head, self.constant(np.array(i)), axis=0) for i in range(3)
        )
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.node("Softmax", self.node("Mul", scores, self.scalar(own**-0.5)), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", mixed, self.constant(np.array([1, tokens, features])))
        x = self.node("Add", x, self.product(mixed, features, features))
        inner = self.product(self.normalized(x, features), features, 2 * features)
        inner = self.product(ACTIVATIONS["silu"](self, inner), 2 * features, features)
        return self.node("Add", x, inner)

    def classify(self, x: Image, classes: int) -> str:
        flat = self.node("Flatten", self.node("GlobalAveragePool", x.name), axis=1)
        spread = x.channels**-0.5
        weights = self.weights(classes, x.channels, spread=spread)
        return self.node("Gemm", flat, weights, self.weights(classes), transB=1)

    def serialized(self, image: Image, result: str) -> bytes:
        shape = [1, image.channels, image.height, image.width]
        graph = helper.make_graph(
            self.nodes, "network",
            [helper.make_tensor_value_info(image.name, TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
            self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        made: bytes = onnx.shape_inference.infer_shapes(model).SerializeToString()
        return made


ACTIVATIONS: dict[str, Callable[[Network, str], str]] = {
    "relu": lambda net, x: net.node("Relu", x),
    "relu6": lambda net, x: net.node("Clip", x, net.scalar(0), net.scalar(6)),
    "leaky": lambda net, x: net.node("LeakyRelu", x, alpha=0.1),
    "hswish": Network.hard_swish,
    "hsigmoid": lambda net, x: net.node("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "gelu": Network.gelu,
    "silu": lambda net, x: net.node("Mul", x, net.node("Sigmoid", x)),
    "sigmoid": lambda net, x: net.node("Sigmoid", x),
}


def widened(channels: float) -> int:
    """Channels as networks have them: a multiple of 8."""
    return max(8, int(channels + 4) // 8 * 8)


# --- families: from an image to the name of the result


def inverted(net: Network, x: Image, features: int, stride: tuple[int, int], size: int) -> Image:
    """A block of MobileNetV3: wider, depthwise, narrower, and the input added where shapes allow."""
    activation = net.choose("relu", "hswish", "hswish", "silu", "gelu")
    inner = widened(x.channels * net.choose(2, 3, 4, 6))
    h = net.convolution(x, inner, activation=activation)
    h = net.convolution(h, inner, size, stride, groups=inner, activation=activation)
    if net.random.integers(2):
        h = net.excited(h)
    h = net.convolution(h, features)
    return net.added(x, h) if features == x.channels and stride == (1, 1) else h


def separable(net: Network, x: Image, features: int, stride: tuple[int, int], size: int) -> Image:
    """A block of PP-LCNet: depthwise and pointwise."""
    activation = net.choose("hswish", "hswish", "gelu", "relu")
    h = net.convolution(x, x.channels, size, stride, groups=x.channels, activation=activation)
    if size == 5 and net.random.integers(2):
        h = net.excited(h)
    return net.convolution(h, features, activation=activation)


def stages(net: Network, x: Image, block: Callable[..., Image], width: float) -> list[Image]:
    """The results of four stages; those of lines of text halve the width only once more."""
    is_line = x.height < 64
    h = net.convolution(x, widened(16 * width), 3, (2, 2), activation=net.choose("hswish", "relu"))
    found = []
    for stage, (features, most) in enumerate(((24, 2), (48, 3), (96, 4), (160, 3))):
        size = 5 if stage > 1 and net.random.integers(2) else 3
        stride = (2, 1) if is_line and stage != 1 else (2, 2)
        for i in range(net.random.integers(1, most + 1)):
            h = block(net, h, widened(features * width), stride if i == 0 else (1, 1), size)
        found.append(h)
    return found


def ended(net: Network, x: Image, h: Image) -> str:
    if x.height < 64:
        return net.read(h)
    return net.classify(net.convolution(h, 4 * h.channels, activation="hswish"), 1000)


def mobilenet(net: Network, x: Image) -> str:
    return ended(net, x, stages(net, x, inverted, net.choose(0.5, 0.75, 1, 1.25))[-1])


def lcnet(net: Network, x: Image) -> str:
    return ended(net, x, stages(net, x, separable, net.choose(0.5, 1, 1.5, 2))[-1])


def repvgg(net: Network, x: Image) -> str:
    """3 x 3 convolutions one after the other, some in groups, as they are when their branches are merged."""
    width, activation = net.choose(0.5, 0.75, 1), net.choose("relu", "silu", "leaky")
    is_line, h = x.height < 64, x
    groups = net.choose(1, 1, 2, 4)
    for stage, features in enumerate((48, 64, 128, 256)):
        for i in range(net.random.integers(1, 4)):
            stride = ((2, 1) if is_line and stage > 1 else (2, 2)) if i == 0 else (1, 1)
            split = groups if i % 2 else 1
            h = net.convolution(h, widened(features * width), 3, stride, split, activation)
    return net.read(h) if is_line else net.classify(h, 1000)


def unet(net: Network, x: Image) -> str:
    width, activation = net.choose(8, 12, 16), net.choose("relu", "silu", "gelu", "leaky")
    is_transposed, is_light = net.random.integers(2), net.random.integers(2)

    def block(h: Image, features: int) -> Image:
        for _ in range(2):
            if is_light and h.channels >= 8:
                h = net.convolution(h, h.channels, 3, groups=h.channels)
                h = net.convolution(h, features, activation=activation)
            else:
                h = net.convolution(h, features, 3, activation=activation)
        return h

    h, passed = x, []
    depth = net.choose(3, 4)
    for level in range(depth):
        h = block(h, width << level)
        passed.append(h)
        h = net.pooled(h, "MaxPool", 2, (2, 2))
    h = block(h, width << depth)
    for level in reversed(range(depth)):
        if is_transposed:
            h = net.transposed(h, width << level)
        else:
            h = net.resized(h, 2, net.choose("nearest", "linear"))
        h = block(net.joined(h, passed[level]), width << level)
    return net.convolution(h, net.choose(1, 2), activation="sigmoid").name


def pyramid(net: Network, x: Image) -> str:
    """Features of several sizes are added from the smallest on, then joined: a map of where text is."""
    block = net.choose(inverted, separable)
    levels = stages(net, x, block, net.choose(0.5, 0.75, 1))
    features = net.choose(64, 96)
    sides = [net.convolution(level, features) for level in levels]
    for i in (2, 1, 0):
        sides[i] = net.added(sides[i], net.resized(sides[i + 1], 2))
    is_light = net.random.integers(2)
    outs = []
    for i, h in enumerate(sides):
        if is_light:
            h = net.convolution(h, features, 5, groups=features, activation="hswish")
            h = net.convolution(h, features // 4)
        else:
            h = net.convolution(h, features // 4, 3)
        if net.choose(True, False):
            h = net.added(h, net.excited(h))
        outs.append(net.resized(h, 1 << i) if i else h)
    h = net.convolution(net.joined(*reversed(outs)), features // 4, 3, activation="relu")
    h = net.transposed(h, features // 4, "relu")
    return net.transposed(h, 1, "sigmoid").name


FAMILIES = (mobilenet, lcnet, repvgg, unet, pyramid)


def network(seed: int) -> tuple[str, bytes]:
    """The name and the serialized model of a seed."""
    net, family = Network(seed), FAMILIES[seed % len(FAMILIES)]
    pages = PAGES if family in (unet, pyramid) else (*LINES, *LINES, (224, 224), *PAGES[:3])
    height, width = pages[net.random.integers(len(pages))]
    if family is pyramid:
        height, width = (max(32, n // 32 * 32) for n in (height, width))
    x = Image("x", 3, height, width)
    model = net.serialized(x, family(net, x))
    return f"{seed:02}_{family.__name__}_{height}x{width}", model


def networks(set_aside: bool) -> Iterator[tuple[int, str, bytes]]:
    for seed in range(SEEDS):
        if (seed % PARTS == PARTS - 1) == set_aside:
            yield seed, *network(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set-aside", action="store_true", help="those that are set aside")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for _, name, model in networks(options.set_aside):
        (options.folder / f"{name}.onnx").write_bytes(model)
        print(name)


if __name__ == "__main__":
    main()
