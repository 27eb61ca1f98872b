"""Packed operands on a device: copied there once, and passed where their parameter's layout is theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32, repeat, spatial
from taskc.backend.cuda import calls as directly
from tests.backend.cuda.conftest import Start
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.host import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

PANELS = f32[6, 8].laid(repeat(1, 2) * repeat(6, 4))
OTHERS = f32[6, 8].laid(repeat(6, 1) * repeat(1, 8))
X = np.arange(24, dtype=np.float32).reshape(4, 6)
WEIGHTS = np.arange(48, dtype=np.float32).reshape(6, 8) % 11


def make_times() -> Any:
    n = tc.dim("n")

    @tc.kernel(workers=8)
    def times(x: f32[n, 6], weights: PANELS, y: tc.out[f32[n, 8]]):  # type: ignore[valid-type]
        for row, col in tc.tiles((n, 8), by=(1, 8)):
            for j in spatial(8):
                total = f32(0)
                for q in range(6):
                    total += x[row, q] * weights[q, col + j]
                y[row, col + j] = total

    return times


def test_it_is_copied_once_and_passed_often(emitted: FakeDriver) -> None:
    times, x = make_times(), device.array(X)
    weights = device.array(tc.pack(WEIGHTS, PANELS))
    assert isinstance(weights, device.Packed)
    assert repr(weights) == f"<{PANELS} on CUDA device 0>"
    emitted.calls.clear()
    for _ in range(3):
        np.testing.assert_array_equal(times(x, weights).numpy(), X @ WEIGHTS)
    assert "cuMemcpyHtoDAsync" not in [name for name, _ in emitted.calls]
    assert {one["words"][1] for one in emitted.launches} == {weights.pointer}


def test_later_calls_go_straight_to_the_launch(
    emitted: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, x = make_times(), device.array(X)
    one, other = (device.array(tc.pack(k * WEIGHTS, PANELS)) for k in (1, 2))
    times(x, one)
    times(x, one)
    monkeypatch.setattr(type(times), "call", None)  # what looks at the arguments
    np.testing.assert_array_equal(times(x, other).numpy(), 2 * X @ WEIGHTS)
    assert directly._READERS[device.Packed] is directly._READERS[device.Array]


def test_its_elements_come_back_in_their_order(emitted: FakeDriver) -> None:
    weights = device.array(tc.pack(WEIGHTS, PANELS))
    np.testing.assert_array_equal(weights.unpack(), WEIGHTS)
    np.testing.assert_array_equal(weights.numpy()[:8], WEIGHTS[:2, :4].reshape(-1))
    for copy in (weights.copy(), device.array(weights)):
        assert isinstance(copy, device.Packed)
        assert copy.pointer != weights.pointer
        np.testing.assert_array_equal(copy.unpack(), WEIGHTS)


def test_it_is_set_to_what_is_packed_alike(emitted: FakeDriver) -> None:
    weights = device.array(tc.pack(WEIGHTS, PANELS))
    weights.set(tc.pack(WEIGHTS + 1, PANELS))
    np.testing.assert_array_equal(weights.unpack(), WEIGHTS + 1)
    weights.set(device.array(tc.pack(WEIGHTS + 2, PANELS)))
    np.testing.assert_array_equal(weights.unpack(), WEIGHTS + 2)
    memory = np.zeros(48, np.float32)
    for values in (memory, device.array(memory), tc.pack(WEIGHTS, OTHERS)):
        with pytest.raises(ValueError, match="can only be set to another one"):
            weights.set(values)


def test_programs_pass_it_on(emitted: FakeDriver) -> None:
    times = make_times()
    n = tc.dim("n")

    @tc.program
    def both(x: f32[n, 6], weights: PANELS, y: tc.out[f32[n, 8]]):  # type: ignore[valid-type]
        times(x, weights, out=y)

    packed = tc.pack(WEIGHTS, PANELS)
    np.testing.assert_array_equal(both(X, packed), X @ WEIGHTS)
    found = both(device.array(X), device.array(packed))
    np.testing.assert_array_equal(found.numpy(), X @ WEIGHTS)


def refused(called: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(tc.ArgumentError) as caught:
        called(*arguments, **keywords)
    return str(caught.value).replace(f"{called.name}(): ", "")


def test_what_does_not_fit_is_refused(emitted: FakeDriver) -> None:
    times, x = make_times(), device.array(X)
    packed = tc.pack(WEIGHTS, PANELS)
    assert refused(times, x, packed) == (
        "argument 'weights' lies in the CPU's memory, and other arguments on CUDA device 0;"
        " taskc.device.array() makes a copy there"
    )
    assert refused(times, x, device.array(WEIGHTS)) == (
        "argument 'weights' has a layout, and no array is put into it on a device;"
        " taskc.device.array(taskc.pack(...)) makes a copy there of one that is"
    )
    assert refused(times, x, device.array(tc.pack(WEIGHTS, OTHERS))) == (
        f"argument 'weights' must be f32[6, 8], laid out as {PANELS.layout},"
        f" not an array packed as {OTHERS}"
    )
    larger = f32[12, 8].laid(PANELS.layout)
    assert refused(times, x, device.array(tc.pack(np.tile(WEIGHTS, (2, 1)), larger))) == (
        "argument 'weights' must be f32[6, 8], not f32[12, 8]"
    )
    for _ in range(2):  # a call that is known would go straight to the launch
        times(x, device.array(packed))
        plain = f32[4, 6].laid(repeat(4, 6))
        assert refused(times, device.array(tc.pack(X, plain)), device.array(packed)) == (
            f"argument 'x' must be f32[n, 6], not an array packed as {plain}"
        )
    assert refused(times, X, device.array(packed)) == (
        "argument 'x' lies in the CPU's memory, and other arguments on CUDA device 0;"
        " taskc.device.array() makes a copy there"
    )


def test_other_devices_are_refused(start: Start) -> None:
    start(devices=2)
    x, weights = device.array(X), device.array(tc.pack(WEIGHTS, PANELS), device=1)
    assert refused(make_times(), x, weights) == (
        "argument 'weights' lies on CUDA device 1, and other arguments on CUDA device 0"
    )


def test_what_is_written_is_packed_on_a_device(
    emitted: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tc.kernel(workers=8)
    def put(x: f32[6, 8], y: tc.out[PANELS]):  # type: ignore[valid-type]
        for row, col in tc.tiles((6, 8), by=(1, 8)):
            for j in spatial(8):
                y[row, col + j] = x[row, col + j]

    there = device.array(WEIGHTS)
    assert refused(put, there) == (
        "output 'y' has a layout, out of which no array is taken on a device;"
        " pass a packed one as out="
    )
    y = device.array(tc.empty(PANELS))
    for k in (1, 2):
        assert put(device.array(k * WEIGHTS), out=y) is y
        np.testing.assert_array_equal(y.unpack(), k * WEIGHTS)
    assert refused(put, there, out=device.array(tc.empty(OTHERS))) == (
        f"output 'y' must be f32[6, 8], laid out as {PANELS.layout},"
        f" not an array packed as {OTHERS}"
    )
    monkeypatch.setenv("TASKC_TARGET", "cuda")
    np.testing.assert_array_equal(put(WEIGHTS), WEIGHTS)
    host = tc.empty(PANELS)
    assert put(WEIGHTS, out=host) is host
    np.testing.assert_array_equal(host.unpack(), WEIGHTS)


def test_a_temporary_has_room_for_its_layout(
    emitted: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is more of it than the temporary has elements."""
    n, m, laid = tc.dim("n"), tc.dim("m"), repeat(4, 8)

    @tc.kernel(workers=4)
    def put(x: f32[n, 6], y: tc.out[f32[n, 6].laid(laid)]):  # type: ignore[valid-type]
        for row in tc.tiles(n, by=1):
            for j in spatial(4).repeat(2):
                if j < 6:
                    y[row, j] = x[row, j]

    @tc.kernel(workers=4)
    def take(x: f32[n, 6].laid(laid), y: tc.out[f32[n, 6]]):  # type: ignore[valid-type]
        for row in tc.tiles(n, by=1):
            for j in spatial(4).repeat(2):
                if j < 6:
                    y[row, j] = x[row, j] + 1

    @tc.program
    def there_and_back(x: f32[m, 6], y: tc.out[f32[m, 6]]):
        kept = tc.empty(f32[m, 6].laid(laid))
        put(x, out=kept)
        take(kept, out=y)

    for rows in (5, 8, 1):
        x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
        np.testing.assert_array_equal(there_and_back(x), x + 1)
        given = device.array(x)
        emitted.calls.clear()
        np.testing.assert_array_equal(there_and_back(given).numpy(), x + 1)
        taken = [arguments[0] for name, arguments in emitted.calls if name.startswith("cuMemAlloc")]
        assert 4 * -(-rows // 4) * 32 in taken  # whole layouts, one after another
        with monkeypatch.context() as patch:
            patch.setenv("TASKC_TARGET", "cuda")  # copied there, between memory of the CPU's
            np.testing.assert_array_equal(there_and_back(x), x + 1)
