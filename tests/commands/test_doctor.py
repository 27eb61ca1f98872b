"""taskc doctor: what is there on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from tests.backend.cuda.conftest import start

__all__ = ["start"]  # a fixture


def test_doctor_says_what_is_there(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path))
    ended = run("doctor")
    assert ended.code == 0
    assert re.search(rf"^  taskc +{re.escape(tc.__version__)} ", ended.out, re.MULTILINE)
    assert re.search(rf"^  cache +{re.escape(str(tmp_path))}$", ended.out, re.MULTILINE)
    assert re.search(r"^  target +\w+: \d+ lanes of f32, \d+ threads?, \d+ KiB", ended.out, re.M)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "entry").write_bytes(bytes(1 << 20))
    assert re.search(r"^  cache .* \(1 file, 1\.0 MiB\)$", run("doctor").out, re.MULTILINE)
    for word in ("numpy", "cores", "driver", "TASKC_DUMP", "TASKC_TARGET", "TASKC_CACHE"):
        assert re.search(rf"^  {word}\b", ended.out, re.MULTILINE)


def cuda_lines(run: Any) -> dict[str, str]:
    """What doctor says of CUDA."""
    lines = run("doctor").out.partition("\nCUDA\n")[2].partition("\nfolders\n")[0].splitlines()
    return {
        found[1]: found[2] for line in lines if (found := re.match(r"  (\S+(?: \d)?) +(.*)$", line))
    }


def test_doctor_says_which_gpu_there_is(run: Any, start: Any) -> None:
    start(version=13010, devices=1)
    found = cuda_lines(run)
    assert re.fullmatch(r"\d+\.\d+", found.pop("NVRTC"))
    assert found == {
        "driver": "for CUDA 13.1",
        "device 0": "Fake GPU, compute capability 9.0, 1.0 GiB: kernels are compiled for sm_90a",
    }


def test_doctor_says_why_there_is_no_gpu(run: Any, start: Any) -> None:
    start(devices=0)
    reason = "there is an NVIDIA driver on this machine, but no GPU that it can use"
    assert cuda_lines(run)["driver"] == f"none: {reason}"
    start(capability=(10, 0))
    assert cuda_lines(run)["device 0"].endswith("10.0, 1.0 GiB: taskc doesn't compile for it")
