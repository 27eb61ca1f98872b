"""A module of LLVM IR around a kernel's block, and what LLVM makes of it.

    void job(i64 first, i64 last, ptr arguments, ptr scratch)

runs the blocks first..last - 1. Arguments are eight bytes each: addresses, scalars, then the symbolic
dimensions, and a last one for the number of the assertion that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import llvmlite.binding as llvm

from taskc.backend.cpu.builder import type_of
from taskc.backend.cpu.processor import Processor
from taskc.ir import nodes as ir
from taskc.ir.nodes import Tensor
from taskc.ir.target import TARGETS


def module_text(kernel: ir.Kernel, processor: Processor, parts: Sequence[str]) -> str:
    """`parts` hold the block's function, and others; declarations may be repeated among them."""
    attributes = (
        'nounwind "no-trapping-math"="true"'
        f' "prefer-vector-width"="{processor.vector_bits}"'
        f' "target-features"="{processor.features}"'
    )
    lines: dict[str, None] = {}
    declarations = [
        line for part in parts for line in part.splitlines() if line.startswith("declare ")
    ]
    lines.update(dict.fromkeys(declarations))
    bodies = [
        "\n".join(line for line in part.splitlines() if not line.startswith("declare "))
        for part in parts
    ]
    return "\n".join(
        [
            head_text(processor),
            "@nowhere = internal global [1024 x i8] zeroinitializer, align 64",
            *lines,
            *bodies,
            *([_conversions_of_half()] if TARGETS[processor.target].converts > 16 else []),
            _job(kernel),
            f"attributes #0 = {{ alwaysinline {attributes} }}",
            f"attributes #1 = {{ {attributes} }}",
            "",
        ]
    )


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
            "  br label %head",
            "head:",
            "  %block = phi i64 [ %first, %0 ], [ %following, %body ]",
            "  %more = icmp slt i64 %block, %last",
            "  br i1 %more, label %body, label %end",
            "body:",
            f"  call void @block({', '.join(passed)})",
            "  %following = add nsw i64 %block, 1",
            "  br label %head",
            "end:",
            "  ret void",
            "}",
        ]
    )


def optimized(text: str, processor: Processor) -> llvm.ModuleRef:
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    options = llvm.newpassmanagers.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.newpassmanagers.create_pass_builder(processor.machine, options)
    passes = builder.getModulePassManager()
    try:
        passes.run(parsed, builder)
    finally:
        # Its own close() finds ObjectRef._dispose first, which does nothing: 50 to 100 KB a kernel would stay.
        llvm.newpassmanagers.NewPassManager._dispose(passes)
        passes.detach()
    return parsed
