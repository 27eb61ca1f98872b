"""Programs that are traced for some sizes, and what they take for granted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.lang.sizes import are_surely_equal, quotient, tracing
from taskc.programs.sizes import Assumptions

m, n = tc.dim("m"), tc.dim("n")


def _halved_from(limit: int, assumptions: Assumptions | None) -> Any:
    """x, and half of it where there are more than so many elements."""

    def body(x: Any) -> Any:
        if n > limit:
            return tc.compute((n,), lambda i: x[i] / 2)
        return tc.compute((n,), lambda i: x[i])

    return tc.trace("halved", {"x": f32[n]}, body, assumptions=assumptions)


def test_a_trace_goes_the_way_of_its_sizes() -> None:
    ones = np.ones(5, np.float32)
    few, many = Assumptions({n: 3}), Assumptions({n: 9})
    assert _halved_from(4, few)(ones).tolist() == [1] * 5
    assert _halved_from(4, many)(ones).tolist() == [0.5] * 5
    assert [str(one) for one in few] == ["not n - 4 > 0"]
    assert [size for size in (1, 4, 5, 100) if few.serve({n: size})] == [1, 4]
    assert [size for size in (1, 4, 5, 100) if many.serve({n: size})] == [5, 100]


def test_what_holds_for_all_sizes_is_no_assumption() -> None:
    made = Assumptions({n: 3})
    _halved_from(-1, made)
    assert not [*made]


def test_without_assumptions_it_is_refused() -> None:
    with pytest.raises(
        tc.CompileError, match="whether n > 4 is known only when the program is called"
    ):
        _halved_from(4, None)


def test_the_number_of_a_step_is_never_assumed() -> None:
    def body(x: Any) -> Any:
        y = tc.compute((n,), lambda i: x[i])
        for t in tc.steps(n):
            if t > 2:
                tc.compute((1,), lambda i: x[t], out=y[t : t + 1])
        return y

    with pytest.raises(tc.CompileError, match="whether t > 2 is known only"):
        tc.trace("steps", {"x": f32[n]}, body, assumptions=Assumptions({n: 3}))


@pytest.mark.parametrize(
    ("whole", "divisor", "expected"),
    [
        (12, 4, "3"),
        (12, 5, "None"),
        (12, 0, "None"),
        (12 * m * n, 4 * n, "m * 3"),
        (12 * m, 4, "m * 12 // 4"),
        (m * n * n, m * n, "n"),
        (m * n + 2 * n, n, "m + 2"),
        (m * n + 2, n, "None"),
        (n, 2, "None"),
        (tc.dim("even", multiple=4), 2, "even // 2"),
        (n, m + 1, "None"),
        (64 * (n - 4), n - 4, "64"),
        (8 * m * (n - 4), 2 * (n - 4), "m * 4"),
        (8 * n - 4, n - 4, "None"),
        (0, n, "0"),
        (n // 3 * 6, n // 3, "6"),
    ],
)
def test_a_quotient_comes_out_at_all_calls(whole: Any, divisor: Any, expected: str) -> None:
    assert str(quotient(whole, divisor)) == expected


def test_what_is_surely_equal() -> None:
    def body(x: Any) -> Any:
        assert are_surely_equal(m + n, n + m)
        assert not are_surely_equal(m, n)
        assert not are_surely_equal(n, 3)
        return x

    made = Assumptions({m: 3, n: 3})
    tc.trace("equal", {"x": f32[m, n]}, body, assumptions=made)
    assert not [*made]
    assert tracing.get() is None
    assert are_surely_equal(2, 2)
    assert are_surely_equal(n, n)
    assert not are_surely_equal(n, m)
