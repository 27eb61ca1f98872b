"""taskc tune and taskc best, from the outside: what is found is what calls take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taskc.cli import main
from taskc.kernels.machine_facts import ProcessorFacts, with_measured
from taskc.runtime.machine import machine
from taskc.tune.choose import processor
from taskc.tune.database import Database

MATMUL = ["matmul", "--m", "33", "--n", "70", "--k", "50"]
CONVOLUTION = [
    "conv2d",
    "--height",
    "9",
    "--width",
    "9",
    "--channels",
    "16",
    "--features",
    "16",
    "--padding",
    "1",
]
TEMPLATE = Path(__file__).parents[2] / "examples" / "12_tuning.py"


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """One of the test's own, in place of the user's."""
    made = Database(tmp_path / "rows")
    for user in (
        "taskc.tune.choose.database",
        "taskc.tune.bench.shared",
        "taskc.commands.best.database",
        "taskc.commands.tune.database",
    ):
        monkeypatch.setattr(user, lambda: made)
    return made


def tuned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["tune", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_matmul_is_tuned_once_and_its_best_plan_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = tuned(capsys, *MATMUL, "--most", "4")
    assert len(found["trials"]) == 4
    assert {trial["outcome"] for trial in found["trials"]} == {"measured"}
    assert found["finals"][0]["plan"] == found["winner"]
    again = tuned(capsys, *MATMUL, "--most", "4")
    assert again["winner"] == found["winner"]
    assert all(trial["was_known"] for trial in again["trials"])
    assert main(["best", *MATMUL]) == 0
    source = capsys.readouterr().out
    made: dict[str, Any] = {}
    exec(source, made)
    a, b = made["kernel"].example()
    np.testing.assert_allclose(made["kernel"](a, b), a @ b, atol=1e-4)
    assert f"rows={found['winner']['rows']}" in source


def test_a_convolution_is_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *CONVOLUTION, "--most", "2", "--bias"]) == 0
    said = capsys.readouterr().out
    assert "conv2d 16 -> 16 at 9 x 9, size 3, in f32" in said
    assert "2 tried" in said
    assert "GFLOP/s" in said
    assert main(["best", *CONVOLUTION, "--bias"]) == 0
    assert "schedule=Direct(" in capsys.readouterr().out


def test_a_template_of_a_file_is_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{TEMPLATE}:matmul", "--m", "20", "--n", "33", "--k=17"]
    found = tuned(capsys, *arguments, "--most", "2", "--strategy", "random")
    assert found["operator"] == "12_tuning.matmul"
    assert len(found["trials"]) == 2
    assert main(["best", *arguments]) == 0
    assert "kernel = matmul(m=20, n=33, k=17, own=repeat(" in capsys.readouterr().out


MODEL = """
import taskc as tc
from taskc import f32
from taskc.kernels.matmul import matmul
from taskc.kernels.rows import softmax

def model(m):
    scores, weights = matmul(m, 40, 24), softmax(m, 40)

    @tc.program
    def model(x: f32[m, 24], w: f32[24, 40], y: tc.out[f32[m, 40]]):
        weights(scores(x, w), y=y)

    return model

@tc.kernel(workers=4)
def alone(x: f32[4], y: tc.out[f32[4]]):
    for i in tc.repeat(1) * tc.spatial(4):
        y[i] = x[i]
