"""taskc check: what is proved and run, of a kernel and of a program's kernels."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskc.commands import check as check_command
from taskc.errors import Finding, Location


def test_check_a_correct_kernel(run: Any) -> None:
    ended = run("check", "03_kernels.py:doubled", "--seeds", "2")
    assert (ended.code, ended.err) == (0, "")
    first, second = ended.out.splitlines()
    assert re.fullmatch(r"03_kernels.py:doubled: no findings, \d+ programs run", first)
    assert re.match(r"  3 phases, 32 blocks of 32 workers, \d+ bytes of shared memory", second)


def test_check_a_race(run: Any) -> None:
    ended = run("check", "03_kernels.py:racy")
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert re.match(r"03_kernels.py:18:16: error: race: worker \d+ .* reads s\[", lines[0])
    assert lines[1:3] == ["      y[i] = s[63 - i]", "             ^^^^^^^^^"]
    assert lines[-2] == "03_kernels.py:racy: 1 error, not run"


def test_check_as_json(run: Any, folder: Path) -> None:
    ended = run("check", "03_kernels.py:racy", "--json")
    answer = json.loads(ended.out)
    assert ended.code == 1
    assert answer["ok"] is False
    (finding,) = answer["findings"]
    assert finding["severity"] == "error"
    assert finding["location"]["line"] == 18
    assert Path(finding["location"]["file"]) == (folder / "03_kernels.py").resolve()
    answer = json.loads(run("check", "03_kernels.py:add", "--json").out)
    assert answer["ok"] is True
    assert answer["findings"] == []
    assert answer["summary"]["workers"] == 32
    assert answer["summary"]["blocks"] == 1
    assert answer["summary"]["programs"] > 3


def test_check_a_program(run: Any) -> None:
    ended = run("check", "programs.py:twice")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "programs.py:twice: no findings, 2 calls"
    assert len(lines) == 5
    for first, second in (lines[1:3], lines[3:5]):
        assert re.fullmatch(r"  step: no findings, \d+ programs run", first)
        assert re.match(r"    2 phases, 1 block of 4 workers, 16 bytes of shared memory", second)
    answer = json.loads(run("check", "programs.py:twice", "--json").out)
    assert (answer["ok"], answer["findings"]) == (True, [])
    assert [call["kernel"] for call in answer["calls"]] == ["step", "step"]
    assert answer["calls"][1]["summary"]["workers"] == 4


def test_check_a_program_with_a_mistake(run: Any) -> None:
    name = "programs.py:make_twice(3)"
    ended = run("check", name)
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("programs.py:10:13: error: index 3 is outside `s` (extent 3)")
    assert f"{name}: {ended.out.count('error: ')} errors, 1 of 2 calls" in lines
    assert lines[-2].startswith("  step: ")
    answer = json.loads(run("check", name, "--json").out)
    assert answer["ok"] is False
    assert len(answer["calls"]) == 1


def test_a_warning_is_no_failure(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = check_command.examine
    warning = Finding("bank-conflict", "warning", "2-way", Location("k.py", 3, 5, 3, 9, "    s[i]"))

    def examine(*args: Any, **keywords: Any) -> Any:
        whole = original(*args, **keywords)
        calls = tuple(replace(call, findings=(warning,)) for call in whole.calls)
        return replace(whole, findings=(warning,), calls=calls)

    monkeypatch.setattr(check_command, "examine", examine)
    ended = run("check", "03_kernels.py:add")
    assert ended.code == 0
    assert ended.out.startswith("k.py:3:5: bank-conflict: 2-way\n")
    assert "03_kernels.py:add: 1 warning, " in ended.out


def test_a_program_is_checked_for_the_processor_at_hand(run: Any) -> None:
    for_this, usual = (
        run("check", "programs.py:moved", "--target", "cpu"),
        run("check", "programs.py:moved"),
    )
    assert for_this.err == usual.err == ""
    assert for_this.code == usual.code
    assert "call" in for_this.out
