"""The table of passes: where it begins, where it stops, and what it writes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.passes.pipeline import PASSES, lower, lower_steps
from tests.passes.kernels import kernel

KERNEL = """
shared s: f32[64]
move s[i] = x[i] for i in 64
move c[i] = s[63 - i] for i in 64
"""
NAMES = [one.name for one in PASSES]


@pytest.mark.parametrize("stage", ir.STAGES)
def test_lowering_to_a_stage(stage: str) -> None:
    assert lower(kernel(KERNEL), stage).stage == stage


def test_the_end_of_a_stage_is_after_its_last_pass() -> None:
    steps = list(lower_steps(kernel(KERNEL)))
    for stage in ir.STAGES:
        last = [step for step in steps if step.kernel.stage == stage][-1]
        assert to_text(lower(kernel(KERNEL), stage)) == to_text(last.kernel)
    assert [step.name for step in steps] == NAMES
    assert all(step.seconds >= 0 for step in steps)


def test_stages_never_go_back() -> None:
    numbers = [ir.STAGES.index(step.kernel.stage) for step in lower_steps(kernel(KERNEL))]
    assert numbers == sorted(numbers)
    assert numbers[-1] == ir.STAGES.index("lean")


def born(stage: str) -> ir.Kernel:
    body = {
        "selected": "each i in spatial(32):\n    c[i] = x[i]",
        "pipelined": "each i in spatial(32):\n    c[i] = x[i]",
        "synchronized": "each i in spatial(32):\n    c[i] = x[i]",
        "scalar": "c[worker] = x[worker]",
    }[stage]
    if stage == "scalar":
        text = f"kernel k(x: f32[64], c: inout f32[64]) workers=32 blocks=1 stage=scalar:\n    {body}\n"
        return parse(text)
    return kernel(body, "x: f32[64], c: inout f32[64]", stage=stage)


@pytest.mark.parametrize(
    ("stage", "skipped"),
    [
        ("selected", set()),
        ("pipelined", {"specialize", "overlap"}),
        ("synchronized", {
                "specialize", "overlap", "await_products", "layout", "synchronize", "lower_rings",
            }),
        ("scalar", {
            "prove", "gather_words", "select", "specialize", "overlap", "await_products", "layout", "overlay",
            "synchronize", "lower_rings", "lower_grid", "lower_mappings", "join_blocks", "persist", "common_strides",
        }),
    ],
)  # fmt: skip
def test_a_kernel_born_later_skips_earlier_passes(stage: str, skipped: set[str]) -> None:
    start = born(stage)
    assert [step.name for step in lower_steps(start)] == [n for n in NAMES if n not in skipped]
    assert lower(start).stage == "lean"
    assert lower(start, stage) is start or stage != "scalar"


def test_what_is_there_already_is_not_lowered() -> None:
    start = born("synchronized")
    assert lower(start, "selected") is start


def test_a_file_for_each_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made" / "here"
    monkeypatch.setenv("TASKC_DUMP", str(folder))
    final = lower(kernel(KERNEL))
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [
        f"k.{number:02}_{name}.txt" for number, name in enumerate(NAMES)
    ]
    unchanged = 0
    for file, name in zip(files, NAMES, strict=True):
        head, _, text = file.read_text(encoding="utf-8").partition("\n")
        assert head.startswith(f"# {name}: ")
        assert head.endswith(" ms")
        float(head.removeprefix(f"# {name}: ").removesuffix(" ms"))
        if text == "(unchanged)\n":
            unchanged += 1
        else:
            shown = parse(text)
    assert shown.stage == "lean"
    assert shown.workers == final.workers
    assert unchanged >= 1
    unchanged_files = {f.name for f in files if "(unchanged)" in f.read_text(encoding="utf-8")}
    assert "k.06_specialize.txt" in unchanged_files
    assert "k.11_synchronize.txt" not in unchanged_files


def test_without_the_variable_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKC_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    lower(kernel(KERNEL))
    assert list(tmp_path.iterdir()) == []
