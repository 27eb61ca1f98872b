"""The LLVM module around a kernel's block, and its optimization.

    void job(i64 first, i64 last, ptr arguments, ptr scratch)

runs the blocks first..last - 1. Arguments are eight bytes each: addresses, scalars, then the symbolic
dimensions, and a status word: the number of the failed assertion.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import llvmlite.binding as llvm

from taskc.backend.cpu.instructions import WHOLE_LOOPS, type_of
from taskc.backend.cpu.math.notation import in_parts
from taskc.backend.cpu.processor import Processor
from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor
from taskc.ir.spans import span
from taskc.ir.target import TARGETS

# Symbols of the pool: a flag that is set when signals are due, and the functions that check. They touch no memory of
# the kernel.
DUE, LOOK, GO_ON = "taskc_due", "taskc_look", "taskc_go_on"
_SIGNALS = f"""\
@{DUE} = external global i8
declare void @{GO_ON}(i64, i64, ptr, ptr, ptr) cold nounwind
declare i1 @{LOOK}(ptr) cold nounwind memory(argmem: readwrite, inaccessiblemem: readwrite)"""


def look_text(label: str, on: str, end: str) -> list[str]:
    """A signal check inside a loop of a block: jumps `on`, or to `end` if a signal handler on Python's main thread
    raised.
    """
    return [
        f"  %{label}.due = load volatile i8, ptr @{DUE}",
        f"  %{label}.is_due = icmp ne i8 %{label}.due, 0",
        f"  br i1 %{label}.is_due, label %{label}, label %{on}",
        f"{label}:",
        f"  %{label}.ends = call i1 @{LOOK}(ptr %scratch)",
        f"  br i1 %{label}.ends, label %{end}, label %{on}",
    ]


def module_text(kernel: ir.Kernel, processor: Processor, parts: Sequence[str]) -> str:
    """The text of a module; `parts` hold the block's and other functions, and may repeat declarations."""
    attributes = (
        'nounwind "no-trapping-math"="true"'
        f' "prefer-vector-width"="{processor.vector_bits}"'
        f' "target-features"="{processor.features}"'
    )
    declarations: dict[str, None] = {}
    bodies: list[str] = []
    for line in "\n".join(parts).split("\n"):
        if line.startswith("declare "):
            declarations[line] = None
        else:
            bodies.append(line)
    text = "\n".join(
        [
            head_text(processor),
            _SIGNALS,
            "@nowhere = internal global [1024 x i8] zeroinitializer, align 64",
            *declarations,
            *bodies,
            *([_conversions_of_half()] if TARGETS[processor.target].converts > 16 else []),
            _job(kernel),
            f"attributes #0 = {{ alwaysinline {attributes} }}",
            f"attributes #1 = {{ {attributes} }}",
            WHOLE_LOOPS,
            "",
        ]
    )
    return text if processor.has_fused else in_parts(text)


def head_text(processor: Processor) -> str:
    return f'target triple = "{processor.triple}"\ntarget datalayout = "{processor.layout}"'


@cache
def _conversions_of_half() -> str:
    return (files("taskc.backend.cpu") / "half.ll").read_text(encoding="utf-8")


def _job(kernel: ir.Kernel) -> str:
    lines = []
    passed = ["i64 %block"]
    items = [*kernel.parameters, *kernel.dimensions]
    for number, item in enumerate(items):
        kind = "ptr" if isinstance(item, Tensor) else type_of(item.dtype)
        lines += [
            f"  %at{number} = getelementptr i64, ptr %arguments, i64 {number}",
            f"  %a{number} = load {'i8' if kind == 'i1' else kind}, ptr %at{number}",
        ]
        if kind == "i1":
            lines.append(f"  %b{number} = trunc i8 %a{number} to i1")
        passed.append(f"{kind} %{'b' if kind == 'i1' else 'a'}{number}")
    passed += ["ptr %scratch", "ptr %status"]
    lines.append(f"  %status = getelementptr i64, ptr %arguments, i64 {len(items)}")
    return "\n".join(
        [
            "define void @job(i64 %first, i64 %last, ptr %arguments, ptr %scratch) #1 {",
            *lines,
            "  %any = icmp slt i64 %first, %last",
            "  br i1 %any, label %body, label %end",
            "body:",
            "  %block = phi i64 [ %first, %0 ], [ %following, %next ]",
            f"  call void @block({', '.join(passed)})",
            "  %following = add nsw i64 %block, 1",
            "  %more = icmp slt i64 %following, %last",
            "  br i1 %more, label %more_of_them, label %end",
            "more_of_them:",
            f"  %due = load volatile i8, ptr @{DUE}",
            "  %is_due = icmp ne i8 %due, 0",
            "  br i1 %is_due, label %look, label %next",
            "look:",  # a tail call: a function that calls nothing else saves no registers
            f"  tail call void @{GO_ON}(i64 %following, i64 %last, ptr %arguments, ptr %scratch, ptr @job)",
            "  ret void",
            "next:",
            "  br label %body",
            "end:",
            "  ret void",
            "}",
        ]
    )


@span("LLVM/optimize")
def optimized(text: str, processor: Processor, *, unrolls: bool = False) -> llvm.ModuleRef:
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    options = llvm.newpassmanagers.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = unrolls
    options.loop_interleaving = False
    builder = llvm.newpassmanagers.create_pass_builder(processor.machine, options)
    run_passes(builder.getModulePassManager(), parsed, builder)
    return parsed


def run_passes(
    passes: llvm.ModulePassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder
) -> None:
    try:
        passes.run(module, builder)
    finally:
        # Its own close() finds ObjectRef._dispose first, which does nothing and leaks 50 to 100 KB a kernel.
        llvm.newpassmanagers.NewPassManager._dispose(passes)
        passes.detach()
