"""The record of a wrong result: a folder with its data, the places of wrong elements, and the kind of error.

folder/matmul_bf16_2040x2040x136/
    said.txt           kind, place, seed, plan
    kernel_0.cu .cubin each kernel's text and machine code
    cells.txt          a letter for each 8x8 cell: . right, # wrong
    arrays.npz         inputs, what was found, what was expected
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

SEED = 0  # of all inputs
_CELL = 8
_MOST_CELLS = 96  # in a direction
_SLICES = (16, 32, 64, 128)  # steps of k that a ring's slot may hold


# --- what is wrong ---------------------------------------------------------------------------


def classified(found: Any, expected: Any, wrong: Any, filler: Any, inputs: list[Any]) -> str:
    """The kind of a wrong result, for whoever looks for the reason; `wrong` is true where an element is."""
    values, wanted = found[wrong], expected[wrong]
    unwritten = np.isnan(values) if np.isnan(filler) else values == filler
    if unwritten.all():
        return "never written"
    if (values == 0).all():
        return "zeros"
    if np.array_equal(np.sort(values), np.sort(wanted)):
        return _permutation(found, expected)
    sliced = _other_slice(found, expected, wrong, inputs)
    if sliced:
        return sliced
    if unwritten.any():
        return f"{int(unwritten.sum())} never written, others wrong"
    return "other values"


def _permutation(found: Any, expected: Any) -> str:
    """Right elements in wrong places: which rows and columns, where whole ones have changed places."""
    if found.ndim == 2:
        for what, a, b in (("rows", found, expected), ("columns", found.T, expected.T)):
            places = {row.tobytes(): number for number, row in enumerate(np.ascontiguousarray(b))}
            order = [places.get(row.tobytes()) for row in np.ascontiguousarray(a)]
            if None not in order:
                moved = [f"{n}<-{m}" for n, m in enumerate(order) if n != m]
                return f"a permutation of {what}: {', '.join(moved[:8])}"
    return "a permutation"


def _other_slice(found: Any, expected: Any, wrong: Any, inputs: list[Any]) -> str:
    """The steps of k that are missing in a product, or that replace others."""
    if len(inputs) != 2 or found.ndim != 2 or inputs[0].ndim != 2 or inputs[1].ndim != 2:
        return ""
    a = inputs[0]
    b = inputs[1] if inputs[1].shape[0] == a.shape[1] else inputs[1].T
    if (a.shape[0], b.shape[1]) != found.shape or a.shape[1] != b.shape[0]:
        return ""
    rows, columns = np.nonzero(wrong)
    rows, columns = rows[:64], columns[:64]
    missing = (expected - found)[rows, columns]
    size = max(float(np.abs(missing).max()), 1e-30)
    for by in _SLICES:
        parts = [
            (a[rows, s : s + by] * b[s : s + by, columns].T).sum(axis=1)
            for s in range(0, a.shape[1], by)
        ]
        for n, part in enumerate(parts):
            if np.abs(missing - part).max() < 0.02 * size:
                return f"k from {n * by} to {(n + 1) * by} is missing"
            if np.abs(missing + part).max() < 0.02 * size:
                return f"k from {n * by} to {(n + 1) * by} is added twice"
            for m, other in enumerate(parts):
                if m != n and np.abs(missing - part + other).max() < 0.02 * size:
                    return (
                        f"k from {m * by} to {(m + 1) * by} in place of {n * by} to {(n + 1) * by}"
                    )
    return ""


def cells(wrong: Any) -> list[str]:
    """A line for each eight rows, of the last two dimensions; others are put above each other."""
    flat = wrong.reshape(-1, wrong.shape[-1]) if wrong.ndim else wrong.reshape(1, 1)
    high, wide = (min(-(-n // _CELL), _MOST_CELLS) for n in flat.shape)
    return [
        "".join(
            "#" if flat[_CELL * r : _CELL * r + _CELL, _CELL * c : _CELL * c + _CELL].any() else "."
            for c in range(wide)
        )
        for r in range(high)
    ]


# --- the folder ------------------------------------------------------------------------------


def left_behind(
    folder: Path, job: dict[str, Any], kernel: Any, target: str, kind: str, wrong: Any, arrays: Any
) -> Path:
    """Writes all that is known of a wrong result."""
    from taskc.backend.cuda.emit import emit
    from taskc.passes.pipeline import lower
    from taskc.runtime import driver

    place = folder / re.sub(r"\W+", "_", f"{job['family']} {job['case']}").strip("_")
    place.mkdir(parents=True, exist_ok=True)
    plan = _plan(job, target)
    said = [
        f"{job['family']} {job['case']}: {kind}",
        f"seed {SEED}",
        f"target {target}",
        f"plan {plan}",
    ]
    (place / "said.txt").write_text("\n".join(said) + "\n")
    (place / "cells.txt").write_text("\n".join(cells(wrong)) + "\n")
    for number, one in enumerate(kernel.kernels):
        lean = lower(replace(one.ir, target=target))
        (place / f"kernel_{number}.cu").write_text(emit(lean).text(with_places=False))
    try:
        for number, made in enumerate(driver.compile_ahead(kernel, target)):
            (place / f"kernel_{number}.cubin").write_bytes(made.cubin)
    except Exception as error:  # all else is there
        (place / "said.txt").write_text("\n".join([*said, f"no machine code: {error}"]) + "\n")
    np.savez_compressed(place / "arrays.npz", **arrays)
    return place


def _plan(job: dict[str, Any], target: str) -> Any:
    """The schedule of a product's kernel."""
    if not job["family"].startswith("matmul bf16"):
        return "of the library"
    return planned(job, target)


# --- which switch of the plan ----------------------------------------------------------------

# Changes of a product's plan that turn one thing off.
SWITCHES: dict[str, dict[str, Any]] = {
    "no producer": {"specialize": False, "cluster": (1, 1)},
    "no cluster": {"cluster": (1, 1)},
    "two stages": {"stages": 2},
    "one part of k": {"parts": 1},
    "rows of blocks in turn": {"group": 1},
}


def planned(job: dict[str, Any], target: str) -> Any:
    """The plan of a job's product, with its switch turned off."""
    from gpu_variants import chosen

    import taskc as tc

    plan = chosen(tuple(job["size"]), tc.machine(target))
    return replace(plan, **SWITCHES[job["switch"]]) if "switch" in job else plan


def bisected(job: dict[str, Any], target: str) -> Iterator[dict[str, Any]]:
    """The job again for each switch that its plan has on."""
    if not job["family"].startswith("matmul bf16") or "switch" in job:
        return
    plan = planned(job, target)
    for name in SWITCHES:
        if planned({**job, "switch": name}, target) != plan:
            yield {**job, "switch": name}
