"""On a real device: what other tests show on a fake one and in the simulator. `pytest -m gpu` runs these."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import device, f32, repeat, spatial
from taskc.runtime import driver
from taskc.runtime.checking import comparison_across_targets
from tests.example_files import FILES, definitions_of, example
from tests.whole_grid import make_total

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[1]
EXAMPLES = [path.stem.partition("_")[2] for path in FILES]


@pytest.fixture(autouse=True, scope="module")
def gpu() -> Any:
    try:
        return device.context()
    except device.DeviceError as error:
        pytest.skip(str(error))


def on_device(definition: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies on the device, packed where the parameter has a layout."""
    copied = []
    for item, value in zip(definition.ir.parameters, arguments, strict=False):
        if getattr(item, "layout", None) is not None:
            packed = tc.pack(value, item.dtype[item.argument_shape].laid(item.layout))
            copied.append(device.array(packed))
        else:
            is_array = isinstance(value, np.ndarray) and value.ndim
            copied.append(device.array(value) if is_array else value)
    return tuple(copied)


def results(returned: Any, arguments: tuple[Any, ...]) -> list[np.ndarray]:
    """All that a call has written, and its inputs."""
    outputs = returned if isinstance(returned, tuple) else (returned,)
    everything = [value for value in (*outputs, *arguments) if value is not None]
    plain = [v.unpack() if isinstance(v, device.Packed) else v for v in everything]
    return [np.asarray(v.numpy() if isinstance(v, device.Array) else v) for v in plain]


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_gives_what_the_cpu_gives(file: str) -> None:
    for name, definition in definitions_of(example(file)).items():
        mine, theirs = definition.example(), definition.example()
        there = on_device(definition, mine)
        found = results(definition(*there), there)
        elsewhere = "cpu" if all(k.ir.stage == "parsed" for k in definition.kernels) else "sim"
        expected = results(driver.call(definition, theirs, {}, elsewhere), theirs)
        how = comparison_across_targets(definition)
        has_products = name == "tensor_cores"  # their sums are the instruction's own
        for a, b in zip(found, expected, strict=True):
            if how == "exact" and not has_products:
                assert a.tobytes() == b.tobytes(), name
            elif how != "none":
                close = {"rtol": 1e-3, "atol": 1e-3, "err_msg": name}
                np.testing.assert_allclose(a.astype(float), b.astype(float), **close)


@pytest.fixture(scope="module")
def work() -> Any:
    for folder in ("benchmarks", "examples"):
        sys.path.insert(0, str(ROOT / folder))
    import gpu_work

    yield gpu_work
    del sys.path[:2]


def checks() -> list[Any]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from gpu_cases import FAMILIES, name_of
        from gpu_variants import VARIANTS
    finally:
        del sys.path[0]
    return [
        pytest.param(family.name, size, id=f"{family.name} {name_of(size)}")
        for family in (*FAMILIES, *VARIANTS)
        for size in (*family.checks, *family.ladder)
    ]


@pytest.mark.parametrize(("family", "size"), checks())
def test_a_kernel_of_the_library_is_within_its_bound(work: Any, family: str, size: Any) -> None:
    wanted = work.FAMILY[family].target
    if wanted not in ("", device.context().target):
        pytest.skip(f"it is for {wanted}")
    found = work.check({"family": family, "size": size, "repeats": 20})
    assert "error" not in found, found["error"]


def make_add() -> Any:
    n = tc.dim("n")

    @tc.kernel(workers=128)
    def add(a: f32[n], b: f32[n], c: tc.out[f32[n]]):
        for start in tc.tiles(n, by=128):
            for i in spatial(128):
                if start + i < n:
                    c[start + i] = a[start + i] + b[start + i]

    return add


def test_streams_events_and_graphs() -> None:
    add, a = make_add(), np.arange(100_000, dtype=np.float32)
    x = device.array(a)
    with device.Stream() as stream:
        start = stream.record()
        y = add(add(x, x), x)
        end = stream.record()
        np.testing.assert_array_equal(y.numpy(), 3 * a)
    assert end.since(start) > 0
    graph = device.Graph(lambda: add(add(x, x), x))
    x.set(a + 1)
    graph.replay()
    np.testing.assert_array_equal(graph.result.numpy(), (a + 1) + (a + 1) + (a + 1))


