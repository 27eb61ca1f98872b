"""What benchmarks/cpu.py says of convolutions: what they are held to, and what is printed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A file of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


LAYERS: list[dict[str, Any]] = [
    {"extents": (5, 4), "size": (3, 2), "stride": 2, "groups": 2},
    {"extents": (7, 6), "size": (3, 3), "dilation": 2, "residual": True},
    {"extents": (3, 4), "size": (4, 4), "stride": 2, "is_transposed": True},
    {"extents": (9,), "size": (5,)},
    {"extents": (3, 4, 2), "size": (3, 3, 1)},
]


@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_what_convolutions_are_held_to(load: Callable[[str], Any], options: dict[str, Any]) -> None:
    layer = load("convolution_layers").Layer(4, 6, **options)
    operands = load("convolution_peers").operands_of(layer)
    expected = np.zeros((6, *layer.outputs))
    expected += operands.bias.reshape(-1, *[1] * len(layer.size))
    for array in operands.residual:
        expected += array[0]
    inner, outer = 4 // layer.groups, 6 // layer.groups
    for tap in np.ndindex(*layer.size):
        # Neighbours are a stride apart on the other side: of x, or of the result.
        places, ends = layer.outputs, layer.extents
        if layer.is_transposed:
            places, ends = ends, places
        for place in np.ndindex(*places):
            other = tuple(
                i * layer.stride + t * layer.dilation - zeros
                for i, t, zeros in zip(place, tap, layer.padding, strict=True)
            )
            if not all(0 <= i < n for i, n in zip(other, ends, strict=True)):
                continue
            into, out_of = (other, place) if layer.is_transposed else (place, other)
            for feature in range(6):
                group = feature // outer
                for c in range(inner):
                    channel = group * inner + c
                    indices = (channel, feature) if layer.is_transposed else (feature, c)
                    x = operands.x[(0, channel, *out_of)]
                    weight = operands.weights[(*indices, *tap)]
                    expected[(feature, *into)] += float(x) * float(weight)
    np.testing.assert_allclose(operands.expected[0], np.maximum(expected, 0), atol=1e-12)
    assert np.count_nonzero(operands.expected) > operands.expected.size / 4


def test_benchmarks_are_summed_up(
    load: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report = load("report")
    row = report.Row
    report.summary(
        [
            row("chain", "a", 1, 2.0, "one", 6.0, 3.0),
            row("chain", "a", 1, 2.0, "other", 4.0, 2.0),
            row("chain", "b", 1, 0.5, "one", 0.25, 0.5),
            row("compile: chain", "a", 1, 300.0),
            row("chain", "a", 2, 1.25, "one", 2.5, 2.0),
            row("chain", "b", 2, 0.5, "one", 0.5, 1.0),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "chain, 1 thread(s), to the fastest peer: geometric mean 1.00 of 2, 1 losses, least 0.50: b",
        "chain, 2 thread(s), to the fastest peer: geometric mean 1.41 of 2, 0 losses, least 1.00: b",
        "chain, 2 threads to 1, where it takes over 1 ms: geometric mean 1.60 of 1, least 1.60: a",
    ]


def test_each_layer_is_there_once(load: Callable[[str], Any]) -> None:
    layers = load("convolution_layers")
    resnet50, separable = layers.resnet50(), layers.separable()
    shapes = {(x.channels, x.features, x.extents, x.size, x.stride) for x in resnet50}
    assert (len(set(resnet50)), len(shapes)) == (len(resnet50), 23)
    assert len(set(separable)) == len(separable)
    for layer in separable:
        assert layer.groups in (1, layer.channels)
        assert layer.groups == 1 or layer.size != (1, 1)
    for layer in layers.others():
        assert min(layer.outputs) > 0
