"""Layer norms and RMS norms are recognized by their formulas, however a model writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from taskc.onnx.passes.recognize_formulas import recognize_norms
from tests.onnx.passes.recognition import check, is_left_alone, operators
from tests.onnx.passes.test_recognize_gelu import Net


def mean(net: Net, x: str, axes: tuple[int, ...] = (-1,), **attributes: Any) -> str:
    name = f"axes{len(net.constants)}"
    net.constants[name] = np.array(axes, np.int64)
    return net("ReduceMean", x, name, **attributes)


def vector(net: Net, *shape: int) -> str:
    name = f"w{len(net.constants)}"
    net.constants[name] = np.linspace(-1, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return name


def quotient(net: Net, axes: tuple[int, ...] = (-1,)) -> str:
    """As PyTorch exports it."""
    d = net("Sub", "x", mean(net, "x", axes))
    return net("Div", d, net("Sqrt", net("Add", mean(net, net("Pow", d, 2), axes), 1e-5)))


def affine(net: Net) -> str:
    return net("Add", net("Mul", quotient(net), vector(net, 40)), vector(net, 40))


def scaled(net: Net) -> str:
    return net("Mul", vector(net, 40), quotient(net))


def affine_of_two_axes(net: Net) -> str:
    made = net("Mul", quotient(net, (-2, -1)), vector(net, 3, 40))
    return net("Add", vector(net, 3, 40), made)


def of_products(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x"))
    spread = net("Add", 1e-5, mean(net, net("Mul", d, d)))
    return net("Mul", net("Reciprocal", net("Sqrt", spread)), d)


def by_a_power(net: Net) -> str:
    d = net("Add", "x", net("Neg", mean(net, "x")))
    spread = net("Add", mean(net, net("Mul", d, d)), 1e-5)
    return net("Mul", d, net("Pow", spread, -0.5))


def of_differences_twice(net: Net) -> str:
    """As TensorFlow's: x * inverse - mean * inverse."""
    m = mean(net, "x")
    d = net("Sub", "x", m)
    inverse = net("Reciprocal", net("Sqrt", net("Add", mean(net, net("Mul", d, d)), 1e-5)))
    return net("Mul", net("Sub", "x", m), inverse)


def rms(net: Net, epsilon: float = 1e-6) -> str:
    spread = net("Add", mean(net, net("Pow", "x", 2)), epsilon)
    return net("Mul", "x", net("Reciprocal", net("Sqrt", spread)))


def rms_scaled(net: Net) -> str:
    return net("Mul", vector(net, 40), rms(net))


WAYS = [affine, scaled, affine_of_two_axes, of_products, by_a_power, of_differences_twice]


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("axes", [(), (1,)])
def test_a_way_to_write_a_layer_norm(way: Callable[[Net], str], axes: tuple[int, ...]) -> None:
    net = Net(*axes)
    assert operators(net.model(way(net))) == ["LayerNormalization"]


@pytest.mark.parametrize("way", [rms, rms_scaled], ids=lambda way: way.__name__)
def test_a_way_to_write_an_rms_norm(way: Callable[[Net], str]) -> None:
    net = Net()
    assert operators(net.model(way(net))) == ["RMSNormalization"]


@pytest.mark.parametrize("way", [affine, of_products, affine_of_two_axes, rms_scaled])
def test_results(way: Callable[[Net], str]) -> None:
    net = Net()
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32) * 3 + 1
    check(net.model(way(net)), {"x": x, "y": x}, 3e-6)


def test_a_scale_that_is_read_twice_stays_behind() -> None:
    net = Net()
    made = quotient(net)
    scale = net("Mul", made, vector(net, 40))
    assert operators(net.model(scale, made)) == ["LayerNormalization", "Mul"]


def test_a_scale_of_other_axes_stays_behind() -> None:
    net = Net()
    assert operators(net.model(net("Mul", quotient(net), vector(net, 3, 40)))) == [
        "LayerNormalization",
        "Mul",
    ]


def of_another_mean(net: Net) -> str:
    d = net("Sub", "x", mean(net, "y"))
    return net("Div", d, net("Sqrt", net("Add", mean(net, net("Pow", d, 2)), 1e-5)))


def of_the_first_axis(net: Net) -> str:
    return quotient(net, (0,))


def of_two_means(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x", (-2, -1)))
    return net("Div", d, net("Sqrt", net("Add", mean(net, net("Pow", d, 2)), 1e-5)))


def of_a_cube(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x"))
    return net("Div", d, net("Sqrt", net("Add", mean(net, net("Pow", d, 3)), 1e-5)))


def without_a_root(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x"))
    return net("Div", d, net("Add", mean(net, net("Pow", d, 2)), 1e-5))


def epsilon_behind_the_root(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x"))
    return net("Div", d, net("Add", net("Sqrt", mean(net, net("Pow", d, 2))), 1e-5))


def mean_added(net: Net) -> str:
    d = net("Add", "x", mean(net, "x"))
    return net("Div", d, net("Sqrt", net("Add", mean(net, net("Pow", d, 2)), 1e-5)))


def of_x(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x"))
    return net("Div", "x", net("Sqrt", net("Add", mean(net, net("Pow", d, 2)), 1e-5)))


def times_the_root(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x"))
    return net("Mul", d, net("Sqrt", net("Add", mean(net, net("Pow", d, 2)), 1e-5)))


def epsilon_by_row(net: Net) -> str:
    d = net("Sub", "x", mean(net, "x"))
    return net("Div", d, net("Sqrt", net("Add", mean(net, net("Pow", d, 2)), vector(net, 3, 1))))


LOOKALIKES = [
    of_the_first_axis, of_two_means, of_a_cube, without_a_root,
    epsilon_behind_the_root, of_x, times_the_root, epsilon_by_row,
]  # fmt: skip


@pytest.mark.parametrize("way", LOOKALIKES, ids=lambda way: way.__name__)
def test_what_looks_like_a_norm(way: Callable[[Net], str]) -> None:
    net = Net()
    assert is_left_alone(net.model(way(net)), recognize_norms)


@pytest.mark.parametrize("way", [of_another_mean, mean_added], ids=lambda way: way.__name__)
def test_what_has_another_mean_taken_off_is_divided_alone(way: Callable[[Net], str]) -> None:
    net = Net()
    assert operators(net.model(way(net)))[-1] == "RMSNormalization"
