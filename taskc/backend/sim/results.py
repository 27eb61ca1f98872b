"""The end of a run: results are stored to the arrays, and the findings become a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from taskc.backend.sim.binding import addresses_of, shared_end
from taskc.backend.sim.machine import Run
from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.report import Report
from taskc.backend.sim.statistics import warn
from taskc.ir import nodes as ir


def store_results(run: Run, results: list[tuple[Array, Memory]]) -> None:
    """Copy results from the memories to the arrays; report elements that were never stored."""
    for array, memory in results:
        tensor = memory.tensor
        addresses: Any = slice(None)
        if run.is_flat and tensor.layout is not None:
            addresses = addresses_of(tensor, memory.shape)
        missing = memory.written[addresses] == 0
        if missing.any() and not run.aborted:
            first = np.unravel_index(int(np.argmax(missing)), memory.shape)
            name = f"{tensor.name}[{', '.join(str(int(i)) for i in first)}]"
            run.findings.add(
                "not-written",
                f"{name} is never stored",
                tensor.loc,
                count=int(np.count_nonzero(missing)),
                details=(("element", name),),
                where=tensor,
            )
        data = memory.data[addresses].reshape(array.shape)
        if not np.shares_memory(data, array):
            array[...] = data


def report(run: Run, allocated: Iterable[ir.Tensor], shared_limit: int | None) -> Report:
    if run.statistics:
        warn(run, run.findings)
    shared = _shared_bytes(run, allocated)
    if shared_limit is not None and shared > shared_limit:
        run.findings.add(
            "shared-memory",
            f"a block takes {shared} bytes of shared memory; the limit is {shared_limit}",
            run.kernel.loc,
            where="budget",
        )
    return Report(
        run.findings.result(),
        tuple([replace(a, total=run.totals[site]) for site, a in run.accesses.items()]),
        shared,
        sum(run.private_bytes.values()),
    )


def _shared_bytes(run: Run, allocated: Iterable[ir.Tensor]) -> int:
    placed, free, mbarriers = 0, 0, 0
    for tensor in dict.fromkeys(allocated):
        if tensor.scope == ir.SHARED:
            end = shared_end(tensor)
            if tensor.offset is None:
                free += end
            else:
                placed = max(placed, end)
        elif tensor.scope == ir.BARRIER:
            mbarriers += tensor.dtype.nbytes * prod(run.shapes[tensor])
    used = placed + free
    return -(-used // 8) * 8 + mbarriers if mbarriers else used
