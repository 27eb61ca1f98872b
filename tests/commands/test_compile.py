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


def test_compile_into_a_bundle_that_runs(run: Any, folder: Path) -> None:
    shapes = ("--shape", "tokens=1,4", "--shape", "tokens=2,3")
    ended = run("compile", "model.onnx", "-o", "model.taskc", *shapes)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "saved as model.taskc"
    assert len(ended.out.splitlines()) == 4
    model, bundle = (
        json.loads(run("run", name, *extents, "--json").out)
        for name, *extents in (("model.onnx", "--dim", "tokens:1=4"), ("model.taskc",))
    )
    assert bundle["outputs"] == model["outputs"]
    other = json.loads(
        run("run", "model.taskc", "--dim", "n=2", "--dim", "tokens:1=3", "--json").out
    )
    assert other["outputs"][0]["shape"] == [2, 3, 5]
    ended = run("run", "model.taskc", "--dim", "n=3")
    assert ended.code == 1
    assert (
        "no program for tokens: i64[3, 1]; it has: tokens: i64[1, 4]; tokens: i64[2, 3]"
        in ended.err
    )
    answer = json.loads(run("compile", "model.onnx", "-o", "model.taskc", *shapes, "--json").out)
    assert (answer["saved"], answer["programs"]) == ("model.taskc", 2)


def test_a_bundle_of_many_shapes(run: Any) -> None:
    """The third and the fourth are of one program, whose sizes are open."""
    shapes = [word for rows in (2, 5, 9, 30) for word in ("--shape", f"tokens=1,{rows}")]
    ended = run("compile", "model.onnx", "-o", "model.taskc", *shapes)
    assert (ended.code, ended.err) == (0, "")
    arenas = [float(found) for found in re.findall(r"arena ([\d.e-]+) MiB", ended.out)]
    assert len(arenas) == 4
    assert arenas[2] < arenas[3]
    for rows in (2, 9, 30):
        made, expected = (
            json.loads(run("run", name, "--dim", f"tokens:1={rows}", "--dim", "n=1", "--json").out)
            for name in ("model.taskc", "model.onnx")
        )
        assert [it["shape"] for it in made["outputs"]] == [
            it["shape"] for it in expected["outputs"]
        ]


def test_a_bundle_has_the_precision_that_it_was_compiled_with(run: Any) -> None:
    shape = ("--shape", "tokens=1,4")
    precise, rounded = (
        json.loads(run("run", "model.onnx", "--dim", "tokens:1=4", "--precision", it, "--json").out)
        for it in ("f32", "bf16")
    )
    assert precise["outputs"] != rounded["outputs"]
    run("compile", "model.onnx", "-o", "rounded.taskc", "--precision", "bf16", *shape)
    assert json.loads(run("run", "rounded.taskc", "--json").out)["outputs"] == rounded["outputs"]
    for command in (
        "run rounded.taskc --precision bf16",
        "compile programs.py:moved -o moved.taskc --precision bf16",
    ):
        ended = run(*command.split())
        assert ended.code == 2
        assert "precision" in ended.err


def test_compile_a_program_into_a_bundle(run: Any) -> None:
    ended = run("compile", "programs.py:moved", "-o", "moved.taskc")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"saved as moved.taskc; [\d.]+ s$", ended.out)
    ended = run("run", "moved.taskc")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("y: f32[4], digest ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["model.onnx", "-o", "a.taskc"],
            "leaves open what shape its input tokens: i64[n, ?] has: say --shape tokens=N,M",
        ),
        (["model.onnx", "-o", "a.taskc", "--dim", "n=1"], "say --shape tokens=N,M"),
        (["model.onnx", "-o", "a.bin"], "-o names a bundle, FILE.taskc, or an ONNX model"),
        (["model.onnx", "-o", "a.taskc", "--shape", "tokens=1"], "has no shape of 1 extent"),
        (["model.onnx", "-o", "a.taskc", "--shape", "token=1,2"], "has no input 'token'"),
        (["model.onnx", "--shape", "tokens=1,b"], "'tokens=1,b' is not NAME=N,M"),
        (["programs.py:twice"], "of a program there is -o FILE.taskc"),
        (["programs.py:twice", "-o", "a.taskc", "--dim", "n=1"], "compiled as a whole"),
        (["03_kernels.py:add", "-o", "a.taskc"], "is a kernel: a bundle has programs"),
    ],
)
def test_compile_what_cannot_be_a_bundle(
    run: Any, folder: Path, arguments: list[str], message: str
) -> None:
    ended = run("compile", *arguments)
    assert ended.code == 2
    assert message in ended.err
    assert not (folder / "a.taskc").exists()


def test_bench_asks_what_a_bundle_was_made_of(run: Any) -> None:
    run("compile", "model.onnx", "-o", "model.taskc", "--shape", "tokens=1,4")
    ended = run("bench", "model.taskc")
    assert ended.code == 2
    assert "--onnx FILE.onnx is what it was made of" in ended.err
    ended = run("bench", "model.taskc", "--onnx", "model.onnx", "--budget", "0.1s")
    assert ended.code == 0 or "which isn't installed" in ended.err


def test_the_parts_of_a_compile(run: Any) -> None:
    ended = run("compile", "model.onnx", "--dim", "tokens:1=4", "--profile")
    assert (ended.code, ended.err) == (0, "")
    head, *lines = ended.out.splitlines()
    assert re.split(r"  +", head) == ["part", "CPU", "share", "times"]
    rows = {line[:30].strip().split("  ")[0]: re.split(r"  +", line.strip()) for line in lines[:-2]}
    assert {"trace", "program passes", "drop_dead", "cache", "load code", "other"} <= {*rows}
    for _, cpu, share, times in rows.values():
        assert re.fullmatch(r"\d+ ms", cpu)
        assert re.fullmatch(r"[\d.]+%", share)
        assert int(times) > 0
    arguments = ("--dim", "tokens:1=6", "--profile", "--json")
    answer = json.loads(run("compile", "model.onnx", *arguments).out)
    assert answer["profile"]["load code"]["count"] > 0
    ended = run("compile", "model.py:whole", "-o", "model.taskc", "--profile")
    assert "--profile is of models" in ended.err
