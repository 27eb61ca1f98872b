"""taskc show: the text at a stage, of what the CPU runs, and of what a GPU does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskc.commands import show as show_command
from taskc.errors import Location
from taskc.runtime.user_passes import registered


def test_show_prints_the_program_as_it_was_parsed(run: Any) -> None:
    ended = run("show", "03_kernels.py:add")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "kernel add(a: f32[64], b: f32[64], c: out f32[64]) workers=32 stage=parsed:\n"
        "    each i in spatial(32).repeat(2):\n"
        "        c[i] = a[i] + b[i]\n"
    )


def test_show_a_stage_for_a_target(run: Any) -> None:
    name = "03_kernels.py:doubled(stages=3)"
    ended = run("show", name, "--stage", "pipelined", "--target", "sm_80")
    assert "stage=pipelined target=sm_80" in ended.out
    assert "stages=3 transport=cp.async" in ended.out
    assert run("show", "03_kernels.py:doubled", "--target", "abacus").code == 2


def test_show_all_has_every_pass_with_its_time(run: Any) -> None:
    ended = run("show", "03_kernels.py:doubled", "--all")
    headings = [line for line in ended.out.splitlines() if line.startswith("# ")]
    assert headings[0] == "# parse: (parsed)"
    assert all(re.match(r"# \w+: \d+\.\d\d ms \(\w+\)( \(unchanged\))?$", h) for h in headings[1:])
    assert any(heading.startswith("# prove: ") and "(unchanged)" in heading for heading in headings)
    assert headings[-1].partition(" ms ")[2].startswith("(lean)")
    assert ended.out.count("kernel kernel(") == sum("(unchanged)" not in h for h in headings)


def test_show_diff_has_what_a_pass_changes(run: Any) -> None:
    ended = run("show", "03_kernels.py:doubled", "--diff", "--stage", "selected")
    assert "+" + "kernel kernel(a: f32[32, 32], c: out f32[32, 32]) workers=32 stage=selected:" in (
        ended.out.splitlines()
    )
    assert "stage=pipelined" not in ended.out
    assert "\n--- " not in ended.out


def test_show_ends_with_the_notes(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = show_command.lower
    place = Location("k.py", 3, 5, 3, 9, "    here")

    def noted(kernel: Any, stage: str) -> Any:
        notes = (("it became an fma", place),) * 2
        return replace(original(kernel, stage), notes=notes)

    monkeypatch.setattr(show_command, "lower", noted)
    ended = run("show", "03_kernels.py:add")
    assert ended.out.endswith("k.py:3:5: note: it became an fma\n      here\n      ^^^^\n")
    assert ended.out.count("note:") == 1


def test_show_what_the_processor_runs(run: Any) -> None:
    ended = run("show", "03_kernels.py:add", "--stage", "llvm", "--target", "avx512")
    assert (ended.code, ended.err) == (0, "")
    assert "fadd <16 x float>" in ended.out
    note = "note: add for avx512: 16 lanes; a worker keeps 0 bytes in memory across barriers"
    assert ended.out.splitlines()[-1] == note
    assert (
        "<8 x float>" in run("show", "03_kernels.py:add", "--stage", "llvm", "--target", "avx2").out
    )
    assembly = run("show", "03_kernels.py:add", "--stage", "asm", "--target", "avx2").out
    assert "vaddps" in assembly
    assert "%ymm" in assembly
    assert "fadd\tv" in run("show", "03_kernels.py:add", "--stage", "asm", "--target", "neon").out
    assert run("show", "03_kernels.py:add", "--stage", "asm").code == 0
    ended = run("show", "03_kernels.py:add", "--stage", "asm", "--target", "sm_80")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "error: --stage asm is for CPUs: "
        "avx512, avx512_vnni, avx512_bf16, avx512_amx, avx2, avx2_vnni, neon, sse2\n"
    )
    assert run("show", "03_kernels.py:add", "--stage", "llvm", "--all").code == 2


def test_show_what_is_made_for_a_gpu(run: Any) -> None:
    ended = run("show", "03_kernels.py:add", "--stage", "cuda")
    assert (ended.code, ended.err) == (0, "")
    assert 'extern "C" __global__ void __launch_bounds__(' in ended.out
    assert ended.out.splitlines()[-1] == "note: add for sm_90a"
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    text = run("show", "03_kernels.py:add", "--stage", "ptx", "--target", "sm_80").out
    assert ".target sm_80" in text
    assert "add.rn.f32" in text
    assert b"a b"[1:2][0] == 32  # NVRTC's empty log is not written into Python's own space
    lines = run("show", "03_kernels.py:add", "--stage", "resources", "--target", "sm_80").out
    assert re.search(r"^registers     [1-9]\d*$", lines, re.M)
    assert re.search(r"^spill loads   0$", lines, re.M)
    ended = run("show", "03_kernels.py:add", "--stage", "cuda", "--target", "avx2")
    assert (ended.code, ended.out) == (2, "")
    assert (
        ended.err
        == "error: --stage cuda is for GPUs: sm_80, sm_86, sm_87, sm_89, sm_90a, sm_120a\n"
    )
    assert run("show", "03_kernels.py:add", "--stage", "sass", "--diff").code == 2


def test_show_machine_code(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskc.backend.cuda import compile as disassemble

    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC isn't published for this machine")
    if disassemble.disassembler() is not None:
        assert "FADD" in run("show", "03_kernels.py:add", "--stage", "sass").out
    monkeypatch.setattr(disassemble, "disassembler", lambda: None)
    ended = run("show", "03_kernels.py:add", "--stage", "sass")
    assert ended.code == 1
    assert "machine code is shown by nvdisasm, and there is none" in ended.err
    assert "hint: pip install nvidia-cuda-nvdisasm" in ended.err


TWICE = """\
program twice(x: f32[4], y: out f32[4]):
    temporary t: f32[4]
    step(x, out=t)
    step(t, out=y)

