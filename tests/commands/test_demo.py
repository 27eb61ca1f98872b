"""taskc demo."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskc.commands import demo
from taskc.commands.demo_programs import classifier


def test_the_demo_works_anywhere(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run("demo")
    assert (ended.code, ended.err) == (0, "")
    assert "def linear(x: f32[m, k], w: f32[k, n]" in ended.out
    assert "0:0   0:1   1:0" in ended.out
    assert re.search(r"^    lean +the same bits after ", ended.out, re.MULTILINE)
    assert re.search(
        r"^    linear: (no findings|\d+ warnings?), \d+ programs run$", ended.out, re.M
    )
    assert "whole numbers:  equal, bit for bit" in ended.out
    assert re.search(r"^    sm_90a, by NVRTC: \d+ bytes in \d+ ms$", ended.out, re.MULTILINE)
    assert "and spills 0 bytes;" in ended.out
    assert "6 nodes became 3 calls of kernels:" in ended.out
    assert re.search(r"^    matmul_add_relu +MatMul, Add, Relu$", ended.out, re.MULTILINE)
    assert re.search(r"5 × 10 scores: off by at most \d\.\de-0[78] from NumPy", ended.out)
    assert re.search(r"^    demo_programs.py:\d+:\d+: error: race: ", ended.out, re.MULTILINE)
    assert re.search(r"^ +\^+$", ended.out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_the_model_is_made_without_the_package_onnx() -> None:
    program = (
        "import sys; sys.modules['onnx'] = sys.modules['google.protobuf'] = None;"
        "from taskc.commands.demo import _run_model; print(_run_model())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.endswith("\nTrue\n"), ended.stderr


def test_a_wrong_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = classifier()
    relu = graph.nodes[2]
    nodes = tuple(replace(it, operator="Neg") if it is relu else it for it in graph.nodes)
    monkeypatch.setattr(demo, "classifier", lambda: replace(graph, nodes=nodes))
    assert not demo._run_model()
