"""How many small breaks of the examples' kernels and programs, convolutions and attentions the checker reports.

    python benchmarks/mutants.py [--quick] [--json FILE]

`--quick` takes the examples alone, for the target generic. Survivors are listed with the reason why they
are no bugs.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from mutants_attention import attentions, inputs_of_attention
from mutants_convolutions import convolutions, two_processors
from report import parse_options

from taskc.ir.nodes import Kernel
from taskc.lang.definition import Definition
from taskc.mutation import inputs_of, mutate
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Program, map_kernels
from taskc.runtime.driver import scheduled

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def definitions() -> list[tuple[str, Definition]]:
    found = []
    for path in EXAMPLES:
        specification = importlib.util.spec_from_file_location(path.stem, path)
        assert specification is not None
        assert specification.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        found += [
            (f"{path.stem}:{name}", it)
            for name, it in vars(module).items()
            if isinstance(it, Definition)
        ]
    return found


def lowered(definition: Definition, target: str) -> Kernel | Program:
    """The kernel, or the program with kernels for its computations."""
    if isinstance(definition, ProgramDefinition):
        return scheduled(definition, target)[0]
    return definition.ir


def on(target: str, mutated: Kernel | Program) -> Kernel | Program:
    if isinstance(mutated, Program):
        return map_kernels(mutated, lambda kernel: replace(kernel, target=target))
    return replace(mutated, target=target)


Case: TypeAlias = "tuple[str, Definition, str]"


def cases(*, quick: bool) -> Iterator[tuple[Case, list[Sequence[Any]]]]:
    """The definitions to break, each with its target and inputs."""
    for name, definition in definitions():
        for target in ("generic",) if quick else ("generic", "sm_80", "sm_90a"):
            yield (name, definition, target), inputs_of(definition)
    if not quick:
        with two_processors():
            yield from ((case, inputs_of(case[1])) for case in convolutions())
            yield from ((case, inputs_of_attention(case[1])) for case in attentions())


def main() -> None:
    options = parse_options(__doc__ or "")
    totals: Counter[str] = Counter()
    rows = []
    for (name, definition, target), inputs in cases(quick=options.quick):
        mutants = list(mutate(on(target, lowered(definition, target)), inputs))
        survivors = [m for m in mutants if not m.reported]
        print(f"{name:36} {target:8} {len(mutants) - len(survivors):4} of {len(mutants):4}")
        for m in survivors:
            reason = m.reason or "NOT EXPLAINED"
            print(f"    {m.location}: {m.description}, at {m.stage}: {reason}")
        totals["mutants"] += len(mutants)
        totals["reported"] += len(mutants) - len(survivors)
        totals["equivalent"] += sum(m.is_equivalent for m in survivors)
        rows.append(
            {"case": name, "target": target, "mutants": len(mutants), "survivors": len(survivors)}
        )
    share = totals["reported"] / totals["mutants"]
    print(f"{totals['reported']} of {totals['mutants']} reported ({share:.1%});", end=" ")
    print(f"{totals['equivalent']} of the rest are equivalent")
    if options.json is not None:
        options.json.write_text(json.dumps({"totals": totals, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
