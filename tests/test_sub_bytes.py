"""Arguments of sub-byte types: elements in a byte each, bytes as they lie, and what is packed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import DType, f6e2m3, f32, i4, repeat, spatial, u4
from taskc.ir.bits import into_bytes
from tests.backend.cpu.test_unpacking import same
from tests.ir.test_bits import SUB_BYTE, elements
from tests.passes.test_unpack import codes_of, widened

M, N = 4, 32


def given(dtype: DType, m: int = M, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Elements, and the rows of bytes in which they lie."""
    x = elements(dtype, codes_of(dtype, m, n))
    return x, into_bytes(x, dtype).reshape(m, n * dtype.bits // 8)


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", SUB_BYTE, ids=str)
def test_all_forms_are_taken(dtype: DType, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", target)
    panels = repeat(1, N // 16) * repeat(M, 16)
    x, rows = given(dtype)
    for layout in (None, panels):
        kernel = widened(dtype, M, N, layout)
        described = dtype[M, N] if layout is None else dtype[M, N].laid(layout)
        for form in (x, rows, kernel.pack(x), kernel.pack(rows), tc.pack(x, described)):
            np.testing.assert_array_equal(kernel(form), x.astype(np.float32))


def test_a_packed_array_gives_its_elements() -> None:
    x, rows = given(f6e2m3)
    packed = tc.pack(x, f6e2m3[M, N])
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, rows.reshape(-1))
    np.testing.assert_array_equal(packed.unpack().view(np.uint8), x.view(np.uint8))
    assert kernel_rows().pack(given(i4)[0]).shape == (M, N // 2)  # bytes, as others have them


def kernel_rows() -> Any:
    return widened(i4, M, N)


def test_compiled_code_takes_bytes() -> None:
    """It says of each argument what the general way says, and hands that none which it should take."""
    kernel, (x, rows) = kernel_rows(), given(i4)
    kernel(rows)
    assert kernel.direct is not None
    np.testing.assert_array_equal(kernel.direct(rows), x.astype(np.float32))
    slow: list[Any] = []
    kernel.call = lambda *args: slow.append(args)  # type: ignore[method-assign]
    kernel.direct(rows)
    assert not slow
    del kernel.call
    for other in (x, rows[:, 1:], rows[1:], rows.view(np.int8), x.view(np.uint8), rows.reshape(-1)):
        same(kernel, other)
    same(kernel, np.asfortranarray(rows))


def test_rows_that_end_within_a_byte_are_packed() -> None:
    kernel = widened(i4, 3, 5)
    x = elements(i4, codes_of(i4, 3, 5))
    packed = kernel.pack(x)
    assert isinstance(packed, tc.Packed)
    for form in (x, packed):
        np.testing.assert_array_equal(kernel(form), x.astype(np.float32))
    assert kernel.direct is not None
    np.testing.assert_array_equal(kernel.direct(packed), x.astype(np.float32))
    same(kernel, tc.pack(elements(u4, codes_of(u4, 3, 5)), u4[3, 5]))


n = tc.dim("n", multiple=2)


@tc.kernel(workers=16)
def last(b: i4[n, 2 * n], y: tc.out[f32[n]]):
    for row in tc.tiles(n, by=16):
        for i in spatial(16):
            if row + i < n:
                y[row + i] = b[row + i, 2 * n - 1].to(f32)


def test_sizes_are_told_by_bytes() -> None:
    for size in (0, 2, 18):
        x = elements(i4, codes_of(i4, size, 2 * size))
        rows = into_bytes(x, i4).reshape(size, size)
        for form in (x, rows):
            np.testing.assert_array_equal(last(form), x[:, -1:].reshape(-1).astype(np.float32))
        same(last, rows)
        same(last, rows[:, 1:])


@pytest.mark.parametrize(
    ("dtype", "shape", "problem"),
    [
        (np.uint8, (4, 31), "not u8[4, 31]"),
        (np.float32, (4, 32), "not f32[4, 32]"),
        (np.uint8, (4, 4, 4), "not u8[4, 4, 4]"),
    ],
)
def test_others_are_refused(dtype: Any, shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(tc.ArgumentError) as caught:
        kernel_rows()(np.zeros(shape, dtype))
    assert str(caught.value) == (
        "kernel(): argument 'b' must be i4[4, 32], each element in a byte (ml_dtypes), or the bytes in"
        f" which they lie, u8[4, 16], {problem}"
    )


def test_bytes_that_do_not_lie_in_order_are_copied() -> None:
    kernel, (x, rows) = kernel_rows(), given(i4)
    with pytest.warns(tc.CopyWarning):
        made = kernel(np.asfortranarray(rows))
    np.testing.assert_array_equal(made, x.astype(np.float32))


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_programs_pass_them_on(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As parameters, parts of these, and constants; computations read them, too."""
    monkeypatch.setenv("TASKC_TARGET", target)
    x, rows = given(i4)
    both, wide = np.stack([x[::-1], x]), x.astype(np.float32)
    kernel = kernel_rows()
    panels = widened(i4, M, N, repeat(1, 2) * repeat(M, 16))

    @tc.program
    def program(b: i4[2, M, N], y: tc.out[f32[M, N]]):
        first, constant, packed = kernel(b[1]), kernel(rows), panels(x)
        tc.compute(
            (M, N),
            lambda i, j: first[i, j] + constant[i, j] * packed[i, j] - b[0, i, j].to(f32),
            out=y,
        )

    expected = wide + wide * wide - wide[::-1]
    for form in (both, into_bytes(both, i4).reshape(2, M, N // 2)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                np.testing.assert_array_equal(program(form), expected)
    assert not tc.check(program, (both,))


def test_tensors_of_other_libraries_are_bytes() -> None:
    class Exported:
        def __init__(self, array: np.ndarray) -> None:
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    x, rows = given(u4)
    made = widened(u4, M, N)(Exported(rows))
    np.testing.assert_array_equal(made, x.astype(np.float32))
