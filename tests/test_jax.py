"""Kernels as functions of JAX: what XLA runs, what is refused; with JAX itself, what it does with them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, f64, i32, repeat, spatial
from taskc.backend.cpu.entry import admit_arrays
from tests.jax_stand_in import CustomVJP, Tracer, jax, run, stand_in

__all__ = ["jax", "stand_in"]  # fixtures

m, n = tc.dim("m", example=8), tc.dim("n", example=16)


@tc.kernel(workers=16)
def swish(x: f32[m, n], beta: f32[n], y: tc.out[f32[m, n]]):
    for r, start in tc.tiles((m, n), by=(1, 16)):
        for i in spatial(16):
            if start + i < n:
                y[r, start + i] = x[r, start + i] * tc.sigmoid(beta[start + i] * x[r, start + i])


@tc.program
def swish_gradient(
    beta: f32[n], grad_y: f32[m, n], x: f32[m, n], grad_x: tc.out[f32[m, n]]
):  # fmt: skip
    def slope(i: Any, j: Any) -> Any:
        p = tc.sigmoid(beta[j] * x[i, j])
        return grad_y[i, j] * (p + x[i, j] * beta[j] * p * (1.0 - p))

    tc.compute((m, n), slope, out=grad_x)


@tc.program
def both(
    x: f32[n], times: i32, offset: f32, is_on: tc.boolean, s: tc.out[f32[n]], t: tc.out[f32[n + 1]]
):
    tc.compute(x.shape, lambda i: x[i] * times.to(f32) + offset, out=s)
    tc.compute((n + 1,), lambda i: tc.where(is_on, i.to(f32), 0.0), out=t)


@tc.kernel(workers=4)
def count(out: tc.inout[i32[4]], old: tc.out[i32[4]]):
    for i in spatial(4):
        old[i] = out[i]
        out[i] = out[i] + 1


@tc.kernel(workers=4)
def checked(x: i32[4], y: tc.out[i32[4]]):
    for i in spatial(4):
        assert x[i] < 3, "x is less than 3"
        y[i] = x[i]


# --- what XLA runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 1, 0])
def test_arrays_numbers_and_what_is_computed_of_extents(size: int, jax: Any) -> None:
    made = jax.jit(tc.jax.operator(both))
    x = np.arange(size, dtype=np.float32)
    s, t = made(jax.numpy.asarray(x), 3, np.float32(0.5), is_on=True)
    np.testing.assert_array_equal(s, 3 * x + np.float32(0.5))
    np.testing.assert_array_equal(t, np.arange(size + 1, dtype=np.float32))


def test_what_is_written_in_place_is_returned(jax: Any) -> None:
    made = tc.jax.operator(count)
    x = jax.numpy.arange(4, dtype=np.int32)
    for call in (made, jax.jit(made)):
        new, old = call(x)
        assert (np.asarray(new).tolist(), np.asarray(old).tolist()) == ([1, 2, 3, 4], [0, 1, 2, 3])
        assert np.asarray(x).tolist() == [0, 1, 2, 3]


def test_one_output_by_a_name(jax: Any) -> None:
    made = jax.jit(tc.jax.operator(swish))
    x = np.linspace(-2, 2, 39, dtype=np.float32).reshape(3, 13)
    beta = np.linspace(0, 1, 13, dtype=np.float32)
    np.testing.assert_array_equal(made(x, beta=beta), swish(x, beta))


def test_an_assertion_that_fails_is_an_error_of_xla_s(jax: Any) -> None:
    with pytest.raises(RuntimeError) as caught:
        np.asarray(tc.jax.operator(checked)(np.arange(4, dtype=np.int32)))
    said, _, where = str(caught.value).partition("assertion: ")
    assert said.startswith("INTERNAL: ")
    assert where.splitlines()[:2] == [
        "x is less than 3",
        '      assert x[i] < 3, "x is less than 3"',
    ]


def test_a_backward_gets_what_it_is_named_after(stand_in: Any) -> None:
    seen: list[Any] = []

    @tc.program
    def gradient(
        offset: f32, grad_t: f32[n + 1], times: i32, x: f32[n], s: f32[n], grad_x: tc.out[f32[n]]
    ):
        tc.compute(
            (n,),
            lambda i: x[i] * 1000.0 + s[i] * 100.0 + grad_t[i] * 10.0 + offset + times.to(f32),
            out=grad_x,
        )

    stand_in.custom_vjp = lambda call: seen.append(CustomVJP(call)) or seen[0]
    tc.jax.operator(both, backward=gradient)
    (made,) = seen
    numbers = np.asarray(3, np.int32), np.asarray(0.5, np.float32), np.asarray(True)
    outputs, kept = made.keep(np.arange(1, 3, dtype=np.float32), *numbers)
    assert sorted(kept) == ["offset", "s", "times", "x"]
    found = made.gradients(kept, (np.zeros(2, np.float32), np.arange(3, dtype=np.float32)))
    assert found[1:] == (None, None, None)
    assert found[0].tolist() == [1000 + 350 + 0 + 0.5 + 3, 2000 + 650 + 10 + 0.5 + 3]
    assert outputs[0].tolist() == [3.5, 6.5]


# --- arrays of calls -------------------------------------------------------------------------


def test_compiled_code_reads_buffers_of_an_admitted_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of whose elements may say their order, as ctypes' and JAX's do."""

    @tc.kernel(workers=4)
    def doubled(x: f32[4], y: tc.out[f32[4]]):
        for i in spatial(4):
            y[i] = x[i] * 2.0

    numbers = (ctypes.c_float * 4)(1, 2, 3, 4)
    assert memoryview(numbers).format == "<f"
    doubled(np.ones(4, np.float32))
    with pytest.raises(tc.ArgumentError):
        doubled(numbers)
    admit_arrays(type(numbers))
    assert doubled(numbers).tolist() == [2, 4, 6, 8]
    assert doubled(numbers, out=np.empty(4, np.float32)).tolist() == [2, 4, 6, 8]
    whole = (ctypes.c_int32 * 4)(1, 2, 3, 4)
    admit_arrays(type(whole))
    with pytest.raises(tc.ArgumentError, match="must be f32"):
        doubled(whole)


