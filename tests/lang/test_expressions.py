"""Expressions: what each one becomes. The kernel around is `tests.lang.notebook.HEADER`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i32, spatial
from taskc.ir import nodes as ir
from tests.lang.notebook import body_text, kernel


def value_text(expression: str, **names: Any) -> str:
    """What `v` is after `v = expression`, in a mapping loop over i."""
    text = body_text(f"for i in spatial(32):\n    v = {expression}", **names)
    return text.partition(" = ")[2]


FLAGS = {"big": {"a": (1, 2.5)}, "half": np.float32(0.5), "count": np.int64(3), "math": math}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # A product that is added is fused: the right one of two.
        ("s + x[i] * s", "fma(x[i], s, s)"),
        ("x[i] * s + s", "fma(x[i], s, s)"),
        ("x[i] * s + s * x[0]", "fma(s, x[0], x[i] * s)"),
        ("x[i] * s + s * x[0] + x[1] * x[2]", "fma(x[1], x[2], fma(s, x[0], x[i] * s))"),
        ("-x[i] * s + s", "fma(-x[i], s, s)"),
        ("s + 2 * x[i]", "fma(2.0, x[i], s)"),
        # Nothing else is.
        ("s - x[i] * s", "s - x[i] * s"),
        ("x[i] * s - s", "x[i] * s - s"),
        ("s + x[i] ** 2", "s + x[i] * x[i]"),
        ("n[0] + n[1] * n[2]", "n[0] + n[1] * n[2]"),
        # Constants are computed, and take the type of what they meet.
        ("s * (1 / 4)", "s * 0.25"),
        ("s + 1", "s + 1.0"),
        ("3 - n[0]", "3 - n[0]"),
        ("i // (2 * 4) % 3", "i // 8 % 3"),
        ("s + half", "s + 0.5"),
        ("n[0] + count", "n[0] + 3"),
        ("s * big['a'][1]", "s * 2.5"),
        ("s + math.inf", "s + inf"),
        ("s + -tc.inf", "s + -inf"),
        ("s * tc.exp(0.0)", "s * 1.0"),
        ("s * math.sqrt(4)", "s * 2.0"),
        ("max(1, 2) + n[0]", "2 + n[0]"),
        ("s * 0.1", "s * 0.1"),
        # Integers of one signedness widen; an index is i64.
        ("n[0] + i", "n[0].to(i64) + i"),
        ("n[0] + n[1].to(i8)", "n[0] + n[1].to(i8).to(i32)"),
        ("n[0].to(u8) + n[0].to(u16)", "n[0].to(u8).to(u16) + n[0].to(u16)"),
        ("x[n[0]]", "x[n[0].to(i64)]"),
        ("x[n[0].to(u8)]", "x[n[0].to(u8).to(i64)]"),
        # Operators.
        ("-s", "-s"),
        ("+s", "s"),
        ("s / 3", "s / 3.0"),
        ("s // 3 % 2", "s // 3.0 % 2.0"),
        ("s ** x[i]", "pow(s, x[i])"),
        ("s ** 3", "pow(s, 3.0)"),
        ("n[0] ** 2", "n[0] * n[0]"),
        ("n[0] ** n[1]", "pow(n[0], n[1])"),
        ("~n[0] & 7 | n[1] ^ 1 << 2", "~n[0] & 7 | n[1] ^ 4"),
        ("n[0] << 1 >> n[1]", "n[0] << 1 >> n[1]"),
        ("s < x[i]", "s < x[i]"),
        ("0 <= n[0] < 8", "0 <= n[0] and n[0] < 8"),
        ("1 < 2 < n[0]", "2 < n[0]"),
        ("s > 0 and not s > 1 or n[0] == 2", "s > 0.0 and not s > 1.0 or n[0] == 2"),
        ("True and s > 0", "s > 0.0"),
        ("s > 0 and True", "s > 0.0"),
        ("s if n[0] > 1 else 0", "select(n[0] > 1, s, 0.0)"),
        ("s + (1 if n[0] > 1 else 0)", "s + select(n[0] > 1, 1.0, 0.0)"),
        ("s if 1 > 2 else x[i]", "x[i]"),
        # Functions.
        ("min(s, 1, x[i])", "min(min(s, 1.0), x[i])"),
        ("max((s, x[i]))", "max(s, x[i])"),
        ("abs(s)", "abs(s)"),
        ("round(s)", "round(s)"),
        ("tc.where(s > 0, s, 0)", "select(s > 0.0, s, 0.0)"),
        ("tc.fma(2, s, 1)", "fma(2.0, s, 1.0)"),
        ("tc.cdiv(i, 4)", "(i + (4 - 1)) // 4"),
        ("tc.cdiv(7, 4) + i", "2 + i"),
        ("tc.truncdiv(-7, 4) + i", "-1 + i"),
        ("tc.truncdiv(n[0].to(u8), 4)", "n[0].to(u8) // 4"),
        ("tc.fmod(-7, 4) + i", "-3 + i"),
        ("tc.fmod(n[0].to(u8), 4)", "n[0].to(u8) % 4"),
        ("tc.fmod(s, 4)", "fmod(s, 4.0)"),
        ("tc.atan2(1, 0) + s", "1.5707964 + s"),
        ("tc.atan2(s, 2)", "atan2(s, 2.0)"),
        ("tc.dot_bytes(-1, 255) + i", "-255 + i"),
        ("i + tc.dot_bytes(i, 3)", "i + dot_bytes(i, 3)"),
        # A choice of numbers takes the type that the use asks for.
        ("(1 if i > 2 else 0) + s", "select(i > 2, f32(1.0), f32(0.0)) + s"),
        ("-(1 if i > 2 else 0.5) * 2 + s", "select(i > 2, f32(-2.0), f32(-1.0)) + s"),
        ("max(1 if i > 2 else 0, 0.5) * s", "select(i > 2, f32(1.0), f32(0.5)) * s"),
        ("tc.exp(0 if i > 2 else 0.0) * s", "select(i > 2, f32(1.0), f32(1.0)) * s"),
        ("tc.where(i > 2, 3, 4) // 2 * s", "select(i > 2, f32(1.0), f32(2.0)) * s"),
        ("s if (1 if i > 2 else 0) == 1 else 0", "select(select(i > 2, True, False), s, 0.0)"),
        ("(1 if i > 2 else -1).to(u32)", "select(i > 2, 1, -1).to(u32)"),
        ("(1 if i > 2 else 0.5).to(f16)", "select(i > 2, f16(1.0), f16(0.5))"),
        ("tc.sign(-7) + i", "-1 + i"),
        ("tc.sign(n[0].to(u8))", "min(n[0].to(u8), 1)"),
        ("tc.isinf(s)", "abs(s) == inf"),
        ("s if tc.isinf(tc.inf) else 0", "s"),
        ("s.to(f16)", "s.to(f16)"),
        ("s.to(f32)", "s"),
        ("n[0].to(bool)", "n[0].to(bool)"),
        ("f32(n[0])", "n[0].to(f32)"),
        ("i + len(a.shape)", "i + 2"),
        ("i + len(x)", "i + 64"),
        ("i + a.shape[1]", "i + 32"),
        ("i + tc.static(sum(j for j in range(4)))", "i + 6"),
        ("(s, n)[0] * 2", "s * 2.0"),
    ],
)
def test_expression(expression: str, expected: str) -> None:
    assert value_text(expression, **FLAGS) == expected


@pytest.mark.parametrize(
    "name",
    (
        "exp exp2 expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
        " sqrt rsqrt sigmoid erf gelu floor ceil trunc isnan"
    ).split(),
)
def test_elementwise_functions(name: str) -> None:
    assert value_text(f"tc.{name}(s)") == f"{name}(s)"


def test_constants_with_a_type() -> None:
    made = kernel("v = f32(0.1)\nw = i32(3)\nz = (7).to(u8)\nb = True")
    lets = [part for part in made.body.statements if isinstance(part, ir.Let)]
    assert [(let.value.value, let.value.dtype) for let in lets] == [
        (float(np.float32(0.1)), f32),
        (3, i32),
        (7, tc.u8),
    ]


def test_a_dead_branch_is_not_looked_at() -> None:
    body = """
        if bias is None:
            v = s
        else:
            v = s + no_such_name
        w = s if bias is None else no_such_name
        z = bias is not None and no_such_name
    """
    assert body_text(body, bias=None) == "let v = s\nlet w = s"


def test_a_condition_that_decides_late_keeps_what_stands_before() -> None:
    assert value_text("x[i] > 0 and False") == "x[i] > 0.0 and False"


def test_functions_of_python_are_called_on_constants() -> None:
    def warps(m: int, n: int) -> tuple[int, int]:
        return m // 2, n * 2

    assert body_text("p, q = warps(8, n=3)\nv = s * (p + q)", warps=warps) == "let v = s * 10.0"


def test_mappings_are_constants() -> None:
    body = """
        inner = own * repeat(1, 2)
        bm, bn = inner.shape
        for i, j in inner:
            y[i * bn + j] = s
        v = s * own.workers
    """
    assert body_text(body, own=spatial(4, 8)) == (
        "each (i, j) in spatial(4, 8).repeat(1, 2):\n    y[i * 16 + j] = s\nlet v = s * 32.0"
    )


def test_every_node_knows_its_place() -> None:
    made = kernel('text = "é漢"; v = s * x[n[0] + 1]')
    let = made.body
    assert isinstance(let, ir.Let)
    read = let.value.right
    spans = [(node.loc.line, node.loc.column, node.loc.end_column) for node in (let.value, read)]
    assert spans == [(3, 22, 37), (3, 26, 37)]
    index = read.indices[0].operand
    assert (index.loc.column, index.left.loc.column, index.right.loc.column) == (28, 28, 35)
