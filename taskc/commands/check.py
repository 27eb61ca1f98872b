"""taskc check: proofs, and the simulator after every pass, with the kernel's example arguments."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from math import prod
from typing import Any

from taskc.backend.sim import Report, Traffic
from taskc.checking import Examination, examine
from taskc.commands.loading import example_of, load_kernel
from taskc.commands.terminal import Progress, many, write, write_finding, write_text
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk


def run(options: argparse.Namespace) -> int:
    definition = load_kernel(options.kernel)
    with Progress() as progress:
        examination = examine(
            definition,
            example_of(definition),
            seeds=tuple(range(options.seeds)),
            target=options.target,
            progress=lambda text: progress(f"{options.kernel}: {text}"),
        )
    summary = summarize(definition.ir, examination)
    if options.json:
        answer = {
            "kernel": options.kernel,
            "ok": examination.ok,
            "findings": [finding.to_json() for finding in examination.findings],
            "summary": summary,
        }
        write_text(json.dumps(answer, indent=2))
    else:
        for finding in examination.findings:
            write_finding(str(finding))
        write_summary(options.kernel, examination, summary)
    return 0 if examination.ok else 1


def summarize(kernel: ir.Kernel, examination: Examination) -> dict[str, Any]:
    """What was checked, and the worst of the final program's memory traffic."""
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
    name: str, examination: Examination, summary: dict[str, Any], margin: str = ""
) -> None:
    phases, blocks = summary["phases"], summary["blocks"]
    workers = many(summary["workers"], "worker")
    parts = [many(phases, "phase")] if phases else []  # a kernel of tc.cuda is below them
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
    counts = Counter(finding.severity for finding in examination.findings)
    found = [many(counts[kind], kind) for kind in ("error", "warning", "note") if counts[kind]]
    result = (", ".join(found), "bold red" if counts["error"] else "yellow")
    where = f", {many(summary['programs'], 'program')} run" if summary["programs"] else ", not run"
    write(margin, (name, "bold"), ": ", result if found else ("no findings", "bold green"), where)
    write(f"{margin}  {', '.join(parts)}")


def _waste(access: Traffic) -> float:
    return access.sectors / max(access.ideal, 1)


def _place(access: Traffic) -> dict[str, Any]:
    return {"tensor": access.tensor, "location": access.location.to_json()}


def block_count(kernel: ir.Kernel, dimensions: dict[ir.Variable, int]) -> int | None:
    """How many tiles the grid has; None where only a run can tell."""
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
    """How many phases the program's text has: outer mapping loops and whole-block statements."""
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
