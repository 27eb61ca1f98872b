"""Kernels whose blocks wait for each other: what is emitted, what it does, and how it is launched."""

from __future__ import annotations

import re
from threading import Thread
from typing import Any

import numpy as np
import pytest
from cuda.bindings.driver import CUdevice_attribute

import taskc as tc
from taskc import device, i64
from taskc.backend.cuda.compile import compile_source, disassembler, sass_of
from taskc.backend.cuda.compiled import CompiledCubin
from taskc.backend.cuda.emit import emit
from taskc.passes.pipeline import lower
from tests.backend.cuda import host
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.host import COMPILER
from tests.whole_grid import make_total

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
X = np.random.default_rng(0).integers(-99, 99, (5, 48))


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


# --- code ------------------------------------------------------------------------------------


def test_who_has_come_is_counted_in_a_word_that_the_launch_passes() -> None:
    source = emit(lower(make_total(5, 48).ir))
    assert [argument.kind for argument in source.arguments] == [*["tensor"] * 3, "arrivals"]
    assert [line.text for line in source.lines if "arrivals" in line.text] == [
        "    u32* arrivals) {",
        "tc::barrier_grid(arrivals);",
    ]


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_machine_code(target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    if disassembler() is None:
        pytest.skip("there is no nvdisasm")
    made = compile_source(emit(lower(make_total(5, 48, target=target).ir)))
    assert made.is_cooperative
    assert CompiledCubin.from_bytes(made.to_bytes()) == made
    words = re.findall(r"BAR\.SYNC|MEMBAR|ATOM|LD\S*STRONG\.GPU|CCTL\.IVALL", sass_of(made.cubin))
    around = "BAR.SYNC MEMBAR ATOM CCTL.IVALL LD.E.STRONG.GPU CCTL.IVALL BAR.SYNC"
    assert around in " ".join(words)  # what others have stored is fetched anew


@needs_compiler
def test_on_the_host_again_and_again() -> None:
    """A launch finds the counter as the one before has left it: in turn with its highest bit and without."""
    (runnable,) = host.build([lower(make_total(5, 48).ir)])
    for number in range(6):
        parts, y = zeros(5), zeros(1)
        assert runnable.run([X, parts, y], number) == 0
        assert y == X.sum()
        assert runnable.arrivals[0] == (0 if number % 2 else 1 << 31)


@needs_compiler
def test_a_loop_of_barriers_on_the_host() -> None:
    @tc.cuda.kernel(workers=32)
    def waves(x: tc.inout[i64[4, 32]], y: tc.inout[i64[4, 32]]):
        for row in tc.tiles(4, by=1):
            w = tc.worker()
            for _ in range(3):
                y[row, w] = x[(row + 1) % 4, w] + 1
                tc.cuda.grid_sync()
                x[row, w] = y[(row + 1) % 4, w] + 1
                tc.cuda.grid_sync()

    (runnable,) = host.build([lower(waves.ir)])
    for number in range(4):
        x = np.arange(128).reshape(4, 32)
        expected = np.roll(x, -6, axis=0) + 6
        assert runnable.run([x, zeros(4, 32)], number) == 0
        np.testing.assert_array_equal(x, expected)


@needs_compiler
def test_a_worker_whose_assertion_fails_goes_on() -> None:
    """Else the others would wait for it for ever."""

    @tc.cuda.kernel(workers=32)
    def checked(x: i64[3], y: tc.out[i64[3, 32]]):
        for row in tc.tiles(3, by=1):
            assert x[row] > 0, "positive"
            tc.cuda.grid_sync()
            y[row, tc.worker()] = x[row]

    (runnable,) = host.build([lower(checked.ir)])
    y = zeros(3, 32)
    assert runnable.run([np.array([1, 0, 2]), y]) == 1
    assert y[:, 0].tolist() == [1, 0, 2]


# --- launches --------------------------------------------------------------------------------


@needs_compiler
def test_the_launch_is_cooperative(emitted: FakeDriver) -> None:
    total, add = make_total(5, 48), make_double()
    parts = device.empty(5, i64)
    assert total(device.array(X), parts).numpy() == X.sum()
    assert add(parts).numpy().tolist() == (2 * X.sum(axis=1)).tolist()
    assert [one["cooperative"] for one in emitted.launches] == [[1], []]


def make_double() -> Any:
    @tc.kernel(workers=5)
    def double(x: i64[5], y: tc.out[i64[5]]):
        for i in tc.spatial(5):
            y[i] = 2 * x[i]

    return double


def words(fake: FakeDriver) -> list[int]:
    """The counters of the launches, and how often one was zeroed."""
    zeroed = [name for name, _ in fake.calls].count("cuMemsetD32Async")
    return [*(launch["words"][-1] for launch in fake.launches), zeroed]


@needs_compiler
def test_a_stream_has_one_counter(emitted: FakeDriver) -> None:
    total, x, parts = make_total(5, 48), device.array(X), device.empty(5, i64)
    for _ in range(3):
        total(x, parts)
    one, two, three, zeroed = words(emitted)
    assert one == two == three
    assert zeroed == 1


@needs_compiler
def test_streams_and_threads_have_their_own(emitted: FakeDriver) -> None:
    total, x, parts = make_total(5, 48), device.array(X), device.empty(5, i64)
    with device.Stream() as stream:
        total(x, parts)
    device.current_stream().wait(stream)
    total(x, parts)
    thread = Thread(target=total, args=(x, parts))
    thread.start()
    thread.join()
    assert len({*words(emitted)[:-1]}) == 3


@needs_compiler
def test_a_counter_goes_with_its_stream(emitted: FakeDriver) -> None:
    total, x, parts = make_total(5, 48), device.array(X), device.empty(5, i64)
    stream = device.Stream()
    with stream:
        total(x, parts)
    (word, _) = words(emitted)
    assert word in emitted.memory
    del stream, x, parts  # which know in which streams they are used
    assert word not in emitted.memory


@needs_compiler
def test_launches_of_a_graph_have_their_own(emitted: FakeDriver) -> None:
    total, x = make_total(5, 48), device.array(X)
    parts, others = device.empty(5, i64), device.empty(5, i64)
    graph = device.Graph(lambda: (total(x, parts), total(x, others)))
    first, second, third, fourth, zeroed = words(emitted)
    assert first == second  # before it was captured
    assert len({first, third, fourth}) == 3
    assert zeroed == 3
    for factor in (1, 2, 3):
        x.set(factor * X)
        graph.replay()
        assert [y.numpy().item() for y in graph.result] == [factor * X.sum()] * 2
    assert {third, fourth} <= {*emitted.memory}
    del graph
    assert not {third, fourth} & {*emitted.memory}


def make_ticket(cluster: int = 1) -> Any:
    n = tc.dim("n", multiple=cluster)

    @tc.cuda.kernel(workers=32)
    def ticket(x: tc.inout[i64[n]]):
        for row in tc.tiles(n, by=1, cluster=cluster):
            tc.cuda.grid_sync()
            if tc.worker() == 0:
                x[row] = row

    return ticket


@needs_compiler
@pytest.mark.parametrize(
    ("cluster", "where"), [(1, "2 on each of 2 processors"), (2, "2 clusters of 2")]
)
def test_more_blocks_than_run_at_one_time(emitted: FakeDriver, cluster: int, where: str) -> None:
    emitted.attributes[CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 2
    n = tc.dim("n", multiple=cluster)

    @tc.cuda.kernel(workers=32)
    def ticket(x: tc.inout[i64[n]]):
        for row in tc.tiles(n, by=1, cluster=cluster):
            tc.cuda.grid_sync()
            if tc.worker() == 0:
                x[row] = row

    fits, too_many = device.array(zeros(4)), device.array(zeros(6))
    ticket(fits)
    assert fits.numpy().tolist() == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(device.DeviceError) as caught:
            ticket(too_many)
        assert str(caught.value) == (
            "the blocks of ticket() wait for each other, and of its 6 Fake GPU runs only 4 at one time,"
            f" {where}"
        )
    assert [one["grid"] for one in emitted.launches] == [(4, 1, 1)]


@needs_compiler
def test_blocks_that_a_scalar_counts(emitted: FakeDriver) -> None:
    emitted.resident = 0

    @tc.cuda.kernel(workers=32)
    def ticket(n: i64, x: tc.inout[i64[8]]):
        for row in tc.tiles(n, by=1):
            tc.cuda.grid_sync()
            if tc.worker() == 0:
                x[row % 8] = row

    x = device.array(zeros(8))
    ticket(0, x)
    with pytest.raises(device.DeviceError, match=r"of its 3 Fake GPU runs only 0"):
        ticket(3, x)
