"""taskc verify: errors of outputs, and the first node that departs."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from taskc.commands import verify
from taskc.onnx.partitions import RuntimeSession

pytestmark = pytest.mark.usefixtures("model_file")


def test_verify(run: Any) -> None:
    pytest.importorskip("onnxruntime")
    ended = run("verify", "model.onnx", "--dim", "n=3", "--dim", "tokens:1=2")
    assert (ended.code, ended.err) == (0, "")
    output, verdict = ended.out.splitlines()
    assert re.fullmatch(r"y  off by \d\.\d\de-\d\d", output)
    assert verdict == "all within the tolerance of 0.001"


def test_verify_says_what_less_precision_costs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "RuntimeSession", None)  # nobody else is asked
    ended = run("verify", "model.onnx", "--dim", "n=3", "--precision", "bf16", "--json")
    answer = json.loads(ended.out)
    assert (ended.code, answer["against"]) == (0, "f32")
    assert 1e-4 < answer["errors"]["y"] < 1e-1
    ended = run(
        "verify", "model.onnx", "--dim", "n=3", "--precision", "bf16", "--tolerance", "1e-6"
    )
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == "beyond the tolerance of 1e-06"


def test_verify_names_the_first_node_that_departs(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")

    class Wrong(RuntimeSession):
        """As if the MatMul were off here, and what is behind it too."""

        def run(self, feeds: Any, outputs: Any = None) -> list[Any]:
            made = super().run(feeds, outputs)
            names = [item.name for item in self._session.get_outputs()]
            return [
                it * 1.01 if name in ("scores", "y") else it
                for name, it in zip(names, made, strict=True)
            ]

    monkeypatch.setattr(verify, "RuntimeSession", Wrong)
    ended = run("verify", "model.onnx", "--dim", "n=2")
    assert ended.code == 1
    assert "beyond the tolerance of 0.001" in ended.out
    assert (
        "the first node that departs: MatMul node 'head', whose output 'scores' is off" in ended.out
    )
    answer = json.loads(run("verify", "model.onnx", "--dim", "n=2", "--json").out)
    assert answer["agrees"] is False
    assert answer["first_departure"]["node"] == "MatMul node 'head'"


@pytest.mark.parametrize(
    ("made", "expected", "error"),
    [
        ([1.0, 3.0], [1.0, 2.0], 2.0),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([1.0, 1.0], [1.0], np.inf),
        ([4, 7], [4, 4], 3.0),
    ],
)
def test_the_error_of_an_output(made: list[Any], expected: list[Any], error: float) -> None:
    assert verify.error_of(np.array(made), np.array(expected)) == error
