"""From a call to what the emitted code computes: the code runs on the host, on what a launch passes to the driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, boolean, device, f16, f32, f64, i8, i64, repeat, spatial, u32
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import Tiling
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.host import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


def test_scalars_of_every_size_dimensions_and_an_assertion(emitted: FakeDriver) -> None:
    n, m = tc.dim("n"), tc.dim("m")

    @tc.kernel(workers=8)
    def mixed(
        a: i8, x: f32[n], b: f16, flag: boolean, c: f64, y: f64[m], d: bf16, e: i64, g: u32,
        z: tc.out[f64[n, m]],
    ):  # fmt: skip
        for row, col in tc.tiles((n, m), by=(1, 8)):
            for j in spatial(8):
                if col + j < m:
                    assert x[row] < 100.0, "too large"
                    whole = a.to(f64) + b.to(f64) + d.to(f64) + e.to(f64) + g.to(f64)
                    z[row, col + j] = tc.where(flag, x[row].to(f64) * c + y[col + j], whole)

    x, y = np.arange(5, dtype=np.float32), np.arange(11.0) / 3
    there = device.array(x), device.array(y)
    scalars: dict[str, Any] = {
        "a": -7,
        "b": 0.5,
        "c": 1 / 3,
        "d": 2.5,
        "e": -(1 << 40),
        "g": 1 << 31,
    }
    z = mixed(x=there[0], y=there[1], flag=True, **scalars)
    expected = np.float64(x)[:, None] * (1 / 3) + y
    np.testing.assert_allclose(z.numpy(), expected, rtol=1e-15)
    z = mixed(x=there[0], y=there[1], flag=False, **scalars)
    assert (z.numpy() == -7 + 0.5 + 2.5 - (1 << 40) + (1 << 31)).all()
    there[0].set(np.full(5, 200, np.float32))
    z = mixed(x=there[0], y=there[1], flag=True, **scalars)
    with pytest.raises(tc.CheckError, match="too large") as caught:
        z.numpy()
    (finding,) = caught.value.findings
    assert finding.location.text.strip() == 'assert x[row] < 100.0, "too large"'


def make_matmul(m: int, n: int, k: int, left: Any = None) -> Any:
    left = left or f32[m, k]
    own = spatial(1, 2) * spatial(4, 8) * repeat(2, 4)
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def matmul(a: left, b: f32[k, n], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=8, stages=3, transport="tma"):
                sa = tc.load(a[row : row + bm, p : p + 8])
                sb = tc.load(b[p : p + 8, col : col + bn])
                for q in range(8):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + bm, col : col + bn], acc)

    return matmul


def test_bulk_copies_by_tensor_maps(emitted: FakeDriver) -> None:
    m, n, k = 20, 72, 40
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (m, k)).astype(np.float32)
    b = random.integers(-4, 5, (k, n)).astype(np.float32)
    matmul = make_matmul(m, n, k)
    for _ in range(2):  # checked by the driver, and straight to the launch
        c = matmul(device.array(a), device.array(b))
        np.testing.assert_array_equal(c.numpy(), a @ b)
    assert len(emitted.maps) >= 2
    assert all(one["aligned"] for one in emitted.maps)


def test_bulk_copies_of_what_is_reshaped(emitted: FakeDriver) -> None:
    """The map has the kernel's shape, not the caller's."""
    random = np.random.default_rng(1)
    a = random.integers(-4, 5, (2, 10, 40)).astype(np.float32)
    b = random.integers(-4, 5, (40, 72)).astype(np.float32)
    batch = tc.dim("batch")
    for left in (f32[2, 10, 40].reshape(20, 40), f32[batch, 10, 40].reshape(batch * 10, 40)):
        matmul = make_matmul(20 if left.shape[0] == 20 else batch * 10, 72, 40, left)
        for _ in range(2):
            c = matmul(device.array(a), device.array(b))
            np.testing.assert_array_equal(c.numpy(), a.reshape(20, 40) @ b)
    assert [one["extents"] for one in emitted.maps].count([40, 20]) >= 2


def test_programs_with_constants_and_parts_of_tensors(emitted: FakeDriver) -> None:
    """Constants are copied to the device once, and kept: later calls copy nothing there."""
    table = np.arange(24, dtype=np.float32).reshape(6, 4)

    @tc.program
    def program(x: f32[6, 4], y: tc.out[f32[6, 4]]):
        offsets = tc.constant(table)
        first = x[0:2]
        tc.compute((2, 4), lambda i, j: first[i, j] * 2 + offsets[i, j], name="pair", out=y[0:2])
        for t in tc.steps(4):
            row, more = x[t + 2], offsets[t + 2]
            tc.compute((4,), lambda j: row[j] + more[j], name="step", out=y[t + 2])

    x = np.random.default_rng(0).integers(-9, 9, (6, 4)).astype(np.float32)
    there = device.array(x)
    for _ in range(2):
        y = program(there).numpy()
        np.testing.assert_array_equal(y, np.concatenate([x[:2] * 2 + table[:2], x[2:] + table[2:]]))


def test_copies_of_pixels_by_tensor_maps(emitted: FakeDriver) -> None:
    """A filter that goes its own way through rows and columns, on more images than one."""
    fragment = spatial(4, 1) * repeat(1, 2) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    kernel = convolution(
        2, 7, 9, 64, 16,
        size=(2, 3), stride=(1, 2), padding=(0, 2, 1, 1), dilation=(2, 1),
        machine=tc.machine("sm_90a"), tiling=Tiling(fragment, 64, 2, specialize=True),
    )  # fmt: skip
    random = np.random.default_rng(0)
    x = random.integers(-3, 4, (2, 7, 9, 64)).astype(np.float16)
    w = random.integers(-3, 4, (16, 2, 3, 64)).astype(np.float16)
    y = kernel(device.array(x), device.array(w)).numpy()
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 1), (2, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    expected = np.einsum("nijcrs,frsc->nijf", windows[:, :, ::2, :, ::2], w.astype(np.float64))
    np.testing.assert_array_equal(y, expected)
    (one,) = (found for found in emitted.maps if "lower" in found)
    assert (one["lower"], one["upper"], one["steps"]) == ([-2, 0], [-2, -1], [1, 2, 1, 1])
    assert (one["extents"], one["box"]) == ([64, 9, 7, 2], [64, 64])


def test_numpy_arrays_with_a_layout(emitted: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "cuda")
    panels = repeat(1, 2) * repeat(6, 4)

    @tc.kernel(workers=8)
    def read(x: f32[6, 8].laid(panels), y: tc.out[f32[6, 8]]):
        for row, col in tc.tiles((6, 8), by=(1, 8)):
            for j in spatial(8):
                y[row, col + j] = x[row, col + j]

    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    np.testing.assert_array_equal(read(x), x)
    np.testing.assert_array_equal(read(tc.pack(x, f32[6, 8].laid(panels))), x)
