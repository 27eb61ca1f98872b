"""Convolutions on processors, of any orders, shapes and types, by any plan: against f64, on lesser processors, too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import Machine, bf16, f16, f32, f64, i8, u8
from taskc.arrays.arguments import Signature
from taskc.ir.nodes import Allocate
from taskc.ir.rewrite import walk
from taskc.kernels.convolution import Direct, Problem, blocked, build, convolution
from taskc.kernels.convolution.plan import candidates
from taskc.programs.specialize import launches
from taskc.tune.space import least, plans, sample
from tests.backend.cpu.processors import NAMES, loaded_for
from tests.kernels.convolved import exact, given, given_filters, problem, results_of
from tests.kernels.random_problems import quarter, relu, some_images

HERE = tc.machine()
MACHINES = {
    "host": HERE,
    "avx2": Machine(lanes=8, registers=16, threads=2, fast_memory=1 << 20),
    "sse2": Machine(lanes=4, registers=16, threads=2, fast_memory=1 << 20),
}
# Of a number, and of the magnitudes that it is summed from.
ACTIVATIONS: dict[Any, Any] = {
    relu: (lambda y: np.maximum(y, 0), lambda sizes: sizes),
    quarter: (lambda y: y * 0.25 + 1, lambda sizes: sizes * 0.25 + 1),
}
# Half a unit in the last place, in parts of the number, and half of the least number.
ROUNDING = {f16: 2.0**-11, bf16: 2.0**-8, f32: 2.0**-24, f64: 2.0**-53}
LEAST = {f16: 2.0**-25}


@dataclass(frozen=True)
class Case:
    """What a convolution is called with but for its filters, which depend on the plan, and what comes out, NHWC."""

    problem: Problem
    x: Any
    w: Any
    further: tuple[Any, ...]
    expected: Any
    bound: Any


def case(of: Problem, seed: int) -> Case:
    """A sum is off by as much as one of so many terms is in its type; those of integers are exact."""
    random = np.random.default_rng(seed)

    def numbers(dtype: tc.DType, *shape: int) -> Any:
        if dtype.is_integer:
            least = -128 if dtype.is_signed else 0
            return random.integers(least, least + 256, shape).astype(dtype.numpy)
        return random.standard_normal(shape).astype(dtype.numpy)

    images = of.images if isinstance(of.images, int) else 2
    x = numbers(of.dtype, images, *of.extents, of.channels)
    w = numbers(of.right, of.features, *of.size, of.group_channels)
    where = of.stride, of.padding, of.dilation, of.groups, of.around
    y = exact(x.astype(np.float64), w.astype(np.float64), *where)
    sizes = exact(
        *(np.abs(value.astype(np.float64)) for value in (x, w)), *where[:-1], abs(of.around)
    )
    wide, further = of.of_sums.wide, []
    offsets, scales = (numbers(wide, of.features) for _ in range(2))
    residual = numbers(of.result, *y.shape)
    if of.scale:
        y, sizes = y * scales.astype(np.float64), sizes * np.abs(scales.astype(np.float64))
    if of.bias:
        y, sizes = y + offsets.astype(np.float64), sizes + np.abs(offsets.astype(np.float64))
        further.append(offsets)
    if of.scale:
        further.append(scales)
    if of.residual:
        y, sizes = y + residual.astype(np.float64), sizes + np.abs(residual.astype(np.float64))
        further.append(given(residual, of.results, of.of_sums.made))
    if of.activation is not None:
        of_number, of_sizes = ACTIVATIONS[of.activation]
        y, sizes = of_number(y), of_sizes(sizes)
    terms = of.deep + len(further) + (of.activation is quarter)
    bound = ROUNDING.get(wide, 0) * terms * sizes
    bound = bound + ROUNDING.get(of.result, 0) * (np.abs(y) + bound)
    bound = bound + LEAST.get(of.result, 0)
    return Case(of, given(x, of.order, of.types[0]), w, tuple(further), y, bound)


def check(case: Case, plan: Any, name: str = "host") -> None:
    check_call(case, build(case.problem, plan, MACHINES[name]), str(plan), name)


def check_call(case: Case, definition: Any, plan: str, name: str = "host") -> None:
    of = case.problem
    arguments = [case.x, given_filters(case.w, of, definition), *case.further]
    if of.in_place:
        arguments[-1] = arguments[-1].copy()  # the residual
    made = called(definition, arguments, name)
    made = results_of(made, of.results, of.features).astype(np.float64)
    assert made.shape == case.expected.shape
    wrong = ~(np.abs(made - case.expected) <= case.bound)
    assert not wrong.any(), (
        f"{of}, {plan}, {name}: wrong are {wrong.sum()} of {wrong.size} elements, the first at"
        f" {np.argwhere(wrong)[0]}, {made[wrong][0]} instead of {case.expected[wrong][0]}"
    )


def called(definition: Any, arguments: list[Any], name: str) -> Any:
    """What comes out of a call, or what it has updated; on other processors what isn't stored is no number."""
    if name == "host":
        returned = definition(*arguments)
        return arguments[-1] if returned is None else returned
    bound = Signature(definition.ir).bind(arguments, {})
    if bound.returned is not None:
        bound.returned.reshape(-1).view(np.uint8)[...] = 0xFF
    steps = [(definition.ir, bound)]
    if isinstance(definition, tc.ProgramDefinition):
        steps = [(one.kernel, one.bound) for one in launches(definition.ir, bound.values)]
    for kernel, one in steps:
        loaded_for(kernel, name).run(one.values, one.dimensions)
    return arguments[-1] if bound.returned is None else bound.returned


