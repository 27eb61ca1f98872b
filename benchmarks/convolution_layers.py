"""The convolutions that are measured, as data: those of networks, each once, and forms that are rarer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Layer:
    """Of one image, with bias and ReLU. There are one to three axes; zeros keep the results in its middle."""

    channels: int
    features: int
    extents: tuple[int, ...]
    size: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    residual: bool = False
    is_transposed: bool = False

    @property
    def padding(self) -> tuple[int, ...]:
        """Of either side of each axis."""
        return tuple([(taps - 1) * self.dilation // 2 for taps in self.size])

    @property
    def outputs(self) -> tuple[int, ...]:
        axes = zip(self.extents, self.size, self.padding, strict=True)
        if self.is_transposed:
            return tuple([(n - 1) * self.stride + taps - 2 * zeros for n, taps, zeros in axes])
        return tuple(
            [
                (n + 2 * zeros - (taps - 1) * self.dilation - 1) // self.stride + 1
                for n, taps, zeros in axes
            ]
        )

    @property
    def operations(self) -> float:
        """Multiplications and additions, those with zeros included."""
        pixels = self.extents if self.is_transposed else self.outputs
        pairs = self.channels * self.features // self.groups
        return 2.0 * pairs * prod(self.size) * prod(pixels)

    def __str__(self) -> str:
        size, extents = ("x".join(map(str, numbers)) for numbers in (self.size, self.extents))
        marks = [
            f"{mark}{number}"
            for mark, number in (("s", self.stride), ("d", self.dilation), ("g", self.groups))
            if number > 1
        ]
        marks += ["+residual"] * self.residual + ["transposed"] * self.is_transposed
        return " ".join([f"{size} {self.channels}-{self.features}@{extents}", *marks])


def square(
    channels: int,
    features: int,
    extent: int,
    size: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    residual: bool = False,
    axes: int = 2,
) -> Layer:
    """All axes have the same extents."""
    return Layer(
        channels, features, (extent,) * axes, (size,) * axes, stride, dilation, groups, residual
    )


def resnet50() -> list[Layer]:
    """23 shapes, of which 64 to 256 features is there with a residual and without."""
    layers = [square(3, 64, 224, 7, stride=2)]
    channels, extent = 64, 56
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for step in (stride, 1):  # blocks after the second are as it is
            layers.append(square(channels, width, extent, 1))
            layers.append(square(width, width, extent, 3, stride=step))
            if channels != 4 * width:
                layers.append(square(channels, 4 * width, extent, 1, stride=step))
            extent //= step
            layers.append(square(width, 4 * width, extent, 1, residual=True))
            channels = 4 * width
    return list(dict.fromkeys(layers))


def winograd() -> list[Layer]:
    """The layers of ResNet-50 that Winograd's sums suit."""
    return [layer for layer in resnet50() if layer.size == (3, 3) and layer.stride == 1]


# Of inverted residuals: expansion, size, features, stride, and whether there is more than one.
_MOBILENET_V2 = (
    (1, 3, 16, 1, False), (6, 3, 24, 2, True), (6, 3, 32, 2, True), (6, 3, 64, 2, True),
    (6, 3, 96, 1, True), (6, 3, 160, 2, True), (6, 3, 320, 1, False),
)  # fmt: skip
_EFFICIENTNET_B0 = (
    (1, 3, 16, 1, False), (6, 3, 24, 2, True), (6, 5, 40, 2, True), (6, 3, 80, 2, True),
    (6, 5, 112, 1, True), (6, 5, 192, 2, True), (6, 3, 320, 1, False),
)  # fmt: skip


def separable() -> list[Layer]:
    """The depthwise and 1×1 ones of MobileNetV2 and EfficientNet-B0, without those of squeeze and excitation:
    these are products with a vector."""
    layers = [*_inverted_residuals(_MOBILENET_V2), *_inverted_residuals(_EFFICIENTNET_B0)]
    return list(dict.fromkeys(layers))


def _inverted_residuals(stages: Iterable[tuple[int, int, int, int, bool]]) -> list[Layer]:
    layers = []
    channels, extent = 32, 112
    for expansion, size, features, stride, has_more in stages:
        for step in (stride, 1) if has_more else (stride,):
            wide = channels * expansion
            if expansion > 1:
                layers.append(square(channels, wide, extent, 1))
            layers.append(square(wide, wide, extent, size, stride=step, groups=wide))
            extent //= step
            layers.append(square(wide, features, extent, 1))
            channels = features
    layers.append(square(channels, 1280, extent, 1))
    return layers


def others() -> list[Layer]:
    """Dilated; in 32 groups, as ResNeXt-50 has them; of other sizes; transposed; of one axis and of three."""
    dilated = [
        square(64, 64, 56, 3, dilation=2),
        square(256, 256, 28, 3, dilation=2),
        square(512, 512, 28, 3, dilation=4),
    ]
    widths = {128: 56, 256: 28, 512: 14, 1024: 7}
    grouped = [square(n, n, extent, 3, groups=32) for n, extent in widths.items()]
    sizes = [
        square(64, 64, 56, 5, stride=2),
        square(128, 128, 28, 5, stride=2),
        square(64, 64, 56, 7),
        Layer(128, 128, (17, 17), (1, 7)),
        Layer(128, 128, (17, 17), (7, 1)),
        Layer(192, 192, (17, 17), (1, 7)),
        Layer(192, 192, (17, 17), (7, 1)),
    ]
    transposed = [
        Layer(n, n // 2, (extent, extent), (4, 4), stride=2, is_transposed=True)
        for n, extent in ((512, 8), (256, 16), (128, 32))
    ]
    one_axis = [Layer(80, 384, (3000,), (3,)), square(384, 384, 1500, 3, axes=1)]
    one_axis.append(square(256, 256, 1000, 15, axes=1))
    three_axes = [square(32, 32, 32, 3, axes=3), Layer(64, 64, (8, 28, 28), (3, 3, 3))]
    return dilated + grouped + sizes + transposed + one_axis + three_axes
