"""Definitions that have been text: they are the same, and so is their code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import taskc as tc
from taskc import f32, u8
from taskc.backend.cpu.target import cache_key
from taskc.kernels.convolution import convolution
from taskc.kernels.matmul import matmul, product
from taskc.kernels.reductions import reduction
from taskc.kernels.rows import softmax
from taskc.kernels.transpose import transpose
from taskc.tune.worker import Parcel, parcel_of

n = tc.dim("n", multiple=8)
_IMAGES = {"size": (3, 3), "padding": (1, 1), "order": "NCHWc", "packed": True, "dtype": f32}

KERNELS: dict[str, Callable[[], tc.KernelDefinition | tc.ProgramDefinition]] = {
    "panels": lambda: matmul(48, 40, 24),
    "packed panels": lambda: matmul(48, 40, 24, packed=True, bias=True, activation=tc.gelu),
    "symbolic": lambda: matmul(n, 40, 24),
    "few rows": lambda: matmul(3, 40, 24),
    "product": lambda: product(24, 40, 24, packed=True),
    "product of bytes": lambda: product(24, 40, 24, dtype=u8, packed=True),
    "direct": lambda: convolution(1, 7, 6, 32, 32, **_IMAGES),
    "winograd": lambda: convolution(1, 12, 12, 32, 32, **_IMAGES, exact=False),
    "softmax": lambda: softmax(6, 100),
    "transpose": lambda: transpose((30, 50)),
}


@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
def test_kernels_of_the_library(make: Callable[[], tc.KernelDefinition]) -> None:
    kernel = make()
    parcel = parcel_of(kernel)
    assert Parcel.parse(parcel.text) == parcel
    assert "\n" not in parcel.text
    read = Parcel.parse(parcel.text).definition()
    assert parcel_of(read) == parcel
    assert read.signature == kernel.signature
    # It finds the code of the one that it was, since none of these has an assertion, whose place is part of the code.
    assert cache_key(read.ir, "") == cache_key(kernel.ir, "")


# What packed operands are made of.
PACKED = {
    "product of bytes": np.arange(24 * 40, dtype=np.int8).reshape(24, 40),
    "direct": np.arange(32 * 9 * 32, dtype=np.float32).reshape(32, 3, 3, 32) % 7,
}


@pytest.mark.parametrize("name", ["symbolic", "transpose", *PACKED])
def test_they_compute_the_same(name: str) -> None:
    kernel = KERNELS[name]()
    assert isinstance(kernel, tc.KernelDefinition)
    results = []
    for made in (kernel, parcel_of(kernel).definition()):
        arguments = list(kernel.example())
        if name in PACKED:
            arguments[1] = made.pack(PACKED[name])
        results.append(made(*arguments))
    assert results[0].any()
    np.testing.assert_array_equal(*results)


def test_equal_text_is_an_equal_candidate() -> None:
    first, again = matmul(48, 40, 24), matmul(48, 40, 24)
    assert parcel_of(first) == parcel_of(again)
    assert len({parcel_of(first), parcel_of(again)}) == 1
    assert parcel_of(first) != parcel_of(matmul(48, 40, 25))
    packed = parcel_of(product(24, 40, 24, packed=True))
    assert Parcel(packed.ir) != packed


PROGRAMS: dict[str, Callable[[], tc.KernelDefinition | tc.ProgramDefinition]] = {
    "filters packed": lambda: convolution(1, 9, 9, 6, 12, padding=1, order="NCHW", dtype=f32),
    "reordered": lambda: convolution(
        n, 9, 9, 6, 12, groups=2, padding=1, order="NCHW", dtype=f32, packed=True
    ),
    "sums in parts": lambda: reduction("sum", (70_001, 3), (0,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program = PROGRAMS[name]()
    assert isinstance(program, tc.ProgramDefinition)
    parcel = Parcel.parse(parcel_of(program).text)
    assert parcel == parcel_of(program)
    read = parcel.definition()
    assert isinstance(read, tc.ProgramDefinition)
    assert parcel_of(read) == parcel
    assert read.signature == program.signature
    arguments = list(program.example())
    results = []
    for made in (program, read):
        if made.packs:
            (pack,) = made.packs.values()
            arguments[1] = made.pack(*pack.example(), "w")
        results.append(made(*arguments))
    assert results[0].any()
    np.testing.assert_array_equal(*results)
