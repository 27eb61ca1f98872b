"""taskc compile: ahead into the cache, and a part of a model saved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("model_file")


def test_compile_a_part_and_save_it(run: Any, folder: Path) -> None:
    arguments = ("--inputs", "rows", "--outputs", "scores", "--dim", "t=4", "-o", "part.onnx")
    ended = run("compile", "model.onnx", *arguments)
    assert (ended.code, ended.err) == (0, "")
    title, size, saved = ended.out.splitlines()
    assert title == "main: rows: f32[n, t, 8] -> scores: ?"
    assert re.fullmatch(r"1 call of 1 kernel, weights [\d.e-]+ MiB, arena 0 MiB; [\d.]+ s", size)
    assert saved == "saved as part.onnx"
    whole = json.loads(run("compile", "model.onnx", "--json").out)
    assert whole["calls"] > 1
    assert whole["weights"] >= 4 * (8 * 5 + 8 * 8)
    assert whole["arena"] > 0
    shape = json.loads(run("run", "part.onnx", "--dim", "t=4", "--json").out)["outputs"][0]["shape"]
    assert shape == [1, 4, 5]
