"""Calling kernels: what fits, what is compiled once, and the simulator as a target."""

import threading
import time
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.arrays.arguments import Bound
from taskc.ir import nodes as ir
from taskc.runtime import driver, targets
from taskc.runtime.targets import Backend, register_target

n = tc.dim("n", multiple=4)


@tc.kernel(workers=32)
def add(a: tc.f32[n], b: tc.f32[n], c: tc.out[tc.f32[n]]):
    for start in tc.tiles(n, by=128):
        for i in tc.spatial(32) * tc.repeat(4):
            if start + i < n:
                c[start + i] = a[start + i] + b[start + i]


@tc.kernel(workers=16)
def split(x: tc.inout[tc.f32[16]], scale: tc.i8, low: tc.out[tc.f32[16]], high: tc.out[tc.f32[16]]):
    for i in tc.spatial(16):
        low[i] = x[i] - scale.to(tc.f32)
        high[i] = x[i] + scale.to(tc.f32)
        x[i] = 0.0


@tc.kernel(workers=4)
def scalars(i: tc.u8, f: tc.f16, flag: tc.boolean, y: tc.out[tc.f32[4]]):
    for t in tc.spatial(4):
        y[t] = tc.where(flag, i.to(tc.f32) + f.to(tc.f32), 0.0)


def arrays(*sizes: int) -> list[Any]:
    random = np.random.default_rng(1)
    return [random.standard_normal(size).astype(np.float32) for size in sizes]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """So that compiled code looks at arguments first, where it can."""
    add(*arrays(4, 4))
    split(*arrays(16), 1)
    assert add.direct is not None
    assert split.direct is not None


def refused(*args: Any, of: Any = add, **keywords: Any) -> str:
    """What a call that doesn't fit is told, by the first call as by later ones."""
    told = []
    for call in (of.call, of):
        with pytest.raises(tc.ArgumentError) as caught:
            call(*args, **keywords)
        told.append(str(caught.value))
    assert told[0] == told[1]
    return told[0]


# --- what fits -------------------------------------------------------------------------------


def test_a_new_output_is_returned() -> None:
    a, b = arrays(36, 36)
    c = add(a, b)
    assert c.dtype == np.float32
    np.testing.assert_array_equal(c, a + b)


@pytest.mark.parametrize(
    "give", [lambda c: {"out": c}, lambda c: {"out": (c,)}, lambda c: {"c": c}]
)
def test_a_given_output_is_written_in_place_and_returned(give: Any) -> None:
    a, b = arrays(8, 8)
    c = np.zeros(8, np.float32)
    assert add(a, b=b, **give(c)) is c
    np.testing.assert_array_equal(c, a + b)


def test_arguments_by_name_come_in_any_order() -> None:
    a, b = arrays(8, 8)
    np.testing.assert_array_equal(add(b=b, a=a), a + b)


def test_several_outputs_are_a_tuple_and_an_inout_is_modified() -> None:
    (x,) = arrays(16)
    before = x.copy()
    high = np.empty(16, np.float32)
    result = split(x, -3, high=high)
    assert isinstance(result, tuple)
    assert result[1] is high
    np.testing.assert_array_equal(result[0], before + 3)
    np.testing.assert_array_equal(high, before - 3)
    assert not x.any()
    both = (np.empty(16, np.float32), np.empty(16, np.float32))
    given = split(x, 1, out=both)
    assert given[0] is both[0]
    assert given[1] is both[1]


def test_a_kernel_without_outputs_returns_nothing() -> None:
    @tc.kernel(workers=8)
    def clear(x: tc.inout[tc.i32[8]]):
        for i in tc.spatial(8):
            x[i] = 0

    x = np.arange(8, dtype=np.int32)
    assert clear(x) is None
    assert not x.any()


def test_a_parameter_that_is_called_out() -> None:
    @tc.kernel(workers=8)
    def twice(x: tc.f32[8], out: tc.out[tc.f32[8]], rest: tc.out[tc.f32[8]]):
        for i in tc.spatial(8):
            out[i] = x[i] + x[i]
            rest[i] = x[i]

    (x,) = arrays(8)
    given = np.empty(8, np.float32)
    assert twice(x, out=given)[0] is given
    both = (np.empty(8, np.float32), np.empty(8, np.float32))
    assert twice(x, out=both)[1] is both[1]


