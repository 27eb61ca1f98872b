"""ONNX Runtime as what models are compared with."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("model_file")


def test_without_onnx_runtime(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for command in ("verify", "bench"):
        ended = run(command, "model.onnx")
        assert ended.code == 1
        assert "ONNX Runtime isn't installed" in ended.err


def test_what_onnx_runtime_does_not_take(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime")

    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise RuntimeError("no such type")

    monkeypatch.setattr(runtime, "InferenceSession", refuse)
    ended = run("verify", "model.onnx")
    assert ended.code == 1
    assert "ONNX Runtime doesn't take the model: no such type" in ended.err