def test_memory_is_shared_with_torch_both_ways() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(1000, device="cuda", dtype=torch.bfloat16)
    ours = device.from_dlpack(x)
    assert ours.pointer == x.data_ptr()
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == x.data_ptr()
    assert back.dtype == torch.bfloat16
    y = device.array(np.arange(5, dtype=np.float32))
    theirs = torch.as_tensor(y, device="cuda")  # by __cuda_array_interface__
    assert theirs.data_ptr() == y.pointer


def test_calls_with_tensors_go_into_torch_s_stream() -> None:
    torch = pytest.importorskip("torch")
    add = make_add()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(1 << 20, device="cuda")
        out = torch.empty_like(x)
        for _ in range(20):
            x = x * 1
            add(x, x, out=out)
            assert float(out.sum()) == 2 << 20


def test_memory_is_shared_with_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1000, dtype=cupy.float32)
    y = make_add()(x, x)
    assert cupy.from_dlpack(y).data.ptr == y.pointer
    np.testing.assert_array_equal(y.numpy(), 2 * np.arange(1000, dtype=np.float32))


def test_strided_inputs_are_copied() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(4000.0, device="cuda").reshape(40, 100).T[::2].reshape(-1)[::3]
    with pytest.warns(tc.CopyWarning):
        y = make_add()(x, x)
    np.testing.assert_array_equal(y.cpu().numpy(), 2 * x.cpu().numpy())


def test_a_failed_assertion_is_raised_with_its_line() -> None:
    @tc.kernel(workers=32)
    def checked(x: f32[32], y: tc.out[f32[32]]):
        for i in spatial(32):
            assert x[i] < 31, "too large"
            y[i] = x[i]

    x = device.array(np.arange(32, dtype=np.float32))
    y = checked(x)
    with pytest.raises(tc.CheckError, match="too large"):
        y.numpy()
    x.set(np.zeros(32, np.float32))
    assert checked(x).numpy().tolist() == [0.0] * 32


def test_numpy_arrays_are_copied_in_and_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "cuda")
    a = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(make_add()(a, a), 2 * a)


def test_blocks_wait_for_each_other_in_every_launch() -> None:
    """The counter is left as the next launch wants it: in a stream, beside another one, and in a graph."""
    x = np.random.default_rng(0).integers(-99, 99, (64, 128))
    there, total = device.array(x), make_total(64, 128)
    streams, sums = [device.Stream() for _ in range(2)], []
    scratch = [device.array(np.zeros(64, np.int64)) for _ in streams]
    for _ in range(50):
        for stream, parts in zip(streams, scratch, strict=True):
            with stream:
                sums.append(total(there, parts))
    assert {int(y.numpy()[0]) for y in sums} == {int(x.sum())}
    graph = device.Graph(lambda: [total(there, parts) for parts in scratch])
    for factor in (1, 2, 3):
        there.set(factor * x)
        graph.replay()
        assert [int(y.numpy()[0]) for y in graph.result] == [factor * int(x.sum())] * 2


def test_more_blocks_than_fit_are_refused() -> None:
    blocks = 40 * device.context().processors
    x, parts = np.zeros((blocks, 128), np.int64), np.zeros(blocks, np.int64)
    with pytest.raises(device.DeviceError, match="wait for each other"):
        make_total(blocks, 128)(device.array(x), device.array(parts))


def test_a_packed_operand() -> None:
    panels = f32[64, 32].laid(repeat(1, 2) * repeat(64, 16))

    @tc.kernel(workers=32)
    def row_times(x: f32[64], weights: panels, y: tc.out[f32[32]]):  # type: ignore[valid-type]
        for j in spatial(32):
            total = f32(0)
            for q in range(64):
                total += x[q] * weights[q, j]
            y[j] = total

    values = np.arange(64 * 32, dtype=np.float32).reshape(64, 32) % 13
    weights, x = device.array(tc.pack(values, panels)), np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(weights.unpack(), values)
    for _ in range(3):
        np.testing.assert_array_equal(row_times(device.array(x), weights).numpy(), x @ values)
