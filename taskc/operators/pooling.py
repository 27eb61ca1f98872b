"""MaxPool, AveragePool and LpPool, and their global variants."""

from __future__ import annotations

import taskc as tc
from taskc import DType
from taskc.kernels.pooling import average_pool, max_pool, sum_pool
from taskc.kernels.signatures import wide
from taskc.kernels.windows import Windows, max_places
from taskc.operators.call import Call, Made, at_least, operator
from taskc.operators.operands import Template, kernel_of
from taskc.operators.reductions import folded, of_blocked
from taskc.operators.tensors import Blocked, Held, Images, Tensor, computed, elements_of
from taskc.operators.windows import spatial, windows_of
from taskc.programs.tracing import Computed, Element, TensorHandle


@operator("MaxPool")
def largest(call: Call) -> Made:
    call.require_kernel()
    if not call.wants(1):
        return _pooled(call, call.images(0), max_pool)
    x = call.tensor(0)
    y = elements_of(_pooled(call, x, max_pool))
    return y, _places(call, x, y)


@operator("AveragePool")
def average(call: Call) -> Held:
    call.require_kernel()
    is_counted = bool(call.attribute("count_include_pad", 0))
    return _pooled(call, call.images(0), average_pool, count_include_pad=is_counted)


_GLOBAL = {"GlobalMaxPool": "max", "GlobalAveragePool": "mean"}


@operator("GlobalMaxPool", ranks=(at_least(2),))
@operator("GlobalAveragePool", ranks=(at_least(2),))
def of_whole_images(call: Call) -> Tensor:
    x, fold = call.images(0), _GLOBAL[call.node.operator]
    if isinstance(x, Blocked):
        return of_blocked(fold, x)
    call.require_kernel()
    return folded(fold, x, _spatial_axes(x), keepdims=True)


@operator("LpPool", since=2)
def norm(call: Call) -> Tensor:
    (x,) = call.tensors(1)
    return _root(call, elements_of(_pooled(call, _powers(call, x), sum_pool)), x.dtype)


@operator("GlobalLpPool", since=2, ranks=(at_least(2),))
def global_norm(call: Call) -> Tensor:
    (x,) = call.tensors(1)
    return _root(call, folded("sum", _powers(call, x), _spatial_axes(x), keepdims=True), x.dtype)


def _powers(call: Call, x: TensorHandle) -> TensorHandle:
    """The powers of elements that an Lp norm sums."""
    power, total = call.attribute("p", 2), wide(x.dtype)
    if power < 1:
        raise call.node.error(f"there is no norm {power}: the least is 1")

    @tc.function
    def of(value: Element) -> Computed:
        return value * value if power == 2 else abs(value) if power == 1 else abs(value) ** power

    return computed(x.shape, lambda *at: of(x[at].to(total)))


def _root(call: Call, sums: TensorHandle, dtype: DType) -> TensorHandle:
    """The norm, from its sum of powers."""
    power = call.attribute("p", 2)

    @tc.function
    def of(value: Element) -> Computed:
        return tc.sqrt(value) if power == 2 else value if power == 1 else value ** (1 / power)

    return computed(sums.shape, lambda *at: of(sums[at]).to(dtype))


def _spatial_axes(x: TensorHandle) -> tuple[int, ...]:
    return tuple(range(2, len(x.shape)))


def _windows(call: Call, x: Images) -> Windows:
    return windows_of(call, spatial(call, x.shape), tuple(call.attribute("kernel_shape")))


def _pooled(call: Call, x: Images, pool: Template, **options: object) -> Images:
    """Pool by the library's 2-D kernel. 3-D images are pooled within slices first, and then along depth."""
    windows = _windows(call, x)
    is_floor = (
        not call.attribute("ceil_mode", 0) or call.attribute("auto_pad", "NOTSET") != "NOTSET"
    )
    options["ceil_mode"] = not is_floor
    images, channels, *extents = x.shape
    if isinstance(x, Blocked):
        return Blocked(_plane(x, windows, pool, options), channels)
    if len(extents) == 3:
        depth, height, width = extents
        flat = x.reshape(images, channels * depth, height, width)
        slices = _plane(flat, windows.along(1, 2), pool, options)
        rows, columns = slices.shape[2:]
        columns_of = slices.reshape(images, channels, depth, rows * columns)
        y = _plane(columns_of, windows.along(0, None), pool, options)
        return y.reshape(images, channels, y.shape[2], rows, columns)
    if len(extents) == 2:
        return _plane(x, windows, pool, options)
    row = x.reshape(images, channels, 1, *extents)
    y = _plane(row, windows.along(None, 0), pool, options)
    return y.reshape(images, channels, y.shape[3])


def _plane(x: Images, windows: Windows, pool: Template, options: dict[str, object]) -> TensorHandle:
    """Pool 2-D images, in the layout that they have."""
    images, channels, height, width = x.shape
    kernel = kernel_of(
        pool, images, height, width, channels,
        order="NCHWc" if isinstance(x, Blocked) else "NCHW", dtype=x.dtype, **windows.options, **options,
    )  # fmt: skip
    return kernel(elements_of(x))


def _places(call: Call, x: TensorHandle, y: TensorHandle) -> TensorHandle:
    """The place of each maximum, counted through the whole tensor."""
    images, channels, *extents = x.shape
    missing = 3 - len(extents)
    ones, axes = (1,) * missing, (*[None] * missing, *range(len(extents)))
    kernel = kernel_of(
        max_places, images * channels, (*ones, *extents), (*ones, *y.shape[2:]),
        _windows(call, x).along(*axes), dtype=x.dtype,
        is_by_columns=bool(call.attribute("storage_order", 0)),
    )  # fmt: skip
    return kernel(x.reshape(images * channels, *ones, *extents)).reshape(*y.shape)
