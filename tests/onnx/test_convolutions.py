"""Conv, ConvTranspose and poolings with random attributes, against their definitions by NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from taskc.onnx.session import compile
from taskc.programs.ir import kernels_of
from taskc.programs.traffic import traffic
from taskc.runtime.driver import scheduled

from .models import model, tensor

Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]
Axes = list[tuple[int, int, int, int, int, int]]  # taps, stride, dilation, before, behind, results


def axes_of(shape: tuple[int, ...], size: list[int], attributes: Attributes) -> Axes:
    """What the attributes say of each axis."""
    rank, pads = len(size), attributes.get("pads", [0] * 2 * len(size))
    automatic, axes = attributes.get("auto_pad", "NOTSET"), []
    for axis, (extent, taps) in enumerate(zip(shape, size, strict=True)):
        step = attributes.get("strides", [1] * rank)[axis]
        apart = attributes.get("dilations", [1] * rank)[axis]
        before, behind = pads[axis], pads[axis + rank]
        covered = (taps - 1) * apart + 1
        if automatic.startswith("SAME"):
            total = max(0, (-(-extent // step) - 1) * step + covered - extent)
            before = total // 2 if automatic == "SAME_UPPER" else total - total // 2
            behind = total - before
        results = (extent + before + behind - covered) // step + 1
        if attributes.get("ceil_mode"):
            results = -((covered - extent - before - behind) // step) + 1
            results -= (results - 1) * step >= extent + before
        axes.append((taps, step, apart, before, behind, results))
    return axes


def seen(x: Array, axes: Axes, outside: float) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each tap of a window, the element of x that each result sees there."""
    more = [(0, 0), (0, 0), *((b, e + s * t * d) for t, s, d, b, e, _ in axes)]
    whole = np.pad(x, more, constant_values=outside)
    for taps in product(*(range(axis[0]) for axis in axes)):
        cut = [
            slice(tap * apart, tap * apart + (results - 1) * step + 1, step)
            for tap, (_, step, apart, _, _, results) in zip(taps, axes, strict=True)
        ]
        yield taps, whole[(slice(None), slice(None), *cut)]


def grouped(x: Array, groups: int) -> list[Array]:
    return np.split(x, groups, axis=1)


def conv(x: Array, w: Array, axes: Axes, groups: int) -> Array:
    made = []
    for part, filters in zip(grouped(x, groups), np.split(w, groups), strict=True):
        sums = [
            np.einsum("nc...,fc->nf...", at, filters[(slice(None), slice(None), *taps)])
            for taps, at in seen(part, axes, 0)
        ]
        made.append(np.sum(sums, axis=0))
    return np.concatenate(made, axis=1)


def transposed(x: Array, w: Array, axes: Axes, groups: int, more: list[int]) -> Array:
    """Each element of x times the filters is added to the results around its place; then padding is cut off."""
    extents = x.shape[2:]
    whole = [
        (n - 1) * axis[1] + (axis[0] - 1) * axis[2] + 1
        for n, axis in zip(extents, axes, strict=True)
    ]
    made = np.zeros(
        (len(x), w.shape[1] * groups, *(n + m for n, m in zip(whole, more, strict=True)))
    )
    for part, filters, target in zip(
        grouped(x, groups), np.split(w, groups), grouped(made, groups), strict=True
    ):
        for taps in product(*(range(axis[0]) for axis in axes)):
            places = [
                slice(tap * axis[2], tap * axis[2] + (n - 1) * axis[1] + 1, axis[1])
                for tap, axis, n in zip(taps, axes, extents, strict=True)
            ]
            target[(slice(None), slice(None), *places)] += np.einsum(
                "nc...,cf->nf...", part, filters[(slice(None), slice(None), *taps)]
            )
    cut = [slice(axis[3], n - axis[4]) for axis, n in zip(axes, made.shape[2:], strict=True)]
    return made[(slice(None), slice(None), *cut)]


