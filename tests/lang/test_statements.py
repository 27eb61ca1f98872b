"""Branches, while loops, stores, and the names of what they hold."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc.ir import nodes as ir
from tests.lang.notebook import HEADER, body_text, kernel


def assert_becomes(body: str, expected: str, header: str = HEADER, **names: Any) -> None:
    lines = expected.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    assert body_text(body, header, **names) == "\n".join(line[margin:] for line in lines).rstrip()


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