def test_arrays_without_elements() -> None:
    empty = np.empty(0, np.float32)
    assert add(empty, empty).shape == (0,)


@pytest.mark.parametrize("dtype", [tc.bf16, tc.f8e4m3, tc.f8e5m2])
def test_narrow_floats(dtype: Any) -> None:
    @tc.kernel(workers=4)
    def copy(x: dtype[4], y: tc.out[dtype[4]]):
        for i in tc.spatial(4):
            y[i] = x[i]

    x = np.array([0.5, -1, 2, 3], dtype.numpy)
    y = copy(x)
    assert y.dtype == dtype.numpy
    assert y.tobytes() == x.tobytes()


def test_scalars_of_python_and_numpy() -> None:
    assert scalars(255, 0.5, True).tolist() == [255.5] * 4
    assert scalars(np.int64(7), np.float32(1), np.bool_(True)).tolist() == [8.0] * 4
    assert scalars(np.array(7), 1, False).tolist() == [0.0] * 4
    assert np.isinf(scalars(0, float("inf"), True)).all()


def test_the_array_of_a_parameter_with_a_layout_is_the_logical_one() -> None:
    columns = tc.repeat(4, 3, order=(1, 0))

    @tc.kernel(workers=4)
    def copy(x: tc.f32[4, 3].laid(columns), y: tc.out[tc.f32[4, 3].laid(columns)]):
        for i in tc.spatial(4):
            for j in range(3):
                y[i, j] = x[i, j]

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(copy(x), x)


A, B = arrays(8, 8)


# --- compiling -------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[Hashable]:
    """A target that says what it was asked to compile; it fills outputs with ones."""
    compiled: list[Hashable] = []
    started = threading.Event()

    def compile(kernel: ir.Kernel, facts: Hashable) -> targets.Runner:
        started.wait(0.05)  # time for other threads to ask, too
        compiled.append(facts)

        def run(bound: Bound) -> None:
            bound.values[-1][...] = 1

        return targets.Runner(run)

    def facts(bound: Bound) -> Hashable:
        return all(size % 16 == 0 for size in bound.dimensions.values())

    monkeypatch.setattr(targets, "_targets", dict(targets._targets))
    monkeypatch.setattr(targets, "_backends", {})
    register_target("counting", lambda: Backend(compile, facts))
    monkeypatch.setenv("TASKC_TARGET", "counting")
    return compiled


def fresh() -> Any:
    @tc.kernel(workers=32)
    def ones(a: tc.f32[n], c: tc.out[tc.f32[n]]):
        for start in tc.tiles(n, by=32):
            for i in tc.spatial(32):
                if start + i < n:
                    c[start + i] = a[start + i]

    return ones


def test_one_compilation_for_each_set_of_facts(counting: list[Hashable]) -> None:
    kernel = fresh()
    for size in (16, 32, 20, 24, 48):
        assert kernel(np.zeros(size, np.float32)).all()
    assert counting == [True, False]
    fresh()(np.zeros(16, np.float32))
    assert counting == [True, False, True]


