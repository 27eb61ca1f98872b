"""All plans of a workload, each built, checked and measured.

They are compiled by as many processes as there are processors, and measured by one.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from math import ceil, inf
from multiprocessing import get_context
from typing import Any

import numpy as np
from tuning_cases import Operands, Workload

import taskc as tc
from taskc.arrays.packed import Packed
from taskc.ir.printer import to_text
from taskc.tune.timing import Call, seconds

SAMPLE = 1e-3  # seconds, of calls
SAMPLES, MORE = 5, 20  # of each plan, and of each of the best, in turns
BEST = 0.1  # of all plans
BOUND = 1e-3  # of results

Table = dict[str, float]  # seconds, by the texts of plans


@dataclass
class Measured:
    """A workload's plans, built and measured. A packed operand is made once for all plans that take it so."""

    workload: Workload
    operands: Operands
    packed: dict[str, Any] = field(default_factory=dict)

    def kernel(self, plan: Any) -> Any:
        return self.workload.build(plan, tc.machine())

    def text(self, plan: Any) -> str:
        """The parcel of a plan, which is compiled now, so that its code is in the cache from then on."""
        kernel = self.kernel(plan)
        self.call(kernel)()
        return sha256(to_text(kernel.ir).encode()).hexdigest()

    def call(self, kernel: Any) -> Call:
        (w,) = [item for item in kernel.ir.parameters if item.name in ("b", "w")]
        second = self.operands.second
        if w.layout is not None:
            key = f"{w.shape} {w.layout}"
            if key not in self.packed:
                self.packed[key] = kernel.pack(second)
            second = self.packed[key]
        return partial(
            kernel, self.operands.first, second, *self.operands.bias, out=self.operands.made
        )

    def checked(self, kernel: Any) -> Call:
        call = self.call(kernel)
        call()
        made = self.operands.made
        result = made.unpack() if isinstance(made, Packed) else made
        result = result[tuple([slice(extent) for extent in self.operands.expected.shape])]
        np.testing.assert_allclose(result, self.operands.expected, rtol=BOUND, atol=BOUND)
        return call

    def table(self, found: list[Any]) -> Table:
        """The seconds of plans, those of equal text once."""
        fork = get_context("fork")
        with ProcessPoolExecutor(os.cpu_count(), fork, _inherit, (self,)) as pool:
            texts = list(pool.map(_text, found, chunksize=8))
        calls: dict[str, Call] = {}
        times: dict[str, float] = {}
        for plan, text in zip(found, texts, strict=True):
            if text not in calls:
                calls[text] = self.checked(self.kernel(plan))
        for _ in range(SAMPLES):  # not one after another: what disturbs one sample may last
            for text, call in calls.items():
                times[text] = min(times.get(text, inf), fastest(call, 1))
        best = sorted(times, key=times.__getitem__)[: ceil(BEST * len(times))]
        for _ in range(MORE):
            for text in best:
                times[text] = min(times[text], fastest(calls[text], 1))
        return {str(plan): times[text] for plan, text in zip(found, texts, strict=True)}


_inherited: list[Measured] = []


def _inherit(measured: Measured) -> None:
    _inherited[:] = [measured]


def _text(plan: Any) -> str:
    return _inherited[0].text(plan)


def fastest(call: Call, samples: int) -> float:
    call()  # the last one's operands are in the caches, if they were packed otherwise
    once = max(1e-6, seconds(call))
    return min(seconds(call, max(1, int(SAMPLE / once))) for _ in range(samples))