def pooled(x: Array, axes: Axes, operator: str, counts_padding: bool) -> Array:
    if operator == "MaxPool":
        return np.max([at for _, at in seen(x, axes, -np.inf)], axis=0)
    if operator == "LpPool":
        return np.sqrt(np.sum([at * at for _, at in seen(x, axes, 0)], axis=0))
    pads = [(0, 0), (0, 0), *((axis[3], axis[4]) for axis in axes)]
    counted = np.pad(np.ones_like(x), pads, constant_values=counts_padding)
    inner = [(t, s, d, 0, 0, r) for t, s, d, _, _, r in axes]
    total = np.sum([at for _, at in seen(x, axes, 0)], axis=0)
    return total / np.sum([at for _, at in seen(counted, inner, 0)], axis=0)


def windows(random: np.random.Generator, rank: int) -> Attributes:
    """Strides, dilations and padding of some kind."""
    attributes: Attributes = {}
    if random.integers(2):
        attributes["strides"] = random.integers(1, 4, rank).tolist()
    if random.integers(2):
        attributes["dilations"] = random.integers(1, 3, rank).tolist()
    if random.integers(2):
        attributes["pads"] = random.integers(0, 2, 2 * rank).tolist()
    elif random.integers(2):
        attributes["auto_pad"] = str(random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    return attributes


def of_conv(random: np.random.Generator) -> tuple[Any, dict[str, Any], Any]:
    rank = int(random.integers(1, 4))
    size = random.integers(1, 4, rank).tolist()
    groups, deep, features = (
        int(random.choice(some)) for some in ([1, 1, 2, 5], [1, 3, 8], [1, 4])
    )
    batch, extents = int(random.integers(1, 3)), random.integers(5, 10, rank).tolist()
    x = random.standard_normal((batch, groups * deep, *extents))
    w = random.standard_normal((groups * features, deep, *size))
    given, attributes = {"x": x, "w": w}, windows(random, rank)
    expected = conv(x, w, axes_of(x.shape[2:], size, attributes), groups)
    if random.integers(2):
        given["b"] = random.standard_normal(groups * features)
        expected = expected + given["b"].reshape(-1, *[1] * rank)
    node = helper.make_node("Conv", [*given], ["y"], group=groups, **attributes)
    return node, given, expected


def of_transposed(random: np.random.Generator) -> tuple[Any, dict[str, Any], Any]:
    rank = int(random.integers(1, 4))
    size, stride = random.integers(2, 4, rank).tolist(), random.integers(1, 3, rank).tolist()
    groups, deep, features = (int(random.choice(some)) for some in ([1, 2], [1, 3], [1, 4]))
    x = random.standard_normal((2, groups * deep, *random.integers(3, 6, rank).tolist()))
    w = random.standard_normal((groups * deep, features, *size))
    given, attributes = {"x": x, "w": w}, {"strides": stride}
    if random.integers(2):
        attributes["pads"] = random.integers(0, 2, 2 * rank).tolist()
    if random.integers(2):
        attributes["output_padding"] = [int(random.integers(0, step)) for step in stride]
    more = attributes.get("output_padding", [0] * rank)
    expected = transposed(x, w, axes_of(x.shape[2:], size, attributes), groups, more)
    if random.integers(2):
        given["b"] = random.standard_normal(groups * features)
        expected = expected + given["b"].reshape(-1, *[1] * rank)
    node = helper.make_node("ConvTranspose", [*given], ["y"], group=groups, **attributes)
    return node, given, expected


def of_pool(random: np.random.Generator) -> tuple[Any, dict[str, Any], Any]:
    rank = int(random.integers(1, 4))
    size = random.integers(2, 4, rank).tolist()
    operator = str(random.choice(["MaxPool", "AveragePool", "LpPool"]))
    attributes = windows(random, rank)
    if "auto_pad" not in attributes:
        attributes["ceil_mode"] = int(random.integers(2))
    if operator == "AveragePool":
        attributes["count_include_pad"] = int(random.integers(2))
    x = random.standard_normal((2, 3, *random.integers(7, 12, rank).tolist()))
    axes = axes_of(x.shape[2:], size, attributes)
    expected = pooled(x, axes, operator, attributes.get("count_include_pad", 0))
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=size, **attributes)
    return node, {"x": x}, expected


