"""Plans of a large bf16 product, timed beside each other: what `choose` is to be held against."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from gpu_cases import Family, Size, name_of
from gpu_kernels import of_bf16, product, product_work

import taskc as tc
from taskc import bf16, f32, repeat, spatial
from taskc.format import time_text
from taskc.kernels import matmul
from taskc.kernels.matmul.plan_gpu import Tiling, candidate_tilings
from taskc.tune.space import least

SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024), (128, 768, 3072))
CHECK = (512, 512, 192)  # as many tiles as any cluster divides

# Columns of a warpgroup's fragment, warpgroups, stages, blocks of a cluster, rows of blocks that go together.
AHEAD = (
    *((256, 2, stages, (1, 1), 8) for stages in (3, 4)),
    *((256, 2, 4, cluster, 8) for cluster in ((2, 1), (1, 2))),
    *((256, 2, 4, (1, 1), group) for group in (4, 16)),
    *((192, 2, 4, (1, 1), 8), (192, 2, 4, (2, 1), 8)),
    *((128, 2, stages, (1, 1), 8) for stages in (4, 6)),
    *((128, 2, 6, cluster, 8) for cluster in ((2, 1), (1, 2))),
    *((256, 1, 4, (1, 1), 8), (128, 1, 6, (1, 1), 8), (64, 1, 6, (1, 1), 8)),
)
# Warps, fragments of a warp, and parts of k: by mma.sync.
BESIDE = (
    *(((2, 4), (4, 8), parts) for parts in (1, 4)),
    *(((2, 2), (2, 4), parts) for parts in (1, 4, 8)),
    *(((1, 4), (1, 2), parts) for parts in (1, 4, 8)),
)


def plans() -> Iterator[tuple[str, Tiling]]:
    """Their names, and they themselves, for the machine that has warpgroups."""
    rows = tc.machine("sm_90a").instructions(bf16, bf16, f32)
    fragments = {row.shape[1]: row.accumulator_fragment for row in rows if row.asynchronous}
    for columns, count, stages, cluster, group in AHEAD:
        own = spatial(count, 1) * fragments[columns]
        name = f"{64 * count}x{columns} {stages} stages"
        name += f", cluster {cluster[0]}x{cluster[1]}" if cluster != (1, 1) else ""
        name += f", groups of {group}" if group != 8 else ""
        yield name, Tiling(own, 64, stages, group=group, specialize=True, cluster=cluster)
    for cluster in ((1, 1), (2, 1)):
        own = repeat(2, 1) * fragments[128]
        name = "128x128 in turn" + (", cluster 2x1" if cluster != (1, 1) else "")
        yield name, Tiling(own, 64, 5, specialize=True, cluster=cluster, consumers=2)
    fragment = next(row for row in rows if not row.asynchronous).accumulator_fragment
    for warps, fragments_of_a_warp, parts in BESIDE:
        own = spatial(*warps) * repeat(*fragments_of_a_warp) * fragment
        name = f"{own.shape[0]}x{own.shape[1]} by mma.sync" + (
            f", {parts} parts" if parts > 1 else ""
        )
        yield name, Tiling(own, 32, 4, parts=parts)


def problem_of(size: Size) -> matmul.Problem:
    m, n, k = size
    return matmul.Problem(m=m, n=n, k=k, dtype=bf16, right=bf16, total=f32, result=bf16)


def chosen(size: Size, machine: tc.Machine) -> Tiling:
    return least(candidate_tilings, problem_of(size), machine)


PLANS = dict(plans())
for _size in SIZES:
    _chosen = chosen(_size, tc.machine("sm_90a"))
    if _chosen not in PLANS.values():
        PLANS[f"of {name_of(_size)}"] = _chosen


def fits(plan: Tiling, size: Size) -> bool:
    """A cluster's extents divide the numbers of tiles; parts are worth their sum."""
    tiles = [-(-n // by) for n, by in zip(size, plan.own.shape, strict=False)]
    is_whole = all(count % by == 0 for count, by in zip(tiles, plan.cluster, strict=True))
    return is_whole and (plan.parts == 1 or size[0] * size[1] <= 1 << 20)


def name_of_plan(name: str) -> str:
    """Of its family, which is one of matmul's."""
    return f"matmul plan {name}"


def build(plan: Tiling, machine: Any, m: int, n: int, k: int) -> Any:
    return matmul.build(problem_of((m, n, k)), plan, machine)


VARIANTS = tuple(
    [
        Family(
            name_of_plan(name), partial(build, plan), product, of_bf16, checks=(CHECK,),
            sizes=tuple([size for size in SIZES if fits(plan, size)]),
            quick=tuple([size for size in SIZES[:1] if fits(plan, size)]),
            peer=lambda torch, a, b: a @ b, work=product_work, dtype=bf16,
        )
        for name, plan in PLANS.items()
    ]
)  # fmt: skip


def comparison(rows: list[dict[str, Any]], target: str) -> list[str]:
    """For each size the plans by their times, and what `choose` says."""
    machine, lines = tc.machine(target), []
    for size in SIZES:
        here = [row for row in rows if row["case"] == name_of(size) and "ours_ms" in row]
        if not here:
            continue
        here.sort(key=lambda row: row["ours_ms"])
        found = chosen(size, machine)
        names = [name_of_plan(name) for name, plan in PLANS.items() if plan == found]
        lines.append(f"{name_of(size)}: choose takes {names[0] if names else found}")
        for row in here:
            mark = " <- chosen" if row["family"] in names else ""
            timed = time_text(row["ours_ms"] / 1e3, "ms", "9.4f")
            lines.append(f"    {timed} {row['family']}{mark}")
    return lines
