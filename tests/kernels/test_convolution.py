"""Convolutions against f64: both orders, every option; on this processor and, simulated, for GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import repeat, spatial
from taskc.backend.cuda.compile import compile_kernel, compile_many, disassembler, sass_of
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.kernels.convolution import CONVOLUTION, Problem, Tiling, build, convolution
from taskc.kernels.convolution.plan_gpu import candidates_of_blocks
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from taskc.tune.space import Space, least
from tests.kernels.convolved import exact
from tests.kernels.simulated import simulated

# (channels, height and width, features, filter, stride)
RESNET = (
    (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (256, 56, 128, 1, 1),
    (128, 56, 128, 3, 2), (256, 56, 512, 1, 2), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1),
    (512, 14, 512, 3, 2), (1024, 14, 2048, 1, 2), (2048, 7, 512, 1, 1), (512, 7, 512, 3, 1),
)  # fmt: skip
FRAGMENT = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
SMALL = Tiling(spatial(2, 1) * repeat(1, 2) * FRAGMENT, 16, 3)
ROUNDING = {tc.f16: 2.0**-11, tc.bf16: 2.0**-8, tc.f32: 0.0, tc.tf32: 0.0, tc.i8: 0.0}


def check(
    target: str | None,
    images: Any,
    height: int,
    width: int,
    channels: int,
    features: int,
    *,
    size: tuple[int, int] = (2, 2),
    count: int = 2,
    stages: Any = ("parsed", "lean"),
    **options: Any,
) -> tuple[str, ...]:
    """`target` None: where calls run. A sum is off by as much as one of so many terms is in f32."""
    random = np.random.default_rng(channels)
    dtype, groups = options.get("dtype", tc.f16), options.get("groups", 1)
    shapes = (count, height, width, channels), (features, *size, channels // groups), (features,)
    if dtype is tc.i8:
        x, w, offsets = (random.integers(-128, 128, n).astype(np.int8) for n in shapes)
    else:
        x, w, offsets = (random.standard_normal(n).astype(np.float32) for n in shapes)
        if dtype is tc.tf32:
            x, w = (np.round(value * 64) / 64 for value in (x, w))
    x, w = (value.astype(dtype.numpy) for value in (x, w))
    offsets = offsets.astype(np.int32 if dtype is tc.i8 else np.float32)
    is_nchw, is_oihw = options.get("order") == "NCHW", options.get("filters") == "OIHW"
    kernel = convolution(
        images, height, width, channels, features,
        size=size, bias=True, machine=None if target is None else tc.machine(target), **options,
    )  # fmt: skip
    arguments = [
        np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if is_nchw else x,
        np.ascontiguousarray(w.transpose(0, 3, 1, 2)) if is_oihw else w,
        offsets,
    ]
    notes: tuple[str, ...] = ()
    if target is None:
        made = kernel(*arguments).astype(np.float64)
    else:
        made, notes = simulated(kernel, arguments, target, stages)
    padding = options.get("padding", 0)
    padding = (padding,) * 4 if isinstance(padding, int) else tuple(padding) * (4 // len(padding))
    pairs = [options.get(name, (1, 1)) for name in ("stride", "dilation")]
    wide = [value.astype(np.float64) for value in (x, w, offsets)]
    expected = exact(*wide[:2], pairs[0], padding, pairs[1], groups) + wide[2]
    sizes = exact(*map(np.abs, wide[:2]), pairs[0], padding, pairs[1], groups) + np.abs(wide[2])
    if is_nchw:
        images, rows, columns, _ = expected.shape
        made = made.reshape(images, features, rows, columns).transpose(0, 2, 3, 1)
    made = made.reshape(expected.shape)
    terms = size[0] * size[1] * channels // groups + 1
    bound = 0 if dtype is tc.i8 else 2.0**-24 * terms * sizes
    if options.get("activation") is not None:
        expected = np.maximum(expected, 0)
    assert (np.abs(made - expected) <= bound + ROUNDING[dtype] * (np.abs(expected) + bound)).all()
    return notes


@tc.function
def relu(x):
    return max(x, 0)


FORMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "NHWC": ((5, 4, 32, 12), {}),
    "NCHW": ((5, 4, 32, 12), {"order": "NCHW", "filters": "OIHW"}),
    "strides": ((7, 9, 32, 12), {"stride": (2, 3), "padding": (0, 1, 2, 1), "filters": "OIHW"}),
    "dilation": ((6, 7, 16, 8), {"dilation": (2, 3), "padding": (1, 2), "activation": relu}),
    "few channels": ((6, 5, 3, 8), {"size": (3, 3), "padding": 1}),
    "groups": ((4, 4, 32, 40), {"groups": 2, "padding": 1}),
    "groups of few": ((4, 4, 12, 20), {"groups": 4, "order": "NCHW"}),
    "of 1 by 1": ((5, 4, 40, 12), {"size": (1, 1)}),
    "depthwise": ((6, 7, 40, 40), {"groups": 40, "size": (3, 3), "padding": 1}),
    "depthwise 5x4": (
        (7, 9, 20, 20), {"groups": 20, "size": (5, 4), "padding": 2, "stride": (1, 2), "dilation": (2, 1)},
    ),
    "depthwise NCHW": (
        (6, 7, 10, 30), {"groups": 10, "order": "NCHW", "filters": "OIHW", "stride": (2, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "options"), FORMS.values(), ids=list(FORMS))
def test_on_this_processor(shape: Any, options: Any) -> None:
    check(None, tc.dim("images"), *shape, **{"dtype": tc.f32, **options})


@pytest.mark.each_value(2)
@pytest.mark.parametrize("target", [None, "sm_80"])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("shape", [(1, 17, 8, 8), (17, 1, 8, 16), (1, 1, 16, 8)], ids=str)
def test_one_image_of_one_row(shape: Any, groups: int, target: str | None) -> None:
    """Whose pixels have rows and columns all the same, of which some are always 0."""
    size, padding = (2, 2), (1, 1)
    options: Any = {"dtype": tc.f32, "size": size, "padding": padding, "stride": (2, 1)}
    check(target, 1, *shape, count=1, groups=groups, **options)


@pytest.mark.parametrize(("shape", "options"), FORMS.values(), ids=list(FORMS))
def test_for_gpus(shape: Any, options: Any) -> None:
    is_depthwise = options.get("groups", 1) == shape[2]
    tiling = {} if is_depthwise else {"tiling": SMALL}
    check("sm_80", tc.dim("images"), *shape, **tiling, **options)


def test_depthwise_reads_a_row_of_windows_once() -> None:
    """Four pixels see six, each a wide access, of three rows; a block is as many strips of a row as it has workers."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    options: Any = {"size": 3, "padding": 1, "groups": 128, "dtype": tc.f16}
    kernel = convolution(2, 56, 56, 128, 128, machine=tc.machine("sm_90a"), **options)
    assert kernel.ir.workers == 7 * 32
    compiled = compile_kernel(lower(for_target(kernel.ir, "sm_90a")))
    assert compiled.resources.registers <= 72
    assert not compiled.resources.spill_loads
    if disassembler() is not None:
        assert sass_of(compiled.cubin).count("LDG.E.64") == 3 * 6


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_every_pass(order: str) -> None:
    """More steps than stages, and ragged ends of pixels and features."""
    notes = check(
        "sm_80", 1, 4, 5, 24, 20,
        count=1, stages="all", padding=(1, 0, 0, 0), order=order, tiling=SMALL,
    )  # fmt: skip
    assert order == "NCHW" or notes == ()  # copies are asynchronous, products by instructions


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_products_beside_their_workers(order: str) -> None:
    tiling = Tiling(spatial(4, 1) * repeat(1, 2) * FRAGMENT, 16, 3)
    notes = check("sm_90a", 1, 5, 4, 32, 12, count=1, padding=1, order=order, tiling=tiling)
    assert not any("asynchronous" in note for note in notes)


