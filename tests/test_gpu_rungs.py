"""The ladder of benchmarks/gpu.py: what each rung uses, and what a rung that fails costs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f8e4m3, f8e5m2
from taskc.backend.cuda import target, watchdog
from tests.backend.cuda import host
from tests.backend.cuda.conftest import start
from tests.backend.cuda.hosting import compiler_of
from tests.backend.cuda.rehearsal import planted
from tests.test_gpu_benchmark import ROOT, child, parts, record, said

__all__ = ["parts", "record", "start"]  # fixtures

NUMBERS = "1 2 3 3a 4 4a 4b 4c 5 5a 5b 6 7 7a 8 8a 8b 8c 9 10 10a 11 12a 12b 12c 12d 12e 13 14 14a 14b".split()
FROM_9 = NUMBERS[NUMBERS.index("9") :]
USES = [one for one in NUMBERS if one not in ("1", "2", "3", "3a", "4a", "4c", "8c", "10a")]


def rung(parts: Any, number: str) -> Any:
    (found,) = [one for one in parts["rungs"].LADDER if one.number == number]
    return found


# --- what they use ---------------------------------------------------------------------------


def test_the_rungs_are_in_order(parts: Any) -> None:
    """Each stands on earlier ones, and all of them on the device."""
    ladder = parts["rungs"].LADDER
    assert [one.number for one in ladder] == NUMBERS
    for place, one in enumerate(ladder):
        assert set(one.needs) <= set(NUMBERS[:place])
        assert one.needs or one.number == "1"
        assert one.repeats == (20 if place >= NUMBERS.index("9") else 1)
    assert parts["rungs"].SECONDS == 40
    assert parts["rungs"].LIMIT < 10 * 60
    watched = [one.number for one in parts["rungs"].chosen("15")]
    assert len(watched) == 4 * (len(FROM_9) - 1)  # all but the timings, under each tool
    assert [one.number for one in parts["rungs"].chosen("9-12")] == [
        "9",
        "10",
        "10a",
        "11",
        "12a",
        "12b",
        "12c",
        "12d",
        "12e",
    ]


@pytest.mark.parametrize("number", USES)
def test_a_rung_uses_what_it_is_named_for(parts: Any, number: str) -> None:
    """By the text that its kernels are lowered to."""
    rungs, one = parts["rungs"], rung(parts, number)
    used = [rungs.used_by(step, "sm_90a") for step in one.steps]
    together = set().union(*used)
    assert set(one.features) <= together
    assert not set(one.without) & together


def test_every_feature_is_of_some_rung(parts: Any) -> None:
    named = {feature.partition(" ")[0] for one in parts["rungs"].LADDER for feature in one.features}
    assert {feature.partition(" ")[0] for feature in parts["rungs"].FEATURES} <= named


def test_a_step_stands_for_its_instruction(parts: Any) -> None:
    """All types of both instructions, as the target has them."""
    rows = tc.machine("sm_90a").instructions
    for instruction, types in (
        ("wgmma", parts["parts"].WGMMA),
        ("mma.sync", parts["parts"].MMA_SYNC),
    ):
        families = [
            one for one in parts["cases"].FAMILIES if one.name.startswith(f"{instruction} ")
        ]
        assert [one.name for one in families] == [f"{instruction} {dtype}" for dtype, _, _ in types]
        for dtype, total, _ in types:
            assert any(row.name.startswith(f"{instruction}.") for row in rows(dtype, dtype, total))


def test_sizes_that_ask_for_more_are_checked_everywhere(parts: Any) -> None:
    gpu = parts["gpu"]
    options = gpu.argparse.Namespace(only="", quick=False, rungs="")
    families = {family.name for family in parts["cases"].FAMILIES}
    named = {
        (step.family, step.size)
        for one in parts["rungs"].LADDER
        for step in one.steps
        if step.kind == "check" and step.family in families
    }
    checked = {(job["family"], job["size"]) for job in gpu.jobs_of("checks", options, "sm_90a")}
    assert named <= checked
    watched = {(job["family"], job["size"]) for job in gpu.jobs_of("sanitize", options, "sm_90a")}
    large = {(step.family, step.size) for step in parts["rungs"].SANITIZED for step in step.steps}
    assert large <= watched
    variants = {family.name for family in parts["variants"].VARIANTS if family.sizes}
    assert {
        job["family"]
        for job in gpu.jobs_of("variants", options, "sm_90a")
        if job["kind"] == "check"
    } == variants
    older = gpu.jobs_of("checks", options, "sm_80")
    assert not any(job["family"].startswith("wgmma") for job in older)


# --- what it costs that one fails ------------------------------------------------------------

HANGS = "    time.sleep(100)\n"
CRASHES = "    import os\n    os.kill(os.getpid(), 11)\n"
WRONG = "    say(error='3 are wrong')\n    continue\n"


def climbed(
    parts: Any, record: Any, tmp_path: Path, breaks: dict[str, str], **options: Any
) -> list[Any]:
    body = "".join(f"if job['rung'] == {number!r}:\n{what}" for number, what in breaks.items())
    program = child(tmp_path, f"{body}say(error_of_bound=0.5)")
    rungs = options.pop("rungs", parts["rungs"].LADDER)
    rows: list[Any] = parts["rungs"].climb(
        rungs, program, time.monotonic() + 100, record.note, **options
    )
    assert record.rows == rows
    return rows


def left_out(rows: list[Any]) -> dict[str, str]:
    return {row["case"]: row["left_out"] for row in rows if "left_out" in row}


@pytest.mark.parametrize(
    ("what", "said_of_it"),
    [
        (HANGS, "it hung: it didn't end within 1 s"),
        (CRASHES, "the process ended with -11: "),
        (WRONG, "3 are wrong"),
    ],
    ids=["hangs", "crashes", "is wrong"],
)
def test_a_rung_that_fails_costs_what_stands_on_it(
    parts: Any,
    record: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    what: str,
    said_of_it: str,
) -> None:
    monkeypatch.setattr(parts["rungs"], "SECONDS", 1.0)
    rows = climbed(parts, record, tmp_path, {"12a": what})
    assert [row["case"] for row in rows] == NUMBERS
    assert [row["case"] for row in rows if "error" in row] == ["12a"]
    assert rows[NUMBERS.index("12a")]["error"] == said_of_it
    how = {HANGS: "hung", CRASHES: "broke its process", WRONG: "failed"}[what]
    assert left_out(rows) == {"12b": f"rung 12a {how}", "12e": "rung 12b was left out"}
    assert sum(line.startswith("rung ") for line in said(record)) == len(NUMBERS)
    assert len(json.loads(record.file.read_text())["rows"]) == len(NUMBERS)
    assert not record.finish()


def test_other_branches_are_climbed(parts: Any, record: Any, tmp_path: Path) -> None:
    """Bulk copies don't work: neither does what loads by them, and all the rest is tried."""
    rows = climbed(parts, record, tmp_path, {"8": WRONG})
    assert [row["case"] for row in rows if "error" in row] == ["8"]
    assert list(left_out(rows)) == ["8a", "8b", "8c", *FROM_9]
    assert left_out(rows)["9"] == "rung 8 failed"
    assert left_out(rows)["14"] == "rung 10 was left out"


