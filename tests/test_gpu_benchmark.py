"""benchmarks/gpu.py on a fake device: it checks before it measures, and goes on past what fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from textwrap import dedent, indent
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.backend.cuda.compiled import Resources
from taskc.runtime import driver
from tests.backend.cuda.conftest import compiled, fake, start
from tests.backend.cuda.fake_driver import ILLEGAL_ADDRESS, FakeDriver

ROOT = Path(__file__).parents[1]
SANITIZERS = ["initcheck", "memcheck", "racecheck", "synccheck"]

__all__ = ["compiled", "fake", "start"]  # fixtures


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The files of the benchmark."""
    for folder in ("benchmarks", "examples"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    names = (
        "",
        "_cases",
        "_counters",
        "_jobs",
        "_parts",
        "_record",
        "_rungs",
        "_variants",
        "_work",
    )
    found = {name.strip("_") or "gpu": import_module(f"gpu{name}") for name in names}
    monkeypatch.setattr(found["work"], "_LONG", 1e-9)
    return found


@pytest.fixture
def record(parts: dict[str, ModuleType], tmp_path: Path) -> Any:
    return parts["record"].Record(tmp_path / "rows.json", "a device")


def said(record: Any) -> list[str]:
    """What is in its log."""
    return record.file.with_suffix(".log").read_text().splitlines()


def job(kind: str, *size: int) -> dict[str, Any]:
    return {"kind": kind, "family": "vector add", "size": size, "case": str(size)}


def test_a_kernel_is_checked_against_its_reference(fake: Any, compiled: Any, parts: Any) -> None:
    found = parts["work"].check(job("check", 100))
    assert 0 <= found["error_of_bound"] <= 1


def test_a_wrong_result_is_found(
    fake: Any, compiled: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = parts["work"].FAMILY["vector add"]
    wrong = replace(family, reference=lambda a, b: a + b + (np.arange(len(a)) == 7))
    monkeypatch.setitem(parts["work"].FAMILY, "vector add", wrong)
    text = parts["work"].check(job("check", 100))["error"]
    assert text.startswith("1 are wrong; at (7,) it is ")


def test_not_a_number_is_wrong(parts: Any) -> None:
    found = parts["work"].compared(np.array([np.nan, 1.0]), np.array([1.0, 1.0]), (0.1, 0.1))
    assert found["error"].startswith("1 are wrong; at (0,)")


def test_a_kernel_is_measured(
    start: Any, compiled: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts["work"], "copy_rate", lambda: 1e12)
    found = parts["work"].measure(job("measure", 1000))
    # Events of the fake driver are 1.5 ms apart; there are 64 sets of buffers in each sample.
    assert found["ours_ms"] == pytest.approx(1.5 / 64)
    assert found["kept"] == 15
    assert found["peer"] is None
    assert found["fraction_of_copy"] == pytest.approx(3 * 4000 / (1.5e-3 / 64) / 1e12)


def test_what_is_measured_of_pairs(parts: Any) -> None:
    found = parts["work"].summary([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert (found["ours_ms"], found["peer_ms"], found["ratio"]) == (2.0, 2.0, 1.0)


def test_every_family_names_what_there_is(parts: Any) -> None:
    names = [family.name for family in parts["cases"].FAMILIES]
    assert len(set(names)) == len(names)
    for family in parts["cases"].FAMILIES:
        assert family.checks
        for size in (*family.checks, *family.ladder, *family.sizes):
            relative, absolute = family.bound(size)
            assert 0 <= relative < 0.01
            assert 0 <= absolute < 0.6


def test_what_the_assembler_finds_bad_is_said(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remarks = "(C7514) products are serialized", "(C7508) setmaxnreg is ignored"
    needed = [Resources(spill_stores=4, spill_loads=8), Resources(remarks=remarks), Resources()]
    made = [SimpleNamespace(resources=resources) for resources in needed]
    ahead = {**job("compile", 100), "target": "sm_90a"}
    monkeypatch.setattr(driver, "compile_ahead", lambda kernel, target: made[:2])
    found = parts["work"].compile_ahead(ahead)
    assert found["remarks"] == ["12 bytes are spilled", *remarks]
    assert parts["jobs"].is_hazard(found)
    assert not parts["jobs"].is_hazard({"remarks": ["12 bytes are spilled", "(C4510) deprecated"]})
    assert parts["jobs"].line_of({**ahead, **found}).endswith("; ".join(found["remarks"]))
    monkeypatch.setattr(driver, "compile_ahead", lambda kernel, target: made[2:])
    assert parts["work"].compile_ahead(ahead) == {}


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_inputs_fit_and_so_does_what_they_are_held_against(parts: Any, machine: str) -> None:
    """A kernel may see its parameters in another shape than its callers."""
    for family in parts["cases"].FAMILIES:
        if family.target not in ("", machine):
            continue
        size = family.checks[0]
        kernel = family.build(tc.machine(machine), *size)
        arrays = (family.inputs or parts["work"].inputs)(kernel)
        bound = driver.signature(kernel).bind(arrays, {})
        expected = family.reference(*[array.astype(np.float64) for array in arrays])
        assert expected.shape == bound.returned.shape, family.name


def child(tmp_path: Path, body: str, before: str = "") -> Path:
    """A program in place of gpu.py's child: `body` stands in a loop over the jobs, and may `say` a result.

    before  what it does until it is ready
    """
    program = tmp_path / "child.py"
    program.write_text(
        "import json, sys, time\n"
        "from pathlib import Path\n"
        "file = Path(sys.argv[-1])\n"
        "def say(**result):\n"
        "    with file.with_suffix('.done').open('a') as done:\n"
        "        done.write(json.dumps({**job, **result}) + chr(10))\n"
        f"{before}\n"
        "job = {}\n"
        "say(ready=0)\n"
        f"for job in json.loads(file.read_text()):\n{indent(dedent(body), '    ')}"
    )
    return program


def numbered(count: int, kind: str = "check", family: str = "f") -> list[dict[str, Any]]:
    """family  its name, or a text with a place for the number"""
    numbers = range(1, count + 1)
    return [
        {"kind": kind, "family": family.format(k), "size": [k], "case": str(k)} for k in numbers
    ]


BREAKS = """
    if job['case'] == '2':
        sys.exit('broken')
    say(error_of_bound=0.5)
"""
HANGS = """
    if job['case'] == '2':
        time.sleep(100)
    say(error_of_bound=0.5)
"""
FAILS = """
    say(**{'error': 'an illegal address', 'fatal': True, 'broken': 'broke the device'} if job['case'] == '2' else {})
    if job['case'] == '2':
        sys.exit(1)
"""


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (BREAKS, "the process ended with 1: broken"),
        (HANGS, "it hung: no result after 0.5 s"),
        (FAILS, "an illegal address"),
    ],
)
def test_it_goes_on_past_a_process_that_breaks_or_hangs(
    parts: Any,
    record: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    body: str,
    error: str,
) -> None:
    monkeypatch.setitem(parts["jobs"].LIMITS, "check", 0.5)
    # Imports, of torch for one, count against nobody.
    program, end = child(tmp_path, body, "time.sleep(0.6)"), time.monotonic() + 100
    rows = parts["jobs"].run_jobs(numbered(3, family="f{}"), program, end, record.note)
    assert [row["case"] for row in rows] == ["1", "2", "3"]
    assert [row.get("error") for row in rows] == [None, error, None]
    assert f"FAILED: {error}" in said(record)[1]
    assert not record.finish()
    assert said(record)[-1] == f"2 of 3 are right, 1 failed; {record.file}"


@pytest.mark.parametrize("body", [BREAKS, HANGS, FAILS])
def test_a_family_that_breaks_or_hangs_is_left_out_from_there_on(
    parts: Any, record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str
) -> None:
    monkeypatch.setitem(parts["jobs"].LIMITS, "check", 1.0)
    program, end = child(tmp_path, body), time.monotonic() + 100
    broken: dict[str, str] = {}
    jobs = [*numbered(3), *numbered(1, family="g"), *numbered(1, "measure")]
    rows = parts["jobs"].run_jobs(jobs, program, end, record.note, broken)
    assert len(rows) == len(jobs)
    assert [row["case"] for row in rows if "error" in row] == ["2"]
    left = [(row["kind"], row["case"]) for row in rows if "left_out" in row]
    assert left == [("check", "3"), ("measure", "1")]
    assert {row.get("left_out") for row in rows} - {None} == {broken["f"]}
    assert broken["f"] in (
        "f 2 hung before",
        "f 2 broke its process before",
        "f 2 broke the device before",
    )
    assert not record.finish()
    assert said(record)[-2] == "left out of measure, for what went wrong before: f (1)"


def test_a_process_that_never_gets_ready(
    parts: Any, record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parts["jobs"], "STARTS", 1.0)
    program, end = child(tmp_path, "say()", "time.sleep(100)"), time.monotonic() + 100
    (row,) = parts["jobs"].run_jobs(numbered(1), program, end, record.note)
    assert row["error"] == "it wasn't ready after 1 s"


def test_jobs_that_have_their_time_together(parts: Any, tmp_path: Path) -> None:
    """Each of them is quick."""
    program, end = child(tmp_path, "time.sleep(0.4)\nsay()"), time.monotonic() + 100
    rows = list(parts["jobs"].run_process(numbered(9), program, end, together=1.0))
    assert 2 <= len(rows) < 9
    assert rows[-1]["error"] == "it hung: it didn't end within 1 s"


def test_what_time_is_over_for_is_left_out(
    parts: Any, record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second of three jobs is cut off, which else would give its result; of another kind none is begun."""
    monkeypatch.setitem(parts["jobs"].LIMITS, "check", 1000.0)
    program, end = child(tmp_path, HANGS.replace("100", "20")), time.monotonic() + 1.5
    jobs = [*numbered(3), *numbered(2, "measure")]
    rows = parts["jobs"].run_jobs(jobs, program, end, record.note)
    assert ["error" in row for row in rows] == [False] * 5
    assert [row.get("left_out") for row in rows] == [None, *["out of time"] * 4]
    assert not record.finish()
    assert said(record)[-3:] == [
        "left out of check, for want of time: f (2)",
        "left out of measure, for want of time: f (2)",
        f"1 of 5 are right, 0 failed; {record.file}",
    ]


def test_rows_are_in_the_file_as_soon_as_they_are_known(record: Any) -> None:
    for number in (1, 2):
        record.note({**numbered(number)[-1], "error_of_bound": 0.5, "fatal": False})
        rows = json.loads(record.file.read_text())["rows"]
        assert len(rows) == number
    assert rows[1] == {"benchmark": "f", "kind": "check", "case": "2", "error_of_bound": 0.5}


def test_a_part_has_its_share_and_what_others_have_left(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(parts["gpu"].time, "monotonic", lambda: now)
    ends = parts["gpu"].ends_of(["compile", "checks", "times"], now + 130)
    assert next(ends) == 1020  # shares of 2, 3 and 8
    now = 1020.0
    assert next(ends) == 1050
    now = 1024.0
    assert next(ends) == 1130
    assert set(parts["gpu"].SHARES) == {"compile", *parts["gpu"].PARTS}
    assert parts["gpu"].LIMIT < 8 * 60


def test_rows_need_no_git(parts: Any, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = import_module("report")
    report._commit.cache_clear()
    monkeypatch.setenv("PATH", "")
    record.note({**numbered(1)[0], "error_of_bound": 0.5})
    report._commit.cache_clear()
    assert json.loads(record.file.read_text())["commit"] == "unknown"


def test_jobs_in_several_processes(parts: Any, tmp_path: Path) -> None:
    program, end = child(tmp_path, BREAKS), time.monotonic() + 100
    rows = parts["jobs"].run_concurrently(numbered(5), program, end, 2)
    assert sorted(row["case"] for row in rows) == ["1", "2", "3", "4", "5"]
    assert [row["case"] for row in rows if "error" in row] == ["2"]


def tool(tmp_path: Path, name: str, script: str) -> None:
    """A program on the path."""
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


@pytest.mark.parametrize("code", [0, 9])
def test_what_the_sanitizer_finds_is_an_error(
    parts: Any, record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    """A tool that runs what it is given, and ends as one that has found something would."""
    tool(tmp_path, "compute-sanitizer", f'shift 2\n"$@" && echo "a race" && exit {code}\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program, end = child(tmp_path, "say(error_of_bound=0.5)"), time.monotonic() + 100
    parts["gpu"].sanitize(numbered(1), "sm_90a", program, end, record, {})
    rows = sorted(record.rows, key=lambda row: row["kind"])
    assert [(row["kind"], row["case"]) for row in rows] == [(kind, "1") for kind in SANITIZERS]
    expected = "the process ended with 9: a race" if code else None
    assert [row.get("error") for row in rows] == [expected] * len(SANITIZERS)


def test_without_the_tools_that_is_said(
    parts: Any, record: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    end = time.monotonic() + 100
    parts["gpu"].sanitize([], "sm_90a", tmp_path, end, record, {})
    parts["gpu"].counters([], "sm_90a", tmp_path, end, record, {})
    assert record.rows == []
    assert said(record) == [
        "compute-sanitizer isn't installed: none of its tools was run",
        "ncu isn't installed: nothing is held against its counters",
    ]


def profile(metrics: dict[str, str], launches: int = 1) -> str:
    """What ncu writes: notes, a head, units, and a line for each launch."""
    head = ["ID", "Kernel Name", *metrics]
    lines = [["", "", *["sector"] * len(metrics)]]
    lines += [[str(k), "kernel(float *, int)", *metrics.values()] for k in range(launches)]
    rows = [",".join(f'"{cell}"' for cell in row) for row in (head, *lines)]
    return "\n".join(["==PROF== Connected to process 7 (/usr/bin/python3.12)", *rows, ""])


def test_counters_are_read_from_what_ncu_writes(parts: Any) -> None:
    names = parts["counters"].METRICS
    metrics = {metric: "1,250" for _, _, some in names.values() for metric in some}
    assert parts["counters"].counters_of(profile(metrics, 2), list(names)) == {
        name: 2 * 1250 * len(some) for name, (_, _, some) in names.items()
    }
    with pytest.raises(ValueError, match="no kernel was launched"):
        parts["counters"].counters_of(profile(metrics, 0), list(names))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", "ncu: its table can't be read: no kernel was launched; it ends with ''"),
        (
            'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission" > $log',
            "ncu: ERR_NVGPUCTRPERM - The user does not have permission",
        ),
    ],
)
def test_what_ncu_refuses_is_in_its_words(
    parts: Any,
    record: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: str,
    expected: str,
) -> None:
    tool(tmp_path, "ncu", f'log=${{5#--log-file=}}\nshift 5\n"$@"\n{script}\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    simulated = dict.fromkeys(parts["counters"].METRICS, 1)
    program = child(tmp_path, f"say(simulated={simulated})")
    end = time.monotonic() + 100
    parts["counters"].counted(numbered(1), "sm_90a", program, end, record)
    assert [row["error"] for row in record.rows] == [expected]
    assert said(record)[0].endswith(f"FAILED: {expected}")


def test_what_is_counted_is_simulated(parts: Any) -> None:
    jobs = [
        {"family": family.name, "size": size, "target": "sm_90a"}
        for family in parts["cases"].FAMILIES
        for size in family.counted
    ]
    assert len(jobs) >= 5
    for one in jobs:
        found = parts["counters"].simulate(one)["simulated"]
        assert found["sectors of stores"] > 0, one["family"]


def test_counters_agree_or_differ(parts: Any) -> None:
    row = {"family": "f", "case": "1", "simulated": {"a": 100, "b": 100, "c": 0, "d": 5}}
    lines = parts["counters"].table({**row, "counted": {"a": 101, "b": 103, "c": 0}})
    assert [line.split()[-1] for line in lines] == ["agree", "DIFFER", "agree", "counted"]


def test_plans_are_compared_with_what_is_chosen(parts: Any) -> None:
    variants = parts["variants"]
    assert len(variants.PLANS) == len(variants.VARIANTS)
    assert all(variants.fits(plan, variants.CHECK) for plan in variants.PLANS.values())
    for size in variants.SIZES:  # what is chosen is among what it is compared with
        chosen = variants.chosen(size, tc.machine("sm_90a"))
        (family,) = [
            family
            for family, plan in zip(variants.VARIANTS, variants.PLANS.values(), strict=True)
            if plan == chosen
        ]
        assert size in family.sizes
    case = "8192x8192x8192"
    names = [family.name for family in variants.VARIANTS[:3]]
    rows = [
        {"family": name, "case": case, "ours_ms": time_}
        for name, time_ in zip(names, (3.0, 1.0, 2.0), strict=True)
    ]
    chosen, *lines = variants.comparison(
        [*rows, {"family": "x", "case": case, "error": "no"}], "sm_90a"
    )
    assert chosen.startswith(f"{case}: choose takes ")
    assert [float(line.split()[0]) for line in lines] == [1.0, 2.0, 3.0]


def test_the_rates_of_the_hardware(start: Any, parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """132 multiprocessors at 1 GHz."""
    start()
    work = parts["work"]
    work.peak_rate.cache_clear()
    assert work.peak_rate(tc.bf16) == 132 * 4096 * 1e9
    assert work.peak_rate(tc.f32) == 132 * 256 * 1e9
    assert work.peak_rate(tc.f64) is None
    work.peak_rate.cache_clear()


def test_a_short_rehearsal(tmp_path: Path) -> None:
    """The whole command, in its processes, on the fake driver."""
    (tmp_path / "bin").mkdir()
    tool(tmp_path / "bin", "compute-sanitizer", 'shift 2\nexec "$@"\n')
    tool(
        tmp_path / "bin", "ncu",
        "m=$(echo ${3#--metrics=} | sed 's/,/\",\"/g')\n"
        "log=${5#--log-file=}\nshift 5\n"
        '"$@" || exit $?\n'
        'printf \'"ID","%s"\\n"","sector"\\n"0","7","7","7","7","7","7"\\n\' "$m" > $log\n',
    )  # fmt: skip
    file = tmp_path / "results.json"
    ended = subprocess.run(
        [
            sys.executable, "-m", "tests.backend.cuda.rehearsal", "--only", "vector add", "--json", str(file),
            "--checks", "--times", "--counters", "--sanitize", "--kernels", str(tmp_path / "kernels"),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads(file.read_text())["rows"]
    kinds = [row["kind"] for row in rows]
    assert kinds[:4] == ["check", "check", "measure", "counters"]
    assert sorted(kinds[4:]) == SANITIZERS  # at one time
    assert rows[2]["fraction_of_copy"] > 0
    assert rows[3]["simulated"]["sectors of stores"] == 625
    assert rows[3]["counted"]["sectors of stores"] == 7
    assert "sectors of stores    simulated       625  counted         7  DIFFER" in ended.stdout


def rehearsed(tmp_path: Path, *options: str) -> tuple[int, str, list[dict[str, Any]]]:
    """How the command ended on the fake driver, what it said, and its rows."""
    file = tmp_path / "results.json"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.backend.cuda.rehearsal", *options),
            *("--json", str(file), "--kernels", str(tmp_path / "kernels")),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert file.with_suffix(".log").read_text() == ended.stdout, ended.stderr
    return ended.returncode, ended.stdout, json.loads(file.read_text())["rows"]


@pytest.mark.sweep
def test_a_quick_rehearsal_of_variants(tmp_path: Path) -> None:
    """--only holds for them, too."""
    options = "--variants", "--quick", "--only", "matmul plan 64x64 by mma.sync"
    code, text, rows = rehearsed(tmp_path, *options)
    assert code == 0, text
    assert [(row["kind"], row["case"]) for row in rows] == [
        ("check", "512x512x192"), ("measure", "512x512x192"),
    ]  # fmt: skip
    assert "512x512x192: choose takes " in text


def test_a_rehearsal_without_time(tmp_path: Path) -> None:
    options = "--seconds", "0", "--only", "vector add", "--checks", "--sanitize"
    code, text, rows = rehearsed(tmp_path, *options)
    assert code == 1
    assert [row["left_out"] for row in rows if row["kind"] == "check"] == ["out of time"] * 2
    assert "left out of check, for want of time: vector add (2)\n" in text
    assert "\n0 of 2 compiled or found compiled" in text


@pytest.mark.sweep
def test_a_whole_rehearsal(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable, "-m", "tests.backend.cuda.rehearsal", "--json", str(tmp_path / "results.json"),
            "--checks", "--times", "--variants", "--seconds", "4000",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr


def test_a_device_that_another_library_finds_broken(
    fake: FakeDriver, compiled: Any, parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The child ends, so that the next job has another process."""

    def broken(*arrays: Any) -> Any:
        fake.failing["cuCtxSynchronize"] = ILLEGAL_ADDRESS
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    family = replace(parts["work"].FAMILY["vector add"], reference=broken)
    monkeypatch.setitem(parts["work"].FAMILY, "vector add", family)
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([job("check", 100), job("check", 200)]))
    assert parts["gpu"].child(file) == 1
    ready, row = map(json.loads, file.with_suffix(".done").read_text().splitlines())
    assert ready["ready"] >= 0
    assert row["fatal"]
    assert row["error"].startswith("RuntimeError: CUDA error")


def test_a_child_writes_what_fails_and_what_does_not(
    fake: FakeDriver, compiled: Any, parts: Any, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.json"
    jobs = [job("check", 100), {**job("check", 8), "family": "matmul bf16"}, job("check", 200)]
    file.write_text(json.dumps(jobs))
    assert parts["gpu"].child(file) == 0
    _, *rows = [json.loads(line) for line in file.with_suffix(".done").read_text().splitlines()]
    assert ["error" in row for row in rows] == [False, True, False]


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_a_sentence(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--json", str(tmp_path / "a.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("nothing is measured: there is no NVIDIA driver on this machine")
    assert len(ended.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def without(folder: Path, *names: str) -> dict[str, str]:
    """An environment in which these can't be imported."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("raise ImportError(__name__)\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize("plugins", [(), ("-p", "no:xdist")], ids=["xdist", "no xdist"])
def test_tests_for_a_gpu_need_nothing_that_other_tests_need(
    tmp_path: Path, plugins: tuple[str, ...]
) -> None:
    """Those are collected, in one process, and no others."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", *plugins),
            *("-p", "no:hypothesispytest", "-p", "no:cacheprovider"),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=without(tmp_path / "missing", "hypothesis", "lark", "mpmath", "rich"),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    collected = [line for line in ended.stdout.splitlines() if "::" in line]
    assert all(line.startswith("tests/test_gpu.py::") for line in collected)
    assert sum("test_a_kernel_of_the_library" in line for line in collected) > 80


def test_compiling_needs_nothing_that_other_parts_need(tmp_path: Path) -> None:
    """As on a machine where they aren't installed; what is compiled there lies in the folder."""
    missing = without(tmp_path / "missing", "lark", "llvmlite", "onnx", "rich", "torch")
    kernels = tmp_path / "kernels"
    ended = subprocess.run(
        [
            sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--compile-only", "--target", "sm_80",
            "--only", "vector add", "--kernels", str(kernels),
        ],
        capture_output=True, text=True, check=True, env=missing,
    )  # fmt: skip
    assert re.fullmatch(r"5 of 5 are compiled or simulated, in \d+ s\n", ended.stdout)
    assert len(list((kernels / "cuda").iterdir())) == 4
