"""taskc show: the program at a stage of its lowering.

Prints a kernel as a program of the IR: as it was parsed, at the end of a stage, or
after every pass. Notes of the compiler follow.

Of a program it prints what runs: the calls that are left once it was fused, then each
kernel that is called, those that were made of computations too; with --stage, each of
them at that stage. --stage traced prints the program as it was written, and --stage
fused what its fusion makes of that, before computations that are left become kernels.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from taskc.commands.loading import load_kernel
from taskc.commands.terminal import (
    UsageError,
    add_kernel,
    add_target,
    write,
    write_diff,
    write_finding,
    write_text,
)
from taskc.errors import Finding
from taskc.format import many, time_text
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.target import GPUS, TARGETS
from taskc.passes.pipeline import Step, lower, lower_steps
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import kernels_of
from taskc.programs.pipeline import fused_program
from taskc.programs.printer import calls_text
from taskc.runtime.checking import for_target
from taskc.runtime.driver import scheduled
from taskc.runtime.machine import machine
from taskc.runtime.user_passes import over_program, registered

_NATIVE = ("llvm", "asm")  # after the last stage, on the CPU
_CUDA = ("cuda", "ptx", "sass", "resources")  # and for a GPU, which need not be present
_DEFAULT_GPU = "sm_90a"
# Stages of programs, before those of their kernels.
_TRACED, _FUSED = _OF_PROGRAMS = ("traced", "fused")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument(
        "--stage",
        choices=(*_OF_PROGRAMS, *ir.STAGES, *_NATIVE, *_CUDA),
        metavar="NAME",
        help=f"the end of a stage: {', '.join(ir.STAGES)}; or what the CPU runs: {', '.join(_NATIVE)}; or"
        f" what a GPU does: {', '.join(_CUDA)}; of a program as a whole: {', '.join(_OF_PROGRAMS)}",
    )
    parser.add_argument("--all", action="store_true", help="after every pass, with its time")
    parser.add_argument("--diff", action="store_true", help="what each pass changes")
    add_target(parser)


def run(options: argparse.Namespace) -> int:
    definition = load_kernel(options.kernel)
    if isinstance(definition, ProgramDefinition):
        if options.stage in _OF_PROGRAMS:
            _show_program(definition, options)
        else:
            _show_what_runs(definition, options)
        return 0
    if options.stage in _OF_PROGRAMS:
        raise UsageError(f"--stage {options.stage} is for programs, and this is a kernel")
    assert isinstance(definition.ir, ir.Kernel)
    _show(definition.ir, options)
    return 0


def _show_program(definition: ProgramDefinition, options: argparse.Namespace) -> None:
    """Show a program before its computations have schedules, with everything that it calls."""
    if options.all or options.diff:
        raise UsageError(f"--stage {options.stage} goes with neither --all nor --diff")
    shown = definition.ir
    if options.stage == _FUSED:
        passes = partial(over_program, registered())
        shown = fused_program(shown, machine(options.target), passes)
    write_text(to_text(shown))
    for kernel in kernels_of(shown).values():
        _write_notes(kernel)


def _show_what_runs(definition: ProgramDefinition, options: argparse.Namespace) -> None:
    """Show the calls after fusion, and then each kernel."""
    gpu = _DEFAULT_GPU if options.stage in _CUDA else None
    shown, _ = scheduled(definition, options.target or gpu)
    write_text(calls_text(shown))
    for name, kernel in kernels_of(shown).items():
        write()
        _show(replace(kernel, name=name), options)  # its name in the program's text


def _show(kernel: ir.Kernel, options: argparse.Namespace) -> None:
    if options.stage in _NATIVE:
        _show_native(kernel, options)
        return
    if options.stage in _CUDA:
        _show_cuda(kernel, options)
        return
    kernel = for_target(kernel, options.target)
    if options.all or options.diff:
        kernel = _every_pass(kernel, options.stage, is_diff=options.diff)
    else:
        kernel = lower(kernel, options.stage or kernel.stage)
        write_text(to_text(kernel))
    _write_notes(kernel)


def _write_notes(kernel: ir.Kernel) -> None:
    for note in dict.fromkeys(kernel.notes):
        write_finding(str(Finding("note", "note", *note)))


def _show_native(kernel: ir.Kernel, options: argparse.Namespace) -> None:
    """Show the CPU's code for the last stage, for this processor or another kind."""
    from taskc.backend.cpu.compile import assembly_of, llvm_text, refuse
    from taskc.backend.cpu.processor import host, typical

    if options.all or options.diff:
        raise UsageError(f"--stage {options.stage} goes with neither --all nor --diff")
    refuse(kernel)
    processors = [name for name, target in TARGETS.items() if target.is_processor]
    if options.target not in (None, *processors):
        raise UsageError(f"--stage {options.stage} is for CPUs: {', '.join(processors)}")
    processor = host() if options.target is None else typical(options.target)
    lean = lower(for_target(kernel, processor.target))
    text, emitter = llvm_text(lean, processor)
    write_text(text if options.stage == "llvm" else assembly_of(lean, processor))
    lanes = many(emitter.values.lanes or 1, "lane")
    spilled = many(emitter.spilled, "byte")
    about = f"{lanes}; a worker keeps {spilled} in memory across barriers"
    write_finding(f"note: {kernel.name} for {processor.target}: {about}")


