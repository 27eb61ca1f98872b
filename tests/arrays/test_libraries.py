"""Arrays of other libraries: adapters, and constants of programs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, bf16, f32
from taskc.arrays import dlpack


class Exported:
    """A library's array: nothing but DLPack."""

    def __init__(
        self, array: np.ndarray, problem: str | None = None, device: tuple[int, int] = (1, 0)
    ) -> None:
        self.array, self.problem, self.device = array, problem, device

    def __dlpack__(self, **keywords: object) -> object:
        if self.problem:
            raise BufferError(self.problem)
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Toys:
    """The adapter of a library."""

    NAME = "toys"

    def __init__(self) -> None:
        self.written: list[Any] = []

    def takes(self, value: Any) -> bool:
        return isinstance(value, Exported)

    def argument(self, value: Any, is_written: bool) -> Any:
        if value.problem:
            raise BufferError(f"is refused: {value.problem}")
        return value

    def new_output(self, described: Any, place: Any) -> Any:
        return Exported(np.empty(described.shape, described.dtype.numpy))

    def note_written(self, value: Any) -> None:
        self.written.append(value)


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


def test_a_packed_array_is_a_constant_as_it_is() -> None:
    columns = f32[2, 3].laid(tc.repeat(2, 3, order=(1, 0)))

    @tc.kernel(workers=1)
    def copied(w: columns, y: tc.out[f32[2, 3]]):  # type: ignore[valid-type]
        for i, j in tc.repeat(2, 3):
            y[i, j] = w[i, j]

    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    packed = tc.pack(weights, columns)

    @tc.program
    def program(y: tc.out[f32[2, 3]]):
        copied(packed, out=y)

    np.testing.assert_array_equal(program(), weights)
    packed[1] = 7  # its memory is the program's: element (1, 0)
    assert program()[1, 0] == 7


@pytest.mark.parametrize(
    ("problem", "device", "text"),
    [("it is on the moon", (1, 0), "it is on the moon"), (None, (2, 0), "it lies on a device")],
)
def test_an_array_whose_memory_cannot_be_read_is_refused_with_its_reason(
    problem: str | None, device: tuple[int, int], text: str
) -> None:
    weights = Exported(np.arange(4, dtype=np.float32), problem, device)
    with pytest.raises(CompileError, match=f"a Exported can't be read as a constant: {text}"):

        @tc.program
        def program(x: f32[4], y: tc.out[f32[4]]):
            added(x, weights, out=y)


def test_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter is all that a call needs."""
    toys = Toys()
    monkeypatch.setattr(dlpack, "LIBRARIES", (toys,))
    x = np.arange(4, dtype=np.float32)
    made = added(Exported(x), x)
    assert isinstance(made, Exported)
    np.testing.assert_array_equal(made.array, x + x)
    assert added(x, x, out=made) is made
    assert toys.written == [made]
    with pytest.raises(tc.ArgumentError, match=r"^added\(\): argument 'w' is refused: by itself$"):
        added(x, Exported(x, "by itself"))


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
