"""taskc mutate: break the lowered program in small ways, and count which are noticed.

Deletes and moves barriers, waits and fences, shifts ring slots, shrinks buffers and
perturbs mappings, one at a time. Exits with 1 if fewer than 95% are reported of those
that are not proved equivalent.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from taskc.commands.loading import example_of, load_kernel
from taskc.commands.terminal import (
    add_json,
    add_kernel,
    add_seeds,
    add_target,
    columns,
    write,
    write_json,
    write_text,
)
from taskc.errors import Finding
from taskc.format import many
from taskc.ir.nodes import Kernel
from taskc.lang.definition import KernelDefinition
from taskc.mutation import EXAMPLES, Mutant, mutate
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Program, map_kernels
from taskc.progress import Progress
from taskc.runtime.checking import for_target
from taskc.runtime.driver import scheduled, signature

ENOUGH = 0.95  # of the mutants that are not proved equivalent have to be reported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    add_seeds(parser, 3)
    add_json(parser)
    add_target(parser)


def run(options: argparse.Namespace) -> int:
    definition = load_kernel(options.kernel)
    mutated: Kernel | Program
    if isinstance(definition, ProgramDefinition):
        program, _ = scheduled(definition, options.target)
        mutated = map_kernels(program, lambda kernel: for_target(kernel, options.target))
    else:
        assert isinstance(definition, KernelDefinition)
        mutated = for_target(definition.ir, options.target)
    called = signature(definition)
    inputs = [called.bind(example_of(definition, *which), {}).values for which in EXAMPLES]
    mutants: list[Mutant] = []
    with Progress() as progress:
        progress(f"{options.kernel}: lowering")
        for mutant in mutate(mutated, inputs, seeds=(None, *range(options.seeds))):
            mutants.append(mutant)
            progress(f"{options.kernel}: {many(len(mutants), 'mutant')}, {mutant.description}")
    reported = sum(mutant.reported for mutant in mutants)
    equivalent = sum(mutant.is_equivalent for mutant in mutants)
    bugs = len(mutants) - equivalent
    share = reported / bugs if bugs else 1.0
    if options.json:
        answer = {
            "kernel": options.kernel,
            "total": len(mutants),
            "reported": reported,
            "equivalent": equivalent,
            "mutants": [_to_json(mutant) for mutant in mutants],
        }
        write_json(answer)
    else:
        _write(options.kernel, mutants, reported, share)
    return 0 if share >= ENOUGH else 1


def _write(name: str, mutants: list[Mutant], reported: int, share: float) -> None:
    if not mutants:
        write((name, "bold"), ": it has nothing that could be broken")
        return
    totals = Counter((mutant.kind, mutant.stage) for mutant in mutants)
    noticed = Counter((mutant.kind, mutant.stage) for mutant in mutants if mutant.reported)
    rows = [("kind", "stage", "reported", "mutants")]
    rows += [(*key, str(noticed[key]), str(total)) for key, total in totals.items()]
    write_text(columns(rows, right=(2, 3)))
    write()
    for mutant in mutants:
        if not mutant.reported:
            place = f"{mutant.location}: " if str(mutant.location) else ""
            reason = mutant.reason or "not reported, and not known to be equivalent"
            write(f"{place}{mutant.description}, at {mutant.stage}: {reason}")
    style = "bold green" if share >= ENOUGH else "bold red"
    equivalent = sum(mutant.is_equivalent for mutant in mutants)
    write(
        (name, "bold"),
        f": {reported} of {many(len(mutants), 'mutant')} reported, {reported / len(mutants):.1%}; "
        f"{equivalent} are equivalent, so ",
        (f"{share:.1%}", style),
        " of the bugs",
    )


def _to_json(mutant: Mutant) -> dict[str, Any]:
    finding = mutant.finding
    return {
        "kind": mutant.kind,
        "stage": mutant.stage,
        "description": mutant.description,
        "location": mutant.location.to_json(),
        "reported": mutant.reported,
        "finding": finding.to_json() if isinstance(finding, Finding) else finding,
        "reason": mutant.reason,
    }
