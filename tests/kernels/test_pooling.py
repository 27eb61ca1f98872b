"""Pooling against NumPy's f64: every order and option; on this processor and, simulated, for GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f16, f32, f64, i8, u8
from taskc.backend.cuda.compile import compile_many
from taskc.kernels.images import blocked
from taskc.kernels.pooling import (
    average_pool,
    global_average_pool,
    global_max_pool,
    max_pool,
    sum_pool,
)
from taskc.kernels.pooling.plan import candidates
from taskc.kernels.pooling.problem import problem_of
from taskc.kernels.windows import Windows
from taskc.passes.pipeline import lower
from taskc.passes.prove import findings
from taskc.runtime.checking import for_target
from tests.kernels.simulated import simulated

MAKERS = {"max": max_pool, "sum": sum_pool, "average": average_pool}
ORDERS = ("NHWC", "NCHW", "NCHWc")
ROUNDING = {f16: 2.0**-11, bf16: 2.0**-8, f32: 2.0**-22, f64: 2.0**-50}


def exact(operator: str, x: Any, options: dict[str, Any]) -> Any:
    """Of NCHW, window by window, as ONNX says it."""
    size, above = _pair(options["size"]), _sides(options.get("padding", 0))
    stride, step = _pair(options.get("stride", size)), _pair(options.get("dilation", 1))
    extents, outputs, places = x.shape[2:], [], []
    for n in range(2):
        spare = extents[n] + above[n] + above[n + 2] - (size[n] - 1) * step[n] - 1
        count = spare // stride[n] + 1
        if options.get("ceil_mode") and spare % stride[n]:
            count += count * stride[n] < extents[n] + above[n]
        outputs.append(count)
        starts = np.arange(count)[:, None] * stride[n] - above[n]
        places.append(starts + np.arange(size[n]) * step[n])
    low = -np.inf if operator == "max" else 0.0
    y = np.full((*x.shape[:2], *outputs), low)
    for i, rows in enumerate(places[0]):
        for j, columns in enumerate(places[1]):
            seen = rows[(rows >= 0) & (rows < extents[0])]
            across = columns[(columns >= 0) & (columns < extents[1])]
            window = x[:, :, seen][:, :, :, across]
            count = len(seen) * len(across)
            if operator == "max":
                y[:, :, i, j] = window.max((2, 3), initial=-np.inf)
                continue
            if operator == "sum":
                y[:, :, i, j] = window.sum((2, 3))
                continue
            if options.get("count_include_pad"):
                count = np.prod([
                    np.sum(at < extents[n] + above[n + 2]) for n, at in enumerate((rows, columns))
                ])  # fmt: skip
            with np.errstate(invalid="ignore"):
                y[:, :, i, j] = window.sum((2, 3)) / count
    return y


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _sides(value: Any) -> tuple[int, int, int, int]:
    return tuple(value) * (4 // len(value)) if isinstance(value, tuple) else (value,) * 4


def given(x: Any, order: str, dtype: tc.DType = f32, machine: tc.Machine | None = None) -> Any:
    """Images of NCHW in another order."""
    if order == "NHWC":
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    if order == "NCHW":
        return x
    kind = blocked(*x.shape, dtype, machine)
    spare = kind.shape[1] - x.shape[1]
    return tc.pack(np.pad(x, ((0, 0), (0, spare), (0, 0), (0, 0))), kind)


def numbers(shape: Any, dtype: tc.DType) -> Any:
    random = np.random.default_rng([*shape])
    if dtype.is_integer:
        return random.integers(dtype.minimum, dtype.maximum + 1, shape).astype(dtype.numpy)
    return random.standard_normal(shape).astype(dtype.numpy)


def check(
    operator: str, shape: Any, order: str = "NCHW", target: str | None = None, *, images: Any = None,
    x: Any = None, machine: Any = None, stages: Any = ("parsed", "lean"), kernel: Any = None, **options: Any,
) -> None:  # fmt: skip
    """A shape is that of NCHW; `kernel` is there, if it was made before for this and other shapes."""
    dtype, make = options.get("dtype", f32), MAKERS[operator]
    machine = machine or tc.machine(target)
    count, channels, *extents = shape
    x = numbers(shape, dtype) if x is None else x
    wide = x.astype(np.float64)
    expected = exact(operator, wide, options)
    images = count if images is None else images
    if kernel is None:
        kernel = make(images, *extents, channels, order=order, machine=machine, **options)
    arguments = [given(x, order, dtype, machine)]
    if target is None:
        made = np.asarray(kernel(*arguments)).astype(np.float64)
    else:
        made, _ = simulated(kernel, arguments, target, stages)
    if order == "NHWC":
        made = made.reshape(*np.take(expected.shape, (0, 2, 3, 1))).transpose(0, 3, 1, 2)
    assert not made[:, channels:].any()  # what fills up the last block
    made = made[:, :channels]
    if operator == "max":
        low = dtype.minimum if dtype.is_integer else -np.inf
        np.testing.assert_array_equal(made, np.maximum(expected, low), strict=True)
    else:
        sizes = exact(operator, np.abs(wide), {**options, "count_include_pad": False})
        np.testing.assert_array_equal(np.isnan(made), np.isnan(expected), strict=True)
        assert not (np.abs(made - expected) > ROUNDING[dtype] * 2 * sizes).any()


FORMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3 by 3": ((2, 20, 9, 11), {"size": 3, "stride": 2, "padding": 1}),
    "2 by 2": ((2, 16, 6, 34), {"size": 2}),
    "beside each other": ((1, 35, 7, 40), {"size": 3, "stride": 1, "padding": 1}),
    "prime": ((1, 37, 13, 17), {"size": (5, 2), "stride": (3, 1), "padding": (2, 0, 1, 1)}),
    "one side": ((3, 7, 5, 6), {"size": 4, "stride": 3, "padding": (0, 0, 3, 2)}),
    "dilation": ((1, 17, 11, 12), {"size": 3, "stride": (1, 2), "dilation": (2, 3), "padding": (2, 3)}),
    "ceil": ((2, 5, 7, 8), {"size": 3, "stride": 2, "padding": (1, 0, 0, 1), "ceil_mode": True}),
    "ceil far": ((1, 5, 6, 9), {"size": 2, "stride": 4, "ceil_mode": True}),
    "ceil in padding": ((1, 3, 5, 5), {"size": 2, "stride": 3, "padding": 1, "ceil_mode": True}),
    "gaps": ((1, 18, 9, 9), {"size": 1, "stride": 3}),
    "padding alone": ((1, 5, 2, 3), {"size": 2, "stride": 1, "padding": 3}),
    "one pixel": ((1, 1, 1, 1), {"size": 1}),
    "one row": ((2, 9, 1, 30), {"size": (1, 3), "stride": 1, "padding": (0, 1)}),
    "one column": ((2, 40, 30, 1), {"size": (4, 1)}),
    "wide windows": ((1, 17, 3, 41), {"size": (2, 33), "stride": 1}),
    "wider": ((1, 5, 2, 150), {"size": (2, 133), "stride": 1, "padding": (1, 9)}),
    "wide and dilated": (
        (1, 5, 2, 60), {"size": (1, 19), "stride": (1, 2), "dilation": (1, 3), "padding": (0, 4)},
    ),
    "whole": ((2, 35, 7, 5), {"size": (7, 5)}),
    "no images": ((0, 5, 4, 4), {"size": 2}),
    "no channels": ((2, 0, 4, 4), {"size": 2}),
}  # fmt: skip


@pytest.mark.each_value(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("operator", ["max", "average"])
@pytest.mark.parametrize(("shape", "options"), FORMS.values(), ids=list(FORMS))
def test_on_this_processor(shape: Any, options: Any, operator: str, order: str) -> None:
    check(operator, shape, order, **options)


@pytest.mark.each_value(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize(
    "form", ["3 by 3", "prime", "dilation", "wide windows", "wider", "wide and dilated"]
)
def test_narrower_vectors(form: str, lanes: int, order: str) -> None:
    """Of 16 registers: tiles are smaller, and more windows are folded by parts of their columns."""
    machine = replace(tc.machine(), lanes=lanes, registers=16)
    shape, options = FORMS[form]
    check("average", shape, order, machine=machine, **options)


def test_wide_windows_are_loops() -> None:
    """One of 10,000 pixels took a minute to make."""
    lengths = [len(str(max_pool(1, 1, 900, 16, size=(1, n), stride=1).ir)) for n in (100, 804)]
    assert lengths[1] < 1.2 * lengths[0]


@pytest.mark.each_value
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", ["3 by 3", "one side", "ceil", "ceil far", "padding alone"])
def test_averages_that_count_padding(form: str, order: str) -> None:
    shape, options = FORMS[form]
    check("average", shape, order, count_include_pad=True, **options)


@pytest.mark.each_value
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", ["prime", "ceil", "padding alone", "whole", "no images"])
def test_sums(form: str, order: str) -> None:
    shape, options = FORMS[form]
    for dtype in (f32, f16):
        check("sum", shape, order, dtype=dtype, **options)
    if order != "NCHWc":
        check("sum", shape, order, "sm_80", **options)


@pytest.mark.each_value(2)
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("operator", ["max", "average"])
@pytest.mark.parametrize("form", FORMS)
def test_for_gpus(form: str, operator: str, order: str) -> None:
    shape, options = FORMS[form]
    check(operator, shape, order, "sm_80", **options)


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_every_pass(order: str) -> None:
    shape, options = FORMS["ceil"]
    check("average", shape, order, "sm_80", stages="all", count_include_pad=True, **options)


@pytest.mark.each_value
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [f16, bf16, f64, i8, u8], ids=str)
def test_types(dtype: tc.DType, order: str) -> None:
    for operator in ("max",) if dtype.is_integer else ("max", "average"):
        check(operator, *FORMS["3 by 3"][:1], order, dtype=dtype, **FORMS["3 by 3"][1])
    check("max", (1, 20, 3, 3), order, dtype=dtype, size=2, stride=1, padding=2)


@pytest.mark.parametrize("target", [None, "sm_80"])
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_any_number_of_images(order: str, target: str | None) -> None:
    for count in (0, 1, 3):
        options = {"images": tc.dim("images"), **FORMS["3 by 3"][1]}
        check("max", (count, 20, 9, 11), order, target, **options)


@pytest.mark.parametrize("order", ORDERS)
def test_nan_is_the_largest_number(order: str) -> None:
    """Wherever it stands in a window; infinities are numbers, and so is -inf beside padding."""
    shape, options = FORMS["3 by 3"]
    x = numbers(shape, f32)
    x[:, ::3, ::4, ::3] = np.nan
    x[:, 1::3, :, ::2] = -np.inf
    x[:, 2::3, 4, 5] = np.inf
    check("max", shape, order, x=x, **options)


PLAIN = [("NCHW", "NCHW"), ("NHWC", "NHWC"), ("NHWC", "NCHW")]
BLOCKED = [("NCHWc", "NCHWc"), ("NCHWc", "NCHW"), ("NHWC", "NCHWc")]


@pytest.mark.parametrize(
    ("order", "results", "target"),
    [*[(*both, None) for both in PLAIN + BLOCKED], *[(*both, "sm_80") for both in PLAIN]],
)
def test_whole_images(order: str, results: str, target: str | None) -> None:
    for make, fold in ((global_max_pool, np.max), (global_average_pool, np.mean)):
        for shape in ((2, 35, 7, 5), (1, 16, 1, 1), (1, 70, 20, 3), (0, 3, 2, 2), (3, 0, 2, 2)):
            count, channels, *extents = shape
            x = numbers(shape, f32)
            kernel = make(
                count, *extents, channels, order=order, results=results, machine=tc.machine(target)
            )
            arguments = [given(x, order)]
            made = (
                simulated(kernel, arguments, target)[0]
                if target
                else np.asarray(kernel(*arguments))
            )
            expected = fold(x.astype(np.float64), (2, 3), keepdims=True)
            if results == "NHWC":
                expected = expected.transpose(0, 2, 3, 1)
            if results == "NCHWc":
                assert not made[:, channels:].any()
                made = made[:, :channels]
            if target is None:
                assert made.shape == expected.shape
            bound = 2.0**-20 if fold is np.mean else 0
            np.testing.assert_allclose(made.reshape(expected.shape), expected, rtol=0, atol=bound)


def test_as_onnx_counts_windows() -> None:
    """The extents of ONNX's own shape inference."""
    onnx = pytest.importorskip("onnx")
    random = np.random.default_rng(7)
    for _ in range(200):
        extents, size = random.integers(1, 12, 2), random.integers(1, 4, 2)
        stride, step = random.integers(1, 5, 2), random.integers(1, 3, 2)
        before, after = random.integers(0, size, 2), random.integers(0, size, 2)
        if (extents + before + after < (size - 1) * step + 1).any():
            continue
        attributes = {
            "kernel_shape": size.tolist(), "strides": stride.tolist(), "dilations": step.tolist(),
            "pads": [*before.tolist(), *after.tolist()], "ceil_mode": int(random.integers(2)),
        }  # fmt: skip
        helper = onnx.helper
        node = helper.make_node("MaxPool", ["x"], ["y"], **attributes)
        x = helper.make_tensor_value_info("x", 1, [1, 1, *extents.tolist()])
        y = helper.make_tensor_value_info("y", 1, None)
        model = helper.make_model(
            helper.make_graph([node], "pool", [x], [y]),
            opset_imports=[helper.make_opsetid("", 22)],
        )
        inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
        kernel = max_pool(
            1, *extents.tolist(), 1,
            size=tuple(size.tolist()), stride=tuple(stride.tolist()), dilation=tuple(step.tolist()),
            padding=(*before.tolist(), *after.tolist()), ceil_mode=bool(attributes["ceil_mode"]),
        )  # fmt: skip
        made = kernel.ir.parameters[-1].shape
        assert tuple(made[1:3]) == tuple(n.dim_value for n in inferred.dim[2:]), attributes


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": "NHCW"}, "images are NHWC, NCHW or NCHWc, not NHCW"),
        ({"size": 5}, r"a window that covers \(5, 5\) does not fit into \(4, 4\)"),
        ({"size": 0}, "extents of windows, strides and dilations begin at 1"),
        ({"stride": 0}, "extents of windows, strides and dilations begin at 1"),
        ({"padding": (0, -1)}, "padding at 0"),
        ({"dtype": i8}, "there is no average pooling of i8"),
        ({"order": "NCHWc", "machine": tc.machine("sm_80")}, "there is no pooling of NCHWc to NCHWc"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit(options: Any, text: str) -> None:
    with pytest.raises(tc.CompileError, match=text):
        average_pool(1, 4, 4, 8, **{"size": 2, **options})


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_cubins(target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    options: Any = {"size": 3, "stride": 2, "padding": 1, "machine": tc.machine(target)}
    kernels = [
        make(32, 112, 112, 64, order=order, dtype=dtype, **options)
        for make in (max_pool, average_pool)
        for order in ("NHWC", "NCHW")
        for dtype in (f16, f32)
    ]
    for one in compile_many([lower(for_target(kernel.ir, target)) for kernel in kernels]):
        taken = one.resources
        assert (taken.spill_stores, taken.spill_loads, taken.stack) == (0, 0, 0)


HEIGHT, WIDTH = tc.dim("height"), tc.dim("width")


@pytest.mark.each_value(2)
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("operator", ["max", "average"])
@pytest.mark.parametrize(
    "options",
    [
        {"size": 3, "stride": 2, "padding": 1},
        {"size": (2, 3), "stride": (1, 3), "padding": (0, 1, 1, 2), "ceil_mode": True},
        {"size": 2, "dilation": 3, "dtype": f16},
        {"size": (1, 40), "stride": 1, "padding": (0, 20)},
    ],
    ids=str,
)
def test_one_kernel_takes_all_sizes(operator: str, order: str, options: Any) -> None:
    make = max_pool if operator == "max" else average_pool
    kernel = make(2, HEIGHT, WIDTH, 21, order=order, **options)
    for extents in ((4, 5), (7, 9), (13, 131), (5, 66)):
        check(operator, (2, 21, *extents), order, kernel=kernel, **options)


@pytest.mark.parametrize("machine", ["avx2", "avx512", "neon", "sse2"])
def test_plans_of_other_processors_take_all_sizes(machine: str) -> None:
    built_for = tc.machine(machine)
    extents, options = (HEIGHT, WIDTH), {"size": 2, "order": "NCHW"}
    problem = problem_of(
        operator="max", images=1, extents=extents, channels=8, order="NCHW", dtype=f32,
        windows=Windows.of(2, size=2, stride=None), lanes=built_for.lanes,
    )  # fmt: skip
    for plan in candidates(problem, built_for):
        kernel = max_pool(1, *extents, 8, schedule=plan, machine=built_for, **options)
        assert findings(kernel.ir) == ()
    check("max", (1, 8, 4, 131), kernel=kernel, **options)


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_one_extent_of_all_sizes(order: str) -> None:
    options = {"size": 3, "stride": 2, "padding": 1}
    low, narrow = (
        max_pool(2, *extents, 5, order=order, **options) for extents in ((7, WIDTH), (HEIGHT, 9))
    )
    for size in (1, 9, 70):
        check("max", (2, 5, 7, size), order, kernel=low, **options)
        check("max", (2, 5, size, 9), order, kernel=narrow, **options)


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_whole_images_of_all_sizes(order: str) -> None:
    for make, expected in ((global_max_pool, np.max), (global_average_pool, np.mean)):
        kernel = make(2, HEIGHT, WIDTH, 5, order=order)
        for height, width in ((1, 1), (3, 7), (40, 23)):
            x = numbers((2, 5, height, width), f32)
            made = kernel(given(x, order)).reshape(2, 5)
            np.testing.assert_allclose(made, expected(x, (2, 3)), 1e-5, 1e-6)


@pytest.mark.parametrize("extents", [(HEIGHT, 9), (9, WIDTH)], ids=str)
def test_blocks_and_gpus_take_numbers(extents: Any) -> None:
    for options in ({"order": "NCHWc"}, {"machine": tc.machine("sm_80")}):
        with pytest.raises(tc.CompileError, match="heights and widths are numbers"):
            max_pool(1, *extents, 16, size=2, **options)
