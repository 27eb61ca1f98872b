"""Convolutions of 8- and 16-bit numbers by packs of them: against f64, on lesser processors, by every instruction."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import Machine, bf16, f32, i8, i32, u8
from taskc.backend.cpu.compile import assembly_of
from taskc.backend.cpu.processor import typical
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.ir.target import AVX2, AVX512_AMX, AVX512_BF16, TARGETS
from taskc.kernels.convolution import Packs, build, convolution
from taskc.kernels.convolution.plan import candidates
from taskc.kernels.convolution.plan_packs import candidates_of_packs
from taskc.passes.pipeline import lower
from taskc.tune.space import least, plans, sample
from tests.backend.cpu.processors import NAMES
from tests.backend.cpu.test_tiles import needs_vectors, run_emulated
from tests.kernels.convolved import problem
from tests.kernels.random_problems import quarter, relu, some_images
from tests.kernels.test_direct import HERE, MACHINES, N, case, check

ROWS = (
    AVX512_BF16.products
)  # also of machines that do without: there products are fused multiply-adds
TILES = Machine(16, 32, 1, 1 << 20, AVX512_AMX.products)
BLOCKED: dict[str, Any] = {"order": "NCHWc"}
LINES: dict[str, Any] = {"order": "NCHW", "filters": "OIHW"}
ALL: dict[str, Any] = {"bias": True, "residual": True, "activation": relu}
MIXED: dict[str, Any] = {"dtype": u8, "right": i8}
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "3x3": ((1, 9, 14, 33, 40), {"dtype": bf16, "padding": 1, **BLOCKED, **ALL}),
    "3x3 of bytes": ((2, 9, 14, 70, 40), {**MIXED, "padding": 1, **BLOCKED, "bias": True}),
    "3x3 of signed bytes": ((1, 9, 14, 33, 40), {"dtype": i8, "padding": 1, **ALL}),
    "scaled": (
        (1, 5, 9, 20, 33), {**MIXED, "scale": True, "result": f32, "activation": quarter, **BLOCKED},
    ),
    "stem": (
        (1, 19, 23, 3, 40),
        {"dtype": bf16, "size": 7, "stride": 2, "padding": 3, **LINES, "results": "NCHWc", **ALL},
    ),
    "stem of bytes": (
        (N, 19, 23, 3, 40), {**MIXED, "size": 7, "stride": 2, "padding": 3, "packed": True},
    ),
    "few channels": (
        (1, 6, 23, 5, 20), {"dtype": i8, "size": (2, 3), "dilation": 3, "padding": 4, **BLOCKED},
    ),
    "1x1": ((N, 7, 8, 40, 32), {"dtype": bf16, "size": 1, "packed": True, **BLOCKED}),
    "1x1 strided": ((1, 7, 9, 20, 15), {"dtype": i8, "size": 1, "stride": 2, "results": "NCHWc"}),
    "1x1 strided, lines": ((1, 9, 7, 17, 20), {**MIXED, "size": 1, "stride": (3, 2), **LINES}),
    "asymmetric": (
        (1, 6, 11, 15, 20),
        {"dtype": bf16, "padding": (0, 3, 2, 1), "stride": (2, 3), **LINES, **ALL, "scale": True},
    ),
    "dilated and strided": (
        (1, 13, 17, 16, 48), {"dtype": i8, "dilation": (2, 3), "stride": (1, 2), "padding": 2},
    ),
    "dilated by the stride": (
        (1, 13, 17, 16, 48), {"dtype": bf16, "dilation": 2, "stride": (2, 4), "padding": 2},
    ),
    "padding beyond tiles": ((1, 2, 3, 3, 17), {"dtype": i8, "padding": (4, 40), "bias": True}),
    "surrounded": ((1, 9, 14, 17, 40), {**MIXED, "padding": (2, 1, 0, 3), "around": 200, **BLOCKED}),
    "surrounded and strided": (
        (2, 7, 9, 20, 3), {"dtype": i8, "padding": 2, "stride": (2, 3), "around": -3, **LINES},
    ),
    "surrounded stem": (
        (1, 9, 13, 3, 17), {**MIXED, "size": 5, "stride": 2, "padding": 2, "around": 7, **LINES},
    ),
    "one channel": ((1, 5, 6, 1, 1), {**MIXED, "padding": 1, "around": 255, **BLOCKED}),
    "groups": ((1, 5, 6, 36, 64), {**MIXED, "groups": 2, "padding": 1, **BLOCKED}),
    "groups of lines": (
        (1, 5, 6, 36, 96), {"dtype": bf16, "groups": 3, "padding": 1, **LINES, "packed": True},
    ),
    "no channels": ((1, 3, 4, 0, 16), {"dtype": i8, "padding": 1, "bias": True}),
    "no images": ((0, 5, 5, 17, 20), {"dtype": bf16, "padding": 1, **BLOCKED}),
    "in place": ((N, 4, 5, 17, 20), {"dtype": bf16, "padding": 1, "in_place": True, **BLOCKED}),
}  # fmt: skip


def check_some(shape: Any, options: dict[str, Any], count: int, name: str = "host") -> None:
    """By the plan of least cost of those by packs, and so many others."""
    machine = replace(MACHINES[name], products=ROWS)
    of = problem(shape, options, machine)
    made = case(of, sum(map(ord, str(of.extents))))
    best = least(candidates_of_packs, of, machine)
    for plan in {best, *sample(candidates_of_packs, of, machine, count)}:
        check(made, plan, name)


@pytest.mark.parametrize(("shape", "options"), CASES.values(), ids=list(CASES))
def test_the_plan_does_not_change_the_result(shape: Any, options: dict[str, Any]) -> None:
    check_some(shape, options, 0)


PAIRS = {name: replace(MACHINES[name], products=AVX2.products) for name in ("host", "avx2")}
OF_BYTES = [name for name, (_, options) in CASES.items() if options["dtype"] is not bf16]


@pytest.mark.parametrize("of", OF_BYTES)
def test_pairs_of_widened_bytes(of: str) -> None:
    """Of machines without an instruction for bytes: products of i16, whose sums are those of the bytes."""
    name = "avx2" if "avx2" in NAMES else "host"
    found = problem(*CASES[of], PAIRS[name])
    plan = least(candidates_of_packs, found, PAIRS[name])
    assert plan.pack == 2
    check(case(found, 5), plan, name)


@pytest.mark.sweep
@pytest.mark.parametrize(("shape", "options"), CASES.values(), ids=list(CASES))
def test_no_plan_changes_the_result(shape: Any, options: dict[str, Any]) -> None:
    check_some(shape, options, 2)


@pytest.mark.parametrize("name", ["avx2", "sse2"])
@pytest.mark.parametrize("of", ["3x3", "3x3 of bytes", "stem"])
def test_lesser_processors(of: str, name: str) -> None:
    if name not in NAMES:
        pytest.skip(f"this processor does not run {name}")
    check_some(*CASES[of], 1, name)


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(300))
def test_random_plans(number: int) -> None:
    """Of problems that have some."""
    target, random = NAMES[number % len(NAMES)], Random(number)
    machine = replace(MACHINES[target], products=ROWS)
    while True:
        sizes, options = some_images(random, machine)
        options |= random.choice(({"dtype": bf16}, MIXED, {"dtype": i8}))
        options |= {name: random.random() < 0.3 for name in ("scale", "residual", "in_place")}
        if options["dtype"] is not bf16:
            options.pop("activation", None)
            options["result"] = f32 if options["scale"] else None
        if any(candidates_of_packs(problem(sizes, options, machine), machine)):
            break
    check_some(sizes, options, 3, target)


TYPES: dict[str, dict[str, Any]] = {"bf16": {"dtype": bf16}, "u8": MIXED, "i8": {"dtype": i8}}


@needs_vectors
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 2, 19, 40, 10), {"padding": 1}),
        ((1, 4, 5, 17, 33), {"size": 1}),
        ((1, 4, 9, 3, 8), {"size": (1, 5), "stride": 2, "padding": (0, 2)}),
    ],
    ids=str,
)
def test_tile_registers(shape: Any, options: dict[str, Any], kind: str) -> None:
    of = problem(shape, {**options, **TYPES[kind], "packed": True}, TILES)
    found = [plan for plan in candidates_of_packs(of, TILES) if plan.is_of_tile_registers]
    made = case(of, 3)
    for plan in Random(str(shape)).sample(found, 1):
        kernel = build(of, plan, TILES)
        assert isinstance(kernel, tc.KernelDefinition)
        x, w = np.clip(made.x, -8, 8).round().astype(of.dtype.numpy), made.w
        emulated, simulated = run_emulated(kernel, x, kernel.pack(w))
        np.testing.assert_array_equal(emulated, simulated)


@pytest.mark.parametrize(
    ("target", "kind", "expected"),
    [
        ("avx512_bf16", "bf16", "vdpbf16ps"),
        ("avx512_vnni", "u8", "vpdpbusd.u8"),
        ("avx2_vnni", "i8", "vpdpbusd.i8"),
        ("avx512_amx", "bf16", "tdpbf16ps"),
        ("avx512_amx", "u8", "tdpbusd"),
        ("avx512_amx", "i8", "tdpbssd"),
        ("avx512", "u8", "vpmaddwd"),
        ("avx2", "i8", "vpmaddwd"),
    ],
)
def test_instructions(target: str, kind: str, expected: str) -> None:
    """All products are by the instruction, in the loops, at the edges and of what fills up, and it is emitted."""
    of = TARGETS[target]
    machine = Machine(of.warp, of.vectors, 2, 1 << 20, of.products)
    options = {**TYPES[kind], "padding": 1, "packed": True, "order": "NCHWc"}
    kernel = convolution(1, 5, 32, 64, 64, machine=machine, **options)
    assert isinstance(kernel, tc.KernelDefinition)
    targeted = replace(kernel.ir, target=target)
    selected = lower(targeted, "selected")
    assert {n.how for n in walk(selected.body) if isinstance(n, ir.Mma)} == {expected}
    assert expected.split(".")[0] in assembly_of(lower(targeted), typical(target))


def test_machines_without_instructions_have_none() -> None:
    of = problem((1, 9, 9, 32, 32), {"dtype": bf16}, HERE)
    without = replace(HERE, products=())
    assert list(candidates_of_packs(of, without)) == []
    assert not any(isinstance(plan, Packs) for plan in plans(candidates, of, without))


def test_they_are_chosen() -> None:
    machine = Machine(16, 32, 2, 1 << 20, ROWS)
    for options in TYPES.values():
        for size, groups in ((1, 1), (3, 1), (3, 2)):
            of = problem((1, 14, 14, 64, 64), {**options, "size": size, "groups": groups}, machine)
            assert isinstance(least(candidates, of, machine), Packs)
    depthwise = problem((1, 14, 14, 64, 64), {"dtype": bf16, "groups": 64}, machine)
    assert not isinstance(least(candidates, depthwise, machine), Packs)
    assert all(
        plan.misfit(of) is None
        for plan in plans(candidates, of, machine)
        if isinstance(plan, Packs)
    )


PLAN = Packs(tc.repeat(4, 2) * tc.spatial(1, 16), 1, 4, 32, 32, 2)


@pytest.mark.parametrize(
    ("options", "plan", "text"),
    [
        ({}, replace(PLAN, flat=True), "rows are one line only of filters of one pixel"),
        ({}, replace(PLAN, features=48), "48 features of a block are not tiles of 32"),
        ({}, replace(PLAN, near=33), "33 channels are not packs of 2"),
        ({}, replace(PLAN, joined=True), "192 joined channels are no step of 32"),
        ({}, replace(PLAN, columns=2), "a block has rows whole, and not 2 of 4 results"),
        ({"groups": 4}, PLAN, "32 features of a block are not of one group"),
        ({"transposed": True}, PLAN, "it is for images of one or two axes, and not transposed"),
    ],
    ids=str,
)
def test_plans_that_do_not_fit(options: dict[str, Any], plan: Packs, text: str) -> None:
    with pytest.raises(tc.CompileError, match=text):
        convolution(1, 4, 4, 64, 32, padding=1, dtype=bf16, schedule=plan, **options)


def test_types_of_filters() -> None:
    """Unsigned images and signed filters, whatever the machine multiplies."""
    x, w = np.full((1, 1, 1, 4), 255, np.uint8), np.full((3, 1, 1, 4), -128, np.int8)
    kernel = convolution(1, 1, 1, 4, 3, size=1, **MIXED)
    np.testing.assert_array_equal(kernel(x, w), np.full((1, 1, 1, 3), 4 * 255 * -128, np.int32))
    with pytest.raises(tc.CompileError, match="filters and images of one type"):
        convolution(1, 4, 4, 8, 8, machine=tc.machine("sm_80"), **MIXED, total=i32)
