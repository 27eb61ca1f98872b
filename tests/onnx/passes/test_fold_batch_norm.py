"""Batch norms behind convolutions become a part of their filters, where these are constants and nothing else reads."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.onnx.passes.convolutions import fold_batch_norm
from tests.onnx.models import node
from tests.onnx.passes.recognition import check, is_left_alone, operators
from tests.onnx.passes.test_blocked_images import SIDE, Network


def norm(net: Network, x: str, features: int, **attributes: object) -> str:
    names = [net.constant(features) for _ in range(4)]
    net.constants[names[3]] = np.abs(net.constants[names[3]]) + 0.5
    return net.add("BatchNormalization", x, *names, **attributes)


def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {"x": random.standard_normal((2, 3, SIDE, SIDE)).astype(np.float32)}


@pytest.mark.parametrize("copies", [False, True])
def test_it_is_folded(copies: bool) -> None:
    net = Network()
    a = net.conv("x", 3, 16)
    b = norm(net, net.add("Identity", a) if copies else a, 16, epsilon=1e-3)
    without_bias = net.add("Conv", net.add("Relu", b), net.constant(6, 8, 1, 1), group=2)
    made = net.model(3, [norm(net, without_bias, 6)])
    assert operators(made) == ["taskc.Folded", "Conv", "Relu", "taskc.Folded", "Conv"]
    check(made, feeds(), 1e-5)


def test_what_is_not_folded() -> None:
    net = Network()
    read_twice = net.conv("x", 3, 16)
    outputs = [read_twice, norm(net, read_twice, 16)]
    outputs.append(norm(net, net.add("Relu", net.conv("x", 3, 16)), 16))
    outputs.append(norm(net, "x", 3))
    unknown = net.add("Relu", net.constant(16, 3, 1, 1))
    outputs.append(norm(net, net.add("Conv", "x", unknown), 16))
    assert is_left_alone(net.model(3, outputs), fold_batch_norm)


def test_one_that_trains_is_not_folded() -> None:
    net = Network()
    names = [net.constant(16) for _ in range(4)]
    a = net.conv("x", 3, 16)
    outputs = ["y", "mean", "variance"]
    net.nodes.append(node("BatchNormalization", [a, *names], outputs, training_mode=1))
    assert is_left_alone(net.model(3, outputs), fold_batch_norm)
