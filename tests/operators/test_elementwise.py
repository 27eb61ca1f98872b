"""Powers whose exponents a model says are products."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from taskc.ir.nodes import Binary
from taskc.ir.rewrite import walk
from taskc.onnx.session import compile
from taskc.programs.ir import calls_of
from tests.onnx.models import model, node, tensor


@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_power_by_a_small_constant(exponent: int, shape: tuple[int, ...]) -> None:
    """It is as far off as its products round, right for infinities and zeros, and no power is computed."""
    constant = numpy_helper.from_array(np.full(shape, exponent, np.float32), "e")
    made = compile(
        model(
            [node("Pow", ["x", "e"], ["y"])], [tensor("x", 2, 600)], ["y"], initializer=[constant]
        )
    )
    x = np.random.default_rng(0).standard_normal((2, 600)).astype(np.float32)
    x[0, :5] = 0.0, -0.0, np.inf, -np.inf, np.nan
    (y,) = made.run(None, {"x": x})
    assert y.shape == np.broadcast_shapes(x.shape, shape)
    expected = x.astype(np.float64) ** exponent
    np.testing.assert_array_equal(y[..., 0, :5].reshape(-1), expected[0, :5].astype(np.float32))
    rest, exact = y.reshape(2, 600)[:, 5:], expected[:, 5:]
    assert (np.abs(rest - exact) <= (exponent - 1) * 1.001 * 2.0**-24 * np.abs(exact)).all()
    calls = made.program({"x": x}).program.ir.calls
    nodes = [node for call in calls_of(calls) for node in walk(call.callee.value)]
    assert [node.operator for node in nodes if isinstance(node, Binary)] == ["*"] * (exponent - 1)
