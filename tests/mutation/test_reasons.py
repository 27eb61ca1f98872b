"""Changes of products' fences, groups and waits that are no bugs, and their like that are.

Between the products is a reduction, which nothing proves once it is made of exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, mutation
from taskc.lang.definition import KernelDefinition
from taskc.mutation import Mutant, mutate
from tests.passes.test_select_products import fragment, on_hopper, operands

OWN = fragment(16)


def two_products(*, touched: bool) -> KernelDefinition:
    """The second product's accumulator is touched, or not, behind the first one's fence."""

    @tc.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[32, 16], y: tc.out[f32[64, 16]]):
        sa, sb = tc.load(a[:, :]), tc.load(b[:, :])
        first = tc.tile(f32, OWN, 0)
        second = tc.tile(f32, OWN, 1)
        tc.mma(first, sa, sb)
        for i, j in OWN:
            first[i, j] *= 2
        if touched:
            for i, j in OWN:
                second[i, j] *= 2
        tc.mma(second, sa, sb)
        largest = tc.reduce(first, 1, "max")  # by shuffles, beside the second product
        for i, j in OWN:
            second[i, j] += first[i, j] * largest[i]
        tc.store(y[:, :], second)

    return kernel


@cache
def of_products(*, touched: bool) -> list[Mutant]:
    definition = two_products(touched=touched)
    inputs = [[*operands(definition), np.zeros((64, 16), np.float32)]]
    all_changes = mutation._changes

    def of_wgmma(*kernels: Any) -> Iterator[Any]:
        return (it for it in all_changes(*kernels) if it.description.startswith("wgmma"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutation, "_changes", of_wgmma)  # the others take most of the time
        found = list(mutate(on_hopper(definition), inputs))
    return [m for m in found if m.stage == "synchronized"]


@pytest.mark.parametrize("touched", [False, True])
def test_a_fence_is_spare_where_nothing_was_touched(touched: bool) -> None:
    deleted = [m for m in of_products(touched=touched) if m.description == "wgmma.fence deleted"]
    assert [m.reported for m in deleted] == [True, touched]
    assert bool(deleted[1].reason) != touched


def test_groups_may_end_later_and_waits_come_earlier() -> None:
    moved = {
        (m.description.partition(" of line")[0], m.reported) for m in of_products(touched=False)
    }
    assert ("wgmma.commit moved behind sequence", False) in moved
    assert ("wgmma.wait moved before sequence", False) in moved
    assert ("wgmma.wait moved behind sequence", True) in moved
    assert ("wgmma.commit moved before mma", True) in moved
    assert all(m.reported or m.reason for m in of_products(touched=False))
