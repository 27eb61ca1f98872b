"""Arguments: what doesn't fit its parameter, and what is copied so that it does."""

import warnings
from typing import Any

import numpy as np
import pytest

import taskc as tc
from tests.runtime.test_driver import A, B, add, arrays, compiled, fresh, refused, scalars, split

__all__ = ["compiled"]  # a fixture

m = tc.dim("m")


@tc.kernel(workers=4)
def matrix(a: tc.f32[4, 3], b: tc.f32[4, m], c: tc.out[tc.f32[4, 3]]):
    for i in tc.spatial(4):
        for j in range(3):
            c[i, j] = a[i, j]


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


def test_ipython_shows_the_call_and_none_of_ours() -> None:
    with pytest.raises(tc.ArgumentError) as error:
        add(A, 2.5)
    first, _, file, line = error.value._render_traceback_()
    assert first == f"ArgumentError: add(): argument {ARRAY}, not the number 2.5"
    assert __file__ in file
    assert line.strip() == "add(A, 2.5)"


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


def test_elements_begin_at_multiples_of_their_size() -> None:
    @tc.kernel(workers=1)
    def counted(a: tc.inout[tc.f32[m]]):
        for _ in tc.spatial(1):
            for i in range(m):
                a[i] += 1

    memory = np.zeros(40, np.uint8)
    counted(memory[4:36].view(np.float32))  # as it does for the CPU
    with pytest.raises(
        tc.ArgumentError, match="start at a multiple of 4 bytes; this array starts 1 behind"
    ):
        counted(memory[1:33].view(np.float32))


def test_a_transposed_matrix_is_copied() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.warns(tc.CopyWarning):
        np.testing.assert_array_equal(matrix(a.T, np.empty((4, 2), np.float32)), a.T)
