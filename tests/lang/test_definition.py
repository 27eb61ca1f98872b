"""The decorators, and what they give."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, bf16, f32, i32, spatial
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.lang import definition
from taskc.lang.definition import KernelDefinition
from tests.counting import instructions
from tests.lang.test_blocks import matmul

n = tc.dim("n", multiple=16, example=48)


@tc.kernel(workers=4)
def example(
    x: f32[n, 3],
    h: tc.inout[i32[5]],
    z: bf16[2],
    flags: tc.boolean[50],
    alpha: f32,
    count: i32,
    y: tc.out[f32[n]],
):
    """What it does."""


def test_it_looks_like_the_function() -> None:
    assert example.name == example.__name__ == "example"
    assert example.__doc__ == f"{example.signature}\n\nWhat it does."
    assert example.__module__ == __name__
    assert repr(example) == (
        "<tc.kernel example(x: f32[n, 3], h: inout i32[5], z: bf16[2], flags: bool[50],"
        " alpha: f32, count: i32, y: out f32[n]), 4 workers>"
    )


def test_examples_are_made_from_the_types() -> None:
    x, h, z, flags, alpha, count = example.example(7)
    assert (x.shape, x.dtype) == ((48, 3), np.float32)
    assert (h.shape, h.dtype) == ((5,), np.int32)
    assert h.min() >= 0
    assert h.max() <= 9
    assert (z.shape, z.dtype) == ((2,), ml_dtypes.bfloat16)
    assert flags.dtype == np.bool_
    assert 0 < flags.sum() < 50
    assert (alpha.shape, alpha.dtype, count.dtype) == ((), np.float32, np.int32)
    assert abs(float(np.mean(x))) < 0.5
    assert 0.7 < float(np.std(x)) < 1.3
    again = example.example(7)
    assert all(np.array_equal(a, b) for a, b in zip(example.example(7), again, strict=True))
    assert not np.array_equal(example.example(8)[0], x)


def test_an_example_of_the_author() -> None:
    @tc.kernel(workers=1, example=lambda random: (random.uniform(1, 2, 4).astype(np.float32),))
    def k(x: f32[4], y: tc.out[f32[4]]):
        pass

    (x,) = k.example(3)
    assert ((x >= 1) & (x < 2)).all()
    assert np.array_equal(k.example(3)[0], x)

    @tc.kernel(workers=1, example=lambda random: (1, 2))
    def wrong(x: f32[4], y: tc.out[f32[4]]):
        pass

    with pytest.raises(CompileError) as caught:
        wrong.example()
    assert caught.value.message == (
        "the example of 'wrong' has 2 arguments, and the kernel takes 1: x"
    )


def test_a_call_goes_through_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(*call: Any) -> str:
        calls.append(call)
        return "done"

    monkeypatch.setattr(definition, "_runner", [run])
    assert example(1, 2, out=3) == "done"
    assert calls == [(example, (1, 2), {"out": 3})]


@pytest.mark.parametrize("decorator", [tc.kernel, tc.cuda.kernel])
def test_the_number_of_workers_is_required(decorator: Any) -> None:
    with pytest.raises(CompileError, match=r"say how many workers a block has: @tc.*\.?kernel\("):
        decorator(lambda: None)
    with pytest.raises(CompileError, match="say how many workers a block has"):
        decorator()
    for wrong in (0, -1, 2.0, "4", True):
        with pytest.raises(CompileError, match="the workers of a kernel are a number of at least"):
            decorator(workers=wrong)
    assert decorator(workers=np.int64(4)) is not None


def test_dimensions() -> None:
    assert (n.name, n.multiple, n.example) == ("n", 16, 48)
    assert str(n) == "n"
    assert tc.dim("m").example == 37
    assert tc.dim("m", multiple=16).example == 32
    assert tc.dim("m", multiple=64).example == 64
    for arguments in ({"multiple": 0}, {"example": -1}, {"multiple": 4, "example": 6}):
        with pytest.raises(ValueError, match=r"'m'|of 1 or more"):
            tc.dim("m", **arguments)
    with pytest.raises(ValueError, match="a dimension's name is an identifier, not '2m'"):
        tc.dim("2m")


def test_roles() -> None:
    assert tc.out[f32[4]].laid(tc.repeat(4)).type.layout == tc.repeat(4)
    with pytest.raises(TypeError, match=r"tc.out needs a tensor type, such as f32\[16\]; got f32"):
        tc.out[f32]
    with pytest.raises(TypeError, match=r"tc.inout needs a tensor type, such as f32\[16\]; got 3"):
        tc.inout[3]


def test_the_target_is_kept() -> None:
    @tc.kernel(workers=1, target="cpu")
    def k(y: tc.out[f32[4]]):
        pass

    assert k.ir.target == "cpu"
    assert example.ir.target == "generic"


def test_functions_of_the_language_in_plain_python() -> None:
    assert tc.cdiv(7, 2) == 4
    assert tc.exp(0.0) == 1.0
    assert tc.where(True, 1, 2) == 1
    assert tc.fma(2.0, 3.0, 1.0) == 7.0
    assert tc.static(3) == 3
    assert tc.isnan(float("nan")) is True
    with pytest.raises(TypeError, match=r"tc.load is a part of the language: use it in a kernel"):
        tc.load(None)
    assert repr(tc.load) == "tc.load"


def test_a_traceback_is_not_full_of_our_own_frames() -> None:
    with pytest.raises(CompileError) as caught:

        @tc.kernel(workers=4)
        def unknown(y: tc.out[f32[4]]):
            for i in spatial(4):
                y[i] = nothing

    assert [entry.name for entry in caught.traceback] == [
        "test_a_traceback_is_not_full_of_our_own_frames",
        "decorate",
    ]

    @tc.kernel(workers=4)
    def beyond(y: tc.out[f32[4]]):
        for i in spatial(4):
            y[i + 1] = 0

    with pytest.raises(CompileError) as caught:
        beyond()
    assert [entry.name for entry in caught.traceback][1:] == ["__call__"]


def test_public_names() -> None:
    assert all(hasattr(tc, name) for name in tc.__all__)
    assert "print" not in tc.__all__
    assert repr(tc.print) == "tc.print"
    assert {"shuffle_xor", "cp_async", "barriers", "roles", "kernel"} <= set(dir(tc.cuda))
    with pytest.raises(AttributeError, match=r"there is no tc.cuda.nothing"):
        _ = tc.cuda.nothing


def test_how_much_work_it_is_to_parse_the_matmul() -> None:
    matmul(256, 256, 256)
    assert instructions(lambda: matmul(256, 256, 256)) < 150_000  # it takes 58,000


def test_a_kernel_that_was_read_has_no_function() -> None:
    read = KernelDefinition.of(parse(to_text(example.ir)))
    assert repr(read) == repr(example)
    (own,) = read.dimensions
    assert (own.name, own.multiple) == ("n", 16)
    assert [array.shape for array in read.example()] == [(32, 3), (5,), (2,), (50,), (), ()]


WORKER = """
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import operators

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(operators.double)) is operators.double
    x = np.arange(4, dtype=np.float32)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as workers:
        for made in (operators.double, operators.twice):
            print(workers.submit(made, x).result())
