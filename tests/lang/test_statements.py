"""Names, cells, branches, loops and stores."""

from __future__ import annotations

from typing import Any

import pytest

import taskc as tc
from taskc import spatial
from taskc.ir import nodes as ir
from tests.lang.notebook import HEADER, body_text, kernel


def assert_becomes(body: str, expected: str, header: str = HEADER, **names: Any) -> None:
    lines = expected.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    assert body_text(body, header, **names) == "\n".join(line[margin:] for line in lines).rstrip()


def test_a_name_that_is_assigned_once_is_a_let() -> None:
    assert_becomes("v = s * 2\nw = v", "let v = s * 2.0\nlet w = v")


def test_the_side_that_a_constant_chooses_is_all_of_the_statement() -> None:
    @tc.function
    def filled(x: Any) -> Any:
        return tc.load(x[0:8])

    body = "t = filled(x) if True else None\nu = None if t is None else tc.load(x[8:16])"
    assert_becomes(
        body,
        """
        constant shared t: f32[8]
        move t[i] = x[i] for i in 8
        constant shared u: f32[8]
        move u[i_1] = x[8 + i_1] for i_1 in 8
        """,
        filled=filled,
    )


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


def test_branches() -> None:
    assert_becomes(
        """
        v = s
        if s > 1:
            v = s * 2
        elif s > 0:
            v = 0
        else:
            pass
        """,
        """
        local v: f32
        v = s
        if s > 1.0:
            v = s * 2.0
        elif s > 0.0:
            v = 0.0
        else:
            pass
        """,
    )


def test_a_branch_chosen_while_parsing_shares_its_names() -> None:
    assert_becomes(
        """
        if fast:
            v = s
        else:
            v = x[0]
        for i in spatial(32):
            y[i] = v
        """,
        "let v = s\neach i in spatial(32):\n    y[i] = v",
        fast=True,
    )


def test_while_assert_and_print() -> None:
    assert_becomes(
        """
        '''Text that says what it is for.'''
        j = 0
        while j < 8 and x[j] > 0:
            j += 1
        assert s > 0, "positive"
        assert j <= 8
        assert 1 + 1 == 2
        tc.print("{} of {}: {}", j, 8, 0.5)
        """,
        """
        local j: i64 = 0
        while j < 8 and x[j] > 0.0:
            j = j + 1
        assert s > 0.0, "positive"
        assert j <= 8, "j <= 8"
        print "{} of {}: {}", j, 8, f64(0.5)
        """,
    )


def test_ranges() -> None:
    assert_becomes(
        """
        for j in range(2, 8):
            for q in range(j, n[0], 3):
                for r in range(9, -1, -2):
                    pass
        """,
        """
        for j in range(2, 8):
            for q in range(j, n[0].to(i64), 3):
                for r in range(9, -1, -2):
                    pass
        """,
    )


def test_static_loops_are_unrolled_while_parsing() -> None:
    assert_becomes(
        """
        v = s
        for p, (name, q) in tc.static([(1, ("a", 2)), (3, ("b", 4))]):
            v += p * q
            if name == "b":
                w = s * 2
                v = w
        """,
        """
        local v: f32
        v = s
        v = v + 2.0
        scope:
            v = v + 12.0
            let w = s * 2.0
            v = w
        """,
    )


def test_mapping_loops() -> None:
    assert_becomes(
        """
        for i, j in spatial(4, 8).repeat(2, 2):
            for p, in repeat(4).on(tc.worker() % 1):
                y[i] = a[j, p]
        for p, q in inner.on(tc.worker() // 8):
            y[p] = s
        """,
        """
        each (i, j) in spatial(4, 8).repeat(2, 2):
            each p in repeat(4) on worker % 1:
                y[i] = a[j, p]
        each (p_1, q) in spatial(2, 2) on worker // 8:
            y[p_1] = s
        """,
        inner=spatial(2, 2),
    )


def test_a_mapping_loop_in_a_mapping_loop_is_the_same_workers() -> None:
    assert_becomes(
        """
        for i in spatial(32):
            for j in repeat(4).spatial(32):
                y[i] += x[j]
        """,
        """
        each i in spatial(32):
            each j in repeat(4).spatial(32):
                y[i] = y[i] + x[j]
        """,
    )


def test_private_arrays_and_atomics() -> None:
    assert_becomes(
        """
        h = tc.local(f32[4], fill=0)
        for i in spatial(32):
            g = tc.local(i32[2])
            g[0] = n[i % 8]
            h[g[0]] += x[i]
            old = tc.atomic_add(y[i], h[0])
            tc.atomic_max(y[0], old)
            tc.atomic_exchange(y[1], 0)
        """,
        """
        local h: f32[4] = 0.0
        each i in spatial(32):
            local g: i32[2]
            g[0] = n[i % 8]
            h[g[0].to(i64)] = h[g[0].to(i64)] + x[i]
            let old = atomic y[i] += h[0]
            atomic y[0] max= old
            atomic y[1] exchange= 0.0
        """,
    )


def test_helpers_are_inlined() -> None:
    @tc.function
    def square(v):  # type: ignore[no-untyped-def]
        """Twice used: it gets a name."""
        return v * v

    @tc.function
    def relu(v):  # type: ignore[no-untyped-def]
        return max(v, 0)

    @tc.function
    def add_to(target, i, value, times):  # type: ignore[no-untyped-def]
        value = value + 1
        for _ in range(times):
            target[i] += value

    @tc.function
    def pick(v, kind):  # type: ignore[no-untyped-def]
        if kind == "double":
            return v * 2
        w = v + 1
        return w, v

    assert_becomes(
        """
        for i in spatial(32):
            y[i] = square(x[i] + s) + relu(x[i])
            add_to(y, i, x[i], 3)
            p = pick(s, "double")
            q, r = pick(s, "both")
            y[i] = relu(p) if q > r else square(s)
        """,
        """
        each i in spatial(32):
            let v = x[i] + s
            y[i] = v * v + max(x[i], 0.0)
            local value: f32
            value = x[i]
            value = value + 1.0
            for _ in range(3):
                y[i] = y[i] + value
            let p = s * 2.0
            let w = s + 1.0
            let q = w
            let r = s
            y[i] = select(q > r, max(p, 0.0), s * s)
        """,
        square=square,
        relu=relu,
        add_to=add_to,
        pick=pick,
    )
    assert (square(3), relu(-2)) == (9, 0)  # in Python they are what they were


def test_a_uniform_cell_is_one_that_no_mapping_loop_writes() -> None:
    made = kernel(
        """
        total = s
        for j in range(3):
            total += x[j]
        if total > 1:
            for i in spatial(32):
                y[i] = total
        """
    )
    assert isinstance(made.body.statements[-1], ir.If)


def test_types_of_names() -> None:
    made = kernel("v = n[0]\nw = s > 1\nu = v + 1")
    assert [let.variable.dtype for let in made.body.statements] == [tc.i32, tc.boolean, tc.i32]


def test_bodies_are_as_the_text_form_has_them() -> None:
    made = kernel("for j in range(3):\n    v = s")
    assert isinstance(made.body, ir.For)
    assert isinstance(made.body.body, ir.Let)
