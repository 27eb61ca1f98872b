"""taskc.check: proofs, and a run after every pass; what is wrong is found and the pass named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.ir import nodes as ir
from taskc.passes.pipeline import Step
from taskc.runtime import checking
from taskc.runtime.checking import comparison_across_targets
from tests.example_files import definitions_of, example
from tests.runtime.test_driver import A, B, add, compiled, reverse, split

__all__ = ["compiled"]  # a fixture


def matmul(stages: int) -> Any:
    own = tc.spatial(2, 4) * tc.repeat(2, 2)

    @tc.kernel(workers=own.workers)
    def kernel(a: tc.f32[6, 10], b: tc.f32[10, 9], c: tc.out[tc.f32[6, 9]]):
        for row, col in tc.tiles((6, 9), by=(4, 8)):
            acc = tc.tile(tc.f32, own, 0)
            for p in tc.pipeline(10, by=4, stages=stages):
                sa = tc.load(a[row : row + 4, p : p + 4])
                sb = tc.load(b[p : p + 4, col : col + 8])
                for q in range(4):
                    for i, j in own:
                        acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + 4, col : col + 8], acc)

    return kernel


@pytest.mark.parametrize("target", [None, "sm_80"])
def test_a_correct_kernel_has_no_findings(target: str | None) -> None:
    assert tc.check(matmul(2), seeds=(0, 1), target=target) == ()


def test_every_stage_is_run_or_those_that_are_asked_for() -> None:
    told: list[Any] = []
    (whole,) = checking.examine(matmul(2), progress=told.append).calls
    assert {step.kernel.stage for step in whole.steps} == set(ir.STAGES)
    first, *rest = [doing for doing in told if not doing.block]
    assert str(first) == "proving (1 of 24)"
    assert rest[0].text == "running it as it was written"
    assert [doing.text for doing in rest[1:]] == [
        f"running it after {step.name}" for step in whole.steps[1:]
    ]
    (some,) = checking.examine(matmul(2), stages=("pipelined", "lean")).calls
    assert [step.kernel.stage for step in some.steps] == ["parsed", "pipelined", "lean"]
    with pytest.raises(ValueError, match="there is no stage 'late'; there are parsed, "):
        tc.check(matmul(2), stages="late")
    with pytest.raises(tc.CompileError, match="there is no target 'sm_1'"):
        tc.check(matmul(2), target="sm_1")


def test_how_far_a_check_is() -> None:
    told: list[Any] = []
    assert not tc.check(matmul(2), progress=told.append, seeds=(0, 1), target="sm_80")
    shares = [doing.share for doing in told]
    assert shares[0] == 0
    assert max(shares) == 1
    by_warps = [doing for doing in told if doing.text == "running it after hoist" and doing.block]
    blocks = by_warps[0].blocks
    assert [doing.block for doing in by_warps] == [
        blocks,
        *range(1, blocks + 1),
        *range(1, blocks + 1),
    ]
    assert str(by_warps[1]) == f"running it after hoist (24 of 24, block 1 of {blocks})"


def test_given_arguments_are_used_and_left_alone() -> None:
    x = np.arange(16, dtype=np.float32)
    assert tc.check(split, (x, 3)) == ()
    assert x.tolist() == list(range(16))
    with pytest.raises(tc.ArgumentError, match="'scale' is 300"):
        tc.check(split, (x, 300))


def test_all_that_cannot_be_proved_is_found() -> None:
    @tc.kernel(workers=8)
    def wrong(x: tc.f32[8], y: tc.out[tc.f32[16]]):
        for i in tc.spatial(8):
            y[i] = x[i + 1]

    findings = tc.check(wrong)
    assert {finding.severity for finding in findings} == {"error"}
    assert [finding.message for finding in findings] == [
        "y[8] is never stored",
        "index 8 is outside `x` (extent 8) at worker 7, task (7,)",
    ]
    assert str(findings[0]).splitlines()[-1].startswith("  hint: ")


def test_a_race_below_phases_is_found_at_its_line() -> None:
    (finding,) = tc.check(reverse(False))
    assert (finding.kind, finding.severity) == ("race", "error")
    assert finding.location.text.strip() == "y[w] = s[63 - w]"
    assert tc.check(reverse(True)) == ()


def planted(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """One more pass, at the end, which is wrong."""
    original = checking.lower_steps

    def lower_steps(kernel: ir.Kernel) -> Any:
        for step in original(kernel):
            yield step
        yield Step("wreck", change(step.kernel), 0.0)

    monkeypatch.setattr(checking, "lower_steps", lower_steps)


def test_a_pass_that_changes_the_result_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskc.ir.rewrite import map_children

    def double(node: Any) -> Any:
        node = map_children(node, double)
        if isinstance(node, ir.Store) and node.tensor.name == "c":
            return replace(node, value=ir.Binary("+", node.value, node.value))
        return node

    planted(monkeypatch, lambda kernel: replace(kernel, body=double(kernel.body)))
    with pytest.raises(tc.InternalError, match="after the pass wreck c\\[0\\] is ") as caught:
        tc.check(add, (A, B))
    assert caught.value.ir.startswith("kernel add")


def test_an_error_that_a_pass_brings_in_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda kernel: replace(kernel, body=ir.Sequence(())))
    (finding,) = tc.check(add, (A, B))
    assert finding.kind == "not-written"
    assert ("after the pass", "wreck") in finding.details


@pytest.mark.parametrize(
    ("file", "name", "wanted"),
    [
        ("combine", "log_sum_exp", "close"),  # by a function that is combined by
        ("combine", "recurrence", "exact"),
        ("program", "layer", "close"),  # by a computation of a program
        ("vector_add", "vector_add", "exact"),
    ],
)
def test_targets_agree_but_for_math_functions(file: str, name: str, wanted: str) -> None:
    assert comparison_across_targets(definitions_of(example(file))[name]) == wanted
