"""What kind of wrong a result is, where it is wrong, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda.conftest import compiled, fake, start
from tests.test_gpu_benchmark import parts

__all__ = ["compiled", "fake", "parts", "start"]  # fixtures

RANDOM = np.random.default_rng(0)
A, B = RANDOM.standard_normal((48, 128)), RANDOM.standard_normal((128, 40))
C = A @ B


@pytest.fixture
def failures(parts: Any) -> Any:
    import gpu_failures

    return gpu_failures


def zeroed(c: Any) -> Any:
    c[8:16, :8] = 0
    return c


def unwritten(c: Any) -> Any:
    c[8:16, :8] = np.nan
    return c


def exchanged(c: Any) -> Any:
    c[[3, 9]] = c[[9, 3]]
    return c


def without_a_slice(c: Any) -> Any:
    return c - A[:, 32:64] @ B[32:64]


def another_slice(c: Any) -> Any:
    return c - A[:, 64:128] @ B[64:128] + A[:, 0:64] @ B[0:64]


def other(c: Any) -> Any:
    c[5, 7] += 1
    return c


@pytest.mark.parametrize(
    ("breaks", "kind"),
    [
        (zeroed, "zeros"),
        (unwritten, "never written"),
        (exchanged, "a permutation of rows: 3<-9, 9<-3"),
        (without_a_slice, "k from 32 to 64 is missing"),
        (another_slice, "k from 0 to 64 in place of 64 to 128"),
        (other, "other values"),
    ],
)
def test_kinds(failures: Any, breaks: Any, kind: str) -> None:
    found = breaks(C.copy())
    wrong = ~(np.abs(found - C) <= 1e-6)
    assert failures.classified(found, C, wrong, np.nan, [A, B]) == kind


def test_a_letter_for_each_cell(failures: Any) -> None:
    wrong = np.zeros((20, 17), bool)
    wrong[9, 16] = wrong[0, 0] = True
    assert failures.cells(wrong) == ["#..", "..#", "..."]


def test_a_wrong_result_leaves_all_that_is_known(
    fake: Any,
    compiled: Any,
    parts: Any,
    failures: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    from dataclasses import replace

    work = parts["work"]
    family = work.FAMILY["transpose"]
    wrong = replace(family, reference=lambda x: np.where(x.T > 2, 0, x.T))
    monkeypatch.setitem(work.FAMILY, "transpose", wrong)
    job = {
        "kind": "check",
        "family": "transpose",
        "case": "37x70",
        "size": (37, 70),
        "folder": str(tmp_path),
    }
    said = work.check(job)["error"]
    place = tmp_path / "transpose_37x70"
    assert said.endswith(f"; other values; {place}")
    assert {one.name for one in place.iterdir()} == {
        "said.txt", "cells.txt", "kernel_0.cu", "kernel_0.cubin", "arrays.npz",
    }  # fmt: skip
    arrays = np.load(place / "arrays.npz")
    assert arrays["found"].shape == arrays["expected"].shape == (70, 37)
    assert "#" in (place / "cells.txt").read_text()


def test_the_switches_of_a_plan(failures: Any) -> None:
    """Only those that are on, of a product by the library."""
    job = {"kind": "check", "family": "matmul bf16", "size": (4056, 4088, 136), "case": "x"}
    names = [one["switch"] for one in failures.bisected(job, "sm_90a")]
    assert {"no producer", "no cluster", "two stages"} <= set(names)
    assert "one part of k" not in names
    plan = failures.planned({**job, "switch": "no cluster"}, "sm_90a")
    assert plan.cluster == (1, 1)
    assert plan.specialize
    assert not [*failures.bisected({**job, "family": "softmax f32"}, "sm_90a")]
    json.dumps([*failures.bisected(job, "sm_90a")])
