"""Attention for GPUs, in the simulator: against f64, after passes, for several architectures."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cuda.compile import compile_many, disassembler, sass_of
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.target import SM_90A, TARGETS
from taskc.kernels.attention import Plan, Problem, attention
from taskc.kernels.attention.plan import candidates
from taskc.kernels.attention.problem import problem_of
from taskc.passes.pipeline import lower, lower_steps
from taskc.programs.ir import Program, kernels_of
from taskc.runtime.checking import for_target
from taskc.tune.space import least
from tests.evaluator import Machine
from tests.kernels.simulated import simulated
from tests.kernels.test_attention import exact, operands

main_loop = run_path(str(Path(__file__).parents[2] / "benchmarks" / "main_loop.py"))["main_loop"]

ROUNDING = {tc.f16: 2.0**-11, tc.bf16: 2.0**-8, tc.f32: 0.0}


def check(
    shape: tuple[int, ...],
    dtype: tc.DType,
    target: str,
    mask: Any = None,
    stages: Any = ("parsed", "lean"),
    sizes: Any = None,
    **options: Any,
) -> tuple[str, ...]:
    """Beyond what f32 costs, powers and results are rounded."""
    batches, heads, groups, length, keys, features, results = shape
    arguments = [x.astype(dtype.numpy) for x in operands(*shape)]
    if mask is not None:
        options["mask"] = (tc.boolean if mask.dtype == bool else tc.f32)[mask.shape]
    kernel = attention(
        *(sizes or (batches, heads, length, keys)), features,
        kv_heads=groups, value_features=results, dtype=dtype, machine=tc.machine(target), **options,
    )  # fmt: skip
    made, notes = simulated(
        kernel, arguments if mask is None else [*arguments, mask], target, stages
    )
    seen: dict[str, Any] = {"mask": mask, "scale": options.get("scale")}
    if options.get("causal"):
        seen["offset"] = options.get("offset", keys - length)
    expected, bound = exact(*arguments, **seen)
    sizes_of_terms, _ = exact(*arguments[:2], np.abs(arguments[2]), **seen)
    bound = bound + ROUNDING[dtype] * (sizes_of_terms + np.abs(expected))
    assert (np.abs(made - expected) <= bound).all()
    return notes


@pytest.mark.parametrize(
    ("target", "plan", "stages"),
    [
        ("sm_80", Plan(1, 1, 16, 3), "all"),
        ("sm_90a", Plan(4, 1, 16, 3), ("lean",)),
        ("sm_90a", Plan(8, 1, 32, 2, specialize=True, alternate=True), ("synchronized", "lean")),
        pytest.param(
            "sm_90a",
            Plan(12, 1, 32, 2, specialize=True, alternate=True),
            ("lean",),
            marks=pytest.mark.sweep,
        ),
        pytest.param("sm_90a", Plan(8, 1, 32, 2, specialize=True), "all", marks=pytest.mark.sweep),
    ],
)
def test_every_pass(target: str, plan: Plan, stages: Any) -> None:
    """More steps than stages, two tiles of queries of a different number of steps, ragged ends."""
    length = 20 * plan.warps
    notes = check(
        (1, 1, 1, length, length + 40, 16, 24), tc.f16, target,
        stages=stages, causal=True, plan=plan,
    )  # fmt: skip
    assert notes == ()  # copies are asynchronous, and products by instructions


@pytest.mark.parametrize("causal", [False, True])
def test_three_warpgroups_where_registers_and_queries_are_enough(causal: bool) -> None:
    """Tiles of 192 queries read keys less often; those of 256 queries would be filled by two thirds."""
    machine = tc.machine("sm_90a")
    found = {}
    for length, features in ((4096, 64), (256, 64), (4096, 128)):
        problem = problem_of(
            1, 1, length, length, features, kv_heads=None, value_features=None, causal=causal,
            offset=None, mask=None, scale=None, dtype=tc.bf16,
        )  # fmt: skip
        plan = least(candidates, problem, machine)
        assert isinstance(plan, Plan)
        found[length, features] = plan.warps, plan.keys
    # With 128 keys the assembler would move a wait in front of the powers, for want of registers.
    assert found == {(4096, 64): (12, 112), (256, 64): (8, 64), (4096, 128): (8, 128)}


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((1, 1, 1, 20, 40, 20, 12), tc.bf16, {"plan": Plan(2, 1, 16, 3)}),
        ((1, 1, 1, 40, 20, 16, 16), tc.f16, {"causal": True, "plan": Plan(1, 2, 32, 2)}),
        ((1, 1, 1, 20, 70, 10, 33), tc.f32, {"causal": True, "plan": Plan(1, 1, 32, 2)}),
        ((1, 6, 2, 3, 50, 16, 16), tc.f16, {"causal": True}),
        ((1, 1, 1, 17, 40, 16, 16), tc.f16, {"scale": -0.5, "causal": True, "offset": 0}),
    ],
    ids=["padded bf16", "queries that see nothing", "f32", "few queries", "negative scale"],
)
def test_forms(shape: Any, dtype: tc.DType, options: Any) -> None:
    check(shape, dtype, "sm_80", **options)


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((1, 2, 1, 70, 96, 16, 16), tc.bf16, {}),
        ((1, 1, 1, 70, 50, 24, 40), tc.f16, {"causal": True}),
        ((1, 1, 1, 70, 40, 16, 16), tc.f16, {"causal": True, "offset": -20, "scale": -0.5}),
        ((2, 2, 1, 70, 45, 16, 16), tc.f16, {"mask": (2, 1, 70, 45)}),
        ((1, 1, 1, 70, 45, 16, 16), tc.f16, {"sizes": ("batches", 1, "length", "keys"), "causal": True}),
    ],
    ids=["whole steps", "queries that see nothing", "negative offset", "mask", "any length"],
)  # fmt: skip
def test_forms_with_loads_ahead(shape: Any, dtype: tc.DType, options: Any) -> None:
    """The last step has no keys, and the first one values of none."""
    mask, sizes = options.pop("mask", None), options.pop("sizes", None)
    if mask is not None:
        mask = np.random.default_rng(2).standard_normal(mask) < 0.5
    if sizes is not None:
        sizes = tuple(tc.dim(n) if isinstance(n, str) else n for n in sizes)
    plan = Plan(4, 1, 32, 2, specialize=True)
    assert check(shape, dtype, "sm_90a", mask, sizes=sizes, plan=plan, **options) == ()


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        (40, {}),
        (40, {"causal": True}),
        pytest.param(1, {"causal": True}, marks=pytest.mark.sweep),
        pytest.param(40, {"causal": True, "offset": -20}, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_loads_run_on_from_tile_to_tile(
    keys: int, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block has two tiles, the last one ragged; causal, the first one of them has more steps."""
    monkeypatch.setitem(TARGETS, "sm_90a", replace(SM_90A, processors=1))
    plan = Plan(4, 1, 32, 2, specialize=True, turns=1)
    made = check(
        (1, 1, 1, 70, keys, 16, 16), tc.bf16, "sm_90a", stages=("lean",), plan=plan, **options
    )
    assert made == ()


