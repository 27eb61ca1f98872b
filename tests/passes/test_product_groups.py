"""Groups of products that run beside their workers: what runs beside them, and what waits.

Every kernel is run after every pass, and gives the bits of its phases; planted bugs are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
import taskc.passes.await_products as module
from taskc import bf16, f32, i32, spatial
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import map_statements, walk
from taskc.lang.definition import KernelDefinition
from taskc.passes.pipeline import lower, lower_steps
from tests.passes.test_select_products import fragment, on_hopper, runs_everywhere

OWN = fragment(16)


def two_products(*, through_memory: bool = False) -> KernelDefinition:
    """Two accumulators; the first one's elements are worked on while the second is multiplied."""

    @tc.kernel(workers=128)
    def kernel(
        a: bf16[64, 32], b: bf16[32, 16], c: bf16[64, 32],
        y: tc.out[f32[64, 16]], z: tc.out[f32[64, 16]],
    ):  # fmt: skip
        sa, sb, sc = tc.load(a[:, :]), tc.load(b[:, :]), tc.load(c[:, :])
        first = tc.tile(f32, OWN, 0)
        second = tc.tile(f32, OWN, 0)
        tc.mma(first, sa, sb)
        tc.mma(second, sc, sb)
        tc.mma(second, sa, sb)
        if through_memory:
            s = tc.shared(f32[64, 16])
            for i, j in OWN:
                s[i, j] = 1
            for i, j in OWN:
                first[i, j] += s[63 - i, j]
        for i, j in OWN:
            first[i, j] *= 2
        for i, j in OWN:
            second[i, j] += first[i, j]
        tc.store(y[:, :], first)
        tc.store(z[:, :], second)

    return kernel


def order_of(definition: KernelDefinition) -> list[str]:
    """What is done with products and accumulators, as await_products leaves it."""
    step = next(s for s in lower_steps(on_hopper(definition)) if s.name == "await_products")
    pattern = (
        r"schedule\.\w+|wgmma\.(?:fence|commit|wait)\(\d?\)|mma \w+"
        r"|\b(?:first|second|left|s)\[i(?:_\d)?, j(?:_\d)?\] = "
    )
    return [re.sub(r"_\d", "", one) for one in re.findall(pattern, to_text(step.kernel))]


def test_a_group_is_waited_for_where_its_registers_are_touched() -> None:
    assert order_of(two_products()) == [
        "wgmma.fence()", "mma first", "wgmma.commit()", "mma second", "mma second", "wgmma.commit()",
        "wgmma.wait(1)", "first[i, j] = ", "schedule.hold", "wgmma.wait(0)", "second[i, j] = ",
    ]  # fmt: skip


def test_nothing_is_in_flight_where_others_may_see_what_is_done() -> None:
    made = order_of(two_products(through_memory=True))
    assert made.index("wgmma.wait(0)") < made.index("s[i, j] = ")
    assert "wgmma.wait(1)" not in made


def _found(definition: KernelDefinition) -> set[str]:
    return _reported([step.kernel for step in lower_steps(on_hopper(definition))])


def _reported(kernels: Sequence[ir.Kernel]) -> set[str]:
    random = np.random.default_rng(3)
    given = [
        random.normal(size=tuple(map(int, t.shape))).astype(t.dtype.numpy)  # type: ignore[union-attr]
        for t in kernels[0].parameters[:-2]
    ]
    outputs = [np.zeros((given[0].shape[0], 16), np.float32) for _ in range(2)]
    found: set[str] = set()
    for kernel in kernels:
        report = sim.run(kernel, [*given, *outputs], seed=1)
        found |= {finding.kind for finding in report.findings}
    return found


@pytest.mark.parametrize("through_memory", [False, True])
def test_every_pass(through_memory: bool) -> None:
    assert _found(two_products(through_memory=through_memory)) == set()


