"""Arrays of a folder as arguments of calls."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import f32, i32, repeat, spatial
from taskc.kernels.matmul import matmul, product
from taskc.tune.operands import operands_of, tolerance, worst_error, write_operands


def test_operands_lie_as_the_parameters_want_them(tmp_path: Path) -> None:
    kernel = product(24, 40, 24, packed=True, result=f32)
    a = np.arange(24 * 24).reshape(24, 24).astype(ml_dtypes.bfloat16)
    b = np.ones((24, 40), ml_dtypes.bfloat16)
    write_operands(tmp_path, [a, b], [a.astype(np.float64) @ b.astype(np.float64)])
    operands = operands_of(kernel, tmp_path)
    assert operands.inputs[0].dtype == a.dtype
    assert isinstance(operands.inputs[1], tc.Packed)
    assert np.isnan(operands.outputs[0]).all()
    assert operands.nbytes == sum(x.nbytes for x in (*operands.inputs, *operands.outputs))
    copied = operands.copy()
    for first, second in zip(
        (*operands.inputs, *operands.outputs), (*copied.inputs, *copied.outputs), strict=True
    ):
        assert type(first) is type(second)
        assert first.tobytes() == second.tobytes()
        assert not np.shares_memory(first, second)
        assert second.ctypes.data % 64 == 0
    copied.call_of(kernel)()
    error, allowed = worst_error(kernel, copied, tmp_path)
    assert error < 1e-5 < allowed
    assert worst_error(kernel, operands, tmp_path)[0] == np.inf  # nothing was written


def test_sizes_scalars_layouts_and_what_is_written_in_place(tmp_path: Path) -> None:
    n = tc.dim("n", multiple=4)

    @tc.kernel(workers=4)
    def kernel(
        x: f32[n, 4].laid(repeat(4, 4, order=(1, 0))),
        total: tc.inout[f32[n, 4]],
        factor: f32,
        y: tc.out[i32[n, 4].laid(repeat(4, 4, order=(1, 0)))],
    ):
        for row, _ in tc.tiles((n, 4), by=(4, 4)):
            for i, j in spatial(4, 1).repeat(1, 4):
                total[row + i, j] += x[row + i, j] * factor
                y[row + i, j] = (x[row + i, j]).to(i32)

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    inputs = [x, np.ones((8, 4), np.float32), np.float32(3)]
    write_operands(tmp_path, inputs, [1 + 3 * x.astype(np.float64), x.astype(np.int64)])
    operands = operands_of(kernel, tmp_path)
    operands.call_of(kernel)()
    assert worst_error(kernel, operands, tmp_path) == (0.0, 0.0)
    operands.call_of(kernel)()
    error, allowed = worst_error(kernel, operands, tmp_path)
    assert error > 1 > allowed == tolerance(kernel, f32)
    with pytest.raises(tc.ArgumentError, match="must be"):
        operands_of(matmul(8, 8, 8), tmp_path)
