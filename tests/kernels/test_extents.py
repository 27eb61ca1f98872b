"""Static -> dynamic: what is written with numbers works with `tc.dim` in their place.

Each template of the library and of the examples, with each of its extents a dimension, and with all of them at once:
the same bits come out. Those in `CONSTANT` choose mappings and plans, and the error says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import i8
from taskc.ir.mapping_forms import MappingError
from taskc.kernels.attention import attention
from taskc.kernels.convolution import convolution, convolution_1d, convolution_3d
from taskc.kernels.matmul import batch_matmul, matmul, product
from taskc.kernels.pooling import (
    average_pool,
    global_average_pool,
    global_max_pool,
    max_pool,
    sum_pool,
)
from taskc.kernels.reductions import argmax, argmin, reduction
from taskc.kernels.rows import layer_norm, log_softmax, rms_norm, softmax
from taskc.kernels.scans import cumsum
from taskc.kernels.transpose import transpose
from taskc.lang.definition import Definition
from tests.each_value import few
from tests.example_files import example
from tests.kernels import random_problems
from tests.kernels.test_random_problems import check

Make = Callable[..., Definition]


def of(name: str, maker: str) -> Make:
    return getattr(example(name), maker)  # type: ignore[no-any-return]


def of_shape(make: Callable[..., Definition], *more: Any) -> Make:
    return lambda a, b, c: make((a, b, c), *more)


IMAGES = {"images": 2, "height": 7, "width": 9, "channels": 5}
PRODUCT = {"m": 33, "n": 7, "k": 37}
SHAPE = {"a": 7, "b": 33, "c": 5}

TEMPLATES: list[tuple[str, Make, dict[str, int]]] = [
    ("01 vector_add", of("vector_add", "make_vector_add"), {"n": 131}),
    ("02 transpose", of("transpose", "make_transpose"), {"m": 41, "n": 67}),
    ("03 naive", of("matmul", "make_naive"), PRODUCT),
    ("03 mapped", of("matmul", "make_mapped"), PRODUCT),
    ("03 pipelined", of("matmul", "make_pipelined"), PRODUCT),
    ("04 softmax", of("softmax", "make_softmax"), {"m": 10, "n": 100}),
    ("05 layer_norm", of("layer_norm", "make_layer_norm"), {"m": 10, "n": 100}),
    ("06 convolution", of("convolution", "make_convolution"), {**IMAGES, "features": 35}),
    ("08 attention", of("attention", "make_attention"), {"heads": 2, "length": 50, "features": 12}),
    ("09 split_k", of("split_k", "make_split_k"), {"m": 12, "n": 20, "k": 150, "parts": 4}),
    ("10 layer", of("epilogue", "make_layer"), {"rows": 37, "features": 41, "inputs": 29}),
    ("11 distances", of("operator", "distances"), {"points": 61, "centres": 37, "features": 19}),
    ("12 matmul", of("tuning", "matmul"), PRODUCT),
    ("matmul", matmul, PRODUCT),
    ("matmul, bias", lambda **n: matmul(**n, bias=True, transpose_b=True), PRODUCT),
    ("batch_matmul", lambda b, **n: batch_matmul(((b,), (b,)), **n), {"b": 3, **PRODUCT}),
    ("product", lambda **n: product(**n, dtype=i8), PRODUCT),
    (
        "attention",
        lambda **n: attention(**n, causal=True),
        {"batches": 2, "heads": 2, "length": 33, "keys": 65, "features": 16},
    ),
    ("convolution", convolution, {**IMAGES, "features": 35}),
    ("convolution, NCHW", lambda **n: convolution(**n, order="NCHW"), {**IMAGES, "features": 35}),
    ("convolution_1d", convolution_1d, {"images": 2, "width": 9, "channels": 5, "features": 35}),
    ("convolution_3d", convolution_3d, {**IMAGES, "depth": 4, "features": 35}),
    ("max_pool", lambda **n: max_pool(**n, size=3), IMAGES),
    ("sum_pool", lambda **n: sum_pool(**n, size=3), IMAGES),
    ("average_pool", lambda **n: average_pool(**n, size=3), IMAGES),
    ("global_max_pool", global_max_pool, IMAGES),
    ("global_average_pool", global_average_pool, IMAGES),
    *[(make.__name__, make, {"m": 7, "n": 33}) for make in (softmax, log_softmax)],
    *[(make.__name__, make, {"m": 7, "n": 33, "inner": 5}) for make in (layer_norm, rms_norm)],
    *[
        (f"reduction of {axes}", of_shape(lambda shape, axes: reduction("mean", shape, axes), axes), SHAPE)
        for axes in ((0,), (1,), (2,), (0, 2))
    ],
    *[
        (f"{make.__name__} along {axis}", of_shape(make, axis), SHAPE)
        for make, axis in ((argmax, 0), (argmin, 2), (cumsum, 0), (cumsum, 2))
    ],
    ("transpose", of_shape(transpose, (2, 0, 1)), SHAPE),
]  # fmt: skip

# What a mapping or a plan is chosen by, and how the error says that.
CONSTANT = {
    ("04 softmax", "n"): r"repeat\(1, \(n \+ 31\) // 32\) is the same at all calls",
    ("05 layer_norm", "n"): r"repeat\(1, \(n \+ 255\) // 256\) is the same at all calls",
    ("08 attention", "features"): r"repeat\(2, \(features \+ 3\) // 4\) is the same at all calls",
    ("09 split_k", "parts"): r"'parts' is not an extent of any parameter of 'split_k'",
    ("product", "k"): r"k of product is known when a kernel is made, and k only at a call",
    ("attention", "heads"): r"heads of attention is known when a kernel is made",
    ("attention", "features"): r"features of attention is known when a kernel is made",
    ("convolution_3d", "depth"): r"depth of convolution is known when a kernel is made",
    **{
        (name, extent): f"{extent} of convolution is known when a kernel is made"
        for name in ("convolution", "convolution, NCHW", "convolution_1d", "convolution_3d")
        for extent in ("channels", "features")
    },
    ("max_pool", "channels"): "channels of pooling is known when a kernel is made",
    ("sum_pool", "channels"): "channels of pooling is known when a kernel is made",
    ("average_pool", "channels"): "channels of pooling is known when a kernel is made",
}


def numbers(definition: Definition) -> list[Any]:
    """Whole numbers, whose sums are the same in any order."""
    random = np.random.default_rng(0)
    return [random.integers(-3, 4, it.shape).astype(it.dtype) for it in definition.example()]


def with_dimensions(extents: dict[str, int], chosen: tuple[str, ...]) -> dict[str, Any]:
    return {name: tc.dim(name, example=n) if name in chosen else n for name, n in extents.items()}


def _cases() -> Iterator[Any]:
    """All extents at once, and each alone, of which the default run takes one for every third template."""
    for place, (name, make, extents) in enumerate(TEMPLATES):
        free = tuple(extent for extent in extents if (name, extent) not in CONSTANT)
        alone = [(extent,) for extent in free]
        for chosen in (*alone, *([free] if len(free) > 1 else [])):
            turn = place % 3 == 0 and chosen == alone[place // 3 % len(alone)]
            runs = len(free) == 1 or chosen not in alone or turn
            yield pytest.param(
                make,
                extents,
                chosen,
                id=f"{name}: {', '.join(chosen)}",
                marks=[] if runs else pytest.mark.sweep,
            )


@pytest.mark.parametrize(("make", "extents", "chosen"), list(_cases()))
def test_a_number_may_be_a_dimension(
    make: Make, extents: dict[str, int], chosen: tuple[str, ...]
) -> None:
    constant = make(**extents)
    arguments = numbers(constant)
    expected, made = constant(*arguments), make(**with_dimensions(extents, chosen))(*arguments)
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("name", "extent", "message"),
    [pytest.param(*key, text, id=": ".join(key)) for key, text in CONSTANT.items()],
)
def test_what_has_to_be_a_number_is_said(name: str, extent: str, message: str) -> None:
    ((make, extents),) = [(make, extents) for known, make, extents in TEMPLATES if known == name]
    with pytest.raises((tc.CompileError, MappingError), match=message):
        make(**with_dimensions(extents, (extent,)))


# --- and of the random problems ---------------------------------------------------------------

# How many of a template's arguments may be dimensions, behind those that are no extents.
FREE = {
    "matmul": (0, 1, 2), "convolution": (0, 1, 2),
    **dict.fromkeys(("max_pool", "sum_pool", "average_pool"), (0, 1, 2)),
    "attention": (0, 2, 3),
    **dict.fromkeys(("softmax", "log_softmax", "layer_norm", "rms_norm"), (0, 1)),
    **dict.fromkeys(("argmax", "argmin", "cumsum", "transpose"), (0,)), "reduction": (1,),
}  # fmt: skip


def _opened(size: Any, name: str) -> Any:
    """A number as a dimension; of shapes, each extent but 1, which are the same from behind."""
    if isinstance(size, (tuple, list)):
        rank = len(size)
        return type(size)([_opened(n, f"{name}{rank - at}") for at, n in enumerate(size)])
    return size if size == 1 and len(name) > 1 else _DIMENSIONS.setdefault(name, tc.dim(name))


_DIMENSIONS: dict[str, Any] = {}


@pytest.mark.parametrize("number", few(range(60), 10))
def test_random_problems_of_dimensions(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called = random_problems._called

    def with_dims(make: Any, sizes: list[Any], options: dict[str, Any], machine: Any) -> Any:
        if {"mask", "inner"} & options.keys() or "NCHWc" in options.values():
            return called(make, sizes, options, machine)  # they have extents of their own
        opened = list(sizes)
        for at in FREE[make.__name__]:
            name = "ijklm"[at]
            opened[at] = _opened(sizes[at], name)
        return called(make, opened, options, machine)

    monkeypatch.setattr(random_problems, "_called", with_dims)
    one = random_problems.problem(number, tc.machine())
    made = one.definition(*one.arguments)
    assert made.shape == one.expected.shape, one.text
    check(one, made)