IN_BULK = Tiling(spatial(4, 1) * repeat(1, 2) * FRAGMENT, 64, 2, specialize=True)


def test_every_pass_with_copies_of_pixels() -> None:
    """A tile of 64 results is of three images, and behind them; more steps than stages."""
    notes = check(
        "sm_90a", 3, 3, 4, 64, 24,
        count=3, stages="all", padding=(1, 0, 0, 1), stride=(1, 2), tiling=IN_BULK,
    )  # fmt: skip
    assert notes == ()


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 7, 64, 24), {"size": (2, 3), "padding": 1, "stride": 2}),
        ((7, 6, 64, 8), {"dilation": (2, 3), "padding": (1, 3), "stride": (2, 1), "activation": relu}),
        ((3, 5, 128, 16), {"size": (1, 3), "padding": (0, 1), "filters": "OIHW"}),
        ((6, 4, 128, 16), {"size": (1, 1), "stride": 2}),
        ((2, 3, 64, 16), {"order": "NCHW", "padding": 1, "dtype": tc.bf16}),
    ],
    ids=str,
)  # fmt: skip
def test_copies_of_pixels(shape: Any, options: dict[str, Any]) -> None:
    stride = options.pop("stride", 1)
    options["stride"] = (stride, stride) if isinstance(stride, int) else stride
    assert check("sm_90a", tc.dim("images"), *shape, tiling=IN_BULK, **options) == ()


