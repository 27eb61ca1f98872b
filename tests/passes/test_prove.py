"""All proofs together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskc.errors import CompileError
from taskc.ir.parser import parse
from taskc.passes import prove as proofs
from taskc.passes.prove import findings, problem, prove

MATMUL = """
kernel matmul{dims}(a: f32[{m}, {k}], b: f32[{k}, {n}], c: out f32[{m}, {n}]) workers=32 stage=parsed:
    grid (row, col) in ({m}, {n}) by (16, 32):
        tile acc: f32[16, 32] by repeat(2, 2).spatial(4, 8).repeat(2, 2) = 0.0
        pipeline p in {k} by 8 stages=2:
            constant shared sa: f32[16, 8]
            move sa[i, q] = select(row + i < {m} and p + q < {k}, a[row + i, p + q], 0.0) for (i, q) in (16, 8)
            constant shared sb: f32[8, 32]
            move sb[q, j] = select(p + q < {k} and col + j < {n}, b[p + q, col + j], 0.0) for (q, j) in (8, 32)
            for q in range(0, 8, 1):
                each (i, j) in repeat(2, 2).spatial(4, 8).repeat(2, 2):
                    acc[i, j] = fma(sa[i, q], sb[q, j], acc[i, j])
        move c[row + i, col + j] = acc[i, j] for (i, j) in (16, 32) if row + i < {m} and col + j < {n}
"""


@pytest.mark.parametrize(
    ("m", "n", "k", "dims"),
    [
        ("m", "n", "k", "[m, n, k]"),
        ("m", "n", "k", "[m multiple=16, n, k multiple=8]"),
        (17, 31, 7, ""),
        (1, 1, 1, ""),
        (0, 32, 8, ""),
        (16, 32, 0, ""),
        ("m", 33, 64, "[m]"),
        ("m", "m", "m", "[m]"),
    ],
)
def test_matmul_of_any_size(m: object, n: object, k: object, dims: str) -> None:
    kernel = parse(MATMUL.format(m=m, n=n, k=k, dims=dims))
    assert prove(kernel) is kernel


WRONG = """
kernel k(a: f32[8], c: out f32[8]) workers=4 stage={stage}:
    shared s: f32[8]
    tile t: f32[4] by spatial(4) = 0.0
    each i in spatial(4):
        t[3 - i] = a[i + 8]
        s[i // 2] = 1.0
        c[i] = t[i]
"""


def test_all_findings_in_the_order_of_the_source() -> None:
    errors = findings(parse(WRONG.format(stage="parsed")))
    assert [(error.location.line, error.location.column, error.message) for error in errors] == [
        (6, 9, "worker 0 does not own t[3] (task (0,)); worker 3 does"),
        (6, 20, "index 8 is outside `a` (extent 8) at worker 0, task (0,)"),
        (7, 9, "race: worker 0 (task (0,)) and worker 1 (task (1,)) both write s[0] in one phase"),
        (8, 9, "c[4] is never stored"),
    ]


def test_the_first_is_raised() -> None:
    with pytest.raises(CompileError, match="does not own"):
        prove(parse(WRONG.format(stage="parsed")))


def test_a_kernel_with_its_own_barriers_has_no_phases() -> None:
    errors = findings(parse(WRONG.format(stage="synchronized")))
    assert [error.location.line for error in errors] == [6, 6]


def test_what_was_proved_when_it_was_fused_is_not_proved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = parse(MATMUL.format(m=17, n=31, k=7, dims=""))
    other = parse(MATMUL.format(m=17, n=31, k=7, dims=""))
    assert problem(kernel) is None
    assert problem(other) is None
    wrong = replace(other, parameters=(*other.parameters[:2], other.parameters[0]))
    proved = []
    monkeypatch.setattr(proofs, "findings", lambda kernel: proved.append(kernel) or ())
    lowered = replace(kernel, name="another", target="sm_80")
    assert prove(lowered) is lowered
    assert proved == []
    prove(lowered)  # only the first time: nothing is kept for it any more
    prove(wrong)  # the body was proved for other parameters
    assert proved == [lowered, wrong]
