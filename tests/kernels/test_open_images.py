"""Convolutions on processors of images whose height and width are known only at a call: one kernel, many sizes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8
from taskc.kernels.convolution import Direct, Packs, build, convolution
from taskc.kernels.convolution.plan import candidates
from taskc.kernels.convolution.problem import Problem
from taskc.tune.space import least, sample
from tests.backend.cpu.processors import NAMES
from tests.kernels.convolved import problem
from tests.kernels.random_problems import relu, some_images
from tests.kernels.test_direct import MACHINES, case, check_call

N, H, W = tc.dim("images"), tc.dim("height"), tc.dim("width")
LINES: dict[str, Any] = {"order": "NCHW", "filters": "OIHW"}
ALL: dict[str, Any] = {"bias": True, "scale": True, "residual": True, "activation": relu}
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "3x3": ((1, H, W, 17, 80), {"padding": 1, "packed": True, **ALL}),
    "3x3, height": ((2, H, 9, 16, 40), {"padding": 1, "stride": 2, **LINES}),
    "3x3, width": ((N, 4, W, 16, 20), {"padding": (0, 3, 2, 1), "in_place": True}),
    "1x1": ((N, H, W, 20, 33), {"size": 1, "packed": True, **ALL}),
    "1x1, NCHW": ((1, H, W, 8, 24), {"size": 1, **LINES, **ALL}),
    "1x1, height": ((2, H, 5, 8, 24), {"size": 1, **LINES, "dtype": bf16}),
    "1x1 strided": ((1, H, W, 9, 15), {"size": 1, "stride": 2, **LINES, "results": "NHWC"}),
    "stem": ((1, H, W, 3, 40), {"size": 7, "stride": 2, "padding": 3, **LINES}),
    "dilated": ((1, H, W, 8, 16), {"dilation": (2, 3), "stride": (1, 2), "padding": 4}),
    "padding beyond tiles": ((1, H, W, 3, 17), {"padding": (1, 40), "packed": True}),
    "depthwise": ((1, H, W, 33, 33), {"groups": 33, "padding": 1, "packed": True, "bias": True}),
    "depthwise, NCHW": ((N, H, W, 20, 20), {"groups": 20, "padding": 1, **LINES, "packed": True}),
    "groups of 3": ((1, H, W, 20, 15), {"groups": 5, "size": (2, 1), "padding": 1, **ALL}),
    "groups of 40": ((1, H, W, 24, 120), {"groups": 3, "size": (1, 3), "padding": 1}),
    "i8": ((1, H, W, 5, 17), {"dtype": i8, "padding": 1, "bias": True}),
}  # fmt: skip
OF_PACKS = Packs(tc.repeat(4, 1) * tc.spatial(1, 16), 1, 8, 16, 8, 2)
SIZES = [(13, 17), (1, 1), (2, 61), (7, 2), (5, 36)]


def sized(of: Problem, height: int, width: int) -> Problem | None:
    """The problem with these, where it has them from a call, if a filter fits."""
    known = tuple(
        n if isinstance(n, int) else size
        for n, size in zip(of.extents, (height, width), strict=True)
    )
    made = replace(of, extents=known)
    return made if min(made.outputs) > 0 else None


def check_sizes(of: Problem, sizes: Any, count: int, name: str = "host") -> None:
    """By the plan of least cost, and so many others."""
    machine = MACHINES[name]
    for plan in {least(candidates, of, machine), *sample(candidates, of, machine, count)}:
        definition = build(of, plan, machine)
        for number, (height, width) in enumerate(sizes):
            known = sized(of, height, width)
            if known is not None:
                check_call(case(known, number), definition, str(plan), name)


@pytest.mark.parametrize("of", CASES)
def test_one_kernel_takes_all_sizes(of: str) -> None:
    shape, options = CASES[of]
    check_sizes(problem(shape, options, MACHINES["host"]), SIZES, 0)


@pytest.mark.sweep
@pytest.mark.parametrize("of", CASES)
def test_kernels_of_other_plans_take_all_sizes(of: str) -> None:
    shape, options = CASES[of]
    check_sizes(problem(shape, options, MACHINES["host"]), SIZES, 2)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["avx2", "sse2"])
@pytest.mark.parametrize("of", ["3x3", "1x1", "depthwise, NCHW"])
def test_lesser_processors(of: str, name: str) -> None:
    if name not in NAMES:
        pytest.skip(f"this processor does not run {name}")
    shape, options = CASES[of]
    check_sizes(problem(shape, options, MACHINES[name]), SIZES, 0, name)


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(200))
def test_random_sizes(number: int) -> None:
    target, random = NAMES[number % len(NAMES)], Random(number)
    machine = MACHINES[target]
    (images, *extents, channels, features), options = some_images(random, machine)
    orders = [name for name in ("order", "results") if options[name] == "NCHWc"]
    options |= {name: random.choice(("NHWC", "NCHW")) for name in orders}
    asked = random.choice(((H, W), (H, W), (H, extents[1]), (extents[0], W)))
    of = problem((random.choice((N, images)), *asked, channels, features), options, machine)
    sizes = [
        tuple(random.choice((1, 2, 3, 5, 7, 11, 16, 19, 31, 53)) for _ in "HW") for _ in "1234"
    ]
    check_sizes(of, [tuple(extents), *sizes], 2, target)


def test_there_is_no_result_of_images_that_are_too_small() -> None:
    kernel = convolution(1, H, W, 4, 16, size=5, dtype=f32, packed=True)
    w = kernel.pack(np.zeros((16, 5, 5, 4), np.float32))
    assert kernel(np.zeros((1, 5, 4, 4), np.float32), w).shape == (1, 1, 0, 16)
    text = r"output 'y' would have the extent .*height.* = -1"
    with pytest.raises(TypeError, match=text):
        kernel(np.zeros((1, 3, 9, 4), np.float32), w)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": "NCHWc"}, "heights and widths of blocked images are numbers"),
        ({"results": "NCHWc"}, "heights and widths of blocked images are numbers"),
        ({"transposed": True}, "heights and widths of transposed convolutions are numbers"),
        ({"machine": tc.machine("sm_80")}, "heights and widths are numbers on this machine"),
        ({"schedule": Direct(4, 1, 16, 1, 10, 16, 8, 8)}, "10 columns of a block are not tiles of 4"),
        ({"schedule": OF_PACKS}, "it is for heights and widths that are numbers"),
    ],
    ids=str,
)  # fmt: skip
def test_what_takes_numbers(options: Any, text: str) -> None:
    for extents in ((H, 8), (8, W)):
        if "schedule" in options and extents[0] is H:
            continue
        with pytest.raises(tc.CompileError, match=text):
            convolution(1, *extents, 8, 16, dtype=f32, **options)


def test_winograd_is_for_numbers() -> None:
    """Otherwise sums are of products of what is given, also where they need not be."""
    kernels = [convolution(1, H, W, 16, 16, dtype=f32, packed=True, exact=e) for e in (True, False)]
    assert isinstance(kernels[0], tc.KernelDefinition)
    assert kernels[0].signature == kernels[1].signature