"""


def test_all_operators_of_a_program_are_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], database: Database
) -> None:
    file = tmp_path / "net.py"
    file.write_text(MODEL, encoding="utf-8")
    assert main(["tune", f"{file}:model(9)", "--most", "2", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [found["operator"] for found in made] == ["matmul", "rows"]
    assert {row.operator for row in database.rows()} == {"matmul", "rows"}
    for words, said in (
        ([f"{file}:alone"], "is made of no operators that have plans"),
        ([f"{file}:model(9)", "--m", "3"], "takes no arguments"),
        ([f"{file}:model(9)", "--report", str(tmp_path / "page")], "a report is of one problem"),
    ):
        assert main(["tune", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_dry_run_is_for_a_gpu_that_is_not_here(
    capsys: pytest.CaptureFixture[str], database: Database
) -> None:
    words = [*MATMUL, "--dtype", "f16", "--target", "cuda:sm_80", "--most", "1"]
    assert main(["tune", *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "right in the simulator" in said
    assert "nothing was timed" in said
    assert database.rows() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["matmul", "--m", "4"], "the following arguments are required: --n, --k"),
        (["matmul", "--m", "4", "--n", "0", "--k", "3"], "argument --n: 0 is less than 1"),
        ([*MATMUL, "--dtype", "f31"], "'f31' is no type"),
        ([*MATMUL, "--wide", "3"], "unrecognized arguments: --wide 3"),
        (["conv3d"], "there is no 'conv3d' to tune: say matmul, conv2d, or FILE:TEMPLATE"),
        ([*CONVOLUTION, "--groups", "3"], "3"),
        (["nothing.py:matmul"], "there is no 'nothing.py:matmul' to tune"),
        ([f"{TEMPLATE}:product"], "has no template 'product'; it has matmul"),
        ([f"{TEMPLATE}:matmul", "--m", "3"], "matmul: missing a required argument: 'n'"),
        ([f"{TEMPLATE}:matmul", "3"], "a template's arguments are said as --NAME VALUE"),
        ([f"{TEMPLATE}:matmul", "--m"], "a template's arguments are said as --NAME VALUE"),
        ([f"{TEMPLATE}:matmul", "--m", "3", "--n", "3", "--k", "3", "--depth", "4"], "depth is what tuning chooses"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["tune", *words]) in (1, 2)
    assert said in capsys.readouterr().err


def test_what_was_never_tuned_has_no_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["best", *MATMUL]) == 2
    assert "matmul 33 x 70 x 50 in f32 was never tuned here" in capsys.readouterr().err


def test_other_commands_take_no_more_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--wide", "3"])
    assert "unrecognized arguments: --wide 3" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("30s", 30), ("1.5m", 90), ("2h", 7200)])
def test_times(text: str, seconds: float) -> None:
    from taskc.commands.terminal import seconds_of

    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0s", "-3s", "1d", "inf", "1e3"])
def test_what_is_no_time(text: str) -> None:
    import argparse

    from taskc.commands.terminal import seconds_of

    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        seconds_of(text)


def test_a_processor_is_calibrated(
    capsys: pytest.CaptureFixture[str], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskc.tune.timing._LEAST_BYTES", 1 << 22)
    assert main(["tune", "--calibrate", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    facts = database.facts(said["machine"])
    assert (
        facts.items() >= said["facts"].items()
    )  # those of the processor that nothing measures stay
    here = machine()
    assert processor(replace(here, threads=here.threads + 1)) == said["machine"]
    assert 5e8 < facts["cycles_per_second"] < 1e10
    assert 0.2 < facts["fused_per_cycle"] < 5
    assert facts["near_bytes_per_cycle"] > facts["shared_bytes_per_cycle"] > 0
    made = with_measured(ProcessorFacts(), {**facts, "other": 1.0})
    assert made.bytes_per_second == facts["bytes_per_second"]
    assert made.near_bytes == ProcessorFacts().near_bytes
    for words in (["matmul"], ["--m", "3"]):
        assert main(["tune", "--calibrate", *words]) == 2
        assert "--calibrate stands alone" in capsys.readouterr().err
    assert main(["tune"]) == 2
    assert "say what is tuned" in capsys.readouterr().err


@pytest.mark.usefixtures("model_file")
def test_all_operators_of_a_model(run: Any) -> None:
    arguments = ("--dim", "n=3", "--dim", "tokens:1=2", "--most", "1", "--budget", "1s")
    ended = run("tune", "model.onnx", *arguments, "--json")
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    found = found if isinstance(found, list) else [found]
    (product,) = [one["problem"] for one in found if one["operator"] == "matmul"]
    assert {product["m"], product["n"], product["k"]} == {6, 5, 8}
    ended = run("tune", "model.onnx", "--m", "3")
    assert (ended.code, ended.err.startswith("error: taskc tune model.onnx: ")) == (2, True)
