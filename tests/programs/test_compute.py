"""`tc.compute`: what functions of indices become, where they are written, and what is refused."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, boolean, f16, f32, f64, i8, i32, i64, u8, u64
from taskc.errors import CompileError
from taskc.ir import to_text
from taskc.programs.ir import Computation, callees_of
from taskc.programs.verify import verify_program
from tests.lang.notebook import cell

m, n = tc.dim("m"), tc.dim("n")


def computed(inputs: dict[str, Any], body: Any) -> tc.ProgramDefinition:
    """A program that returns what its body does; it keeps its rules, and its text reads back."""
    made = tc.trace("traced", inputs, body)
    verify_program(made.ir)
    return made


def values_of(program: tc.ProgramDefinition) -> list[str]:
    """What each computation gives each element."""
    found = callees_of(program.ir).values()
    texts = [to_text(one) for one in found if isinstance(one, Computation)]
    return [text.splitlines()[-1].strip().partition(" = ")[2] for text in texts]


def one(values: Any) -> Any:
    return np.asarray(values, np.float32)


# --- which lambda --------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python knows no columns of code before")
def test_two_lambdas_of_one_line() -> None:
    def body(x: Any) -> Any:
        a, b = tc.compute(4, lambda i: x[i] + 1.0), tc.compute(4, lambda i: x[i] * 2.0)
        return {"a": a, "b": b}

    assert values_of(computed({"x": f32[4]}, body)) == ["x[i] + 1.0", "x[i] * 2.0"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python knows no columns of code before")
def test_a_lambda_in_a_lambda() -> None:
    def body(x: Any) -> Any:
        return (lambda i: tc.compute(i, lambda i: x[i] - 1.0))(3)

    assert values_of(computed({"x": f32[4]}, body)) == ["x[i] - 1.0"]


def test_lambdas_of_a_loop_have_what_was_around_them_then() -> None:
    def body(x: Any) -> Any:
        parts = [tc.compute((), lambda: x[k] * float(k + 1)) for k in range(3)]
        for scale in (2.0, 3.0):
            parts.append(tc.compute(4, lambda i: x[i] * scale))
        return dict(zip("abcde", parts, strict=True))

    assert values_of(computed({"x": f32[4]}, body)) == [
        "x[0] * 1.0",
        "x[1] * 2.0",
        "x[2] * 3.0",
        "x[i] * 2.0",
        "x[i] * 3.0",
    ]


def test_lambdas_of_a_notebook() -> None:
    space = cell(
        "made = tc.trace('p', {'x': tc.f32[4]}, lambda x:\n"
        "    tc.compute(4, lambda i: x[i] +\n"
        "        1.0))\n"
    )
    assert values_of(space["made"]) == ["x[i] + 1.0"]


def test_a_lambda_whose_text_is_nowhere() -> None:
    function = eval("lambda i: 1.0")
    with pytest.raises(CompileError, match="the source of a lambda can't be read"):
        computed({"x": f32[4]}, lambda x: tc.compute(4, function))


# --- what a function may say -----------------------------------------------------------------------


@tc.function
def scaled(i: Any, j: Any) -> Any:
    """Not a computation of its own."""
    row = i + 1
    value = row.to(f32) * 2.0
    return value + j.to(f32)


def test_a_function_with_named_parts() -> None:
    program = computed({"x": f32[4]}, lambda x: tc.compute((2, 3), scaled))
    assert program(np.zeros(4, np.float32)).tolist() == [[2, 3, 4], [4, 5, 6]]
    assert "computation scaled(" in to_text(program.ir)


def test_any_number_of_indices() -> None:
    for rank in range(4):
        shape = (2, 3, 1)[:rank]
        x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
        made = computed({"x": f32[shape]}, lambda x, shape=shape: copied(x, shape))
        assert made(x).tolist() == (x + 1).tolist()


def copied(x: Any, shape: Any) -> Any:
    return tc.compute(shape, lambda *at: x[at] + 1.0)


def test_the_first_indices_have_names_and_the_others_too() -> None:
    def body(x: Any) -> Any:
        return tc.compute((2, 3, 4), lambda i, *rest: x[rest] * i.to(f32))

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert computed({"x": f32[3, 4]}, body)(x).tolist() == np.stack([x * 0, x]).tolist()


def test_scalars_and_sizes_are_named() -> None:
    @tc.program
    def program(x: f32[n], s: f32, k: i32, y: tc.out[f32[n]]):
        tc.compute(n, lambda i: tc.where(i < k.to(i64), x[i] * s, n.to(f32)), out=y)

    verify_program(program.ir)
    x = one([1, 2, 3, 4, 5])
    assert program(x, 0.5, 2).tolist() == [0.5, 1, 5, 5, 5]


def test_a_tuple_of_tensors() -> None:
    @tc.program
    def program(xs: (f32[n], f32[n]), y: tc.out[f32[n]]):
        tc.compute(n, lambda i: xs[0][i] - xs[1][i], out=y)

    assert program(one([3, 4]), one([1, 5])).tolist() == [2, -1]


def test_what_is_captured_twice_is_one_parameter() -> None:
    program = computed({"x": f32[n]}, lambda x: tc.compute(n, lambda i: x[i] * x[n - 1 - i]))
    (computation,) = callees_of(program.ir).values()
    assert [item.name for item in computation.parameters] == ["x", "out"]
    assert program(one([1, 2, 3])).tolist() == [3, 4, 3]


def test_an_input_may_be_called_out() -> None:
    program = computed({"out": f32[3]}, lambda x: {"y": tc.compute(3, lambda i: x[i] + 1.0)})
    assert program(one([1, 2, 3])).tolist() == [2, 3, 4]


def test_gathers_and_what_is_not_evaluated() -> None:
    def body(x: Any, at: Any) -> Any:
        def element(i: Any, j: Any) -> Any:
            k = at[i].to(i64)
            return x[k, j - 1] if 0 <= k < 3 and j > 0 else f32(-1.0)

        return tc.compute((3, n), tc.function(element))

    program = computed({"x": f32[3, n], "at": i32[3]}, body)
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert program(x, np.int32([2, 5, 0])).tolist() == [[-1, 6, 7], [-1, -1, -1], [-1, 0, 1]]


# --- shapes and types ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1), (2, 1, 3)])
def test_small_results(shape: tuple[int, ...]) -> None:
    program = computed({"s": f32[()]}, lambda s: tc.compute(shape, lambda *at: s[()] + 1.0))
    found = program(np.array(2, np.float32))
    assert found.shape == shape
    assert found.tolist() == np.full(shape, 3, np.float32).tolist()


def test_computed_extents() -> None:
    def body(x: Any, z: Any) -> Any:
        both = tc.compute(m + n, lambda i: x[i] if i < m else z[i - m])
        return tc.compute(n * 16, lambda i: both[i // 16])

    program = computed({"x": f32[m], "z": f32[n]}, body)
    found = program(one([1, 2]), one([3]))
    assert found.tolist() == [1] * 16
    assert program(one([]), one([3, 4])).tolist() == [3] * 16 + [4] * 16


@pytest.mark.parametrize("dtype", [boolean, i8, i32, i64, u8, u64, f16, bf16, f32, f64])
def test_each_type(dtype: Any) -> None:
    program = computed({"x": dtype[4]}, lambda x: tc.compute(4, lambda i: x[3 - i]))
    x = np.array([0, 1, 1, 0] if dtype is boolean else [1, 2, 3, 4]).astype(dtype.numpy)
    found = program(x)
    assert found.dtype == x.dtype
    assert found.tobytes() == x[::-1].tobytes()


def test_the_type_is_the_expressions() -> None:
    def body(x: Any) -> Any:
        return {
            "number": tc.compute(3, lambda i: i * 2),
            "flag": tc.compute(3, lambda i: x[i] > 1.0),
            "half": tc.compute(3, lambda i: x[i].to(f16)),
        }

    number, flag, half = computed({"x": f32[3]}, body)(one([1, 2, 0.1]))
    assert (number.dtype, flag.dtype, half.dtype) == (np.int64, np.bool_, np.float16)
    assert (number.tolist(), flag.tolist()) == ([0, 2, 4], [False, True, False])


def test_a_result_that_is_given() -> None:
    @tc.program
    def program(x: f32[n], y: tc.out[f32[n]]):
        assert tc.compute(n, lambda i: x[i] + 1.0, out=y) is y

    assert program(one([1])).tolist() == [2]


# --- constants ---------------------------------------------------------------------------------------


def test_constants() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)

    def body(x: Any) -> Any:
        w = tc.constant(table)
        assert (w.shape, w.dtype) == ((2, 3), f32)
        row = w[1]
        number = tc.constant(np.float32(10))
        return tc.compute(3, lambda i: x[i] + row[i] * number[()])

    assert computed({"x": f32[3]}, body)(one([1, 1, 1])).tolist() == [31, 41, 51]


def test_an_array_given_to_a_call_is_a_constant() -> None:
    @tc.program
    def add(x: f32[n], z: f32[n], y: tc.out[f32[n]]):
        tc.compute(n, lambda i: x[i] + z[i], out=y)

    @tc.program
    def program(x: f32[3], y: tc.out[f32[3]]):
        add(x, one([1, 2, 3]), out=y)

    verify_program(program.ir)
    assert len(program.ir.constants) == 1
    assert program(one([1, 1, 1])).tolist() == [2, 3, 4]


def test_outside_a_program() -> None:
    for wrong in (lambda: tc.compute(8, lambda i: i), lambda: tc.constant(one([1]))):
        with pytest.raises(CompileError, match=r"is for the body of a @tc\.program"):
            wrong()
