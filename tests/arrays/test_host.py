"""Arrays of other libraries in the calls of a program, where NumPy's are constants."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, bf16, f32


class Exported:
    """A library's array: nothing but DLPack."""

    def __init__(self, array: np.ndarray, problem: str | None = None) -> None:
        self.array, self.problem = array, problem

    def __dlpack__(self, **keywords: object) -> object:
        if self.problem:
            raise BufferError(self.problem)
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@tc.kernel(workers=4)
def added(x: f32[4], w: f32[4], y: tc.out[f32[4]]):
    for i in tc.spatial(4):
        y[i] = x[i] + w[i]


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_array_by_dlpack_is_a_constant(wrapped: bool) -> None:
    weights = Exported(np.arange(4, dtype=np.float32))

    @tc.program
    def program(x: f32[4], y: tc.out[f32[4]]):
        added(x, tc.constant(weights) if wrapped else weights, out=y)

    np.testing.assert_array_equal(program(np.ones(4, np.float32)), [1, 2, 3, 4])


def test_an_array_without_elements_is_refused_with_its_reason() -> None:
    weights = Exported(np.arange(4, dtype=np.float32), "it is on the moon")
    with pytest.raises(
        CompileError, match=r"a Exported can't be read as a constant: it is on the moon"
    ):

        @tc.program
        def program(x: f32[4], y: tc.out[f32[4]]):
            added(x, weights, out=y)


def test_an_array_of_another_type_is_refused() -> None:
    weights = Exported(np.arange(4))
    with pytest.raises(CompileError, match=r"argument 'w' must be f32\[4\], not an array of int64"):

        @tc.program
        def program(x: f32[4], y: tc.out[f32[4]]):
            added(x, weights, out=y)


@pytest.mark.torch
def test_tensors_of_pytorch_are_constants() -> None:
    torch = pytest.importorskip("torch")

    @tc.kernel(workers=4)
    def doubled(w: bf16[4], y: tc.out[bf16[4]]):
        for i in tc.spatial(4):
            y[i] = w[i] + w[i]

    weights = torch.nn.Parameter(torch.arange(4).to(torch.bfloat16))

    @tc.program
    def program(y: tc.out[bf16[4]]):
        doubled(weights, out=y)

    np.testing.assert_array_equal(program(), np.array([0, 2, 4, 6], ml_dtypes.bfloat16))
