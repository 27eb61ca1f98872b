"""Kernels under `from __future__ import annotations`, where annotations are texts."""

from __future__ import annotations

from typing import Any

import taskc as tc
from taskc import f32, spatial


def scaled(m: int, layout: Any) -> tc.KernelDefinition:
    """`m` and `layout` are in annotations only, so the kernel doesn't close over them."""

    @tc.kernel(
        workers=4,
    )
    def kernel(
        x: f32[m, 8].laid(layout),
        alpha: f32,
        y: tc.out[f32[m, 8]],
    ):
        """Text."""
        for i, j in spatial(2, 2).repeat(m // 2, 4):
            y[i, j] = x[i, j] * alpha

    return kernel


def biased(m: int, is_biased: bool) -> tc.KernelDefinition:
    @tc.kernel(workers=4)
    def kernel(x: f32[m], bias: (f32[m],) if is_biased else (), y: tc.out[f32[m]]):
        for i in spatial(4):
            y[i] = x[i] + (bias[0][i] if bias else 0)

    return kernel


def unknown() -> tc.KernelDefinition:
    @tc.kernel(workers=4)
    def kernel(x: f32[no_such_extent]):
        pass

    return kernel


class Space:
    @staticmethod
    def make() -> tc.KernelDefinition:
        if True:

            @tc.kernel(workers=1)
            def inner(y: tc.out[f32[1]]):
                long_name = "日本"; w = f32(1) + \
                    y.shape[0].to(f32) if False else f32(2)  # fmt: skip  # noqa: E702, F841
                for i in spatial(1):
                    y[i] = w

        return inner
