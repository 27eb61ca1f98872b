"""Models on a CUDA device: a driver without a GPU, whose kernels run in the simulator or as emitted code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import taskc as tc
from taskc import device
from taskc.onnx.backend import TaskcBackend
from tests.backend.cuda.conftest import compiled, emitted, fake, start
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.host import COMPILER

from .models import model, node, tensor
from .node_cases import cases, in_sample, listed, problem

__all__ = ["compiled", "emitted", "fake", "start"]  # fixtures

Array = np.ndarray[Any, Any]
WEIGHTS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def layer() -> Any:
    return model(
        [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])],
        [tensor("x", "rows", 8)],
        ["y"],
        initializer=[numpy_helper.from_array(WEIGHTS, "w")],
    )


def rows(count: int) -> Array:
    return np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)


def expected(x: Array) -> Array:
    return np.maximum(x @ WEIGHTS, 0)


@pytest.mark.usefixtures("compiled")
def test_outputs_lie_where_inputs_do() -> None:
    there = tc.compile(layer(), target="cuda")
    there.prepare({"x": rows(3)})
    for count in (3, 5, 7, 4):  # the third shape opens the rows
        x = rows(count)
        made = there(x)
        assert isinstance(made, np.ndarray)
        np.testing.assert_allclose(made, expected(x), rtol=1e-5, atol=1e-6)
        left = there(device.array(x))
        assert isinstance(left, device.Array)
        np.testing.assert_array_equal(left.numpy(), made)


@pytest.mark.usefixtures("compiled")
def test_inputs_may_lie_here_and_there() -> None:
    added = tc.compile(
        model([node("Add", ["a", "b"], ["y"])], [tensor("a", 3), tensor("b", 3)], ["y"]),
        target="cuda",
    )
    a, b = np.float32([1, 2, 3]), np.float32([10, 20, 30])
    for given in ((device.array(a), b), (a, device.array(b))):
        made = added(*given)
        assert isinstance(made, device.Array)
        assert made.numpy().tolist() == [11, 22, 33]
    assert added(a, b).tolist() == [11, 22, 33]


@pytest.mark.usefixtures("compiled")
def test_what_decides_may_lie_there() -> None:
    """A shape is read when the model is called; it isn't the program's input."""
    made = tc.compile(
        model(
            [node("Reshape", ["x", "shape"], ["y"])],
            [tensor("x", 6), tensor("shape", 2, type=TensorProto.INT64)],
            ["y"],
        ),
        target="cuda",
    )
    x = np.arange(6, dtype=np.float32)
    for shape in ([2, 3], [3, -1]):
        given = np.array(shape)
        for place in (np.asarray, device.array):
            y = made(place(x), device.array(given))
            assert y.numpy().tolist() == x.reshape(shape).tolist()


@pytest.mark.usefixtures("compiled")
def test_counts_and_constants() -> None:
    """What data counts, and an output that every call has alike."""
    made = tc.compile(
        model(
            [
                node("NonZero", ["x"], ["at"]),
                node("Shape", ["x"], ["shape"]),
                node("Transpose", ["at"], ["rows"], perm=[1, 0]),
            ],
            [tensor("x", 2, 3)],
            ["at", "shape", "rows"],
        ),
        target="cuda",
    )
    x = np.float32([[0, 1, 2], [3, 0, 0]])
    for given in (x, device.array(x)):
        found = made(given)
        assert all(isinstance(one, type(given)) for one in found)
        at, shape, there = [np.asarray(one if given is x else one.numpy()) for one in found]
        assert at.tolist() == [[0, 0, 1], [1, 2, 0]]
        assert (shape.tolist(), there.tolist()) == ([2, 3], [[0, 1], [0, 2], [1, 0]])


@pytest.mark.usefixtures("compiled")
def test_models_in_parts() -> None:
    """How many rows the second part has is known when the first one has run."""
    nodes = [
        node("NonZero", ["x"], ["n"]),
        node("Transpose", ["n"], ["t"]),
        node("GatherND", ["x", "t"], ["y"]),
    ]
    there = tc.compile(model(nodes, [tensor("x", 2, 3)], ["y"]), target="cuda")
    for x in (np.float32([[0, 1, 2], [3, 0, 0]]), np.eye(2, 3, dtype=np.float32)):
        there.prepare({"x": x})
        assert there(x).tolist() == x[x != 0].tolist()
        assert there(device.array(x)).numpy().tolist() == x[x != 0].tolist()


@pytest.mark.usefixtures("compiled")
def test_products_of_bf16() -> None:
    x = rows(16)
    made = tc.compile(layer(), target="cuda", precision="bf16")(x)
    np.testing.assert_allclose(made, expected(x), rtol=0.02, atol=0.05)
    assert (made != expected(x)).any()


def test_what_is_no_place() -> None:
    with pytest.raises(tc.CompileError, match="models don't run on 'tpu'") as caught:
        tc.compile(layer(), target="tpu")
    assert caught.value.hint == "there is 'cpu', and 'cuda'"
    with pytest.raises(device.DeviceError):
        tc.compile(layer(), target="cuda")
    assert not TaskcBackend.supports_device("CUDA")
    assert not TaskcBackend.supports_device("TPU")


@pytest.mark.usefixtures("compiled")
def test_what_does_not_fit_a_place() -> None:
    assert TaskcBackend.supports_device("CUDA")
    with pytest.raises(tc.CompileError, match="limits of the processor's programs"):
        tc.compile(layer(), target="cuda", threads=1)
    here = tc.compile(layer())
    with pytest.raises(
        tc.ArgumentError,
        match="the input 'x': it lies on a device, and the model runs on the processor",
    ):
        here(device.array(rows(2)))
    there = tc.compile(layer(), target="cuda")
    with pytest.raises(tc.ArgumentError, match="the input 'x' is of f32, not f64"):
        there(device.array(rows(2).astype(np.float64)))
    with pytest.raises(tc.ArgumentError, match="the input 'x' is an array, not str"):
        there("x")


@pytest.mark.usefixtures("compiled")
def test_what_is_traced_for_a_device_is_not_for_the_processor() -> None:
    """What constants are computed by, and models that are compiled later, stay the processor's."""
    made = model(
        [node("Exp", ["e"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", 6, 8)],
        ["y"],
        initializer=[numpy_helper.from_array(WEIGHTS, "e")],
    )
    x = rows(6)
    workers = []
    for target in ("cuda", "cpu"):
        compiled = tc.compile(made, target=target)
        np.testing.assert_allclose(compiled(x), x @ np.exp(WEIGHTS), rtol=1e-5, atol=1e-5)
        (product,) = compiled.program({"x": x}).program.kernels
        workers.append(product.ir.workers)
    assert workers[0] % 32 == 0
    assert workers[1] == tc.machine().lanes


# Attention multiplies f16 probabilities on tensor cores: a result is another f16 number than the reference's, which has
# more of them, and they are held to 0.001.
ROUNDED = {"test_attention_4d_causal_fp16", "test_attention_4d_fp16"}


def failures(names: Iterable[str], *, sampled: bool = False) -> dict[str, str]:
    known = cases(sampled=sampled)
    return {name: found for name in names if (found := problem(known[name], "CUDA"))}


@pytest.mark.usefixtures("compiled")
def test_a_twentieth_of_the_listed_cases_passes_there() -> None:
    names = [name for name in listed() if in_sample(name)]
    assert failures(names, sampled=True).keys() <= ROUNDED


@pytest.mark.sweep
@pytest.mark.usefixtures("compiled")
def test_all_listed_cases_pass_there() -> None:
    assert failures(listed()).keys() == ROUNDED


@pytest.mark.sweep
@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_a_fortieth_passes_as_emitted_code(emitted: FakeDriver) -> None:
    assert failures(listed()[::40]).keys() <= ROUNDED
