"""Calling kernels: what fits, what a misfit is told, what is compiled once, what a check finds."""

import threading
import warnings
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import checking, driver
from taskc.arguments import Bound
from taskc.driver import Backend, register_target
from taskc.ir import nodes as ir
from taskc.passes.pipeline import Step

n = tc.dim("n", multiple=4)
m = tc.dim("m")


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
def matrix(a: tc.f32[4, 3], b: tc.f32[4, m], c: tc.out[tc.f32[4, 3]]):
    for i in tc.spatial(4):
        for j in range(3):
            c[i, j] = a[i, j]


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


# --- DLPack ----------------------------------------------------------------------------------


class Foreign:
    """Memory of another library. The older form of the protocol knows no versions."""

    def __init__(self, array: Any, *, device: int = 1, is_old: bool = True) -> None:
        self.array = array
        self.device = device
        self.is_old = is_old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.is_old and options:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize(("bit", "what"), [("neg", "negated"), ("conj", "conjugated")])
def test_a_view_whose_values_are_not_in_its_memory(bit: str, what: str) -> None:
    """PyTorch's tensors say so by methods, and their DLPack doesn't."""
    a, b = arrays(8, 8)

    class Tensor(Foreign):
        def is_neg(self) -> bool:
            return bit == "neg"

        def is_conj(self) -> bool:
            return bit == "conj"

    problem = f"it is a lazily {what} view; .resolve_{bit}.. makes an array of it"
    with pytest.raises(tc.ArgumentError, match=rf"'a' can't be read through DLPack: {problem}"):
        add(Tensor(a), b)
    with pytest.raises(tc.ArgumentError, match=problem):
        add(a, b, out=Tensor(np.zeros(8, np.float32)))


@pytest.mark.parametrize("is_old", [True, False])
def test_foreign_arrays_are_read_and_written_in_place(is_old: bool) -> None:
    a, b = arrays(8, 8)
    c = np.zeros(8, np.float32)
    output = Foreign(c, is_old=is_old)
    assert add(Foreign(a, is_old=is_old), b, out=output) is output
    np.testing.assert_array_equal(c, a + b)


def test_a_foreign_array_may_be_strided_and_outlives_its_owner() -> None:
    from taskc.dlpack import as_array

    whole = np.arange(48, dtype=np.float32).reshape(6, 8)
    view = as_array(Foreign(whole.copy()[::-2, 1::3]))
    np.testing.assert_array_equal(view, whole[::-2, 1::3])
    assert as_array(Foreign(np.empty((0, 3), np.int8))).shape == (0, 3)
    assert as_array(Foreign(np.array(5.0))).item() == 5.0


def test_a_read_only_foreign_array_is_no_output() -> None:
    a, b = arrays(8, 8)
    c = np.zeros(8, np.float32)
    c.flags.writeable = False
    text = refused(a, b, out=Foreign(c, is_old=False))
    assert text == "add(): output 'c' is written in place, and this array is read-only"


@pytest.mark.parametrize("is_cupy", [True, False])
def test_memory_of_a_gpu_is_refused_by_other_targets(is_cupy: bool) -> None:
    a, b = arrays(8, 8)
    on_gpu = Foreign(b, device=2)
    if is_cupy:
        on_gpu.__cuda_array_interface__ = {}  # type: ignore[attr-defined]
    for target in ("cpu", "sim"):
        with pytest.raises(tc.ArgumentError) as caught:
            driver.call(add, (a, on_gpu), {}, target)
        assert str(caught.value) == (
            "add(): argument 'b' lies in a GPU's memory, and the call is to run elsewhere;"
            " pass it as a CPU array"
        )


def test_what_another_library_refuses_to_export_is_said() -> None:
    class Stubborn(Foreign):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it requires a gradient")

    a, b = arrays(8, 8)
    expected = "add(): argument 'b' can't be read through DLPack: it requires a gradient"
    assert refused(a, Stubborn(b)) == expected


# --- what doesn't fit ------------------------------------------------------------------------