def test_without_a_device_nothing_is_climbed(parts: Any, record: Any, tmp_path: Path) -> None:
    rows = climbed(parts, record, tmp_path, {"1": WRONG})
    assert list(left_out(rows)) == NUMBERS[1:]


def test_what_hung_is_not_watched_by_the_sanitizer(
    parts: Any, record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was wrong is."""
    monkeypatch.setattr(parts["rungs"], "SECONDS", 1.0)
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    tool.chmod(0o755)
    ladder = [
        replace(one, needs=()) for one in parts["rungs"].LADDER if one.number in ("10", "13", "14")
    ]
    watched = [
        one for one in parts["rungs"].SANITIZED if one.number in ("15-10", "15-13", "15-14")
    ][:3]
    assert {one.tools for one in watched} == {("memcheck",)}
    breaks = {"13": HANGS, "14": WRONG}
    rows = climbed(parts, record, tmp_path, breaks, rungs=[*ladder, *watched], tool=str(tool))
    assert left_out(rows) == {"15-13": "rung 13 hung"}
    assert ["error" in row for row in rows] == [False, True, True, False, False, False]
    for step in (row["steps"] for row in rows[3:] if "left_out" not in row):
        assert step[0]["error_of_bound"] == 0.5


def test_without_the_sanitizer_that_is_said(parts: Any, record: Any, tmp_path: Path) -> None:
    rows = climbed(parts, record, tmp_path, {}, rungs=parts["rungs"].SANITIZED)
    assert set(left_out(rows).values()) == {"compute-sanitizer isn't installed"}
    assert len(rows) == 4 * (len(FROM_9) - 1)


def test_a_step_that_breaks_the_device_costs_itself(
    parts: Any, record: Any, tmp_path: Path
) -> None:
    """The others of its rung have another process."""
    broken = "descriptor i8 n=48 k=128 swizzle 128 along k"
    breaks = (
        "    say(error='it waited in vain', fatal=True, broken='broke')\n    raise SystemExit(1)\n"
    )
    body = f"if job['family'] == {broken!r}:\n{breaks}"
    program = child(tmp_path, f"{body}say(error_of_bound=0.0)")
    (row,) = parts["rungs"].climb(
        [replace(rung(parts, "7a"), needs=())], program, time.monotonic() + 100, record.note
    )
    assert [step["family"] for step in row["steps"] if "error" in step] == [broken]
    assert len(row["steps"]) == len(rung(parts, "7a").steps)


# --- the whole command -----------------------------------------------------------------------


def rehearsed(
    tmp_path: Path, *options: str, breaks: str = ""
) -> tuple[int, str, list[dict[str, Any]]]:
    file, log = tmp_path / "out" / "rows.json", tmp_path / "logs" / "what.log"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.backend.cuda.rehearsal", "--bring-up", *options),
            *("--json", str(file), "--log", str(log), "--kernels", str(tmp_path / "kernels")),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "REHEARSAL_BREAKS": breaks},
    )  # fmt: skip
    assert log.read_text() == ended.stdout, ended.stderr
    return ended.returncode, ended.stdout, json.loads(file.read_text())["rows"]


def test_the_first_rung_on_a_fake_device(tmp_path: Path) -> None:
    code, text, (row,) = rehearsed(tmp_path, "--rungs", "1")
    assert code == 0, text
    assert "Fake GPU (sm_90a): compute capability 9.0" in row["steps"][0]["said"]
    assert "1 of 1 are right, 0 failed" in text


@pytest.mark.sweep
@pytest.mark.parametrize("breaks", ["", "hang:8 crash:6"])
def test_the_ladder_on_a_fake_device(tmp_path: Path, breaks: str) -> None:
    code, text, rows = rehearsed(tmp_path, breaks=breaks)
    assert [row["case"] for row in rows] == NUMBERS, text
    wrong = [row["case"] for row in rows if "error" in row]
    if not breaks:
        assert (code, wrong, left_out(rows)) == (0, [], {}), text
    else:
        assert wrong == ["6", "8"], text
        assert list(left_out(rows)) == ["8a", "8b", "8c", *FROM_9]


@pytest.mark.skipif(host.COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    ("what", "barrier", "parity"), [("wait", "sa_sb_full", 0), ("parity", "sa_sb_empty", 0)]
)
def test_a_planted_hang_is_named_by_its_barrier(
    parts: Any, start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, barrier: str, parity: int,
) -> None:  # fmt: skip
    """In the row that a rung's process leaves: an arrival is missing, or a wait is for the other phase."""
    monkeypatch.setattr(target, "compiled", compiler_of(start()))
    monkeypatch.setattr(host, "emit", planted(what, host.emit))
    (job,) = parts["rungs"].jobs_of_rung(rung(parts, "9"))
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([{**job, "size": (64, 1088, 1536)}]))
    work = parts["work"]
    try:
        assert parts["jobs"].work_on(file, {"check": work.check}, work.prepare) == 1
    finally:
        watchdog.watch(0)
    _ready, row = map(json.loads, file.with_suffix(".done").read_text().splitlines())
    assert row["broken"] == "broke the device"
    said = rf"waited in vain for {barrier}\[0\], parity {parity} \(\S+/gpu\.py:\d+\)"
    assert re.search(said, row["error"]), row["error"]


