"""taskc run: what comes out, whether the simulator agrees, and how long a call takes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from taskc.commands import run as run_command


def test_run_says_what_comes_out_and_how_long_it_takes(run: Any) -> None:
    ended = run("run", "03_kernels.py:add", "--repeat", "5", "--check")
    assert (ended.code, ended.err) == (0, "")
    output, took, compared = ended.out.splitlines()
    assert re.fullmatch(r"c: f32\[64\], digest [0-9a-f]{12}", output)
    assert re.fullmatch(r"[\d.e-]+ ms, the median of 5 calls \(cpu, \d+ threads?\)", took)
    assert compared == "the same bits as in the simulator"
    simulated = run("run", "03_kernels.py:add", "--repeat", "1", "--target", "sim").out
    assert simulated.splitlines()[0] == output
    assert simulated.endswith("the median of 1 call (sim, 1 thread)\n")


def test_run_a_program_and_what_it_modifies(run: Any) -> None:
    ended = run("run", "programs.py:twice", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("y: f32[4], digest ")
    answer = json.loads(run("run", "running.py:bump", "--json", "--check").out)
    assert answer["outputs"][0]["name"] == "x"
    assert answer["outputs"][0]["shape"] == [4]
    assert answer["calls"] == 20
    assert (answer["comparison"], answer["difference"]) == ("exact", "")
    # Each call has arrays of its own, so that the result is that of one call.
    again = json.loads(run("run", "running.py:bump", "--json", "--repeat", "3").out)
    assert again["outputs"] == answer["outputs"]
    assert "comparison" not in again


def test_run_allows_for_the_rounding_of_mathematical_functions(run: Any) -> None:
    ended = run("run", "running.py:exponential", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1].startswith("close to what the simulator gives: ")


def test_run_reports_what_the_simulator_gives_otherwise(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(definition: Any, args: Any, keywords: Any, target: str) -> Any:
        made = call(definition, args, keywords, target)
        made[5] += 1
        return made

    call = run_command.call
    monkeypatch.setattr(run_command, "call", wrong)
    ended = run("run", "03_kernels.py:add", "--check")
    assert ended.code == 1
    last = ended.out.splitlines()[-1]
    assert re.fullmatch(r"not what the simulator gives: c\[5\] is \S+ and not \S+", last)
    answer = json.loads(run("run", "03_kernels.py:add", "--check", "--json").out)
    assert answer["difference"].startswith("c[5] is ")


def test_run_what_goes_wrong(run: Any) -> None:
    ended = run("run", "03_kernels.py:unlucky")
    assert ended.code == 1
    assert "ValueError: no such data" in ended.err
    assert run("run", "03_kernels.py:add", "--repeat", "0").code == 2
    assert run("run", "03_kernels.py:add", "--target", "sm_80").code == 2
    ended = run("run", "03_kernels.py:racy", "--target", "sim")
    assert ended.code == 1
    assert ": error: " in ended.err