def _show_cuda(kernel: ir.Kernel, options: argparse.Namespace) -> None:
    """Show the code of a GPU for the last stage."""
    from taskc.backend.cuda.compile import compile_source, ptx_of, sass_of
    from taskc.backend.cuda.emit import emit

    if options.all or options.diff:
        raise UsageError(f"--stage {options.stage} goes with neither --all nor --diff")
    gpus = [gpu.name for gpu in GPUS]
    if options.target not in (None, *gpus):
        raise UsageError(f"--stage {options.stage} is for GPUs: {', '.join(gpus)}")
    chosen = kernel.target if kernel.target in gpus else _DEFAULT_GPU
    kernel = lower(for_target(kernel, options.target or chosen))
    source = emit(kernel)
    match options.stage:
        case "cuda":
            write_text(source.text(with_places=False))
        case "ptx":
            write_text(ptx_of(source))
        case "sass":
            write_text(sass_of(compile_source(source).cubin))
        case _:
            compiled = compile_source(source)
            resources = compiled.resources
            rows = {
                "threads": compiled.threads,
                "registers": resources.registers,
                "shared bytes": compiled.shared + resources.shared,
                "stack bytes": resources.stack,
                "spill stores": resources.spill_stores,
                "spill loads": resources.spill_loads,
                "barriers": resources.barriers,
                "cubin bytes": len(compiled.cubin),
            }
            for name, value in rows.items():
                write(f"{name:13} {value}")
            for remark in resources.remarks:
                write_finding(f"note: {remark}")
    _write_notes(kernel)
    write_finding(f"note: {source.name} for {source.arch}")


def _every_pass(kernel: ir.Kernel, stage: str | None, *, is_diff: bool) -> ir.Kernel:
    """Write the program after each pass; returns the last one."""
    before = to_text(kernel)
    _heading("parse", f"({kernel.stage})")
    write_text(before)
    for step in _steps(kernel, stage):
        text = to_text(step.kernel)
        about = f"{time_text(step.seconds, 'ms', '.2f')} ({step.kernel.stage})"
        _heading(step.name, f"{about} (unchanged)" if text == before else about)
        if text != before and is_diff:
            old, new = before.splitlines(), text.splitlines()
            lines = list(difflib.unified_diff(old, new, lineterm="", n=2))
            write_diff(lines[2:])  # without the names of files
        elif text != before:
            write_text(text)
        kernel, before = step.kernel, text
    return kernel


def _heading(name: str, about: str) -> None:
    write((f"# {name}", "bold"), f": {about}")


def _steps(kernel: ir.Kernel, stage: str | None) -> Iterator[Step]:
    """The passes up to the end of a stage, or all of them."""
    for step in lower_steps(kernel):
        if stage is not None and ir.STAGES.index(step.kernel.stage) > ir.STAGES.index(stage):
            return
        yield step