def check_some(shape: Any, options: dict[str, Any], count: int, name: str = "host") -> None:
    """By the plan of least cost, and so many others."""
    machine = MACHINES[name]
    of = problem(shape, options, machine)
    made = case(of, sum(map(ord, str(of.extents))))
    for plan in {least(candidates, of, machine), *sample(candidates, of, machine, count)}:
        check(made, plan, name)


N = tc.dim("images")
BLOCKED: dict[str, Any] = {"order": "NCHWc"}
LINES: dict[str, Any] = {"order": "NCHW", "filters": "OIHW"}
ALL: dict[str, Any] = {"bias": True, "scale": True, "residual": True, "activation": relu}
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "prime extents": ((3, 7, 13, 17, 33), {"padding": 1}),
    "one pixel": ((N, 1, 1, 33, 40), {"padding": 1, "order": "NCHW", "results": "NCHWc"}),
    "one pixel, 1x1": ((1, 1, 1, 17, 17), {"size": 1, **BLOCKED, "packed": True}),
    "narrow": ((1, 11, 2, 5, 15), {"size": (3, 5), "padding": (1, 2), **LINES}),
    "narrow and dilated": ((1, 5, 3, 16, 16), {"padding": 3, "dilation": 3, **BLOCKED}),
    "padding beyond tiles": ((1, 2, 3, 3, 17), {"padding": (4, 40), "bias": True}),
    "asymmetric": (
        (3, 6, 11, 15, 20), {"padding": (0, 3, 2, 1), "stride": (2, 3), **LINES, **ALL},
    ),
    "all zeros around": ((1, 1, 1, 3, 4), {"padding": (2, 3, 0, 20), "size": 2, **BLOCKED}),
    "1x1 flat": ((1, 7, 8, 40, 32), {"size": 1, "packed": True, "bias": True, **BLOCKED}),
    "1x1 strided": ((N, 7, 9, 20, 15), {"size": 1, "stride": 2, "results": "NCHWc"}),
    "stem": (
        (1, 19, 23, 3, 40),
        {"size": 7, "stride": 2, "padding": 3, **LINES, "results": "NCHWc", "activation": relu},
    ),
    "one channel": ((1, 9, 31, 1, 1), {"size": (1, 5), "padding": (0, 2), "packed": True}),
    "1x7": ((1, 5, 29, 17, 15), {"size": (1, 7), "padding": (0, 3), **BLOCKED, **ALL}),
    "dilated and strided": (
        (1, 13, 17, 16, 48), {"dilation": (2, 3), "stride": (1, 2), "padding": 2, "packed": True},
    ),
    "depthwise": ((1, 5, 7, 33, 33), {"groups": 33, "padding": 1, **BLOCKED, "bias": True}),
    "depthwise, lines": ((N, 7, 6, 5, 10), {"groups": 5, "padding": 1, **LINES, **ALL}),
    "depthwise, packed": (
        (1, 6, 9, 17, 34), {"groups": 17, "padding": (0, 1), "packed": True, "order": "NCHW"},
    ),
    "depthwise, reordered": (
        (1, 6, 5, 15, 15),
        {"groups": 15, "order": "NCHW", "results": "NHWC", "stride": 2, "padding": 1},
    ),
    "groups of 1": ((1, 5, 4, 6, 3), {"groups": 3, "padding": 1}),
    "groups of 3": ((1, 4, 6, 20, 15), {"groups": 5, "size": (2, 1), **BLOCKED, **ALL}),
    "groups of 4": ((1, 5, 5, 12, 16), {"groups": 4, "padding": 1, "packed": True}),
    "groups of 8": ((1, 4, 5, 6, 24), {"groups": 3, "order": "NHWC", "results": "NCHW"}),
    "groups of 16": ((N, 5, 5, 8, 32), {"groups": 2, "padding": 1, **BLOCKED}),
    "groups of 20": ((1, 4, 5, 6, 60), {"groups": 3, "size": 2, **LINES}),
    "groups of 32": ((1, 5, 6, 34, 64), {"groups": 2, "padding": 1, **ALL}),
    "groups of 40": ((1, 5, 4, 99, 120), {"groups": 3, "size": (3, 1), "packed": True, **BLOCKED}),
    "no images": ((0, 5, 5, 17, 20), {"padding": 1, **BLOCKED, "packed": True}),
    "no images, reordered": ((0, 4, 4, 3, 5), {"order": "NCHW", "results": "NHWC"}),
    "in place": ((N, 4, 5, 17, 20), {"padding": 1, "in_place": True, "bias": True, **BLOCKED}),
    "in place, packed": (
        (1, 4, 9, 8, 40), {"size": 2, "in_place": True, "packed": True, "activation": relu, **LINES},
    ),
    "f64": ((1, 5, 9, 17, 20), {"dtype": f64, "padding": 1, **BLOCKED, **ALL}),
    "f16": ((1, 6, 7, 33, 17), {"dtype": f16, "padding": 1, **LINES, **ALL, "packed": True}),
    "bf16": ((1, 6, 7, 17, 40), {"dtype": bf16, "results": "NCHWc", "activation": quarter}),
    "i8": ((1, 4, 7, 33, 17), {"dtype": i8, "padding": 1, **BLOCKED, "bias": True}),
    "u8 scaled": ((1, 5, 7, 15, 40), {"dtype": u8, "stride": 2, "result": f32, **LINES, **ALL}),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "options"), CASES.values(), ids=list(CASES))