def test_no_array_of_jax_s_is_written(stand_in: Any) -> None:
    class Array(stand_in.Array):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            memory = np.ones((3, 4), np.float32)
            self.__dlpack__, self.__dlpack_device__ = memory.__dlpack__, memory.__dlpack_device__

    x, beta = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    with pytest.raises(tc.ArgumentError) as caught:
        swish(x, beta, out=Array())
    said = "swish(): output 'y' is written in place, and JAX's arrays never change"
    assert str(caught.value) == said
    np.testing.assert_array_equal(swish(Array(), beta), swish(x, beta))


# --- what is refused -------------------------------------------------------------------------


def test_jax_is_not_imported() -> None:
    program = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] != "jax", "jax was imported"

sys.meta_path.insert(0, Refuse())
import numpy as np
import taskc as tc
from taskc.kernels.matmul import matmul
kernel = matmul(3, 5, 7)
kernel(np.ones((3, 7), np.float32), np.ones((7, 5), np.float32))
try:
    tc.jax.operator(kernel)
except tc.CompileError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == (
        "error: jax isn't imported\n  hint: import jax before tc.jax.operator()\n"
    ), done.stderr


def test_what_is_traced_has_no_elements(stand_in: Any) -> None:
    with pytest.raises(tc.ArgumentError) as caught:
        swish(Tracer(np.ones((3, 4), np.float32)), np.ones(4, np.float32))
    assert str(caught.value) == (
        "swish(): argument 'x' is traced by JAX, and has no elements; tc.jax.operator() makes a kernel a function"
        " that takes it"
    )


def test_calls_that_do_not_fit(jax: Any) -> None:
    x = np.ones((3, 4), np.float32)
    made, numbers = tc.jax.operator(swish), tc.jax.operator(both)
    for call, said in (
        (
            lambda: made(x, x[0, :3]),
            "swish(): argument 'beta' must be f32[n] with n = 4 (from 'x'), not f32[3]",
        ),
        (lambda: made(x), "swish() misses the argument 'beta'"),
        (
            lambda: made(x, x[0], y=x),
            "swish(): JAX's arrays aren't written, so 'y' can't be given",
        ),
        (
            lambda: numbers(x[0], 2.5, 0.5, True),
            "both(): argument 'times' must be a number of type i32, not 2.5",
        ),
        (
            lambda: numbers(x[0], 2, x[0], True),
            "both(): argument 'offset' must be a number of type f32, not an array of float32 and shape (4,)",
        ),
    ):
        with pytest.raises(tc.ArgumentError) as caught:
            call()
        assert str(caught.value) == said


def test_on_a_gpu_it_says_where_it_runs(stand_in: Any) -> None:
    tc.jax.operator(checked)
    (handler,) = [it for (name, platform), it in stand_in.targets.items() if platform == "CUDA"]
    x = np.zeros(4, np.int32)
    with pytest.raises(RuntimeError) as caught:
        run(handler, [x], [x])
    said = str(caught.value)
    assert "error: 'checked' is an operator for processors, and JAX runs it on a GPU" in said
    assert said.endswith("hint: jax.default_device(jax.devices('cpu')[0]) has JAX run it there")


