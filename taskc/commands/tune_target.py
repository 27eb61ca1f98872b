"""The target of `taskc tune`: the processor or a GPU at hand, or, in a dry run, a GPU that isn't present."""

from __future__ import annotations

import argparse

from taskc import Machine, machine
from taskc.commands.terminal import UsageError, columns, many, write, write_text
from taskc.device import DeviceError, context
from taskc.ir.target import GPUS, SM_90A
from taskc.tune.texts import said
from taskc.tune.tuner import Trial, Tuned

_DRY = "with --dry-run candidates are compiled and simulated without a GPU"


def add_target(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(f"cuda:{gpu.name}" for gpu in GPUS)
    known = ("cpu", "cuda", *(f"cuda:{gpu.name}" for gpu in GPUS))
    parser.add_argument(
        "--target", metavar="T", choices=known, default="cpu",
        help=f"cpu (the default), cuda, the GPU at hand, or {names}",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true",
        help="of a GPU that need not be here: compile candidates, check them in the simulator, time nothing",
    )  # fmt: skip


def machine_of(target: str, *, is_dry: bool) -> Machine:
    """The machine to tune for, which is present unless the run is dry."""
    name = target.partition(":")[2]
    if is_dry:
        if not name:
            raise UsageError(f"say which GPU a dry run is for: --target cuda:{SM_90A.name}")
        return machine(name)
    if target == "cpu":
        return machine()
    try:
        here = context()
        if name and here.target != name:
            raise DeviceError(f"the GPU at hand, {here.name}, runs code for {here.target}")
    except DeviceError as error:
        raise UsageError(f"nothing can be measured for {target}: {error}; {_DRY}") from None
    return machine(here.target, threads=here.processors)


def report_dry(title: str, found: Tuned) -> None:
    """Report the plans that were compiled and checked."""
    tried = found.trials
    right = [trial for trial in tried if trial.result.outcome == "not measured"]
    write((title, "bold"), f", for {found.space.machine.name}, dry")
    write(
        f"{many(len(found.space.plans), 'plan')}: {len(tried)} tried, {len(right)} of them compiled and checked, "
        f"{len(tried) - len(right)} not; {found.seconds:.1f} s"
    )
    for trial in tried:
        if trial not in right:
            note = f"{said(found.space.text(trial.plan))}: {trial.result.note}"
            write((f"{trial.result.outcome}: ", "bold red"), note)
    if right:
        write_text(columns([_row(found, trial) for trial in right]))
    for warning in found.warnings:
        write(("not measured: ", "bold yellow"), warning)
    if found.was_interrupted:
        write("interrupted")


def _row(found: Tuned, trial: Trial) -> tuple[str, ...]:
    predicted = f"predicted {trial.predicted * 1e6:.3g} us"
    return predicted, trial.result.note, said(found.space.text(trial.plan))