def test_no_plan_changes_the_result(shape: Any, options: dict[str, Any]) -> None:
    """By the plan of least cost, and every second case by another one, too; the sweep has more."""
    check_some(shape, options, sum(map(ord, str(options))) % 2)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["avx2", "sse2"])
@pytest.mark.parametrize(
    "of",
    ["prime extents", "one pixel", "asymmetric", "stem", "1x1 flat", "depthwise", "groups of 8", "groups of 20",
     "f16", "i8"],
)  # fmt: skip
def test_lesser_processors(of: str, name: str) -> None:
    """Blocks are of 8 channels there, or 4, and registers are 16."""
    if name not in NAMES:
        pytest.skip(f"this processor does not run {name}")
    check_some(*CASES[of], 0, name)


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(500))
def test_random_plans(number: int) -> None:
    target, random = NAMES[number % len(NAMES)], Random(number)
    sizes, options = some_images(random, MACHINES[target])
    options["dtype"] = dtype = random.choice((f64, u8, *[options["dtype"]] * 4))
    options |= {name: random.random() < 0.3 for name in ("scale", "residual", "in_place")}
    if dtype.is_integer:
        options.pop("activation", None)
        options["result"] = f32 if options["scale"] else None
    check_some(sizes, options, 3, target)


def test_what_fills_up_blocks_is_not_read_as_a_channel() -> None:
    """Features beyond those there are, whose bias isn't there, are zeros; and channels beyond, whatever w has."""
    made = convolution(
        1, 3, 3, 5, 3,
        size=1, order="NCHWc", bias=True, dtype=f32, packed=True, activation=quarter,
    )  # fmt: skip
    x = tc.pack(np.ones((1, HERE.lanes, 3, 3), np.float32), blocked(1, 5, 3, 3))
    w, offsets = np.ones((3, 1, 1, 5), np.float32), np.ones(3, np.float32)
    y = made(x, made.pack(w), offsets)
    np.testing.assert_array_equal(y[:, :3], 2.5)
    np.testing.assert_array_equal(y[:, 3:], 0)