def _one_more(right: Callable[..., int]) -> Callable[..., int]:
    return lambda *given: right(*given) + 1


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_in_flight_during", _one_more),
        ("_used", lambda right: lambda product: frozenset()),
    ],
)
def test_planted_bugs_are_reported(
    name: str, wrong: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, wrong(getattr(module, name)))
    assert any("unwaited" in kind for kind in _found(two_products()))


def test_a_left_operand_in_registers_is_left_alone() -> None:
    """It is given other elements only when the product that reads it has ended."""

    @tc.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[32, 16], y: tc.out[f32[64, 16]]):
        sb = tc.load(b[:, :])
        left = tc.tile(bf16, fragment(32))
        total = tc.tile(f32, OWN, 0)
        for i, j in fragment(32):
            left[i, j] = a[i, j]
        tc.mma(total, left, sb)
        for i, j in fragment(32):
            left[i, j] = 2 * a[i, j]
        tc.mma(total, left, sb)
        tc.store(y[:, :], total)

    runs_everywhere(kernel)
    product = ["wgmma.fence()", "mma total", "wgmma.commit()", "wgmma.wait(0)"]
    assert order_of(kernel) == ["left[i, j] = ", *product, "left[i, j] = ", *product]


def test_a_branch_beside_products_stays_one() -> None:
    @tc.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[32, 16], n: i32, y: tc.out[f32[64, 16]]):
        sa, sb = tc.load(a[:, :]), tc.load(b[:, :])
        first = tc.tile(f32, OWN, 1)
        second = tc.tile(f32, OWN, 0)
        tc.mma(second, sa, sb)
        if n > 3:
            for i, j in OWN:
                first[i, j] *= 2
        for i, j in OWN:
            second[i, j] += first[i, j]
        if n > 4:
            for i, j in OWN:
                second[i, j] *= 2
        tc.store(y[:, :], second)

    product = ["wgmma.fence()", "mma second", "wgmma.commit()"]
    assert order_of(kernel) == [
        *product, "schedule.branch", "first[i, j] = ", "schedule.hold", "wgmma.wait(0)",
        "second[i, j] = ", "second[i, j] = ",
    ]  # fmt: skip


# --- a ring for each product that is the first to read a load ----------------------------------------------


def two_rings(warpgroups: int = 1) -> KernelDefinition:
    """As in attention: the second product multiplies what the step before has left in registers."""
    rows, turns = 64 * warpgroups, "products" if warpgroups > 1 else None
    out, scored = [spatial(warpgroups, 1) * fragment(n) for n in (16, 32)]

    @tc.kernel(workers=128 * warpgroups)
    def kernel(
        a: bf16[rows, 32], b: bf16[96, 32], c: bf16[96, 16],
        y: tc.out[f32[rows, 16]], z: tc.out[f32[rows, 16]],
    ):  # fmt: skip
        sa = tc.load(a[:, :])
        total = tc.tile(f32, out, 0)
        highest = tc.tile(f32, out, 0)
        powers = tc.tile(bf16, scored, 0)
        for p in tc.pipeline(96, by=32, stages=2, specialize=True, turns=turns):
            sb = tc.load(b[p : p + 32, :])
            sc = tc.load(c[p : p + 32, :])
            scores = tc.tile(f32, scored, 0)
            tc.mma(scores, sa, sb.T)
            tc.mma(total, powers, sc)
            for i, j in scored:
                highest[i, j % 16] = max(highest[i, j % 16], scores[i, j])
            for i, j in scored:
                powers[i, j] = scores[i, j].to(bf16)
        tc.store(y[:, :], total)
        tc.store(z[:, :], highest)

    return kernel


