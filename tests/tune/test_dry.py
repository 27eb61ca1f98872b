"""Candidates for a GPU that isn't here: what is refused, what is found wrong, and what isn't known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import taskc as tc
from taskc import CompileError, Machine, f32, spatial
from taskc.cli import main
from taskc.tune.bench import dry_run
from taskc.tune.space import Operator, Space
from taskc.tune.tuner import Tuned


@dataclass(frozen=True)
class Doubled:
    size: int
    dtype: tc.DType = f32


@dataclass(frozen=True)
class How:
    """fault  of the kernel, if it has one"""

    width: int
    fault: str = ""

    def cost(self, problem: Doubled, machine: Machine) -> float:
        return 1e-6 / self.width

    def variations(self, problem: Doubled, machine: Machine) -> Iterator[How]:
        yield from ()


FAULTS = ("", "wrong", "spills", "large")


def candidates(problem: Doubled, machine: Machine) -> Iterator[How]:
    for number, fault in enumerate(FAULTS if not machine.is_processor else ("",)):
        yield How(1024 >> number, fault)


def build(problem: Doubled, plan: How, machine: Machine) -> tc.KernelDefinition:
    n, width, dtype = problem.size, plan.width, problem.dtype
    factor = 3 if plan.fault == "wrong" else 2
    kept = 400 if plan.fault == "spills" else 1
    room = 80_000 if plan.fault == "large" else 8
    own, each = spatial(width) * tc.repeat(kept), spatial(width)

    @tc.kernel(workers=width)
    def double(x: dtype[n], y: tc.out[dtype[n]]):
        for (first,) in tc.tiles((n,), by=(width,)):
            beside, many = tc.shared(dtype[room]), tc.tile(dtype, own, 0)
            for (i,) in each:
                if i < 8:
                    beside[i] = 0
            for step in range(64):  # through which all of a worker's registers live
                for (i,) in own:
                    many[i] += x[(i + step) % n]
            total = tc.tile(dtype, each, 0)
            for (i,) in own:
                total[i // kept] += many[i] * beside[0]
            for (i,) in each:
                if first + i < n:
                    y[first + i] = x[first + i] * factor + total[i]

    return double


def smallest(problem: Doubled, plan: How, machine: Machine) -> Doubled:
    return replace(problem, size=2 * plan.width)


OPERATOR = Operator("doubled", candidates, build, (How,), smallest=smallest)


def tried(operator: Operator[Any, Any], target: str = "sm_80") -> Tuned:
    return dry_run(Space(operator, Doubled(1 << 20), tc.machine(target)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TASKC_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_wrong_or_does_not_fit_is_refused() -> None:
    found = tried(OPERATOR)
    results = {trial.plan.fault: trial.result for trial in found.trials}
    assert {fault: result.outcome for fault, result in results.items()} == {
        "": "not measured", "wrong": "wrong", "spills": "refused", "large": "refused",
    }  # fmt: skip
    assert "1024 threads, " in results[""].note
    assert "right in the simulator of size = 2048" in results[""].note
    assert "off by" in results["wrong"].note
    assert "spills" in results["spills"].note
    assert "320000 bytes of shared memory; sm_80 has 166912" in results["large"].note
    assert found.finals == ()
    assert not any(result.is_measured for result in results.values())
    assert found.stages["check"] == 2
    assert "nothing was timed" in found.warnings[0]


def test_an_operator_without_small_problems_is_not_checked() -> None:
    found = tried(replace(OPERATOR, smallest=None))
    notes = {trial.plan.fault: trial.result.note for trial in found.trials}
    assert notes["wrong"].endswith("not checked: its operator names no problem to simulate")


def test_a_processor_is_at_hand() -> None:
    with pytest.raises(CompileError, match="for a GPU, and not for avx2"):
        tried(OPERATOR, "avx2")


def test_the_command_says_what_it_knows(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    words = [
        "tune",
        "matmul",
        "--m",
        "130",
        "--n",
        "192",
        "--k",
        "520",
        "--dtype",
        "f16",
        "--most",
        "2",
    ]
    assert main([*words, "--target", "cuda:sm_80", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_dry"], found["winner"], found["machine"]) == (True, None, "sm_80")
    first, second = found["trials"]
    assert first["outcome"] == second["outcome"] == "not measured"
    assert first["seconds"] is None
    assert first["predicted"] <= second["predicted"]
    assert "registers" in first["note"]
    assert "right in the simulator of " in first["note"]
    assert not list(cache.rglob("*.sqlite3"))  # nothing is remembered


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "cuda:sm_90a"], "nothing can be measured for cuda:sm_90a: there is no NVIDIA driver"),
        (["--target", "cuda"], "with --dry-run candidates are compiled and simulated without a GPU"),
        (["--dry-run"], "say which GPU a dry run is for: --target cuda:sm_90a"),
        (["--target", "cuda:sm_80", "--dry-run", "--packed"], "--packed is for processors"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "matmul", "--m", "64", "--n", "64", "--k", "64", *options]) != 0
    assert said in capsys.readouterr().err
