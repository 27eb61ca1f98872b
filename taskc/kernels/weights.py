"""Powers of e as weights, of which the largest is 1."""

from __future__ import annotations

from math import ceil, exp, log
from typing import Any

import taskc as tc
from taskc import DType
from taskc.kernels.signatures import Function, Value

_MOST_LANES = 16  # of a processor's vector; more workers are a GPU's


def weight_of(dtype: DType, workers: int = 1) -> Function:
    """exp(x) for x up to 0, and 0 where it would be a subnormal number; exp(x) of a GPU's workers.

    Processors take a hundred cycles for a vector with subnormal results, and for one that multiplies them: of masked
    scores, such as those below -87 in f32, a softmax took 12 times as long, and a product with its weights 70 times.
    """
    if workers > _MOST_LANES:
        return tc.function(lambda x: tc.exp(x))
    least: Any = ceil(log(dtype.smallest_normal))
    lost = 2 * exp(least)

    @tc.function
    def weight(x: Value) -> Any:
        power = tc.exp(max(x, least))
        return 0 if power <= lost else power  # NaN stays

    return weight
