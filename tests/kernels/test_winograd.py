"""Winograd's convolutions on processors, against f64, and by every pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.arrays.packed import empty
from taskc.ir.types import TensorType
from taskc.kernels.convolution import Direct, Problem, Winograd, build, convolution
from taskc.kernels.convolution.plan import candidates, candidates_of_winograd
from taskc.kernels.convolution.winograd import (
    BOTH,
    FILTERS,
    PIXELS,
    RESULTS,
    pack_filters,
    packed_type,
)
from taskc.mutation import inputs_of, mutate
from taskc.runtime.checking import check, for_target
from taskc.tune.space import least, sample
from tests.kernels.convolved import given_filters, problem
from tests.kernels.random_problems import quarter, relu
from tests.kernels.test_direct import HERE, MACHINES, Case, case, check as check_plan

Array = np.ndarray[Any, Any]
N = tc.dim("images")
OF_PIXELS = np.array(BOTH) @ np.array(PIXELS)
OF_FILTERS = np.array(BOTH) @ np.array(FILTERS) / 24
OF_RESULTS = np.array(RESULTS) @ np.array(BOTH)


def allowed(shape: tuple[Any, ...], options: dict[str, Any], name: str = "host") -> Problem:
    return problem(shape, {"padding": 1, "exact": False, **options}, MACHINES[name])


def bounded(of: Problem) -> Case:
    """What a result may be off by is in proportion to the magnitudes of all that it is summed from."""
    plain = case(replace(of, order="NHWC"), 0)
    x, w = (np.abs(value.astype(np.float64)) for value in (plain.x, plain.w))
    (height, width), (above, left, _, _) = of.outputs, of.padding
    x = np.pad(x, ((0, 0), (above, height + 6), (left, width + 6), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (6, 6), (1, 2))
    tiles = windows[:, : height + 3 : 4, : width + 3 : 4][:, : -(-height // 4), : -(-width // 4)]
    pixels, filters, results = (np.abs(matrix) for matrix in (OF_PIXELS, OF_FILTERS, OF_RESULTS))
    d = np.einsum("ar,nijcrs,bs->nijcab", pixels, tiles, pixels, optimize=True)
    u = np.einsum("ar,frsc,bs->fcab", filters, w, filters, optimize=True)
    sums = np.einsum("nijcab,fcab->nijfab", d, u, optimize=True)
    sizes = np.einsum("ra,nijfab,sb->nirjsf", results, sums, results, optimize=True)
    images, lines, _, columns, _, features = sizes.shape
    sizes = sizes.reshape(images, 4 * lines, 4 * columns, features)[:, :height, :width]
    if of.scale:
        sizes *= np.abs(plain.further[int(of.bias)])
    unit = 2.0**-53 if of.dtype is tc.f64 else 2.0**-24
    return replace(case(of, 0), bound=plain.bound + unit * (of.channels + 40) * sizes)


def test_the_matrices_are_winograds() -> None:
    """Of each pixel and each tap: the products that there are, and no others; whole numbers have no errors."""
    for r, s in product(range(6), range(3)):
        made = OF_RESULTS @ (24 * OF_FILTERS[:, s] * OF_PIXELS[:, r])
        np.testing.assert_array_equal(made, [24 * (r == i + s) for i in range(4)])


LINES: dict[str, Any] = {"order": "NCHW", "filters": "OIHW"}
ALL: dict[str, Any] = {"bias": True, "scale": True, "residual": True, "activation": relu}
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "whole tiles": ((N, 8, 12, 32, 32), {}),
    "ragged tiles": ((N, 5, 7, 16, 16), {"padding": (1, 0, 0, 1), **LINES}),
    "ragged features": ((2, 9, 6, 16, 41), {"order": "NCHWc", "bias": True}),
    "ragged channels": ((N, 6, 5, 19, 32), {"order": "NCHWc", "padding": 0}),
    "few": ((1, 3, 3, 1, 1), {"padding": 0, "packed": True}),
    "one pixel": ((N, 1, 1, 4, 3), {"order": "NCHW"}),
    "wide margins": ((1, 4, 4, 8, 8), {"padding": 2}),
    "packed": ((N, 10, 10, 20, 36), {"packed": True, **LINES}),
    "epilogue": ((N, 6, 9, 8, 20), ALL),
    "blocked epilogue": ((1, 6, 9, 24, 20), {"order": "NCHWc", "packed": True, **ALL}),
    "NCHW to NCHWc": ((2, 7, 7, 8, 20), {"order": "NCHW", "results": "NCHWc", "residual": True}),
    "NCHWc to NHWC": ((1, 7, 7, 20, 8), {"order": "NCHWc", "results": "NHWC", "activation": quarter}),
    "f64": ((1, 6, 5, 24, 40), {"dtype": tc.f64, "bias": True}),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "options"), CASES.values(), ids=list(CASES))
def test_on_this_processor(shape: Any, options: dict[str, Any]) -> None:
    of = allowed(shape, options)
    check_plan(bounded(of), least(candidates_of_winograd, of, HERE))


@pytest.mark.parametrize("name", ["avx2", "sse2"])
def test_on_lesser_processors(name: str) -> None:
    of = allowed((1, 7, 6, 9, 20), {"order": "NCHWc", **ALL}, name)
    check_plan(bounded(of), least(candidates_of_winograd, of, MACHINES[name]), name)


def test_plans_differ_in_nothing_else() -> None:
    """A sum's order is the same in all tiles, and those of registers may overlap."""
    of = allowed((1, 18, 14, 32, 4 * HERE.lanes), {"order": "NCHWc", "packed": True})
    made = case(of, 0)
    found = sample(candidates_of_winograd, of, replace(HERE, threads=1), 3)
    results = []
    for plan in [Winograd(5, 2, HERE.lanes, 2, 2 * HERE.lanes), *found]:
        kernel = build(of, plan, HERE)
        results.append(kernel(made.x, given_filters(made.w, of, kernel)))
    for other in results[1:]:
        assert other.tobytes() == results[0].tobytes()