def test_numbers_that_jax_shortens(jax: Any) -> None:
    @tc.kernel(workers=4)
    def wide(x: f64[4], y: tc.out[f64[4]]):
        for i in spatial(4):
            y[i] = x[i]

    assert (
        error_of(wide)
        == """error: 'x' is f64, of which JAX makes a shorter type
      def wide(x: f64[4], y: tc.out[f64[4]]):
               ^^^^^^^^^
  hint: jax.config.update("jax_enable_x64", True) lets it have 64 bits"""
    )


def test_elements_that_share_bytes(stand_in: Any) -> None:
    @tc.kernel(workers=4)
    def halves(x: tc.i4[4], y: tc.out[i32[4]]):
        for i in spatial(4):
            y[i] = x[i].to(i32)

    said = error_of(halves)
    assert (
        said
        == """error: 'x' is i4, whose elements share bytes, and JAX's don't
      def halves(x: tc.i4[4], y: tc.out[i32[4]]):
                 ^^^^^^^^^^^"""
    )


def test_an_output_that_is_not_row_major(stand_in: Any) -> None:
    @tc.kernel(workers=4)
    def laid(x: f32[4, 2], y: tc.out[f32[4, 2].laid(repeat(4, 2, order=(1, 0)))]):
        for i in spatial(4):
            for j in range(2):
                y[i, j] = x[i, j]

    assert (
        error_of(laid)
        == """error: 'y' has a layout, and JAX's arrays are row-major
      def laid(x: f32[4, 2], y: tc.out[f32[4, 2].laid(repeat(4, 2, order=(1, 0)))]):
                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: let 'laid' write a row-major one"""
    )


def test_what_is_no_kernel_and_no_backward(stand_in: Any) -> None:
    with pytest.raises(tc.CompileError, match="made from a kernel or a program, and not a int"):
        tc.jax.operator(7)  # type: ignore[arg-type]
    with pytest.raises(tc.CompileError, match="'count' writes 'out' in place, and JAX takes no"):
        tc.jax.operator(count, backward=swish_gradient)
    with pytest.raises(tc.CompileError, match="the backward of 'checked' takes no 'beta'"):
        tc.jax.operator(checked, backward=swish_gradient)


def error_of(kernel: Any) -> str:
    with pytest.raises(tc.CompileError) as caught:
        tc.jax.operator(kernel)
    return str(caught.value).partition(": ")[2]


# --- with JAX --------------------------------------------------------------------------------


@pytest.mark.jax
@pytest.mark.parametrize("jax", ["JAX"], indirect=True)
def test_jax_transforms_an_operator(jax: Any) -> None:
    act = tc.jax.operator(swish, backward=swish_gradient)
    x = jax.numpy.linspace(-2, 2, 39).reshape(3, 13)
    beta = jax.numpy.linspace(0, 1, 13)

    def own(x: Any, beta: Any) -> Any:
        return x * jax.nn.sigmoid(beta * x)

    for call, other in (
        (jax.jit(lambda x: act(2 * x, beta) + 1), lambda x: own(2 * x, beta) + 1),
        (
            jax.jit(jax.grad(lambda x: act(x, beta).sum())),
            jax.grad(lambda x: own(x, beta).sum()),
        ),
    ):
        np.testing.assert_allclose(call(x), other(x), rtol=1e-5, atol=1e-6)
    several = jax.vmap(act, in_axes=(0, None))(x.reshape(3, 1, 13), beta)
    np.testing.assert_array_equal(several[:, 0], act(x, beta))
    assert not jax.grad(lambda beta: act(x, beta).sum())(beta).any()  # none is computed
    assert "ffi_call" in str(jax.make_jaxpr(act)(x, beta))


@pytest.mark.jax
@pytest.mark.parametrize("jax", ["JAX"], indirect=True)
def test_compiled_code_takes_jax_s_arrays(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, beta = jax.numpy.ones((3, 13)), jax.numpy.ones(13)
    expected = swish(x, beta)
    slow = []
    bind = type(swish).call
    monkeypatch.setattr(
        type(swish), "call", lambda *args, **rest: slow.append(1) or bind(*args, **rest)
    )
    np.testing.assert_array_equal(swish(x, beta), expected)
    assert not slow
    with pytest.raises(tc.ArgumentError, match="written in place, and JAX's arrays never change"):
        swish(x, beta, out=x)


@pytest.mark.jax
@pytest.mark.parametrize("jax", ["JAX"], indirect=True)
def test_types_that_buffers_cannot_name(jax: Any) -> None:
    @tc.kernel(workers=4)
    def doubled(x: tc.bf16[4], y: tc.out[tc.bf16[4]]):
        for i in spatial(4):
            y[i] = x[i] + x[i]

    x = jax.numpy.arange(4, dtype=jax.numpy.bfloat16)
    for call in (doubled, doubled, jax.jit(tc.jax.operator(doubled))):
        np.testing.assert_array_equal(np.asarray(call(x), np.float32), [0, 2, 4, 6])