@pytest.mark.sweep
def test_a_planted_hang_costs_its_rung(tmp_path: Path) -> None:
    """And the switches of the product's plan are tried: all of them have that barrier."""
    code, text, rows = rehearsed(tmp_path, "--rungs", "9", breaks="wait:9")
    assert code == 1, text
    (row,) = rows
    assert re.search(r"waited in vain for \w+\[\d+\], parity [01]", row["error"]), text


# --- bounds ----------------------------------------------------------------------------------


def cut_off(a: Any, b: Any, step: int, bits: int) -> Any:
    """a @ b.T as tensor cores add: the products of `step` steps of k and the sum before are brought to the exponent of
    the largest, and keep so many bits behind its first; so does the result.
    """
    total = np.zeros((len(a), len(b)))
    for first in range(0, a.shape[1], step):
        products = a[:, None, first : first + step] * b[None, :, first : first + step]
        terms = np.concatenate([total[:, :, None], products], axis=-1)
        total = kept(terms, np.abs(terms).max(axis=-1, keepdims=True), bits).sum(axis=-1)
        total = kept(total, np.abs(total), bits)
    return total


def kept(values: Any, largest: Any, bits: int) -> Any:
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - bits)
    return np.trunc(values / unit) * unit


@pytest.mark.parametrize("dtype", [f8e4m3, f8e5m2, bf16], ids=str)
@pytest.mark.parametrize("k", [64, 1024])
def test_bounds_hold_for_what_tensor_cores_cut_off(parts: Any, dtype: tc.DType, k: int) -> None:
    """Of 8-bit floats 13 bits stay behind the first, of others 23, though nothing is rounded. Neither bound is far."""
    random = np.random.default_rng(k)
    a, b = (
        random.standard_normal((48, k)).astype(np.float32).astype(dtype.numpy).astype(float)
        for _ in "ab"
    )
    is_short = dtype.nbytes == 1
    error = np.abs(cut_off(a, b, 32 if is_short else 16, 13 if is_short else 23) - a @ b.T).max()
    _, allowed = parts["parts"].of_sums(dtype, tc.f32, (48, 48, k))
    assert error < allowed
    if is_short:
        assert allowed < 16 * error
        assert error > 64 * k * 2.0**-21  # no bound of f32 would do


def test_what_was_measured_at_8192_is_within_the_bound(parts: Any) -> None:
    kernels = sys.modules["gpu_kernels"]
    for k, error in ((8192, 0.0048), (4096, 0.0015)):
        _, allowed = kernels.of_bf16((1, 1, k))
        assert error < allowed < 0.05