A, B = arrays(8, 8)
OUT = np.empty(8, np.float32)
ARRAY = "'b' must be f32[n], as a NumPy or DLPack array"
READ_ONLY = OUT.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((A, B.astype(float)), "'b' must be f32[n], not f64[8]"),
        ((A, B.astype(complex)), "'b' must be f32[n], not complex128[8]"),
        ((A, B.astype(">f4")), "'b' must be f32[n], not f32[8] in the other byte order"),
        ((A, B[None]), "'b' must be f32[n], not f32[1, 8]"),
        ((A, B[:4]), "'b' must be f32[n] with n = 8 (from 'a'), not f32[4]"),
        ((A[:6], B[:6]), "'a' must be f32[n] with n a multiple of 4, not f32[6]"),
        ((A, [1, 2]), f"{ARRAY}, not a list"),
        ((A, 2.5), f"{ARRAY}, not the number 2.5"),
        ((A, None), f"{ARRAY}, not None"),
        ((A, np.ma.masked_array(B)), f"{ARRAY}, not a masked array of shape (8,)"),
    ],
)
def test_a_misfit_names_the_parameter_what_it_wants_and_what_it_got(
    args: Any, expected: str
) -> None:
    assert refused(*args) == f"add(): argument {expected}"


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        (np.empty(4, np.float32), "must be f32[n] with n = 8 (from 'a'), not f32[4]"),
        (np.empty(8), "must be f32[n], not f64[8]"),
        (READ_ONLY, "is written in place, and this array is read-only"),
        (
            np.empty(16, np.float32)[::2],
            "is written in place, so it must be contiguous and row-major; this array has the"
            " shape (8,) and strides of (8,) bytes",
        ),
        (A, "is written, and it overlaps 'a' in memory"),
        (B, "is written, and it overlaps 'b' in memory"),
    ],
)
def test_an_output_that_does_not_fit(out: Any, expected: str) -> None:
    assert refused(A, B, out=out) == f"add(): output 'c' {expected}"


@pytest.mark.parametrize(
    ("args", "keywords", "expected"),
    [
        ((), {}, "add() misses the arguments 'a', 'b'"),
        ((A,), {}, "add() misses the argument 'b'"),
        ((A, B, OUT), {}, "add() takes 2 arguments (a, b), not 3; outputs are passed as out="),
        ((A, B), {"a": A}, "add() got the argument 'a' twice"),
        ((A, B), {"c": OUT, "out": OUT}, "add() got the argument 'c' twice"),
        ((A,), {"bb": B}, "add() has no parameter 'bb'; did you mean 'b'?"),
        ((A, B), {"extra": 1}, "add() has no parameter 'extra'; it has a, b, c"),
        ((A, B), {"out": (OUT, OUT)}, "add() has 1 output (c), and out= gives 2"),
    ],
)
def test_arguments_are_matched_to_parameters(args: Any, keywords: Any, expected: str) -> None:
    assert refused(*args, **keywords) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((256, 0.5, True), "'i' is 256, and u8 holds 0 to 255"),
        ((-1, 0.5, True), "'i' is -1, and u8 holds 0 to 255"),
        ((1.0, 0.5, True), "'i' must be a number of type u8, not 1.0"),
        ((True, 0.5, True), "'i' must be a number of type u8, not True"),
        ((1, 1e6, True), "'f' is 1000000.0, and f16 holds -65504.0 to 65504.0"),
        ((1, "x", True), "'f' must be a number of type f16, not a str"),
        ((1, 1j, True), "'f' must be a number of type f16, not a complex"),
        ((1, 0.5, 1), "'flag' must be a number of type bool, not 1"),
        (
            (np.arange(3), 0.5, True),
            "'i' must be a number of type u8, not an array of shape (3,)",
        ),
    ],
)
def test_scalars_are_checked_for_type_and_range(args: Any, expected: str) -> None:
    assert refused(*args, of=scalars) == f"scalars(): argument {expected}"


def test_outputs_may_not_overlap_each_other_nor_an_inout() -> None:
    memory = np.zeros(40, np.float32)
    (x,) = arrays(16)
    text = refused(x, 1, out=(memory[:16], memory[12:28]), of=split)
    assert text == "split(): output 'low' is written, and it overlaps 'high' in memory"
    text = refused(memory[:16], 1, low=memory[8:24], of=split)
    assert text == "split(): argument 'x' is written, and it overlaps 'low' in memory"
    split(x, 1, out=(memory[:16], memory[16:32]))
    assert memory.any()