def test_persistent_blocks_where_they_wait_less_than_others() -> None:
    """Heads take turns so that the tiles of a block add up to about what those of the others do."""
    machine, found = tc.machine("sm_90a"), {}
    for batches, heads, length in ((4, 32, 2048), (4, 16, 4096), (1, 16, 4096)):
        problem = problem_of(
            batches, heads, length, length, 128, kv_heads=None, value_features=None, causal=True,
            offset=None, mask=None, scale=None, dtype=tc.bf16,
        )  # fmt: skip
        plan = least(candidates, problem, machine)
        assert isinstance(plan, Plan)
        found[batches, heads, length] = plan.turns
    assert found == {(4, 32, 2048): 28, (4, 16, 4096): 0, (1, 16, 4096): 0}


@pytest.mark.parametrize("shape", [(20, 40), (2, 1, 1, 40)], ids=str)
@pytest.mark.parametrize("flags", [False, True])
def test_masks(shape: tuple[int, ...], flags: bool) -> None:
    mask: Any = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mask = mask < 0.5 if flags else np.where(mask < -1, np.float32(-np.inf), mask)
    mask[..., 0, :17] = False if flags else -np.inf  # nothing for a step
    check((2, 2, 1, 20, 40, 16, 8), tc.f16, "sm_80", mask, plan=Plan(2, 1, 16, 3))