"""

OPERATORS = """
import taskc as tc

@tc.kernel(workers=4)
def double(x: tc.f32[4], y: tc.out[tc.f32[4]]):
    for i in tc.spatial(4):
        y[i] = 2 * x[i]

@tc.program
def twice(x: tc.f32[4], y: tc.out[tc.f32[4]]):
    double(double(x), out=y)
"""


def test_what_is_at_the_top_of_a_module_goes_to_workers_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "operators.py").write_text(OPERATORS)
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, str(tmp_path / "worker.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[0. 2. 4. 6.]", "[ 0.  4.  8. 12.]"], done.stderr


def test_what_a_function_makes_is_not_pickled() -> None:
    made = matmul(64, 64, 64)
    with pytest.raises(pickle.PicklingError) as caught:
        pickle.dumps(made)
    assert str(caught.value) == (
        f"the kernel 'kernel' can't be pickled: it isn't found as {made.__module__}.{made.__qualname__}; what a"
        " function makes is made anew in the other process"
    )
    read = KernelDefinition.of(made.ir)
    with pytest.raises(pickle.PicklingError, match="it isn't found as"):
        pickle.dumps(read)


def test_help_and_signatures_name_the_operands() -> None:
    @tc.kernel(workers=4)
    def added(a: f32[4], b: f32[4], scale: f32, c: tc.out[f32[4]]):
        """a + scale * b."""
        for i in spatial(4):
            c[i] = a[i] + scale * b[i]

    text = "(a: 'f32[4]', b: 'f32[4]', scale: 'f32', *, c: 'out f32[4]' = None)"
    assert str(inspect.signature(added)) == text
    shown = pydoc.render_doc(added, renderer=pydoc.plaintext)
    assert "added(a: f32[4], b: f32[4], scale: f32, c: out f32[4])" in shown
    assert "a + scale * b." in shown
