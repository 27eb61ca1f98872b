"""Windows over the spatial axes of images, for convolutions and poolings: extents, strides, padding."""

from __future__ import annotations

from taskc.kernels.windows import Windows
from taskc.operators.call import Call
from taskc.operators.tensors import Extent, Shape


def windows_of(call: Call, extents: Shape, size: Shape) -> Windows:
    """The windows that a node's attributes specify, for images of these extents."""
    rank = len(extents)
    stride, dilation = numbers(call, "strides", rank, 1), numbers(call, "dilations", rank, 1)
    automatic = call.attribute("auto_pad", "NOTSET")
    declared = call.attribute("pads")
    if len(size) != rank or min((*size, *stride, *dilation), default=1) < 1:
        raise call.node.error(f"windows of {size} with strides of {stride} don't fit {rank} axes")
    if automatic == "NOTSET":
        pads = [0] * 2 * rank if declared is None else declared
        if len(pads) != 2 * rank or min(pads, default=0) < 0:
            raise call.node.error(f"its pads are {pads}, for {rank} axes")
        return Windows(size, stride, dilation, tuple(pads[:rank]), tuple(pads[rank:]))
    sides = [(0, 0)] * rank
    if automatic != "VALID":
        axes = zip(extents, size, stride, dilation, strict=True)
        totals = [_total(call, *axis) for axis in axes]
        sides = [halves(total, automatic == "SAME_LOWER") for total in totals]
    before, behind = (tuple(side[n] for side in sides) for n in (0, 1))
    return Windows(size, stride, dilation, before, behind)


def numbers(call: Call, name: str, rank: int, default: int) -> tuple[int, ...]:
    """An attribute that lists one integer for each spatial axis."""
    values = call.attribute(name)
    if values is None:
        return (default,) * rank
    if len(values) != rank:
        raise call.node.error(f"'{name}' has {len(values)} numbers, for {rank} axes")
    return tuple(values)


def halves(total: int, larger_first: bool) -> tuple[int, int]:
    small, large = total // 2, total - total // 2
    return (large, small) if larger_first else (small, large)


def _total(call: Call, extent: Extent, size: Extent, stride: int, dilation: int) -> int:
    """The padding that gives one result for every `stride` elements."""
    covered = (size - 1) * dilation + 1
    if stride == 1:
        return covered - 1
    if not isinstance(extent, int):
        raise call.node.error("its padding depends on an extent that is known only when it runs")
    results = -(-extent // stride)
    return max(0, (results - 1) * stride + covered - extent)


def spatial(call: Call, shape: Shape, most: int = 3) -> tuple[Extent, ...]:
    """The spatial extents of images [n, channels, ...]."""
    if not 1 <= len(shape) - 2 <= most:
        raise call.node.error(
            f"taskc has it for 1 to {most} spatial axes, and x has {len(shape) - 2}"
        )
    return tuple(shape[2:])