def test_any_length() -> None:
    sizes = tc.dim("batches"), 2, tc.dim("length"), tc.dim("keys")
    for length, keys in ((1, 35), (20, 18)):
        check(
            (1, 2, 1, length, keys, 16, 16), tc.f16, "sm_80",
            sizes=sizes, causal=True, plan=Plan(1, 1, 16, 3),
        )  # fmt: skip


def test_any_batch_of_heads_that_share_keys() -> None:
    sizes = tc.dim("batches"), 6, 3, 50
    check((2, 6, 2, 3, 50, 16, 16), tc.f16, "sm_80", sizes=sizes, causal=True)


def test_blocks_that_see_most_keys_come_first() -> None:
    """Two heads take turns, from the last of three tiles of queries to the first."""
    machine = tc.machine("sm_80")
    kernel = attention(
        1, 2, 40, 40, 16, causal=True, dtype=tc.f16, machine=machine, plan=Plan(1, 1, 16, 3)
    )
    placed = next(s for s in lower_steps(for_target(kernel.ir, "sm_80")) if s.name == "lower_grid")
    found_lets = [n for n in walk(placed.kernel.body) if isinstance(n, ir.Let)]
    lets = {let.variable.name: let for let in reversed(found_lets)}  # the first of each name
    found = []
    for block in range(6):
        values: dict[Any, Any] = {placed.kernel.block: block}
        for name in ("first_row", "within_group", "group_rows", "pair", "row"):
            values[lets[name].variable] = Machine().value(lets[name].value, values)
        found.append((values[lets["pair"].variable], values[lets["row"].variable]))
    assert found == [(0, 32), (1, 32), (0, 16), (1, 16), (0, 0), (1, 0)]


@pytest.mark.parametrize("dtype", [tc.f16, tc.f32])
def test_powers_stay_in_registers_where_fragments_allow(dtype: tc.DType) -> None:
    kernel = attention(1, 1, 64, 256, 64, dtype=dtype, machine=tc.machine("sm_80"))
    selected = lower(for_target(kernel.ir, "sm_80"), "selected")
    shared = {t.tensor.name for t in walk(selected.body) if isinstance(t, ir.Allocate)}
    assert ("powers_scratch" in shared) == (dtype is tc.f32)
    products = {mma.how for mma in walk(selected.body) if isinstance(mma, ir.Mma)}
    assert products == ({"mma.sync.m16n8k16.f16"} if dtype is tc.f16 else set())


