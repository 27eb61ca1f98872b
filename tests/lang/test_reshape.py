"""Parameters that a kernel sees in another shape than its callers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i32, spatial
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.passes.pipeline import lower
from taskc.runtime.driver import call

m, n = tc.dim("m"), tc.dim("n", multiple=2)


@tc.kernel(workers=16)
def double(x: f32[m, n].reshape(m * n), y: tc.out[f32[m, n].reshape(m * n)]):
    for first in tc.tiles(m * n, by=16):
        for i in spatial(16):
            if first + i < m * n:
                y[first + i] = x[first + i] * 2


@tc.kernel(workers=6)
def turn(
    x: i32[4, 3].reshape(2, 2, 3),
    y: tc.out[i32[3, 4].reshape(3, 2, 2)],
    z: tc.inout[i32[()].reshape(1, 1)],
):
    for i in tc.repeat(2).spatial(6):
        y[i // 4, i // 2 % 2, i % 2] = x[i // 4 % 2, i % 2, i // 4]
    for i in spatial(6):
        if i == 5:
            z[0, 0] += x[1, 1, 2]


TARGETS = ("cpu", "sim")


@pytest.mark.parametrize("target", TARGETS)
def test_callers_have_their_shape(target: str) -> None:
    for shape in ((1, 2), (3, 8), (0, 4), (5, 0), (16, 16)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        y = call(double, (x,), {}, target)
        assert y.shape == shape
        np.testing.assert_array_equal(y, 2 * x)
        out = np.zeros_like(x)
        call(double, (x,), {"out": out}, target)
        np.testing.assert_array_equal(out, 2 * x)
    x, z = np.arange(12, dtype=np.int32).reshape(4, 3), np.array(7, np.int32)
    y = call(turn, (x, z), {}, target)
    seen = x.reshape(2, 2, 3)
    expected = [seen[i // 4 % 2, i % 2, i // 4] for i in range(12)]
    np.testing.assert_array_equal(y, np.reshape(expected, (3, 4)))
    assert z == 7 + 11


def test_calls_again_take_the_short_way() -> None:
    """The compiled entry checks shapes itself."""
    for shape in ((3, 8), (3, 8), (2, 2)):
        x = np.ones(shape, np.float32)
        assert double(x).shape == shape
    for wrong in (
        np.ones(24, np.float32),
        np.ones((3, 8, 1), np.float32),
        np.ones((3, 7), np.float32),
    ):
        with pytest.raises(tc.ArgumentError, match=r"argument 'x' must be f32\[m, n\]"):
            double(wrong)
    with pytest.raises(tc.ArgumentError, match=r"output 'y' must be f32\[m, n\]"):
        double(np.ones((3, 8), np.float32), out=np.ones(24, np.float32))


@pytest.mark.parametrize("stage", ["parsed", "lean"])
def test_the_text_reads_back(stage: str) -> None:
    for kernel in (double.ir, turn.ir):
        text = to_text(kernel if stage == "parsed" else lower(kernel))
        assert ".reshape(" in text
        assert to_text(parse(text)) == text


def test_programs_pass_tensors_in_the_callers_shape() -> None:
    @tc.program
    def fourfold(x: f32[m, n], y: tc.out[f32[m, n]]):
        double(double(x), out=y)

    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(fourfold(x), 4 * x)
    with pytest.raises(tc.CompileError, match=r"argument 'x' must be f32\[m, n\], not f32\[24\]"):

        @tc.program
        def flat(x: f32[24], y: tc.out[f32[3, 8]]):
            double(x, out=y)

    with pytest.raises(
        tc.CompileError, match="'x' is reshaped, and a program passes its tensors on"
    ):

        @tc.program
        def reshaped(x: f32[24].reshape(3, 8), y: tc.out[f32[3, 8]]):
            double(x, out=y)


def test_what_a_type_says() -> None:
    kind = f32[m, 4].reshape(m * 2, 2)
    assert str(kind) == "f32[m, 4].reshape(m * 2, 2)"
    assert kind.as_given == f32[m, 4]
    assert str(kind.reshape(m * 4)) == "f32[m, 4].reshape(m * 4)"
    assert str(f32[()].reshape(1)) == "f32[()].reshape(1)"
    assert str(f32[1].reshape()) == "f32[1].reshape()"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: f32[4, 4].laid(tc.repeat(4, 4)).reshape(16),
            "is reshaped has no layout of its own",
        ),
        (
            lambda: f32[16].reshape(4, 4).laid(tc.repeat(4, 4)),
            "is reshaped has no layout of its own",
        ),
        (lambda: f32[16].reshape(-1, 4), "can't be negative: -1"),
        (lambda: f32[16].reshape(4.0, 4), "an integer, not 4.0"),
    ],
)
def test_refusals(make: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        make()
