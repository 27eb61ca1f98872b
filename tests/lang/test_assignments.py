"""Names: Lets, cells, constants, and tuples of them."""

from __future__ import annotations

import pytest

from tests.lang.notebook import body_text
from tests.lang.test_statements import assert_becomes


def test_a_name_that_is_assigned_once_is_a_let() -> None:
    assert_becomes("v = s * 2\nw = v", "let v = s * 2.0\nlet w = v")


def test_a_constant_is_only_a_name() -> None:
    assert_becomes("p = 3\nq = p * 2\nv = s + q", "let v = s + 6.0")


def test_a_name_that_is_assigned_again_is_a_cell() -> None:
    assert_becomes(
        """
        v = s
        v = v * 2
        for j in range(3):
            v += x[j] * s
        """,
        """
        local v: f32
        v = s
        v = v * 2.0
        for j in range(3):
            v = fma(x[j], s, v)
        """,
    )


@pytest.mark.parametrize(
    ("start", "change", "declared"),
    [
        ("0.0", "v += s", "f32 = 0.0"),
        ("0", "v += s", "f32 = 0.0"),
        ("0", "v = n[0] + v", "i32 = 0"),
        ("0", "v += 1", "i64 = 0"),
        ("0", "v = j", "i64 = 0"),
        ("-tc.inf", "v = max(v, s)", "f32 = -inf"),
        ("False", "v = s > 0", "bool = False"),
        ("f16(0)", "v += 1", "f16 = 0.0"),
        ("0.1", "v = v if s > 0 else s", "f32 = 0.1"),
    ],
)
def test_a_cell_takes_its_type_from_the_first_value_that_has_one(
    start: str, change: str, declared: str
) -> None:
    text = body_text(f"v = {start}\nfor j in range(3):\n    {change}")
    assert text.splitlines()[0] == f"local v: {declared}"


def test_a_number_stored_before_the_type_is_known() -> None:
    assert_becomes(
        """
        v = 0
        for j in range(3):
            v = 1
            v += s
        """,
        """
        local v: f32 = 0.0
        for j in range(3):
            v = 1.0
            v = v + s
        """,
    )


def test_a_number_stored_in_a_body_before_the_type_is_known() -> None:
    assert_becomes(
        """
        v = 0
        for j in range(3):
            if s > 0:
                v = 1
        v += s
        w = 5
        for _ in range(3):
            for _ in range(2):
                w = 6
        """,
        """
        local v: f32 = 0.0
        for j in range(3):
            if s > 0.0:
                v = 1.0
        v = v + s
        local w: i64 = 5
        for _ in range(3):
            for __1 in range(2):
                w = 6
        """,
    )


def test_siblings_have_names_of_their_own() -> None:
    assert_becomes(
        """
        for j in range(3):
            v = s
        for j in range(3):
            v = n[0]
        """,
        """
        for j in range(3):
            let v = s
        for j_1 in range(3):
            let v_1 = n[0]
        """,
    )


def test_tuples_take_all_values_first() -> None:
    assert_becomes(
        """
        p, q = 0, i32(1)
        p, q = q, p + q
        """,
        """
        local p: i32 = 0
        local q: i32 = 1
        let p_1 = q
        let q_1 = p + q
        p = p_1
        q = q_1
        """,
    )


def test_a_tuple_keeps_the_values_of_its_moment() -> None:
    assert_becomes(
        """
        v = s
        pair = (v, 2)
        v = v + 1
        w = pair[0]
        """,
        """
        local v: f32
        v = s
        let pair = v
        v = v + 1.0
        let w = pair
        """,
    )