def test_each_slot_is_released_when_its_own_product_has_ended() -> None:
    kernel = next(
        s for s in lower_steps(on_hopper(two_rings())) if s.name == "await_products"
    ).kernel
    words = (
        r"(?:wait|release) \w+\[|wgmma\.wait\(\d\)|mma \w+|highest\[.*? = |powers\[i\w*, j\w*\] = "
    )
    made = [re.sub(r"_\d+", "", one) for one in re.findall(words, to_text(kernel))]
    assert made == [
        "wait sa[", "wait sb[", "mma scores", "wait sc[", "mma total", "wgmma.wait(1)", "release sb[",
        "highest[i, j % 16] = ", "wgmma.wait(0)", "release sc[", "powers[i, j] = ",
    ]  # fmt: skip
    assert _found(two_rings()) == set()


def test_a_slot_that_is_released_early_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_used", lambda product: frozenset((product.accumulator,)))
    assert "unwaited-product" in _found(two_rings())


def test_a_slot_that_is_not_waited_for_is_reported() -> None:
    def without(statement: ir.Statement) -> ir.Statement:
        if isinstance(statement, ir.RingStep) and statement.operation == "wait":
            return ir.Sequence(()) if statement.ring.name == "sc" else statement
        return map_statements(statement, without)

    kernel = lower(on_hopper(two_rings()), "pipelined")
    assert _reported([replace(kernel, body=without(kernel.body))])


# --- turns of warpgroups ----------------------------------------------------------------------------------


def test_warpgroups_issue_their_products_by_turns() -> None:
    """Each takes its turn behind the wait for its keys, and gives the next one its own before it waits for products."""
    steps = {step.name: step.kernel for step in lower_steps(on_hopper(two_rings(2)))}
    kernel = steps["lower_rings"]
    parsed = to_text(on_hopper(two_rings(2)))
    assert " specialize turns=products:" in parsed
    assert to_text(parse(parsed)) == parsed
    pattern = r"barrier\.\w+\(.*, 256\)|mma \w+|wgmma\.wait\(\d\)|mbarrier\.wait\(&s[bc]_full|if worker // 128 == \d"
    turn, following = (
        "barrier.named(worker // 128 + 1, 256)",
        "barrier.arrive((worker // 128 + 1) % 2 + 1, 256)",
    )
    assert re.findall(pattern, to_text(kernel)) == [
        "if worker // 128 == 1", following,
        "mbarrier.wait(&sb_full", turn, "mma scores", "mbarrier.wait(&sc_full", "mma total", following,
        "wgmma.wait(1)", "wgmma.wait(0)",
        "if worker // 128 == 0", turn,
    ]  # fmt: skip
    assert _reported([kernel, steps["hoist"]]) == set()


@pytest.mark.parametrize(
    ("operation", "kinds"),
    [("barrier.arrive", {"deadlock"}), ("barrier.named", {"barrier-divergence"})],
)
def test_a_turn_that_is_left_out_is_reported(operation: str, kinds: set[str]) -> None:
    """Each place of it, one at a time: within the steps, and around them."""
    kernel = lower(on_hopper(two_rings(2)), "synchronized")
    chosen = [n for n in walk(kernel.body) if isinstance(n, ir.Do) and n.operation == operation]
    assert len(chosen) == 2
    for node in chosen:

        def without(statement: ir.Statement, node: ir.Do = node) -> ir.Statement:
            return ir.Sequence(()) if statement is node else map_statements(statement, without)

        assert kinds & _reported([replace(kernel, body=without(kernel.body))])


def test_a_lone_warpgroup_takes_no_turns() -> None:
    @tc.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[96, 32], y: tc.out[f32[64, 32]]):
        sa = tc.load(a[:, :])
        total = tc.tile(f32, fragment(32), 0)
        for p in tc.pipeline(96, by=32, stages=2, specialize=True, turns="products"):
            sb = tc.load(b[p : p + 32, :])
            tc.mma(total, sa, sb.T)
        tc.store(y[:, :], total)

    made = lower(on_hopper(kernel), "pipelined")
    assert [text for text, _ in made.notes] == [
        "warpgroups take no turns: no products run beside work of a step"
    ]
