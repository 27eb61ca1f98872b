"""The simulator's bank conflicts and sectors, next to Nsight Compute's counts on the device."""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

Job = dict[str, Any]

# What is counted: the simulator's scope and kind, and the sum of ncu's.
METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "sectors of loads": ("global", "load", ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",)),
    "sectors of stores": ("global", "store", ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",)),
    "sectors of copies": (
        "global", "copy",
        (
            "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
            "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum",
        ),
    ),
    "conflicts of loads": (
        "shared", "load", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",),
    ),
    "conflicts of stores": (
        "shared", "store", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",),
    ),
}  # fmt: skip
_EVERYWHERE = [
    name for name in METRICS if "copies" not in name
]  # versions of ncu differ in the others
_CLOSE = 0.02  # what two numbers that agree may differ by


def simulate(job: Job) -> Job:
    """A kernel's accesses at its last stage, as the simulator counts them."""
    import numpy as np
    from gpu_work import family_of, inputs

    import taskc as tc
    from taskc.backend import sim
    from taskc.ir import nodes as ir
    from taskc.passes.pipeline import lower

    kernel = family_of(job).build(tc.machine(job["target"]), *job["size"])
    given = iter(inputs(kernel))
    values = [
        next(given)
        if isinstance(item, ir.Tensor) and item.role == "in"
        else np.zeros(tuple(map(int, item.argument_shape)), item.dtype.numpy)
        for item in kernel.ir.parameters
    ]
    report = sim.run(lower(replace(kernel.ir, target=job["target"])), values, statistics=True)
    found = dict.fromkeys(METRICS, 0)
    for traffic in report.accesses:
        for name, (scope, kind, _) in METRICS.items():
            if (traffic.scope, traffic.kind) == (scope, kind):
                found[name] += traffic.total
    return {"simulated": found}


def counted(jobs: Sequence[Job], target: str, program: Path, end: float, record: Any) -> None:
    """Each job's row: what was simulated, what ncu counted, and whether they agree."""
    from gpu_jobs import run_concurrently

    wanted = [{**job, "kind": "simulate", "target": target} for job in jobs]
    simulated = {
        (row["family"], row["case"]): row
        for row in run_concurrently(wanted, program, end, len(wanted) or 1)
    }
    tool = shutil.which("ncu")
    if tool is None:
        record.say("ncu isn't installed: nothing is held against its counters")
    for job in jobs:
        row = {**job, **simulated[job["family"], job["case"]], "kind": "counters"}
        if tool is not None and "simulated" in row:
            row |= profiled(tool, job, program, end)
        record.note(row)
        if "error" not in row and "simulated" in row:
            for line in table(row):
                record.say(line)


def profiled(tool: str, job: Job, program: Path, end: float) -> Job:
    """ncu's counters of all kernels that a check of this size launches; an error is in its words."""
    found: Job = {}
    for names in (list(METRICS), _EVERYWHERE):
        found = _profiled(tool, job, names, program, end)
        if "metric" not in str(found.get("error", "")).lower():
            break
    return found


def _profiled(tool: str, job: Job, names: list[str], program: Path, end: float) -> Job:
    from gpu_jobs import run_process

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        metrics = ",".join(metric for name in names for metric in METRICS[name][2])
        command = [
            tool, "--csv", "--page=raw", f"--metrics={metrics}", "--clock-control=none", f"--log-file={log}",
        ]  # fmt: skip
        *_, row = run_process([{**job, "kind": "counters"}], program, end, command)
        text = log.read_text(errors="replace") if log.exists() else ""
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    if "left_out" in row:
        return {"left_out": row["left_out"]}
    if errors or "error" in row:
        said = " ".join(line.removeprefix("==ERROR==").strip() for line in errors)
        return {"error": f"ncu: {said} {row.get('error', '')}".strip()}
    try:
        return {"counted": counters_of(text, names)}
    except ValueError as error:
        return {"error": f"ncu: its table can't be read: {error}; it ends with {text[-200:]!r}"}


def counters_of(text: str, names: Sequence[str]) -> dict[str, int]:
    """The sums over all kernels, of a table with a column for each metric and a line of units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        raise ValueError("no kernel was launched")
    head, _, *launches = csv.reader(lines)
    found = dict.fromkeys(names, 0)
    for name in names:
        for metric in METRICS[name][2]:
            column = head.index(metric)
            found[name] += sum(int(float(one[column].replace(",", ""))) for one in launches)
    return found


def table(row: Job) -> list[str]:
    """A line for each counter: `agree` within 2 percent."""
    lines = []
    for name, simulated in row["simulated"].items():
        head = f"{row['family']:28} {row['case']:16} {name:20} simulated {simulated:9}"
        found = row.get("counted", {}).get(name)
        if found is None:
            lines.append(f"{head}  not counted")
            continue
        verdict = "agree" if abs(found - simulated) <= _CLOSE * max(found, simulated) else "DIFFER"
        lines.append(f"{head}  counted {found:9}  {verdict}")
    return lines