def test_direct_calls_of_concurrent_first_calls_are_all_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each size has a runner of its own, and each runner a direct call that takes this size and hands on others."""
    taken = []

    def compile(kernel: ir.Kernel, size: Hashable) -> targets.Runner:
        def direct(otherwise: Any) -> Any:
            time.sleep(0.01)  # another thread may install its own meanwhile

            def call(*args: Any, **keywords: Any) -> Any:
                if args[0].size != size:
                    return otherwise(*args, **keywords)
                taken.append(size)
                return args[0]

            return call

        return targets.Runner(lambda bound: None, direct)

    monkeypatch.setattr(targets, "_targets", dict(targets._targets))
    monkeypatch.setattr(targets, "_backends", {})
    register_target("direct", lambda: Backend(compile, lambda bound: bound.values[0].size))
    monkeypatch.setenv("TASKC_TARGET", "direct")
    kernel, sizes = fresh(), [4 * (1 + number) for number in range(8)]
    with ThreadPoolExecutor(len(sizes)) as executor:
        [*executor.map(lambda size: kernel(np.zeros(size, np.float32)), sizes)]
    assert not taken
    for size in sizes:
        kernel(np.zeros(size, np.float32))
    assert taken == sizes


def test_concurrent_first_calls_compile_once(counting: list[Hashable]) -> None:
    kernel = fresh()
    ready = threading.Barrier(8)
    results = []

    def call() -> None:
        ready.wait()
        results.append(kernel(np.zeros(16, np.float32)).all())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting == [True]
    assert results == [True] * 8


def test_compile_returns_what_a_call_runs(counting: list[Hashable]) -> None:
    kernel = fresh()
    runner = driver.compile(kernel, "counting", facts=True)
    assert driver.compile(kernel, "counting", facts=True) is runner
    kernel(np.zeros(16, np.float32))
    assert counting == [True]


def test_a_failed_compilation_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def compile(kernel: ir.Kernel, facts: Hashable) -> targets.Runner:
        tries.append(facts)
        raise tc.CompileError("no")

    monkeypatch.setattr(targets, "_targets", {"bad": lambda: Backend(compile)})
    monkeypatch.setattr(targets, "_backends", {})
    monkeypatch.setenv("TASKC_TARGET", "bad")
    for _ in range(2):
        with pytest.raises(tc.CompileError, match="no"):
            fresh()(A)
    assert len(tries) == 2


def test_an_unknown_target_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "abacus")
    with pytest.raises(tc.CompileError) as caught:
        fresh()(A)
    assert (
        str(caught.value) == "error: there is no target 'abacus'\n  hint: there is sim, cpu, cuda"
    )


def test_definitions_are_not_kept_alive() -> None:
    import gc
    import weakref

    kernel = fresh()
    kernel(np.zeros(16, np.float32))
    reference = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert reference() is None


# --- the simulator as a target ---------------------------------------------------------------


def test_what_cannot_be_proved_is_rejected_before_it_runs() -> None:
    @tc.kernel(workers=8)
    def shift(x: tc.inout[tc.f32[9]]):
        for i in tc.spatial(8):
            x[i] = x[i + 1]

    x = np.arange(9, dtype=np.float32)
    with pytest.raises(tc.CompileError, match="race") as caught:
        shift(x)
    assert caught.value.location.file == __file__
    assert x.tolist() == list(range(9))


def test_what_shows_only_in_a_run_is_a_check_error() -> None:
    with pytest.raises(tc.CheckError, match="race") as caught:
        reverse(False)(np.zeros(64, np.float32))
    (finding,) = caught.value.findings
    assert finding.kind == "race"
    assert finding.location.text.strip() == "y[w] = s[63 - w]"
    assert str(caught.value) == str(finding)
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(reverse(True)(x), x[::-1])


def reverse(is_synchronized: bool) -> Any:
    @tc.cuda.kernel(workers=64)
    def kernel(x: tc.f32[64], y: tc.out[tc.f32[64]]):
        w = tc.worker()
        s = tc.shared(tc.f32[64])
        s[w] = x[w]
        if tc.static(is_synchronized):
            tc.sync()
        y[w] = s[63 - w]

    return kernel


def test_what_a_kernel_prints_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    @tc.kernel(workers=2)
    def greet(x: tc.i32[2], y: tc.out[tc.i32[2]]):
        for i in tc.spatial(2):
            tc.print("x is {}", x[i])
            y[i] = x[i]

    greet(np.array([4, 5], np.int32))
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line[line.index("x is") :] for line in lines) == ["x is 4", "x is 5"]


def test_what_only_cuda_has_is_refused_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "cpu")

    @tc.cuda.kernel(workers=32)
    def together(y: tc.out[tc.f32[2, 32]]):
        for row in tc.tiles(2, by=1):
            tc.cuda.grid_sync()
            y[row, tc.worker()] = 1.0

    with pytest.raises(tc.CompileError, match="which the CPU doesn't have"):
        together()