MAKERS = {"Conv": of_conv, "ConvTranspose": of_transposed, "pool": of_pool}


def check(kind: str, seed: int) -> None:
    """A model of one node makes what its definition says; filters are constants, or not."""
    node, arrays, expected = MAKERS[kind](np.random.default_rng(seed))
    given = {name: array.astype(np.float32) for name, array in arrays.items()}
    constants = {name: given[name] for name in ("w", "b") if name in given and seed % 2}
    feeds = {name: array for name, array in given.items() if name not in constants}
    made = model(
        [node],
        [tensor(name, *array.shape) for name, array in feeds.items()],
        ["y"],
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    (found,) = compile(made).run(None, feeds)
    assert found.shape == expected.shape, (seed, node)
    assert np.abs(found - expected).max() < 1e-5 * max(1, np.abs(expected).max()), (seed, node)


@pytest.mark.parametrize("kind", [*MAKERS])
def test_windows_are_those_of_the_attributes(kind: str) -> None:
    for seed in range(4):
        check(kind, seed)


@pytest.mark.parametrize("pads", [[2, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]], ids=str)
@pytest.mark.parametrize("width", [1, 3])
def test_images_of_one_column(pads: list[int], width: int) -> None:
    random = np.random.default_rng(width)
    x = random.standard_normal((2, 4, 9, 1)).astype(np.float32)
    w = random.standard_normal((6, 2, 3, min(width, 1 + sum(pads[1::2])))).astype(np.float32)
    attributes: dict[str, Any] = {"pads": pads, "strides": [2, 1], "dilations": [2, 1]}
    expected = conv(x, w, axes_of(x.shape[2:], list(w.shape[2:]), attributes), 2)
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, **attributes)
    made = model(
        [node], [tensor("x", *x.shape)], ["y"], initializer=[numpy_helper.from_array(w, "w")]
    )
    (found,) = compile(made).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def of_groups(features: int, channels: int, groups: int) -> tuple[Any, Array, Array, Array]:
    """A 3 x 3 convolution of groups with constant filters: model, images, filters, results."""
    random = np.random.default_rng(features)
    x = random.standard_normal((1, groups * channels, 12, 14)).astype(np.float32)
    w = random.standard_normal((groups * features, channels, 3, 3)).astype(np.float32)
    attributes: dict[str, Any] = {"pads": [1, 1, 1, 1]}
    expected = conv(x, w, axes_of(x.shape[2:], [3, 3], attributes), groups)
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups, **attributes)
    weights = [numpy_helper.from_array(w, "w")]
    made = model([node], [tensor("x", *x.shape)], ["y"], initializer=weights)
    return made, x, w, expected


@pytest.mark.each_value(2)
@pytest.mark.parametrize(
    ("features", "channels", "groups"),
    [(10, 10, 4), (12, 3, 8), (24, 8, 4), (5, 4, 2), (2, 2, 16), (4, 4, 8), (9, 1, 4)],
)
def test_groups_that_begin_inside_of_vectors(features: int, channels: int, groups: int) -> None:
    made, x, _, expected = of_groups(features, channels, groups)
    (found,) = compile(made).run(None, {"x": x})
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_lanes_of_merged_groups_share_what_they_load() -> None:
    made, x, w, expected = of_groups(10, 10, 4)
    compiled = compile(made)
    compiled.run(None, {"x": x})
    kernels = kernels_of(scheduled(compiled.program({"x": x}).program)[0]).values()
    loaded = sum(sum(traffic(kernel, {}).loaded.values()) for kernel in kernels)
    products = expected.size * w[0].size
    assert loaded < products / 2, "each lane loads the channel of its own group"


def test_exact_sums_have_no_products_of_other_groups() -> None:
    made, x, _, expected = of_groups(10, 10, 4)
    x[0, :10] = np.inf
    (found,) = compile(made, exact=True).run(None, {"x": x})
    np.testing.assert_allclose(found[0, 10:], expected[0, 10:], rtol=1e-3, atol=1e-4)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [*MAKERS])
def test_many_windows(kind: str) -> None:
    for seed in range(4, 200):
        check(kind, seed)