def test_blocked_results_are_the_next_images() -> None:
    """In place, from kernel to kernel."""
    random = np.random.default_rng(5)
    x = random.integers(-2, 3, (2, 5, 6, 20)).astype(np.float32)
    first, second = (random.integers(-2, 3, (20, 3, 3, 20)).astype(np.float32) for _ in range(2))
    options: dict[str, Any] = {"order": "NCHWc", "padding": 1, "dtype": f32, "packed": True}
    kernel = convolution(2, 5, 6, 20, 20, **options)
    images = blocked(2, 20, 5, 6)
    between, last = tc.empty(images), tc.empty(images)
    kernel(given(x, "NCHWc", images), kernel.pack(first), out=between)
    kernel(between, kernel.pack(second), out=last)
    where = (1, 1), (1, 1, 1, 1), (1, 1), 1
    expected = exact(exact(x.astype(np.float64), first, *where), second, *where)
    np.testing.assert_array_equal(results_of(last, "NCHWc", 20), expected)


def test_blocked_images_of_any_number_are_packed() -> None:
    """By the type that has its number of images from a call; the other extents have to be the array's."""
    x = np.arange(3 * HERE.lanes * 6).reshape(3, HERE.lanes, 2, 3).astype(np.float32)
    w = np.ones((HERE.lanes, 1, 1, HERE.lanes), np.float32)
    kernel = convolution(
        N, 2, 3, HERE.lanes, HERE.lanes, size=1, order="NCHWc", dtype=f32, packed=True
    )
    kind = blocked(N, HERE.lanes, 2, 3)
    for images in (3, 1, 0):
        made = kernel(tc.pack(x[:images], kind), kernel.pack(w))
        total = x[:images].sum(1, keepdims=True)
        np.testing.assert_array_equal(made, np.broadcast_to(total, made.shape), strict=True)
    for other in (x[:, :, :1], x[0], x.astype(np.float64)):
        with pytest.raises(TypeError, match="is no f32"):
            tc.pack(other, kind)


SHAPES = [(1, 14, 14, 64, 64), (1, 1, 1, 1, 1), (3, 7, 31, 48, 17), (N, 2, 40, 12, 120)]


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_there_are_plans_for_every_problem(shape: Any, size: int, name: str) -> None:
    for order, groups in (("NHWC", 1), ("NCHW", 1), ("NCHWc", 1), ("NCHWc", shape[3])):
        if shape[4] % groups:
            continue
        options = {"size": size, "padding": size // 2, "order": order, "groups": groups}
        of = problem(shape, options, MACHINES[name])
        found = list(plans(candidates, of, MACHINES[name]))
        assert found
        assert [plan for plan in found if isinstance(plan, Direct) and plan.misfit(of)] == []


PLAN = Direct(4, 2, 16, 1, 4, 32, 64, 16)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (replace(PLAN, flat=True), "rows are one line only of filters of one pixel"),
        (replace(PLAN, features=48), "48 features of a block are not tiles of 32"),
        (replace(PLAN, depth=24), "64 channels are not parts of 24, in steps of 16"),
        (replace(PLAN, depth=48), "64 channels are not parts of 48, in steps of 16"),
        (replace(PLAN, columns=2), "a block has rows whole, and not 2 of 4 results"),
    ],
    ids=str,
)
def test_plans_that_do_not_fit(plan: Direct, text: str) -> None:
    with pytest.raises(tc.CompileError, match=text):
        convolution(1, 4, 4, 64, 32, padding=1, dtype=f32, schedule=plan)


@pytest.mark.parametrize(
    "options",
    [{"packed": True}, {"in_place": True}, {"order": "NCHWc"}, {"results": "NCHWc"},
     {"order": "NCHW", "results": "NHWC"}],
    ids=str,
)  # fmt: skip
def test_what_is_of_processors_only(options: Any) -> None:
    text = (
        "takes filters and residuals as they are, and images and results of one order, NHWC or NCHW"
    )
    with pytest.raises(tc.CompileError, match=text):
        convolution(1, 4, 4, 8, 8, machine=tc.machine("sm_80"), **options)


def test_lanes_behind_the_last_pixel_hold_zeros() -> None:
    """They compute the epilogue, too; of what an earlier use left there a sigmoid took six times as long."""
    kernel = convolution(
        1, 9, 27, 16, 32, size=(3, 3), padding=1, order="NCHW", filters="OIHW", packed=True,
        dtype=f32, activation=relu,
    )  # fmt: skip
    tiles = [node for node in walk(kernel.ir.body) if isinstance(node, Allocate)]
    fills = [node.fill for node in tiles if node.tensor.name == "turned"]
    assert fills
    assert None not in fills
