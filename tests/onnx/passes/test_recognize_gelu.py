"""A Gelu is recognized by its formula, however a model writes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, numpy_helper

from taskc.onnx.passes.recognize_formulas import recognize_gelu
from tests.onnx.models import model, node, tensor
from tests.onnx.passes.recognition import check, is_left_alone, operators


class Net:
    """Nodes on x and y; a number is a constant."""

    def __init__(self, *axes: int) -> None:
        self.axes = axes  # of constants
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def __call__(self, operator: str, *inputs: str | float, **attributes: Any) -> str:
        names = [item if isinstance(item, str) else self.number(item) for item in inputs]
        self.nodes.append(node(operator, names, [f"t{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def number(self, value: float) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.full(self.axes, value, np.float32)
        return name

    def model(self, *outputs: str, shape: tuple[int | str, ...] = (3, 40)) -> ModelProto:
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        inputs = [tensor(name, *shape) for name in "xy"]
        return model(self.nodes, inputs, [*outputs], initializer=weights)


def usual(net: Net) -> str:
    """As PyTorch exports it."""
    one = net("Add", net("Erf", net("Div", "x", math.sqrt(2))), 1)
    return net("Mul", net("Mul", "x", one), 0.5)


def half_first(net: Net) -> str:
    one = net("Add", 1, net("Erf", net("Mul", math.sqrt(0.5), "x")))
    return net("Mul", net("Mul", 0.5, "x"), one)


def halves_inside(net: Net) -> str:
    erf = net("Mul", net("Erf", net("Div", "x", 1.41421)), 0.5)
    return net("Mul", net("Add", erf, 0.5), "x")


def by_two(net: Net) -> str:
    one = net("Sub", net("Erf", net("Div", "x", math.sqrt(2))), -1)
    return net("Div", net("Mul", one, "x"), 2)


def tanh(net: Net, cube: str | None = None) -> str:
    """GPT-2's."""
    cube = cube or net("Pow", "x", 3)
    inner = net("Add", "x", net("Mul", cube, 0.044715))
    outer = net("Tanh", net("Mul", inner, math.sqrt(2 / math.pi)))
    return net("Mul", net("Mul", "x", 0.5), net("Add", outer, 1))


def tanh_of_products(net: Net) -> str:
    return tanh(net, net("Mul", "x", net("Mul", "x", "x")))


WAYS = [usual, half_first, halves_inside, by_two, tanh, tanh_of_products]


@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("axes", [(), (1,)])
def test_a_way_to_write_gelu(way: Callable[[Net], str], axes: tuple[int, ...]) -> None:
    net = Net(*axes)
    assert operators(net.model(way(net))) == ["Gelu"]


@pytest.mark.parametrize("way", [usual, tanh], ids=lambda way: way.__name__)
def test_its_results(way: Callable[[Net], str]) -> None:
    net = Net()
    x = np.linspace(-6, 6, 120, dtype=np.float32).reshape(3, 40)
    check(net.model(way(net)), {"x": x, "y": x}, 1e-6)


def test_of_what_other_nodes_make_and_read() -> None:
    net = Net()
    net("Add", "x", "y")
    one = net("Add", net("Erf", net("Div", "t0", math.sqrt(2))), 1)
    made = net("Mul", net("Mul", "t0", one), 0.5)
    sums = net("Add", made, net("Mul", made, "x"))
    assert operators(net.model(sums, one)) == ["Add", "Div", "Erf", "Add", "Gelu", "Mul", "Add"]


def test_after_a_bias() -> None:
    """The bias has an axis, and no shape of the sum is known; Gelu's own constants have none."""
    net = Net()
    net.constants["bias"] = np.zeros(40, np.float32)
    total = net("Add", "x", "bias")
    one = net("Add", net("Erf", net("Div", total, math.sqrt(2))), 1)
    assert operators(net.model(net("Mul", net("Mul", total, one), 0.5))) == ["Add", "Gelu"]


def of_two_tensors(net: Net) -> str:
    return net("Mul", net("Mul", "y", net("Add", net("Erf", net("Div", "x", 1.41421356)), 1)), 0.5)


def of_two(net: Net) -> str:
    one = net("Add", net("Erf", net("Div", "x", 2)), 1)
    return net("Mul", net("Mul", "x", one), 0.5)


def less_one(net: Net) -> str:
    one = net("Sub", net("Erf", net("Div", "x", math.sqrt(2))), 1)
    return net("Mul", net("Mul", "x", one), 0.5)


def a_quarter(net: Net) -> str:
    one = net("Add", net("Erf", net("Div", "x", math.sqrt(2))), 1)
    return net("Mul", net("Mul", "x", one), 0.25)


def without_a_half(net: Net) -> str:
    return net("Mul", "x", net("Add", net("Erf", net("Div", "x", math.sqrt(2))), 1))


def with_sigmoid(net: Net) -> str:
    one = net("Add", net("Sigmoid", net("Div", "x", math.sqrt(2))), 1)
    return net("Mul", net("Mul", "x", one), 0.5)


def tanh_in_place_of_erf(net: Net) -> str:
    one = net("Add", net("Tanh", net("Div", "x", math.sqrt(2))), 1)
    return net("Mul", net("Mul", "x", one), 0.5)


def of_a_square(net: Net) -> str:
    return tanh(net, net("Pow", "x", 2))


def x_added(net: Net) -> str:
    one = net("Add", net("Erf", net("Div", "x", math.sqrt(2))), 1)
    return net("Mul", net("Add", "x", one), 0.5)


def divided_by_it(net: Net) -> str:
    one = net("Add", net("Erf", net("Div", "x", math.sqrt(2))), 1)
    return net("Mul", net("Div", "x", one), 0.5)


def with_what_cancels_out(net: Net) -> str:
    """Its shape is that of x and y."""
    return net("Mul", net("Sub", net("Add", usual(net), "y"), "y"), 1)


LOOKALIKES = [
    of_two_tensors, of_two, less_one, a_quarter, without_a_half, with_sigmoid,
    tanh_in_place_of_erf, of_a_square, x_added, divided_by_it,
]  # fmt: skip


@pytest.mark.parametrize("way", LOOKALIKES, ids=lambda way: way.__name__)
def test_what_looks_like_gelu(way: Callable[[Net], str]) -> None:
    net = Net()
    assert is_left_alone(net.model(way(net)), recognize_gelu)


def test_what_cancels_out_stays() -> None:
    net = Net()
    assert operators(net.model(with_what_cancels_out(net))) == ["Gelu", "Add", "Sub", "Mul"]


def test_a_constant_with_an_axis_gives_it_to_what_has_none() -> None:
    net = Net(1)
    assert is_left_alone(net.model(usual(net), shape=()), recognize_gelu)