kernel step(x: f32[4], y: out f32[4]) workers=4 stage=parsed:
    shared s: f32[4]
    each i in spatial(4):
        s[i] = x[i]
    each i_1 in spatial(4):
        y[i_1] = s[3 - i_1]
"""


def test_show_prints_a_program_and_each_of_its_kernels_once(run: Any) -> None:
    ended = run("show", "programs.py")
    assert (ended.code, ended.out, ended.err) == (0, TWICE, "")
    assert run("show", "programs.py:make_twice(4)").out == TWICE
    staged = run("show", "programs.py:twice", "--stage", "lean", "--target", "sm_80").out
    assert staged.startswith(TWICE.partition("kernel")[0])
    assert staged.count("kernel step(") == staged.count("stage=lean target=sm_80:") == 1
    every = run("show", "programs.py:twice", "--all").out
    assert every.count("# parse: (parsed)") == 1
    assert every.count("program twice(") == 1


def test_show_a_program_as_it_is_fused(run: Any) -> None:
    ended = run("show", "programs.py:moved()", "--stage", "fused")
    assert ended.code == 0
    assert "    step(x, out=t)\n    step_moved(t, out=y)\n" in ended.out
    assert "out[i_1] = s[3 - i_1] + 1.0\n" in ended.out
    assert "note: `moved` is computed where `y` is stored" in ended.out
    assert run("show", "03_kernels.py:add", "--stage", "fused").code == 2
    assert run("show", "programs.py:moved()", "--stage", "fused", "--all").code == 2


def test_show_what_runs_of_a_program(run: Any) -> None:
    """The fused calls, and a kernel for each of what is left, computations too."""
    ended = run("show", "programs.py:moved()")
    assert (ended.code, ended.err) == (0, "")
    program, *kernels = ended.out.split("\n\n")
    assert program.count("out=") == 2
    assert [text.split("(")[0] for text in kernels] == ["kernel step", "kernel step_moved"]
    assert "computation" not in ended.out
    staged = run("show", "programs.py:moved()", "--stage", "lean").out
    assert staged.startswith(program)
    assert "stage=lean" in staged
    traced = run("show", "programs.py:moved()", "--stage", "traced").out
    assert traced.count("out=") == 3
    assert "computation moved(" in traced
    ended = run("show", "running.py:bump", "--stage", "traced")
    assert ended.code == 2
    assert ended.err == "error: --stage traced is for programs, and this is a kernel\n"
    assert run("show", "programs.py:moved()", "--stage", "traced", "--diff").code == 2


def test_show_what_passes_of_users_leave(run: Any, folder: Path) -> None:
    """A file may register passes as it is loaded."""
    passes = """
from dataclasses import replace


def renamed(kernel):
    return replace(kernel, name=f"my_{kernel.name}")


def counted(program):
    return replace(program, name="seen")


tc.register_pass(renamed, at="kernel")
tc.register_pass(counted, at="fused")
"""
    (folder / "passes.py").write_text((folder / "programs.py").read_text() + passes)
    try:
        assert "kernel my_step(" in run("show", "passes.py:twice").out
        assert "program seen(" in run("show", "passes.py:twice", "--stage", "fused").out
        assert "program twice(" in run("show", "passes.py:twice", "--stage", "traced").out
    finally:
        for one in registered():
            one.remove()
