"""FILE:KERNEL: which kernel that is, and what is wrong with a file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import taskc as tc

OFFER = "it has add, racy, unlucky, doubled"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none.py:add", "there is no file 'none.py'"),
        ("none", "there is no file 'none'"),
        ("03_kernels.py", f"which kernel of 03_kernels.py? {OFFER}"),
        ("03_kernels.py:", f"which kernel of 03_kernels.py? {OFFER}"),
        ("03_kernels.py:ad", f"03_kernels.py has no kernel 'ad'; did you mean 'add'? {OFFER}"),
        ("03_kernels.py:zzzzz", f"03_kernels.py has no kernel 'zzzzz'; {OFFER}"),
        ("03_kernels.py:number", f"number is not a kernel but a int; {OFFER}"),
        (
            "03_kernels.py:sized",
            "sized is a template and needs n: 03_kernels.py:sized(64), for example",
        ),
        ("03_kernels.py:add +", "'add +' is neither a name nor a call, such as matmul(64, bk=8)"),
        ("03_kernels.py:1", "'1' is neither a name nor a call, such as matmul(64, bk=8)"),
        ("empty.py", "which kernel of empty.py? it has no kernels"),
    ],
)
def test_a_kernel_that_is_not_there(run: Any, text: str, expected: str) -> None:
    ended = run("show", text)
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {expected}\n")


def test_the_only_kernel_of_a_file_needs_no_name(run: Any) -> None:
    alone = "import taskc as tc\n\n\n@tc.kernel(workers=4)\ndef alone(x: tc.f32[4]):\n    pass\n"
    Path("alone.py").write_text(alone, encoding="utf-8")
    ended = run("show", "alone.py")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("kernel alone(x: f32[4]) workers=4")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("doubled", "f32[32, 32]"),
        ("doubled()", "f32[32, 32]"),
        ("doubled(16)", "f32[16, 16]"),
        ("doubled(number * 8, f16, stages=1)", "f16[40, 40]"),
        ("sized(24)", "f32[24, 24]"),
    ],
)
def test_a_template_is_called(run: Any, text: str, shape: str) -> None:
    ended = run("show", f"03_kernels.py:{text}")
    assert ended.code == 0
    assert ended.out.startswith(f"kernel kernel(a: {shape}, c: out {shape}) workers=32")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            "broken.py",
            "broken.py:3:7: error: this is not Python: invalid syntax\n"
            "      def f(:\n            ^\n",
        ),
        (
            "failing.py",
            "failing.py:2:5: error: ZeroDivisionError: division by zero\n"
            "      return 1 / 0\n      ^^^^^^^^^^^^\n",
        ),
        (
            "rejected.py",
            "rejected.py:5:9: error: ",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded(run: Any, file: str, expected: str) -> None:
    ended = run("show", f"{file}:f")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(expected)
    assert "Traceback" not in ended.err


def test_errors_of_a_template_and_of_an_example_are_the_users(run: Any) -> None:
    ended = run("show", "03_kernels.py:sized(-1)")
    assert ended.code == 1
    assert ended.err.startswith("03_kernels.py:")
    ended = run("check", "03_kernels.py:unlucky")
    assert ended.code == 1
    assert re.match(r"03_kernels.py:\d+:\d+: error: ValueError: no such data\n", ended.err)


def test_a_file_finds_what_lies_beside_it_from_anywhere(
    run: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert run("show", f"{folder / '03_kernels.py'}:add").code == 0
    assert sys.path == before


def test_a_program_that_cannot_be_traced(run: Any) -> None:
    ended = run("show", "programs.py:refused")
    assert ended.code == 1
    assert ended.err.startswith(
        "programs.py:29:9: error: twice(): argument 'x' is read, and no call has written the output"
        " 'y' before\n      twice(y, out=y)\n      ^^^^^^^^^^^^^^^\n"
    )
    ended = run("show", "programs.py:unlucky")
    assert ended.err.startswith("programs.py:35:9: error: IndexError: pop from empty list\n")
    ended = run("show", "programs.py:twic")
    assert ended.err.startswith(
        "error: programs.py has no kernel 'twic'; did you mean 'twice'? it has"
    )


def test_a_bundle_of_a_model_with_states(run: Any, folder: Path) -> None:
    def tensor(name: str, *shape: int | str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [helper.make_node("Concat", ["past", "x"], ["present"], axis=0)],
        "main",
        [tensor("past", "n", 4), tensor("x", "m", 4)],
        [tensor("present", "all", 4)],
    )
    imports = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    session = tc.compile(proto, states={"present": "past"}, capacity=8)
    tc.save_bundle(session, folder / "states.taskc", {"x": np.ones((2, 4), np.float32)})
    ended = run("run", "states.taskc")
    assert ended.code == 2
    assert "holds a model with states, which tc.load_bundle loads" in ended.err
