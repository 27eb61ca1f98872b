"""The tensor maps of the library's kernels are such as the driver takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import taskc as tc
from taskc import bf16, f8e4m3, f16, f32, i8, i32, tf32
from taskc.backend.cuda.context import context
from taskc.backend.cuda.emit import emit
from taskc.backend.cuda.launch import encode
from taskc.ir import nodes as ir
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import matmul
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from tests.backend.cuda.fake_driver import FakeDriver
from tests.backend.cuda.tensor_map_rules import broken_rules

HOPPER = tc.machine("sm_90a")


def images(channels: int, **options: Any) -> Any:
    return convolution(
        8, 56, 56, channels, 128, dtype=f16, total=f32, result=f16, machine=HOPPER, **options
    )


CASES: dict[str, Callable[[], Any]] = {
    "bf16": lambda: matmul(4096, 4096, 4096, dtype=bf16, total=f32, result=bf16, machine=HOPPER),
    "tf32": lambda: matmul(512, 512, 512, dtype=tf32, total=f32, transpose_b=True, machine=HOPPER),
    "i8": lambda: matmul(512, 512, 512, dtype=i8, total=i32, transpose_b=True, machine=HOPPER),
    "f8": lambda: matmul(512, 512, 512, dtype=f8e4m3, total=f32, transpose_b=True, machine=HOPPER),
    "odd": lambda: matmul(2039, 2039, 2039, dtype=f16, total=f32, machine=HOPPER),
    "long sums": lambda: matmul(128, 128, 8192, dtype=f16, total=f32, machine=HOPPER),
    "few rows": lambda: matmul(16, 4096, 4096, dtype=f16, total=f32, machine=HOPPER),
    "pixels": lambda: images(64, size=3, padding=1),
    "pixels, apart": lambda: images(64, size=3, padding=1, stride=2),
    "pixels, far apart": lambda: images(64, size=8, stride=8),
    "pixels, holes": lambda: images(64, size=3, padding=4, dilation=4),
    "an even filter": lambda: images(64, size=2),
    "NCHW": lambda: images(64, size=3, padding=1, order="NCHW"),
}


@pytest.mark.parametrize("name", CASES)
def test_maps_of_the_library(fake: FakeDriver, name: str) -> None:
    encode_maps(CASES[name]())
    assert fake.maps


def encode_maps(made: Any) -> None:
    """Of all kernels; the driver refuses what breaks a rule."""
    kernels = made.kernels if isinstance(made, tc.ProgramDefinition) else [made]
    for kernel in kernels:
        lean = lower(for_target(kernel.ir, "sm_90a"))
        for wanted in emit(lean).maps:
            tensor = lean.parameters[wanted.parameter]
            assert isinstance(tensor, ir.Tensor)
            shape = tuple([int(extent) for extent in tensor.shape])  # type: ignore[arg-type]
            encode(context(0), wanted, 1 << 20, shape, tensor.dtype.nbytes)


def test_filters_far_apart(fake: FakeDriver) -> None:
    """A map's steps are at most 8: the pixels of patches are copied otherwise."""
    encode_maps(images(64, size=14, stride=14))
    assert not any("lower" in described for described in fake.maps)


def test_broken_rules(fake: FakeDriver) -> None:
    lean = lower(for_target(images(64, size=3, padding=1).kernels[-1].ir, "sm_90a"))
    wanted = next(wanted for wanted in emit(lean).maps if wanted.pixels)
    encode(context(0), wanted, 1 << 20, (8, 56, 56, 64), 2)
    (good,) = fake.maps
    assert broken_rules(good) == []
    for change in (
        {"pointer": 8}, {"steps": [1, 9, 1, 1]}, {"extents": [64, 56, 56, 0]}, {"aligned": False},
        {"strides": [126, 7168, 401408]}, {"box": [128, 64]}, {"box": [64, 1025]},
        {"lower": [-129, -1]}, {"upper": [1, 128]}, {"upper": [-57, 0]},
    ):  # fmt: skip
        assert len(broken_rules(good | change)) == 1, change