def test_every_pass() -> None:
    """Which also proves that results are stored once, and that nobody reads what isn't there."""
    of = replace(allowed((1, 5, 3, 5, 7), {"bias": True, **LINES}), lanes=4)
    assert check(build(of, Winograd(1, 1, 4, 1, 8), HERE)) == ()


def test_every_break_is_reported_or_is_none() -> None:
    """Of channels that fill their vectors: transforms of zeros may as well be left out."""
    of = replace(allowed((1, 5, 4, 4, 5), {"bias": True, "packed": True}), lanes=4)
    plan = Winograd(1, 1, 4, 1, 8)
    for kernel in (build(of, plan, HERE), pack_filters(of, plan)):
        assert isinstance(kernel, tc.KernelDefinition)
        mutants = list(mutate(for_target(kernel.ir, None), inputs_of(kernel)))
        assert mutants
        assert [m.description for m in mutants if not (m.reported or m.reason)] == []


def test_filters_are_packed_as_transforms() -> None:
    of = allowed((1, 8, 8, 5, HERE.lanes + 4), {"packed": True})
    plan = least(candidates_of_winograd, of, HERE)
    w = case(of, 0).w
    packed = build(of, plan, HERE).pack(w)
    assert packed.type == packed_type(of, plan)
    u = np.einsum("ar,frsc,bs->fabc", OF_FILTERS, w.astype(np.float64), OF_FILTERS)
    made = packed.unpack()
    inside = made[: of.features, :, :5]
    np.testing.assert_allclose(inside, u.reshape(inside.shape), rtol=2.0**-23)
    assert not made[of.features :].any()
    assert not made[:, :, 5:].any()


@pytest.mark.parametrize("filters", ["OHWI", "OIHW"])
def test_numpy_packs_the_same_bits(filters: str) -> None:
    for channels, features in ((5, HERE.lanes + 4), (64, 130)):
        of = replace(allowed((1, 8, 8, channels, features), {"packed": True}), filters=filters)
        kernel = build(of, least(candidates_of_winograd, of, HERE), HERE)
        packing = kernel.packs["w"]
        assert isinstance(packing, tc.KernelDefinition)
        assert packing.by_numpy is not None
        given, packed = packing.ir.parameters
        w = np.random.default_rng(0).standard_normal(given.shape, np.float32)
        w.reshape(-1)[:4] = -0.0, 0.0, 1e-42, -1e30
        memory = empty(TensorType(packed.dtype, packed.shape, packed.layout))
        assert np.asarray(kernel.pack(w)).tobytes() == np.asarray(packing(w, out=memory)).tobytes()


def test_it_is_chosen_where_it_is_allowed_and_faster() -> None:
    machine = replace(HERE, lanes=16, registers=32, threads=2, fast_memory=1 << 20)
    for channels, extent in ((64, 56), (128, 28), (256, 14)):
        of = allowed((1, extent, extent, channels, channels), {"order": "NCHWc"})
        assert isinstance(least(candidates, of, machine), Winograd)
        others = (
            replace(of, exact=True), replace(of, stride=(2, 2)), replace(of, dilation=(2, 2)),
            replace(of, groups=2), replace(of, size=(1, 1)), replace(of, dtype=tc.bf16),
        )  # fmt: skip
        for other in others:
            assert not any(isinstance(plan, Winograd) for plan in candidates(other, machine))
    # Its filters are four times as many bytes, which both threads read from memory.
    of = allowed((1, 7, 7, 512, 512), {"order": "NCHWc"})
    assert isinstance(least(candidates, of, machine), Direct)


NOT_FOR = "it is for floats and filters of 3 x 3, one by one, and for `exact=False`"


@pytest.mark.parametrize(
    ("options", "plan", "text"),
    [
        ({"exact": True}, {}, NOT_FOR),
        ({"stride": 2}, {}, NOT_FOR),
        ({"size": (3, 1)}, {}, NOT_FOR),
        ({"dilation": (1, 2)}, {}, NOT_FOR),
        ({"groups": 2}, {}, NOT_FOR),
        ({"dtype": tc.f16}, {}, NOT_FOR),
        ({}, {"features": 48}, "48 features of a block are not tiles of 32"),
        ({}, {"tiles": 5}, "a block has 4 tiles, and not 5"),
    ],
    ids=str,
)
def test_plans_that_do_not_fit(options: Any, plan: Any, text: str) -> None:
    whole = replace(Winograd(4, 2, 16, 2, 32), **plan)
    given = {"padding": 1, "dtype": tc.f32, "exact": False, "schedule": whole, **options}
    with pytest.raises(tc.CompileError, match=text):
        convolution(1, 8, 8, 64, 32, **given)


def test_users_allow_it() -> None:
    """A residual in place is read before what lies there is written."""
    x, w = np.ones((1, 16, 16, 64), np.float32), np.ones((32, 3, 3, 64), np.float32)
    for exact, packed in product((True, False), (True, False)):
        kernel = convolution(
            1, 16, 16, 64, 32, padding=1, dtype=tc.f32, packed=packed, exact=exact, in_place=True
        )
        filters, y = kernel.pack(w) if packed else w, np.ones((1, 16, 16, 32), np.float32)
        assert not packed or (36 in filters.type.shape) == (not exact)  # type: ignore[attr-defined]
        kernel(x, filters, y)
        np.testing.assert_allclose(y[0, 1:-1, 1:-1], 577, rtol=1e-5)