def test_parts_of_long_sums() -> None:
    """Three parts of as many steps, which copies of pixels ask for."""
    tiling = replace(IN_BULK, parts=3)
    assert check("sm_90a", 1, 5, 4, 64, 12, count=1, size=(3, 2), tiling=tiling) == ()


# Of 64 features by 24 pixels: what an instruction has most of are rows.
SWAPPED = Tiling(spatial(4, 1) * repeat(1, 3) * FRAGMENT, 64, 3, specialize=True, swap_ab=True)


@pytest.mark.parametrize(
    ("parts", "shape", "options"),
    [
        (1, (5, 4, 64, 70), {"size": (2, 3), "padding": 1, "activation": relu}),
        (3, (3, 4, 64, 72), {"size": (1, 3), "padding": (1, 0), "stride": (1, 2)}),
        (1, (4, 3, 128, 64), {"order": "NCHW", "dtype": tc.bf16}),
    ],
    ids=str,
)
def test_few_pixels_are_the_columns(parts: int, shape: Any, options: dict[str, Any]) -> None:
    """Pixels that are gathered are the right operand then, tiles stick out, and results are turned back."""
    tiling = replace(SWAPPED, parts=parts)
    assert check("sm_90a", 1, *shape, count=1, stages="all", tiling=tiling, **options) == ()


def resnets(batch: int, channels: int, extent: int, features: int, size: int, stride: int) -> Any:
    return convolution(
        batch, extent, extent, channels, features,
        size=size, stride=stride, padding=size // 2, machine=tc.machine("sm_90a"),
    )  # fmt: skip


@pytest.mark.parametrize("shape", RESNET, ids=str)
def test_resnet_travels_in_bulk(shape: tuple[int, ...]) -> None:
    """Only the first one, of three channels, by copies of each worker."""
    channels, _, _, size, stride = shape
    kernels = lowered(resnets(32, *shape), "sm_90a")
    product = next(kernel for kernel in kernels if kernel.name in ("matmul", "partial"))
    names = {node.operation for node in walk(product.body) if isinstance(node, ir.Do)}
    if channels == 3:
        assert "cp.async" in names
        return
    assert product.notes == ()
    assert ("tma.load.pixels" in names) == ((size, stride) != (1, 1))
    assert "tma.store" in names
    assert any(name.startswith("wgmma.m64") for name in names)


def test_few_pixels_are_split_over_what_is_summed() -> None:
    (partial, added) = lowered(resnets(1, 512, 7, 512, 3, 1), "sm_90a")
    assert (partial.name, added.name) == ("partial", "added")
    assert partial.notes == ()
    loads = [node for node in walk(partial.body) if isinstance(node, ir.Do)]
    assert {"tma.load.pixels", "tma.load"} <= {load.operation for load in loads}
    assert any(load.operation.startswith("wgmma.m64n56") for load in loads)  # 49 pixels: columns


