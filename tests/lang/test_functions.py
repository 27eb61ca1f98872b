"""Helpers are inlined."""

from __future__ import annotations

import taskc as tc
from tests.lang.test_statements import assert_becomes


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
