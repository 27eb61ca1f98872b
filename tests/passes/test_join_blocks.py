"""Small blocks are joined: who does what stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.ir import nodes as ir
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from tests.kernels.simulated import simulated


def added(n: Any, workers: int = 32, *, is_shared: bool = False, persistent: bool = False) -> Any:
    own = spatial(workers) * repeat(4)

    @tc.kernel(workers=workers)
    def added(x: f32[n], y: tc.out[f32[n]]) -> None:
        for start in tc.tiles(n, by=own.shape[0], persistent=persistent):
            if is_shared:
                block = tc.load(x[start : start + own.shape[0]])
                for i in own:
                    if start + i < n:
                        y[start + i] = block[own.shape[0] - 1 - i]
            else:
                for i in own:
                    if start + i < n:
                        y[start + i] = x[start + i] + 1

    return added


def blocks_of(definition: Any, target: str = "sm_90a") -> tuple[int, Any]:
    kernel = lower(for_target(definition.ir, target))
    blocks = kernel.blocks
    return kernel.workers, int(blocks.value) if isinstance(blocks, ir.Constant) else blocks


@pytest.mark.parametrize(
    ("n", "workers", "wanted"),
    [
        (128 * 24, 32, (256, 3)),
        (128 * 10, 32, (64, 5)),  # as many as divide their number
        (128 * 9, 32, (32, 9)),
        (256 * 8, 64, (256, 2)),
        (128 * 24, 128, (128, 6)),  # large enough
        (24 * 4 * 16, 24, (24, 16)),  # no whole warps
    ],
)
def test_blocks_of_few_workers_are_joined(n: int, workers: int, wanted: tuple[int, int]) -> None:
    assert blocks_of(added(n, workers)) == wanted


def test_what_shares_or_counts_blocks_is_not_joined() -> None:
    assert blocks_of(added(128 * 24, is_shared=True)) == (32, 24)
    assert blocks_of(added(128 * 2400, persistent=True))[0] == 32


@pytest.mark.parametrize(("n", "multiple"), [(1000, 4), (1024, 4), (4, 4), (128 * 9, 128)])
def test_of_a_length_known_at_the_call(n: int, multiple: int) -> None:
    """Those behind the last block do nothing, also where no block has an end of its own to look at."""
    definition = added(tc.dim("n", multiple=multiple))
    assert blocks_of(definition)[0] == 256
    x = np.arange(n, dtype=np.float32)
    made, _ = simulated(definition, [x], "sm_90a", "all")
    np.testing.assert_array_equal(made, x + 1)