def test_interleaved_memory_does_not_overlap() -> None:
    table = np.ones((8, 4), np.float32)
    column, row = table[:, 3], np.ndarray((2,), np.float32, table, offset=16)
    assert not np.shares_memory(column, row)

    @tc.kernel(workers=2)
    def first(x: tc.f32[8], y: tc.out[tc.f32[2]]):
        for i in tc.spatial(2):
            y[i] = x[i] + x[i]

    with pytest.warns(tc.CopyWarning):
        first(column, out=row)
    assert table[1].tolist() == [2, 2, 1, 1]


def test_an_extent_that_no_argument_tells() -> None:
    @tc.kernel(workers=4)
    def ones(x: tc.out[tc.f32[m]]):
        for start in tc.tiles(m, by=4):
            for i in tc.spatial(4):
                if start + i < m:
                    x[start + i] = 1.0

    expected = "ones(): output 'x' has the extent m, which no argument tells; pass it as out="
    assert refused(of=ones) == expected
    assert ones(out=np.empty(6, np.float32)).tolist() == [1] * 6


def test_nothing_runs_when_an_argument_is_wrong() -> None:
    (x,) = arrays(16)
    before = x.copy()
    refused(x, 1000, of=split)
    np.testing.assert_array_equal(x, before)


# --- copies ----------------------------------------------------------------------------------


def test_scattered_inputs_are_copied_with_one_warning_per_call_site() -> None:
    a, b = arrays(16, 16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        for _ in range(3):
            c = add(a[::2], b[::-2])
        add(a[::2], b[:8])
    np.testing.assert_array_equal(c, a[::2] + b[::-2])
    assert [warning.category for warning in caught] == [tc.CopyWarning] * 2
    assert {warning.filename for warning in caught} == {__file__}
    assert caught[0].lineno < caught[1].lineno
    first, second = (str(warning.message) for warning in caught)
    assert first.startswith("add(): inputs 'a', 'b' aren't contiguous, and each call copies;")
    assert second.startswith("add(): input 'a' isn't contiguous, and each call copies;")


def test_an_unaligned_input_is_copied() -> None:
    a = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32)
    assert not a.flags.aligned
    with pytest.warns(tc.CopyWarning):
        assert not add(a, a.copy()).any()


