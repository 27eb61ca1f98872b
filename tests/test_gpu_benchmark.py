"""benchmarks/gpu.py on a fake device: it checks before it measures, and goes on past what fails."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.backend.cuda.conftest import compiled, fake, start
from tests.backend.cuda.fake_driver import FakeDriver

ROOT = Path(__file__).parents[1]

__all__ = ["compiled", "fake", "start"]  # fixtures


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The files of the benchmark."""
    for folder in ("benchmarks", "examples"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import gpu
    import gpu_cases
    import gpu_work

    monkeypatch.setattr(gpu_work, "_LONG", 1e-9)
    return {"gpu": gpu, "cases": gpu_cases, "work": gpu_work}


def job(kind: str, *size: int) -> dict[str, Any]:
    return {"kind": kind, "family": "vector add", "size": size, "case": str(size)}


def test_a_kernel_is_checked_against_its_reference(fake: Any, compiled: Any, parts: Any) -> None:
    found = parts["work"].check(job("check", 100))
    assert 0 <= found["error_of_bound"] <= 1


def test_a_wrong_result_is_found(
    fake: Any, compiled: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = parts["cases"].FAMILY["vector add"]
    wrong = replace(family, reference=lambda a, b: a + b + (np.arange(len(a)) == 7))
    monkeypatch.setitem(parts["cases"].FAMILY, "vector add", wrong)
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
        for size in (*family.checks, *family.sizes):
            relative, absolute = family.bound(size)
            assert 0 <= relative < 0.01
            assert 0 <= absolute < 0.6


def test_it_goes_on_past_a_process_that_breaks(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A child that ends in the second of three jobs."""
    program = tmp_path / "child.py"
    program.write_text(
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "file = Path(sys.argv[-1])\n"
        "with file.with_suffix('.done').open('w') as done:\n"
        "    for job in json.loads(file.read_text()):\n"
        "        if job['case'] == '2':\n"
        "            sys.exit('broken')\n"
        "        done.write(json.dumps({**job, 'error_of_bound': 0.5}) + chr(10))\n"
        "        done.flush()\n"
    )
    monkeypatch.setattr(parts["gpu"], "__file__", str(program))
    jobs = [{"kind": "check", "family": "f", "size": [k], "case": str(k)} for k in (1, 2, 3)]
    said: list[str] = []
    rows = parts["gpu"].run_jobs(jobs, said.append)
    assert [row["case"] for row in rows] == ["1", "2", "3"]
    assert [row.get("error") for row in rows] == [None, "the process ended with 1: broken", None]
    assert "FAILED: the process ended with 1: broken" in said[1]


@pytest.mark.parametrize("code", [0, 9])
def test_what_the_sanitizer_finds_is_an_error(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    """A tool that runs what it is given, and ends as one that has found something would."""
    child = tmp_path / "child.py"
    child.write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        "file = Path(sys.argv[-1])\n"
        "(job,) = json.loads(file.read_text())\n"
        "file.with_suffix('.done').write_text(json.dumps({**job, 'error_of_bound': 0.5}))\n"
    )
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\nshift 3\n"$@" && echo "a race" >&2 && exit {code}\n')
    tool.chmod(0o755)
    monkeypatch.setattr(parts["gpu"], "__file__", str(child))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said: list[str] = []
    jobs = [{"kind": "check", "family": "f", "size": [k], "case": str(k)} for k in (1, 2)]
    rows = parts["gpu"].sanitized(jobs, said.append)
    assert [(row["kind"], row["case"]) for row in rows] == [("memcheck", "1"), ("racecheck", "1")]
    expected = "the process ended with 9: a race" if code else None
    assert [row.get("error") for row in rows] == [expected] * 2


def test_without_the_sanitizer_that_is_said(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    assert parts["gpu"].sanitized([], said.append) == []
    assert said == ["compute-sanitizer isn't installed: neither memcheck nor racecheck was run"]


def test_a_child_writes_what_fails_and_what_does_not(
    fake: FakeDriver, compiled: Any, parts: Any, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.json"
    jobs = [job("check", 100), {**job("check", 8), "family": "matmul bf16"}, job("check", 200)]
    file.write_text(json.dumps(jobs))
    assert parts["gpu"].child(file) == 0
    rows = [json.loads(line) for line in file.with_suffix(".done").read_text().splitlines()]
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


def test_compiling_needs_neither_llvmlite_nor_onnx(tmp_path: Path) -> None:
    """As on a machine where they aren't installed."""
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('llvmlite', 'onnx', 'torch')))\n"
        "sys.path[:0] = ['examples', 'benchmarks']\n"
        "import gpu_cases\n"
        "from dataclasses import replace\n"
        "from taskc.backend.cache import Cache\n"
        "from taskc.backend.cuda.compile import compiled\n"
        "from taskc.passes.pipeline import lower\n"
        "kernel = gpu_cases.fma_matmul(None, 50, 70, 44).ir\n"
        "made = compiled(replace(kernel, target='sm_90a'), lower, Cache(__import__('pathlib')"
        ".Path(sys.argv[1])), '0')\n"
        "print(made.cubin[1:4].decode(), made.arch)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout.split() == ["ELF", "sm_90a"]
