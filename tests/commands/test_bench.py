"""taskc bench: the ratio of pairs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("model_file")


def test_bench(run: Any) -> None:
    pytest.importorskip("onnxruntime")
    ended = run("bench", "model.onnx", "--budget", "0.01")
    assert (ended.code, ended.err) == (0, "")
    number = r"[\d.e-]+"
    assert re.fullmatch(
        rf"{number} ms, onnxruntime {number} ms: [\d.]+x "
        rf"\(quartiles [\d.]+ to [\d.]+, \d+ pairs, \d+ threads?\)\n",
        ended.out,
    )
    answer = json.loads(run("bench", "model.onnx", "--budget", "0.01", "--json").out)
    (peer,) = answer["peers"]
    assert peer["quartiles"][0] <= peer["ratio"] <= peer["quartiles"][1]
    assert peer["kept"] >= 15