def test_a_plan_of_a_gpu_is_that_of_a_gemm() -> None:
    """One that is found by its text builds what is built by its tiling."""
    machine = tc.machine("sm_90a")
    problem = Problem(
        1, (14, 14), 64, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1,
        "NHWC", "NHWC", "OHWI", None, False, tc.f16, tc.f16, tc.f32, tc.f16,
    )  # fmt: skip
    space = Space(CONVOLUTION, problem, machine)
    plan = space.ranked[-1]
    assert plan != space.default
    assert CONVOLUTION.plan(space.text(plan)) == plan
    by_plan, by_tiling = (build(problem, how, machine) for how in (plan, plan.tiling))
    texts = [[to_text(kernel.ir) for kernel in made.kernels] for made in (by_plan, by_tiling)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", [tc.bf16, tc.f32, tc.tf32, tc.i8])
def test_types(dtype: tc.DType) -> None:
    fragment = repeat(4, 4) * spatial(4, 8) if dtype is tc.f32 else repeat(1, 2) * FRAGMENT
    tiling = Tiling(spatial(2, 1) * fragment, 32, 3)
    notes = check("sm_90a", 1, 5, 4, 32, 12, count=1, dtype=dtype, tiling=tiling)
    assert any("fused multiply-adds" in note for note in notes) == (dtype is tc.f32)


def lowered(made: Any, target: str) -> list[ir.Kernel]:
    """The kernels of a convolution, at the end."""
    kernels = made.kernels if isinstance(made, tc.ProgramDefinition) else [made]
    return [lower(for_target(kernel.ir, target)) for kernel in kernels]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "options",
    [{}, {"size": 1, "padding": 0}, {"size": 1, "padding": 0, "stride": 2}, {"groups": 2}],
    ids=str,
)
def test_copies_are_asynchronous_and_wide(target: str, options: dict[str, Any]) -> None:
    """On ResNet's shapes, with tiles that are chosen: 16 bytes a copy, or in bulk, boxes and pixels."""
    made = convolution(8, 28, 28, 128, 128, **{"padding": 1, **options}, machine=tc.machine(target))
    (lean,) = lowered(made, target)
    assert lean.notes == ()
    operations = [node for node in walk(lean.body) if isinstance(node, ir.Do)]
    names = {do.operation for do in operations}
    if target == "sm_90a" and "groups" not in options:
        images = "tma.load" if options == {"size": 1, "padding": 0} else "tma.load.pixels"
        assert {images, "tma.load", "tma.store"} <= names
        assert "cp.async" not in names
    else:
        assert {do.operands[2].value for do in operations if do.operation == "cp.async"} == {8}
    product = "wgmma.m64" if target == "sm_90a" else "mma.sync.m16n8k16.f16"
    assert any(do.operation.startswith(product) for do in operations)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_groups_are_convolved_as_nhwc(target: str) -> None:
    """With copies of images, filters and results around."""
    made = convolution(
        8, 28, 28, 128, 128,
        groups=2, padding=1, order="NCHW", filters="OIHW", machine=tc.machine(target),
    )  # fmt: skip
    kernels = lowered(made, target)
    assert {kernel.name for kernel in kernels} == {"transpose", "convolution"}
    (lean,) = (kernel for kernel in kernels if kernel.name == "convolution")
    assert lean.notes == ()
    copies = [n for n in walk(lean.body) if isinstance(n, ir.Do) and n.operation == "cp.async"]
    assert {copy.operands[2].value for copy in copies} == {8}


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [tc.f16, tc.f32, tc.tf32, tc.i8])
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_tilings_fit_the_machine(dtype: tc.DType, target: str) -> None:
    machine = tc.machine(target)
    for extent, channels in ((56, 64), (7, 512), (224, 3)):
        problem = Problem(
            1, (extent, extent), channels, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1,
            "NHWC", "NHWC", "OHWI", None, False,
            dtype, dtype, tc.i32 if dtype is tc.i8 else tc.f32, dtype,
        )  # fmt: skip
        tiling = least(candidates_of_blocks, problem, machine)
        loaded = tiling.stages * tiling.depth * sum(tiling.own.shape) * dtype.nbytes
        assert loaded <= machine.fast_memory
        assert tiling.stages >= 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": "NHCW"}, "images are NHWC, NCHW or NCHWc, not NHCW"),
        ({"results": "HWC"}, "images are NHWC, NCHW or NCHWc, not HWC"),
        ({"filters": "HWIO"}, "filters are OHWI or OIHW, not HWIO"),
        ({"groups": 3}, "8 channels and 6 features are not 3 groups of as many"),
        ({"stride": (1, 0)}, r"strides of \(1, 0\) and dilations of \(1, 1\): all are 1 or more"),
        ({"dilation": 0}, r"dilations of \(0, 0\): all are 1 or more"),
        ({"size": (3, 0)}, r"a filter of \(3, 0\), strides"),
        ({"size": 5}, r"a filter that covers \(5, 5\) does not fit into \(4, 4\)"),
    ],
    ids=str,
)
def test_what_does_not_fit(options: Any, text: str) -> None:
    with pytest.raises(tc.CompileError, match=text):
        convolution(1, 4, 4, **{"channels": 8, "features": 6, **options})


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_cubins(target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    machine = tc.machine(target)
    options: list[dict[str, Any]] = [
        {},
        {"order": "NCHW", "filters": "OIHW"},
        {"dtype": tc.f32},
        {"groups": 128},
    ]
    kernels = [convolution(32, 28, 28, 128, 128, padding=1, machine=machine, **o) for o in options]
    kernels += [convolution(32, 14, 14, 256, 256, padding=1, machine=machine)]
    lean = [kernel for made in kernels for kernel in lowered(made, target)]
    for one in compile_many(lean):
        taken = one.resources
        assert (taken.spill_stores, taken.spill_loads, taken.stack) == (0, 0, 0)
        assert not taken.serializes_products
    operations = {node.operation for node in walk(lean[0].body) if isinstance(node, ir.Do)}
    assert any(name.startswith(("mma.sync", "wgmma")) for name in operations)


@pytest.mark.parametrize("filters", ["OIHW", "OHWI"])
@pytest.mark.parametrize("packed", [True, False])
def test_images_of_few_channels_and_filters_of_one_pixel_are_matrices(
    packed: bool, filters: str
) -> None:
    random = np.random.default_rng(0)
    w, (bias, scale) = random.standard_normal((5, 17)), random.standard_normal((2, 5))
    kernel = convolution(
        tc.dim("images"), 9, 11, 17, 5,
        size=1, order="NCHW", filters=filters, packed=packed, bias=True, scale=True, residual=True,
        activation=tc.relu, dtype=tc.f64,
    )  # fmt: skip
    assert [part.name for part in kernel.kernels] == ["matmul"]
    given: Any = w.reshape((5, 17, 1, 1) if filters == "OIHW" else (5, 1, 1, 17))
    if packed:
        with pytest.raises(TypeError, match="w is packed from"):
            kernel.pack(w)
        given = kernel.pack(given)
    for images in (0, 1, 3):
        x, residual = (random.standard_normal((images, n, 9, 11)) for n in (17, 5))
        sums = np.einsum("fc,nchw->nfhw", w, x) * scale[:, None, None] + bias[:, None, None]
        y = kernel(x, given, bias, scale, residual)
        np.testing.assert_allclose(y, np.maximum(sums + residual, 0), rtol=1e-12, atol=1e-12)


def test_which_convolutions_of_one_pixel_are_products() -> None:
    def names(*sizes: int, **options: Any) -> list[str]:
        said = {"size": 1, "order": "NCHW", "dtype": tc.f32, **options}
        return [part.name for part in convolution(*sizes, **said).kernels]

    assert names(1, 9, 11, 98, 5) == ["matmul"]
    for sizes in ((1, 9, 11, 99, 5), (1, 9, 11, 0, 5)):  # deep, or empty
        assert "matmul" not in names(*sizes)
    for options in (
        {"stride": 2}, {"padding": 1}, {"groups": 2}, {"results": "NHWC"}, {"order": "NHWC"}, {"dtype": tc.f16},
        {"residual": True, "in_place": True}, {"transposed": True, "filters": "IOHW"},
    ):  # fmt: skip
        assert "matmul" not in names(1, 9, 11, 16, 6, **options)
