"""Attention whose keys are cut into parts: all forms of it, which plans have parts, and what they come to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32
from taskc.backend.cuda.compile import compile_many
from taskc.kernels.attention import Plan, Problem, attention
from taskc.kernels.attention.plan import candidates
from taskc.passes.pipeline import lower
from taskc.programs.ir import Program, kernels_of
from taskc.runtime.checking import for_target
from taskc.tune.space import least
from tests.kernels.simulated import simulated
from tests.kernels.test_attention import exact, operands
from tests.kernels.test_attention_products import check

STEPS = Plan(1, 1, 16, 3, part=48)


def decoding(batches: Any, keys: Any, *, groups: int = 8, length: int = 1) -> Problem:
    """32 heads of 128 features."""
    return Problem(
        batches, groups, 32 // groups, length, keys, 128, 128,
        offset=None, mask=None, scale=1.0, dtype=bf16,
    )  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((1, 2, 1, 3, 100, 16, 24), f16, {}),
        ((2, 4, 2, 3, 100, 16, 24), bf16, {"causal": True}),
        ((1, 2, 2, 20, 100, 20, 12), f16, {"causal": True, "offset": 60}),
        ((1, 2, 1, 5, 100, 16, 16), f16, {"causal": True, "offset": -2}),
        ((1, 1, 1, 1, 150, 16, 16), f16, {"scale": -0.5}),
        ((1, 2, 1, 3, 40, 16, 16), f16, {}),
        ((1, 2, 2, 3, 70, 10, 33), f32, {"plan": Plan(1, 1, 32, 2, part=32)}),
    ],
    ids=[
        "ragged", "causal", "parts that some see", "queries that see nothing", "negative scale",
        "one part", "f32",
    ],
)  # fmt: skip
def test_forms(target: str, shape: Any, dtype: tc.DType, options: Any) -> None:
    check(shape, dtype, target, **{"plan": STEPS, **options})


@pytest.mark.each_value
@pytest.mark.parametrize("plan", [STEPS, Plan(1, 1, 16, 3)], ids=["parts", "one part"])
@pytest.mark.parametrize(
    "settings", [{"window": 20}, {"window": 20, "cap": 1.5}, {"ahead": 2}], ids=str
)
def test_lengths_windows_caps_and_sinks(plan: Plan, settings: dict[str, Any]) -> None:
    """The first batch has no keys, and the last one ends within a step."""
    shape = 3, 2, 1, 3, 100, 16, 24
    arguments = [x.astype(f16.numpy) for x in operands(*shape)]
    lengths, sinks = np.array([0, 100, 37], np.int32), np.array([0.5, -1], f16.numpy)
    kernel = attention(
        3, 2, 3, 100, 16, kv_heads=1, value_features=24, causal=True, lengths=True, sinks=True,
        dtype=f16, plan=plan, machine=tc.machine("sm_80"), **settings,
    )  # fmt: skip
    made, _ = simulated(kernel, [*arguments, lengths, sinks], "sm_80", ("lean",))
    offset = 97 + settings.pop("ahead", 0)
    expected, _ = exact(*arguments, None, lengths, sinks, offset=offset, **settings)
    np.testing.assert_allclose(made, expected, atol=2e-3)


@pytest.mark.each_value
@pytest.mark.parametrize("shape", [(2, 4, 3, 100), (1, 100)], ids=str)
@pytest.mark.parametrize("flags", [False, True])
def test_masks(shape: tuple[int, ...], flags: bool) -> None:
    """The first query sees nothing of the first two parts, and the others what chance has it."""
    mask: Any = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mask = mask < 0.5 if flags else np.where(mask < -1, np.float32(-np.inf), mask)
    mask[..., 0, :96] = False if flags else -np.inf
    check((2, 4, 2, 3, 100, 16, 8), f16, "sm_80", mask, plan=STEPS)


def test_every_pass() -> None:
    assert (
        check((2, 4, 2, 3, 100, 16, 24), f16, "sm_80", stages="all", causal=True, plan=STEPS) == ()
    )


@pytest.mark.parametrize("keys", [0, 20, 48, 100])
def test_any_batch_and_keys(keys: int) -> None:
    """How many parts there are is known at the call; queries that see no key get zeros."""
    sizes = tc.dim("batches"), 4, 3, tc.dim("keys")
    check((2, 4, 2, 3, keys, 16, 24), f16, "sm_80", sizes=sizes, causal=True, plan=STEPS)


@pytest.mark.parametrize("larger", [slice(0, 48), slice(48, 96), slice(96, 100)])
def test_parts_of_other_magnitudes(larger: slice) -> None:
    """What is added up has been scaled to the largest exponent, whichever part has it."""
    shape = (1, 1, 1, 3, 100, 16, 24)
    arguments = [x.astype(np.float16) for x in operands(*shape)]
    arguments[1][:, :, larger] *= 4
    kernel = attention(
        1, 1, 3, 100, 16, value_features=24, dtype=f16, machine=tc.machine("sm_80"), plan=STEPS
    )
    expected, bound = exact(*arguments)
    sizes, _ = exact(*arguments[:2], np.abs(arguments[2]))
    made, _ = simulated(kernel, arguments, "sm_80")
    assert (np.abs(made - expected) <= bound + 2.0**-11 * (sizes + np.abs(expected))).all()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_parts_fill_the_machine(target: str) -> None:
    machine = tc.machine(target)
    for batches in (1, 4):
        plan = least(candidates, decoding(batches, 8192), machine)
        assert plan.part % plan.keys == 0
        blocks = batches * 8 * -(-8192 // plan.part)
        assert machine.threads <= blocks <= 4 * machine.threads
    assert least(candidates, decoding(64, 8192), machine).part == 0
    assert least(candidates, decoding(1, 300), machine).part == 0
    assert least(candidates, decoding(tc.dim("batches"), tc.dim("keys")), machine).part >= 256
    assert least(candidates, decoding(1, 8192, length=tc.dim("length")), machine).part == 0


def test_what_is_no_part() -> None:
    for plan in (Plan(1, 1, 16, 3, part=40), Plan(8, 1, 64, 2, specialize=True, part=256)):
        with pytest.raises(tc.CompileError, match="a part is some whole steps"):
            attention(1, 1, 3, 4096, 64, dtype=f16, machine=tc.machine("sm_90a"), plan=plan)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_cubins(target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    made = attention(
        1, 32, 1, 8192, 128, kv_heads=8, dtype=bf16, causal=True, machine=tc.machine(target)
    ).ir
    assert isinstance(made, Program)
    for one in compile_many([lower(for_target(k, target)) for k in kernels_of(made).values()]):
        taken = one.resources
        assert (taken.spill_stores, taken.spill_loads, taken.stack) == (0, 0, 0)
        assert taken.remarks == ()