@pytest.mark.parametrize("dtype", [tc.f16, tc.f32])
@pytest.mark.parametrize("features", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_plans_fit_the_machine(dtype: tc.DType, features: int, target: str) -> None:
    machine = tc.machine(target)
    for length in (1, 20, 4096):
        problem = Problem(1, 1, 1, length, 4096, features, features, None, None, 1.0, dtype)
        plan = least(candidates, problem, machine)
        made = attention(1, 1, length, 4096, features, dtype=dtype, machine=machine, plan=plan).ir
        kernel = next(iter(kernels_of(made).values())) if isinstance(made, Program) else made
        assert kernel.workers == 32 * plan.warps
        assert isinstance(made, Program) == (plan.part > 0)


def test_what_does_not_fit() -> None:
    with pytest.raises(tc.CompileError, match="4096 features, and 4096 of the results, are more"):
        attention(1, 1, 64, 64, 4096, dtype=tc.f16, machine=tc.machine("sm_80"))


LONG: list[dict[str, Any]] = [
    *({"features": n, "dtype": tc.bf16, "causal": c} for n in (64, 128) for c in (False, True)),
    {"features": 128, "dtype": tc.f16, "mask": tc.f32[4096, 4096]},
    {"features": 128, "dtype": tc.bf16, "mask": tc.boolean[4096, 4096], "causal": True},
    {"features": 256, "dtype": tc.f16, "causal": True},
]
IN_F16: list[dict[str, Any]] = [
    {"features": n, "dtype": tc.f16, "causal": c} for n in (64, 128) for c in (False, True)
]


def cubins(target: str, many: list[dict[str, Any]]) -> list[tuple[ir.Kernel, Any, str]]:
    """Kernels as they are compiled, with the assembler's listing where there is a disassembler."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    machine = tc.machine(target)
    kernels = [attention(4, 16, 4096, 4096, machine=machine, **each) for each in many]
    lean = [lower(for_target(kernel.ir, target)) for kernel in kernels]
    made = compile_many(lean)
    texts = ["" if disassembler() is None else sass_of(one.cubin) for one in made]
    return [
        (kernel, one.resources, text) for kernel, one, text in zip(lean, made, texts, strict=True)
    ]


@cache
def long_cubins() -> list[tuple[ir.Kernel, Any, str]]:
    return cubins("sm_90a", LONG)


@pytest.mark.parametrize(
    "many", [LONG, pytest.param(IN_F16, marks=pytest.mark.sweep)], ids=["", "f16"]
)
def test_cubins_with_loads_ahead(many: list[dict[str, Any]]) -> None:
    """The assembler has nothing to say of the products, and spills nothing; both stand together, and all powers
    are found between the waits for the first and for the second one.
    """
    for kernel, taken, text in long_cubins() if many is LONG else cubins("sm_90a", many):
        assert kernel.helpers == 128
        assert (taken.spill_stores, taken.spill_loads, taken.stack) == (0, 0, 0)
        assert taken.remarks == ()
        if text:
            order = re.findall("HGMMA|MUFU.EX2|WARPGROUP.DEPBAR", " ".join(main_loop(text)))
            parts = [name for name, _ in groupby(order)]
            assert parts == ["HGMMA", "WARPGROUP.DEPBAR", "MUFU.EX2", "WARPGROUP.DEPBAR"]


def test_a_step_does_what_it_must() -> None:
    """A power is an instruction, and nothing is compared for its sake; what is multiplied rescales the sums and
    each lane's part of a total. Lanes exchange only their largest scores, and a step that isn't masked selects none.
    """
    for kernel, _, text in long_cubins()[:2]:
        if text:
            count = Counter(name.split(".")[0] for name in main_loop(text))
            features = int(kernel.parameters[0].shape[-1])
            assert count["MUFU"] == {64: 112, 128: 128}[features] // 2 + 2
            assert count["FMUL"] <= features // 2 + 8
            assert count["FSETP"] <= 2
            assert count["SHFL"] == 4
            assert count["FSEL"] <= 2


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_cubins(target: str) -> None:
    """Plans for fewer keys spill nothing, and on sm_90a both products run beside their workers."""
    plan = Plan(8, 1, 64, 3) if target == "sm_90a" else None
    many: list[dict[str, Any]] = [
        {"features": 64, "dtype": tc.bf16, "causal": True, "plan": plan},
        {"features": 128, "dtype": tc.f16, "mask": tc.f32[4096, 4096], "plan": plan},
        {"features": 128, "dtype": tc.f32},
    ]
    for (kernel, taken, text), each in zip(cubins(target, many), many, strict=True):
        assert (taken.spill_stores, taken.spill_loads, taken.stack) == (0, 0, 0)
        assert taken.remarks == ()
        operations = {node.operation for node in walk(kernel.body) if isinstance(node, ir.Do)}
        product = "wgmma.m64" if target == "sm_90a" else "mma.sync.m16n8k16"
        found = any(name.startswith(product) for name in operations)
        assert found == (each["dtype"] is not tc.f32)
        if target == "sm_90a":
            assert not any(name.startswith("mma.sync") for name in operations)
        if text and found:
            assert ("HGMMA" if target == "sm_90a" else "HMMA") in text


@pytest.mark.parametrize(
    ("heads", "keys", "features", "wanted"),
    [
        (16, 4096, 128, Plan(8, 1, 128, 2, specialize=True)),  # 0.876 ms; in turn 0.889
        (32, 4096, 64, Plan(12, 1, 112, 2, specialize=True, alternate=True)),  # 1.195; else 1.260
        (64, 1024, 128, Plan(8, 1, 128, 2, specialize=True)),  # 0.266; by 64 keys 0.301
    ],
)
def test_plans_are_those_that_were_fastest_on_an_h100(
    heads: int, keys: int, features: int, wanted: Plan
) -> None:
    problem = problem_of(
        4, heads, keys, keys, features,
        kv_heads=None, value_features=None, causal=False, offset=None, mask=None, scale=None, dtype=tc.bf16,
    )  # fmt: skip
    assert least(candidates, problem, tc.machine("sm_90a")) == wanted