def test_a_parameter_starts_at_a_multiple_of_16_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels load and store four floats at once they have to know where they lie."""
    memory = np.arange(40, dtype=np.float32)
    np.testing.assert_array_equal(fresh()(memory[1:17]), memory[1:17])  # the CPU doesn't care
    monkeypatch.setenv("TASKC_TARGET", "sim")
    copied = fresh()
    with pytest.warns(tc.CopyWarning, match="input 'a' isn't at a multiple of 16 bytes") as caught:
        result = copied(memory[1:17])
    np.testing.assert_array_equal(result, memory[1:17])
    assert str(caught[0].message).endswith("np.copy, used once, saves that")
    with pytest.raises(tc.ArgumentError) as refusal:
        copied(memory[:16], out=memory[17:33])
    assert str(refusal.value) == (
        "ones(): output 'c' is written in place, so it must start at a multiple of 16 bytes;"
        " this array starts 4 behind one"
    )
    copied(memory[:0], out=memory[3:3])  # nothing is anywhere


def test_a_transposed_matrix_is_copied() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.warns(tc.CopyWarning):
        np.testing.assert_array_equal(matrix(a.T, np.empty((4, 2), np.float32)), a.T)


# --- compiling -------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[Hashable]:
    """A target that says what it was asked to compile; it fills outputs with ones."""
    compiled: list[Hashable] = []
    started = threading.Event()

    def compile(kernel: ir.Kernel, facts: Hashable) -> driver.Runner:
        started.wait(0.05)  # time for other threads to ask, too
        compiled.append(facts)

        def run(bound: Bound) -> None:
            bound.values[-1][...] = 1

        return driver.Runner(run)

    def facts(kernel: ir.Kernel, bound: Bound) -> Hashable:
        return all(size % 16 == 0 for size in bound.dimensions.values())

    monkeypatch.setattr(driver, "_targets", dict(driver._targets))
    monkeypatch.setattr(driver, "_made", {})
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

    def compile(kernel: ir.Kernel, facts: Hashable) -> driver.Runner:
        tries.append(facts)
        raise tc.CompileError("no")

    monkeypatch.setattr(driver, "_targets", {"bad": lambda: Backend(compile)})
    monkeypatch.setattr(driver, "_made", {})
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


# --- taskc.check -----------------------------------------------------------------------------


def matmul(stages: int) -> Any:
    own = tc.spatial(2, 4) * tc.repeat(2, 2)

    @tc.kernel(workers=own.workers)
    def kernel(a: tc.f32[6, 10], b: tc.f32[10, 9], c: tc.out[tc.f32[6, 9]]):
        for row, col in tc.tiles((6, 9), by=(4, 8)):
            acc = tc.tile(tc.f32, own, 0)
            for p in tc.pipeline(10, by=4, stages=stages):
                sa = tc.load(a[row : row + 4, p : p + 4])
                sb = tc.load(b[p : p + 4, col : col + 8])
                for q in range(4):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + 4, col : col + 8], acc)

    return kernel


@pytest.mark.parametrize("target", [None, "sm_80"])
def test_a_correct_kernel_has_no_findings(target: str | None) -> None:
    assert tc.check(matmul(2), seeds=(0, 1), target=target) == ()


def test_every_stage_is_run_or_those_that_are_asked_for() -> None:
    told: list[str] = []
    whole = checking.examine(matmul(2), progress=told.append)
    assert {step.kernel.stage for step in whole.steps} == set(ir.STAGES)
    assert told[0] == "proving"
    assert len(told) == len(whole.steps) + 1
    some = checking.examine(matmul(2), stages=("pipelined", "lean"))
    assert [step.kernel.stage for step in some.steps] == ["parsed", "pipelined", "lean"]
    with pytest.raises(ValueError, match="there is no stage 'late'; there are parsed, "):
        tc.check(matmul(2), stages="late")
    with pytest.raises(tc.CompileError, match="there is no target 'sm_1'"):
        tc.check(matmul(2), target="sm_1")


def test_given_arguments_are_used_and_left_alone() -> None:
    x = np.arange(16, dtype=np.float32)
    assert tc.check(split, (x, 3)) == ()
    assert x.tolist() == list(range(16))
    with pytest.raises(tc.ArgumentError, match="'scale' is 300"):
        tc.check(split, (x, 300))


def test_all_that_cannot_be_proved_is_found() -> None:
    @tc.kernel(workers=8)
    def wrong(x: tc.f32[8], y: tc.out[tc.f32[16]]):
        for i in tc.spatial(8):
            y[i] = x[i + 1]

    findings = tc.check(wrong)
    assert {finding.severity for finding in findings} == {"error"}
    assert [finding.message for finding in findings] == [
        "y[8] is never stored",
        "index 8 is outside `x` (extent 8) at worker 7, task (7,)",
    ]
    assert str(findings[0]).splitlines()[-1].startswith("  hint: ")


def test_a_race_below_phases_is_found_at_its_line() -> None:
    (finding,) = tc.check(reverse(False))
    assert (finding.kind, finding.severity) == ("race", "error")
    assert finding.location.text.strip() == "y[w] = s[63 - w]"
    assert tc.check(reverse(True)) == ()


def planted(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """One more pass, at the end, which is wrong."""
    original = checking.lower_steps

    def lower_steps(kernel: ir.Kernel) -> Any:
        for step in original(kernel):
            yield step
        yield Step("wreck", change(step.kernel), 0.0)

    monkeypatch.setattr(checking, "lower_steps", lower_steps)


def test_a_pass_that_changes_the_result_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskc.ir.rewrite import map_children

    def double(node: Any) -> Any:
        node = map_children(node, double)
        if isinstance(node, ir.Store) and node.tensor.name == "c":
            return replace(node, value=ir.Binary("+", node.value, node.value))
        return node

    planted(monkeypatch, lambda kernel: replace(kernel, body=double(kernel.body)))
    with pytest.raises(tc.InternalError, match="after the pass wreck c\\[0\\] is ") as caught:
        tc.check(add, (A, B))
    assert caught.value.ir.startswith("kernel add")


def test_an_error_that_a_pass_brings_in_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda kernel: replace(kernel, body=ir.Sequence(())))
    (finding,) = tc.check(add, (A, B))
    assert finding.kind == "not-written"
    assert ("after the pass", "wreck") in finding.details


def test_what_only_cuda_has_is_refused_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKC_TARGET", "cpu")

    @tc.cuda.kernel(workers=32)
    def together(y: tc.out[tc.f32[2, 32]]):
        for row in tc.tiles(2, by=1):
            tc.cuda.grid_sync()
            y[row, tc.worker()] = 1.0

    with pytest.raises(tc.CompileError, match="which the CPU doesn't have"):
        together()
