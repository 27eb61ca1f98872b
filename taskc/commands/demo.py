"""taskc demo: see taskc at work: an operator, its mapping, its checks, a model, and a race.

Writes an operator, draws its mapping, checks it after every pass, runs it against
NumPy, makes and runs a small model, and shows how a race is reported. Takes a few
seconds, and changes nothing.
"""

from __future__ import annotations

import argparse
import inspect
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import taskc as tc
from taskc.backend.cuda.compile import compile_kernel
from taskc.commands import demo_programs
from taskc.commands.check import summarize, write_summary
from taskc.commands.demo_programs import OWN, classifier, linear
from taskc.commands.explain import steps_of
from taskc.commands.terminal import columns, write, write_finding, write_text
from taskc.errors import CheckError, CompileError
from taskc.format import many, time_text
from taskc.ir.nodes import STAGES
from taskc.lang.definition import KernelDefinition
from taskc.passes.pipeline import lower
from taskc.progress import Progress
from taskc.runtime.checking import CallExamination, examine

M, N, K = 40, 24, 36  # 24 is not a multiple of the block's 16 columns: edges are masked
ROWS = 5  # of the model's input


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    _heading(1, "An operator, written in Python: relu(x @ w + bias)")
    write_text(_indented(inspect.getsource(linear)))
    kernel: KernelDefinition = linear(M, N, K, OWN)  # type: ignore[no-untyped-call]

    _heading(2, "Its schedule is a mapping in the program: who does which task (worker:slot)")
    write(f"    own = {OWN}")
    write(f"    {OWN.workers} workers share a block of {OWN.shape[0]} × {OWN.shape[1]};", end="")
    write(f" each keeps its {OWN.slots} elements in registers\n")
    write_text(_indented(OWN.table()))

    _heading(3, "Proved, lowered, and run after every pass")
    with Progress() as progress:
        (examination,) = examine(kernel, progress=lambda doing: progress(str(doing))).calls
    _write_passes(examination)
    write()
    write_summary("linear", examination, summarize(kernel.ir, examination), margin="    ")

    _heading(4, "Called like a function, compiled for this CPU, and compared with NumPy")
    agrees = _compare(kernel)

    _heading(5, "The same source for a GPU, down to its machine code; none is needed for that")
    _write_machine_code(kernel)

    _heading(6, "A model of ONNX's operators, made here: two layers and a softmax")
    fits = _run_model()

    _heading(7, "A mistake: a neighbour's element is read in the phase that writes it")
    write_text(_indented(inspect.getsource(demo_programs.differences)))
    caught = _write_race()

    write()
    write(
        ("Next:", "bold"),
        " taskc run FILE:KERNEL, taskc check FILE:KERNEL, taskc run MODEL.onnx, taskc --help",
    )
    write(f"This took {time.perf_counter() - start:.1f} s.")
    return 0 if examination.ok and agrees and fits and caught else 1


def _heading(number: int, text: str) -> None:
    if number > 1:
        write()
    write((f"{number}. {text}", "bold"))
    write()


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip("\n").splitlines())


def _write_passes(examination: CallExamination) -> None:
    rows = []
    if examination.ok:
        proved = "proved: every element of y is stored once, indices in bounds, no races"
        rows.append((examination.steps[0].kernel.stage, proved))
    for stage in STAGES:
        names = [step.name for step in examination.steps[1:] if step.kernel.stage == stage]
        if names:
            rows.append((stage, f"the same bits after {', '.join(names)}"))
    if rows:
        write_text(columns(rows, margin="    "))
    if examination.ok and examination.findings:
        write("\n    and where it is slower than it could be:")
    for finding in examination.findings:
        write_finding(_indented(_without_folder(str(finding))))


def _compare(kernel: KernelDefinition) -> bool:
    """Run the kernel on random numbers, and on whole ones, whose sums are exact in float32."""
    random = np.random.default_rng(0)
    shapes = ((M, K), (K, N), (N,))
    x, w, bias = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    write("    y = linear(x, w, bias)")
    error = float(np.abs(kernel(x, w, bias) - _reference(x, w, bias)).max())
    write(f"    random numbers: off by at most {error:.1e} from NumPy in float64")
    x, w, bias = (random.integers(-8, 9, shape).astype(np.float32) for shape in shapes)
    is_equal = bool(np.array_equal(kernel(x, w, bias), _reference(x, w, bias)))
    result = ("equal, bit for bit", "bold green") if is_equal else ("different", "bold red")
    write("    whole numbers:  ", result)
    return is_equal and error < 1e-4


def _reference(x: Any, w: Any, bias: Any) -> Any:
    wide = (array.astype(np.float64) for array in (x, w, bias))
    a, b, c = wide
    return np.maximum(a @ b + c, 0)


def _write_machine_code(kernel: KernelDefinition) -> None:
    start = time.perf_counter()
    try:
        compiled = compile_kernel(lower(replace(kernel.ir, target="sm_90a")))
    except CompileError as error:  # NVRTC isn't published for every machine
        write_finding(_indented(str(error)))
        return
    took = time_text(time.perf_counter() - start, "ms", ".0f")
    taken = compiled.resources
    spilled = taken.spill_stores + taken.spill_loads
    write(f"    sm_90a, by NVRTC: {many(len(compiled.cubin), 'byte')} in {took}")
    write(
        f"    a thread takes {many(taken.registers, 'register')}, and spills {many(spilled, 'byte')};",
        end="",
    )
    write(f" a block has {many(compiled.shared, 'byte')} of shared memory")


def _run_model() -> bool:
    """Run the model, and show the nodes in each kernel, and the difference from NumPy."""
    graph = classifier()
    write_text(_indented("\n".join(str(node) for node in graph.nodes)))
    model = tc.compile(graph)
    x = np.random.default_rng(1).standard_normal((ROWS, 32)).astype(np.float32)
    scores = model(x)
    steps = steps_of(model.program({"x": x}).program)
    write()
    write(f"    {many(len(graph.nodes), 'node')} became {many(len(steps), 'call')} of kernels:")
    took_in = [(step.kernel, ", ".join(title.split()[0] for title in step.nodes)) for step in steps]
    write_text(columns(took_in, margin="    "))
    expected = _scores(x, **graph.constants)
    error = float(np.abs(scores - expected).max())
    write(f"    {ROWS} × 10 scores: off by at most {error:.1e} from NumPy in float64")
    return error < 1e-5


def _scores(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    shifted = _reference(x, w1, b1) @ w2.astype(np.float64) + b2
    powers = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _write_race() -> bool:
    """Show the checker's report of the kernel with the mistake; returns whether there is one."""
    examination = examine(demo_programs.differences)
    write()
    write_finding(_indented(_without_folder(str(CheckError(examination.findings)))))
    write()
    errors = sum(finding.severity == "error" for finding in examination.findings)
    write(f"    {many(errors, 'error')}, found before anything ran")
    return errors > 0


def _without_folder(text: str) -> str:
    """A report about this package's kernels, with only the names of their files."""
    folder = Path(__file__).parent
    shown = [folder]
    if folder.is_relative_to(Path.cwd()):
        shown.append(folder.relative_to(Path.cwd()))
    for path in shown:
        text = text.replace(f"{path}{os.sep}", "")
    return text
