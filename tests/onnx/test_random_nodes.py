"""Nodes with random attributes and shapes, against the package onnx's reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import taskc as tc

from .models import model, node, tensor

Array = np.ndarray[Any, Any]
FAR = [-(2**63), 2**63 - 1, 2**31 - 1, -(2**31), 100, 5, 2, 1, 0, -1, -2]  # ends of slices


@dataclass(slots=True)
class Case:
    """known  the inputs that are constants"""

    operator: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    known: set[int] = field(default_factory=set)


class Source:
    """Random numbers for one case."""

    def __init__(self, *seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def one(self, *items: Any) -> Any:
        return items[self.random.integers(len(items))]

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def is_so(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def shape(self, low: int, high: int, *extents: int) -> tuple[int, ...]:
        return tuple(self.one(*extents) for _ in range(self.number(low, high)))

    def array(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        if dtype == np.bool_:
            return np.asarray(self.random.random(shape) < 0.5)
        low = 0 if np.dtype(dtype).kind == "u" else -9
        whole = np.asarray(self.random.integers(low, 9, shape, endpoint=True)).astype(dtype)
        return (
            whole
            if np.dtype(dtype).kind != "f"
            else whole + np.asarray(self.random.random(shape)).astype(dtype)
        )

    def axis(self, rank: int, axis: int) -> int:
        """It, perhaps counted from the end."""
        return axis - rank if self.is_so(0.4) else axis

    def axes(self, rank: int, count: int) -> list[int]:
        return [self.axis(rank, int(axis)) for axis in self.random.permutation(rank)[:count]]

    def places(self, extent: int, shape: tuple[int, ...]) -> Array:
        return np.asarray(
            self.random.integers(-extent, extent, shape), self.one(np.int32, np.int64)
        )


def integers(numbers: Any) -> Array:
    return np.array(numbers, np.int64)


def reshape(source: Source) -> Case:
    x = source.array(source.shape(0, 4, 0, 1, 2, 3, 5, 5))
    shape, left = [], x.size
    for _ in range(source.number(0, 3)):
        shape.append(source.one(*[n for n in range(1, left + 1) if left % n == 0] or [0]))
        left = left // shape[-1] if left else 0
    shape.append(left)
    attributes = {"allowzero": 1} if source.is_so(0.3) else {}
    if left and source.is_so(0.5):
        shape[-1] = -1
    elif not left and not attributes:  # a 0 stands for the input's extent there
        shape = [*x.shape]
    return Case(
        "Reshape", [x, integers(shape)], attributes, known={1} if source.is_so(0.5) else set()
    )


def slices(source: Source) -> Case:
    x = source.array(source.shape(1, 4, 0, 1, 2, 3, 7), source.one(np.float32, np.int32, np.bool_))
    axes = source.axes(x.ndim, source.number(1, x.ndim))
    steps = [source.one(1, 1, 2, 3, 100, -1, -1, -2, -100) for _ in axes]
    ends = [source.one(*FAR) for _ in axes]
    # Backwards from before the first element, the reference takes nothing, and ONNX says that there it begins.
    starts = [
        source.one(*[n for n in FAR if step > 0 or n >= -x.shape[axis]])
        for axis, step in zip(axes, steps, strict=True)
    ]
    given = [integers(numbers) for numbers in (starts, ends, axes, steps)]
    return Case(
        "Slice",
        [x, *given],
        opset=source.one(10, 13),
        known={1, 2, 3, 4} if source.is_so(0.5) else set(),
    )


def gather(source: Source) -> Case:
    x = source.array(source.shape(1, 3, 1, 2, 3, 5), source.one(np.float32, np.int64, np.uint8))
    axis = source.number(0, x.ndim - 1)
    places = source.places(x.shape[axis], source.shape(0, 2, 0, 1, 2, 4))
    known = {1} if source.is_so(0.5) else set()
    return Case("Gather", [x, places], {"axis": source.axis(x.ndim, axis)}, known=known)


def gather_nd(source: Source) -> Case:
    x = source.array(source.shape(1, 4, 1, 2, 3))
    batch = source.number(0, x.ndim - 1)
    shape = (*x.shape[:batch], *source.shape(0, 2, 1, 2, 4))
    count = source.number(1, x.ndim - batch)
    places = [source.random.integers(-n, n, shape) for n in x.shape[batch : batch + count]]
    return Case("GatherND", [x, np.stack(places, -1).astype(np.int64)], {"batch_dims": batch})


def scatter_elements(source: Source) -> Case:
    x = source.array(source.shape(1, 3, 1, 2, 3, 5), source.one(np.float32, np.int64))
    axis, reduction = source.number(0, x.ndim - 1), source.one("none", "add", "mul", "min", "max")
    shape, extent = [*x.shape], x.shape[axis]
    shape[axis] = source.number(1, extent)
    lines = np.argsort(source.random.random(x.shape), axis).take(range(shape[axis]), axis)
    places = np.where(source.random.random(shape) < 0.5, lines, lines - extent)
    if reduction != "none":
        places = source.places(extent, tuple(shape)).astype(np.int64)
    attributes = {"axis": source.axis(x.ndim, axis), "reduction": reduction}
    return Case("ScatterElements", [x, places, source.array(tuple(shape), x.dtype)], attributes)


def pad(source: Source) -> Case:
    x = source.array(source.shape(1, 4, 1, 2, 3, 5), source.one(np.float32, np.int32, np.uint8))
    mode, count = (
        source.one("constant", "constant", "reflect", "edge", "wrap"),
        source.number(1, x.ndim),
    )
    axes = source.axes(x.ndim, count)
    most = [x.shape[axis] - 1 if mode == "reflect" else 3 for axis in axes * 2]
    pads = [source.number(0, n) for n in most]
    filler = source.array((), x.dtype) if mode == "constant" and source.is_so(0.7) else None
    return Case("Pad", [x, integers(pads), filler, integers(axes)], {"mode": mode}, known={1, 3})


def reduce(source: Source) -> Case:
    names = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"]
    name, dtype = source.one(*names), source.one(np.float32, np.float32, np.float64, np.int32)
    if name in (
        "Mean",
        "LogSumExp",
        "L2",
        "SumSquare",
    ):  # of integers they are of other types there
        dtype = np.float32
    extents = (1, 2, 3, 5) if name in ("Mean", "Max", "Min", "LogSumExp") else (0, 1, 2, 3, 5)
    x = source.array(source.shape(1, 4, *extents), dtype) / dtype(1 if dtype == np.int32 else 4)
    axes = source.axes(x.ndim, source.number(0, x.ndim))
    attributes = {"keepdims": source.number(0, 1)}
    if not axes and name in ("Sum", "Max", "Min", "Prod"):
        attributes["noop_with_empty_axes"] = source.number(0, 1)
    return Case(f"Reduce{name}", [x.astype(dtype), integers(axes)], attributes, opset=18, known={1})


def cumulated(source: Source) -> Case:
    x = source.array(source.shape(1, 3, 1, 3, 9), source.one(np.float32, np.int32, np.float64))
    axis = np.array(source.axis(x.ndim, source.number(0, x.ndim - 1)), np.int32)
    return Case(
        "CumSum",
        [x, axis],
        {"exclusive": source.number(0, 1), "reverse": source.number(0, 1)},
        known={1},
    )


def product(source: Source) -> Case:
    m, k, n = (source.one(0, 1, 2, 5, 17) for _ in range(3))
    batch = source.shape(0, 3, 1, 2, 3)
    left, right = (tuple(1 if source.is_so(0.4) else extent for extent in batch) for _ in range(2))
    a, b = source.array((*left[source.number(0, len(left)) :], m, k)), source.array((*right, k, n))
    if source.is_so(0.2):
        a = source.array((k,))
    elif source.is_so(0.2):
        b = source.array((k,))
    return Case("MatMul", [a, b], known={1} if source.is_so(0.4) else set())


def resize(source: Source) -> Case:
    x = source.array(
        (1, source.number(1, 2), *source.shape(2, 2, 1, 2, 3, 5, 8)),
        source.one(np.float32, np.uint8),
    )
    mode = source.one("nearest", "linear", "cubic")
    coordinates = source.one(
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"
    )
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = source.one(
            "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
        )
    elif source.is_so(0.3):
        attributes["antialias"] = 1
    if mode == "cubic":
        attributes |= {
            "exclude_outside": source.number(0, 1),
            "cubic_coeff_a": source.one(-0.75, -0.5),
        }
    if source.is_so(0.5):
        # pytorch_half_pixel asks whether there is one result; where 2 × 0.6 are one, the reference asks it of 1.2.
        factors = (
            (1.0, 2.0) if coordinates == "pytorch_half_pixel" else (0.5, 0.6, 1.0, 1.5, 2.0, 2.7)
        )
        scales = [source.one(*factors) for _ in range(2)]
        return Case("Resize", [x, None, np.float32([1, 1, *scales])], attributes, 19, {2})
    sizes = [source.one(1, 2, 3, 4, 7, 10) for _ in range(2)]
    attributes["axes"] = [2, 3]
    if source.is_so(0.4):
        attributes["keep_aspect_ratio_policy"] = source.one("not_larger", "not_smaller")
    return Case("Resize", [x, None, None, integers(sizes)], attributes, 19, {3})


def softmax(source: Source) -> Case:
    x = source.array(source.shape(1, 4, 1, 2, 3, 5))
    axis = source.axis(x.ndim, source.number(0, x.ndim - 1))
    return Case(source.one("Softmax", "LogSoftmax", "Hardmax"), [x], {"axis": axis}, opset=13)


def extreme(source: Source) -> Case:
    x = np.round(
        source.array(source.shape(1, 3, 1, 3, 9), source.one(np.float32, np.int32, np.int8))
    )
    axis = source.axis(x.ndim, source.number(0, x.ndim - 1))
    attributes = {
        "axis": axis,
        "keepdims": source.number(0, 1),
        "select_last_index": source.number(0, 1),
    }
    return Case(source.one("ArgMax", "ArgMin"), [x], attributes)


MAKERS: list[Callable[[Source], Case]] = [
    reshape, slices, gather, gather_nd, scatter_elements, pad, reduce, cumulated, product, resize, softmax, extreme,
]  # fmt: skip


def problem(case: Case) -> str | None:
    """How the results differ from the reference's."""
    names = ["" if array is None else f"x{n}" for n, array in enumerate(case.inputs)]
    arrays = {
        name: array for name, array in zip(names, case.inputs, strict=True) if array is not None
    }
    known = {f"x{n}" for n in case.known} & arrays.keys()
    feeds = {name: array for name, array in arrays.items() if name not in known}
    made = model(
        [node(case.operator, names, ["y"], **case.attributes)],
        [tensor(name, *x.shape, type=helper.np_dtype_to_tensor_dtype(x.dtype)) for name, x in feeds.items()],
        ["y"],
        opset=case.opset,
        initializer=[numpy_helper.from_array(arrays[name], name) for name in sorted(known)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference divides by 0, and overflows
        wanted = np.asarray(ReferenceEvaluator(made).run(None, feeds)[0])
    found = tc.compile(made)(feeds)
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return f"{found.dtype}{found.shape}, and not {wanted.dtype}{wanted.shape}"
    # Between two bytes there are means at a half, which the last bit of a float rounds up or down.
    apart = 1 if case.operator == "Resize" and found.dtype == np.uint8 else 1e-4
    if not np.allclose(
        found.astype(np.float64), wanted.astype(np.float64), 1e-4, apart, equal_nan=True
    ):
        return f"{found}, and not {wanted}"
    return None


def failures(
    maker: Callable[[Source], Case], numbers: Iterable[int]
) -> list[tuple[int, Case, str]]:
    cases = [(number, maker(Source(number))) for number in numbers]
    return [(number, case, found) for number, case in cases if (found := problem(case))]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_random_nodes(maker: Callable[[Source], Case]) -> None:
    assert failures(maker, range(2)) == []


@pytest.mark.sweep
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_many_random_nodes(maker: Callable[[Source], Case]) -> None:
    assert failures(maker, range(2, 60)) == []
