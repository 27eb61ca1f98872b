"""Transposition: every order, ragged sizes, every width of element."""

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cpu.compile import llvm_text
from taskc.backend.cpu.processor import typical
from taskc.kernels.transpose import joined, transpose
from taskc.passes.pipeline import lower

SIZES = (1, 2, 3, 15, 16, 17, 127, 129)


def numbers(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(dtype)


def check(shape: tuple[int, ...], order: tuple[int, ...], same_bits: Any = None) -> None:
    x = numbers(shape)
    arguments = (lambda: transpose(shape, order), x)
    y = same_bits(*arguments) if same_bits else arguments[0]()(arguments[1])
    assert np.array_equal(y, x.transpose(order))


@pytest.mark.parametrize("m", SIZES)
def test_matrices(m: int) -> None:
    for n in SIZES:
        check((m, n), (1, 0))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_every_order_of_four(order: tuple[int, ...]) -> None:
    check((3, 2, 17, 5), order)


@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (5, 1, 18), (257, 16)])
def test_as_in_the_simulator(shape: tuple[int, ...], same_bits: Any) -> None:
    check(shape, tuple(range(len(shape)))[::-1], same_bits)


def test_symbolic_sizes_share_a_kernel() -> None:
    kernel = transpose((tc.dim("m"), tc.dim("n")))
    for m, n in itertools.product((0, 1, 17, 300), (1, 16, 129)):
        x = numbers((m, n))
        assert np.array_equal(kernel(x), x.T)


def test_symbolic_axes_are_joined() -> None:
    kernel = transpose(tuple(map(tc.dim, "abcdef")), (3, 4, 5, 0, 1, 2))
    for shape in ((1, 1, 1, 1, 1, 1), (2, 3, 4, 5, 1, 7), (3, 3, 3, 0, 2, 2)):
        x = numbers(shape)
        assert np.array_equal(kernel(x), x.transpose(3, 4, 5, 0, 1, 2))


@pytest.mark.parametrize("dtype", [tc.i8, tc.u16, tc.f16, tc.i32, tc.f64, tc.boolean])
def test_types(dtype: tc.DType) -> None:
    x = (numbers((35, 50)) % 5).astype(dtype.numpy)
    assert np.array_equal(transpose((35, 50), dtype=dtype)(x), x.T)


def test_empty() -> None:
    assert transpose((0, 5))(numbers((0, 5))).shape == (5, 0)
    assert transpose(())(numbers(())).shape == ()


def test_only_edges_are_masked() -> None:
    """Each of a square's lines is read at once, and each is written at once, where nothing is beyond."""
    machine = replace(tc.machine(), lanes=16, registers=32)  # on whatever this runs
    lean = lower(replace(transpose((4095, 4097), machine=machine).ir, target="avx512"))
    text, _ = llvm_text(lean, typical("avx512"))
    for tensor, access in (("%p0", "= load <16 x float>, ptr"), ("%p1", "store <16 x float> %")):
        places = re.findall(rf"(%\d+) = getelementptr float, ptr {tensor},", text)
        lines = [line for line in text.splitlines() if access in line]
        assert sum(line.split(", align")[0].endswith(tuple(places)) for line in lines) == 16


def test_axes_that_stay_together_are_joined() -> None:
    assert joined((2, 3, 4, 5, 6), (0, 1, 4, 2, 3)) == ((1, 6, 20, 6), (0, 1, 3, 2))
    assert joined((4, 1, 5), (1, 0, 2)) == ((1, 1, 1, 20), (0, 1, 2, 3))


@pytest.mark.parametrize(
    "order", [(4, 3, 2, 1, 0), (0, 2, 1, 4, 3), (1, 3, 0, 2, 4), (6, 0, 5, 1, 4, 2, 3)]
)
def test_any_number_of_axes(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (3, 2, 17, 4, 5, 2, 3)[: len(order)]
    check(shape, order)
    check((0, *shape[1:]), order)
    monkeypatch.setenv("TASKC_TARGET", "sim")
    x = numbers(shape)
    made = transpose(shape, order, machine=tc.machine("sm_90a"))(x)
    assert np.array_equal(made, x.transpose(order))


def test_refusals() -> None:
    with pytest.raises(tc.CompileError, match=r"\(0, 0\) is no order of the axes of \(2, 3\)"):
        transpose((2, 3), (0, 0))
    with pytest.raises(tc.CompileError, match=r"apart too often\n  hint: .* 5 are left, and 4"):
        transpose((2, 3, 4, 5, tc.dim("n")), (4, 3, 2, 1, 0))
