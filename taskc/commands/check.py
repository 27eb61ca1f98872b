"""taskc check: check a kernel on its own example inputs.

Proves that each output element is stored once, indices are in bounds and nothing
races; then runs the program in the simulator after every pass, and compares the
results bit for bit. Exits with 1 if anything is wrong. For a processor, with
--target cpu the one at hand, it also says what is slow there, and what would do better.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

from taskc.backend.sim import AccessTraffic, Report
from taskc.commands.loading import example_of, load_kernel
from taskc.commands.terminal import (
    Part,
    add_json,
    add_kernel,
    add_seeds,
    add_target,
    write,
    write_finding,
    write_json,
)
from taskc.errors import Finding
from taskc.format import many
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.lang.definition import Definition
from taskc.programs.definition import ProgramDefinition
from taskc.progress import Progress
from taskc.runtime.checking import CallExamination, Doing, Examination, examine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    add_seeds(parser, 1)
    add_json(parser)
    add_target(parser, "cpu")


def run(options: argparse.Namespace) -> int:
    definition = load_kernel(options.kernel)
    examined, calls = _examined(definition, options)
    if options.json:
        answer: dict[str, Any] = {
            "kernel": options.kernel,
            "ok": examined.ok,
            "findings": [finding.to_json() for finding in examined.findings],
        }
        if isinstance(definition, ProgramDefinition):
            answer["calls"] = [{"kernel": name, "summary": s} for name, _, s in calls]
        else:
            ((_, _, answer["summary"]),) = calls
        write_json(answer)
        return 0 if examined.ok else 1
    for finding in examined.findings:
        write_finding(str(finding))
    margin = ""
    if isinstance(definition, ProgramDefinition):
        count = many(len(examined.called), "call")
        if len(calls) < len(examined.called):
            count = f"{len(calls)} of {count}"
        write((options.kernel, "bold"), ": ", _result(examined.findings), f", {count}")
        margin = "  "
    for name, examination, summary in calls:
        write_summary(name, examination, summary, margin)
    return 0 if examined.ok else 1


def _examined(
    definition: Definition, options: argparse.Namespace
) -> tuple[Examination, list[tuple[str, CallExamination, dict[str, Any]]]]:
    """The examination, and the name and a summary of each kernel that ran in it."""
    arguments, seeds = example_of(definition), tuple(range(options.seeds))
    with Progress() as progress:

        def show(doing: Doing | None) -> None:
            if doing is None:
                progress.clear()
            else:
                progress(f"{options.kernel}: {doing}", doing.share)

        whole = examine(definition, arguments, seeds, target=options.target, progress=show)
        is_program = isinstance(definition, ProgramDefinition)
        return whole, [
            (name if is_program else options.kernel, part, summarize(kernel, part))
            for (name, kernel), part in zip(whole.called, whole.calls, strict=False)
        ]


def _result(findings: Sequence[Finding]) -> Part:
    """The number of findings of each severity."""
    counts = Counter(finding.severity for finding in findings)
    counted = [many(counts[kind], kind) for kind in ("error", "warning", "note") if counts[kind]]
    if not counted:
        return "no findings", "bold green"
    return ", ".join(counted), "bold red" if counts["error"] else "yellow"


def summarize(kernel: ir.Kernel, examination: CallExamination) -> dict[str, Any]:
    """Counts of what was checked, and the worst memory traffic of the last run."""
    steps = examination.steps
    final = steps[-1].report if steps else Report(())
    shared = [access for access in final.accesses if access.scope == ir.SHARED]
    conflict = max(shared, key=lambda access: access.ways, default=None)
    requests = [access for access in final.accesses if access.scope == ir.GLOBAL]
    scattered = max(requests, key=_waste, default=None)
    return {
        "programs": len(steps),
        "phases": phase_count(kernel),
        "blocks": block_count(kernel, examination.bound.dimensions),
        "workers": kernel.workers,
        "shared_bytes": final.shared_bytes,
        "worst_bank_conflict": conflict and {"ways": conflict.ways, **_place(conflict)},
        "worst_request": scattered
        and {"sectors": scattered.sectors, "ideal": scattered.ideal, **_place(scattered)},
    }


def write_summary(
    name: str, examination: CallExamination, summary: dict[str, Any], margin: str = ""
) -> None:
    phases, blocks = summary["phases"], summary["blocks"]
    workers = many(summary["workers"], "worker")
    parts = [many(phases, "phase")] if phases else []  # a kernel of tc.cuda has none
    parts.append(f"{'blocks' if blocks is None else many(blocks, 'block')} of {workers}")
    if summary["programs"]:
        parts.append(f"{many(summary['shared_bytes'], 'byte')} of shared memory")
    conflict, request = summary["worst_bank_conflict"], summary["worst_request"]
    if conflict:
        ways, tensor = conflict["ways"], conflict["tensor"]
        is_free = ways < 2
        parts.append("no bank conflicts" if is_free else f"{ways}-way bank conflicts ({tensor})")
    if request:
        ideal, tensor = request["ideal"], request["tensor"]
        parts.append(f"up to {many(request['sectors'], 'sector')} a request for {ideal} ({tensor})")
    where = f", {many(summary['programs'], 'program')} run" if summary["programs"] else ", not run"
    write(margin, (name, "bold"), ": ", _result(examination.findings), where)
    write(f"{margin}  {', '.join(parts)}")


def _waste(access: AccessTraffic) -> float:
    return access.sectors / max(access.ideal, 1)


def _place(access: AccessTraffic) -> dict[str, Any]:
    return {"tensor": access.tensor, "location": access.location.to_json()}


def block_count(kernel: ir.Kernel, dimensions: dict[ir.Variable, int]) -> int | None:
    """The number of tiles of the grid; None if only a run can tell."""
    grid = next((node for node in walk(kernel.body) if isinstance(node, ir.Grid)), None)
    if grid is None:
        return 1
    extents = []
    for extent in grid.shape:
        size = dimensions.get(extent) if isinstance(extent, ir.Variable) else extent
        if not isinstance(size, int):
            return None
        extents.append(size)
    return prod([-(-size // by) for size, by in zip(extents, grid.by, strict=True)])


def phase_count(kernel: ir.Kernel) -> int:
    """The number of phases in the kernel's text: outer mapping loops and whole-block statements."""
    count = 0
    pending: list[Any] = [kernel.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ir.Each | ir.Move | ir.Mma | ir.Reduce | ir.Scan):
            count += 1
        elif isinstance(node, ir.Sequence):
            pending.extend(node.statements)
        elif isinstance(node, ir.If):
            pending.extend([part for part in (node.then, node.otherwise) if part is not None])
        elif isinstance(node, ir.Roles):
            pending.extend([role.body for role in node.roles])
        elif isinstance(node, ir.For | ir.While | ir.Grid | ir.Pipeline):
            pending.append(node.body)
    return count
