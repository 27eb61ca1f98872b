"""Random programs of constant size: the proofs against plain loops over all blocks and workers.

What is wrong is refused, and what is right accepted, but for a few: right at this size, and with no reason
that would hold at others. These are refused as what can't be proved, which is all that the error says.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest

from taskc.ir.mapping import Mapping
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.passes.proofs.coverage import coverage_findings
from taskc.passes.proofs.races import race_findings
from tests.passes.proofs.programs import Case

MAPPINGS = (
    "spatial(4).repeat(2)", "repeat(2).spatial(4)", "spatial(4)", "spatial(2).replicate(2)",
    "spatial(2).replicate(2).repeat(2)", "spatial(4).repeat(2).within(7)",
    "repeat(2).spatial(2).replicate(2)", "spatial(2).repeat(3).spatial(2)",
)  # fmt: skip
INDICES = (
    "row + i", "row + i", "row + i * 2 + p", "row + p * 8 + i", "row * 2 + i", "row + 7 - i", "i",
    "row + (i ^ 1)", "row + i // 2", "(row + i) % {n}", "row + i - 1", "p * 4 + i", "row + i % 4",
    "row + p", "row + i + 8 * p",
)  # fmt: skip
GUARDS = ("row + i < {n}", "i < 4", "i % 2 == p", "p == 0", "row + p * 8 + i < {n}", "i >= 2")
ACCIDENTS = {22, 55, 67, 91, 113, 125, 127, 149, 164, 165, 190, 198, 201, 205, 206, 229, 269, 281, 284, 298,
             304, 366, 382}  # fmt: skip
RACES_BY_ACCIDENT = {247}
FACTS = ("True", "i != 3", "row < 8")


class Program:
    """grid row, loop p, each i: one or two stores under random guards."""

    def __init__(self, seed: int) -> None:
        pick = random.Random(seed)
        self.n = pick.choice((1, 4, 7, 8, 12, 13, 16))
        self.by = pick.choice((2, 4, 6, 8))
        self.span = pick.choice((self.n, self.n, 8, 5))
        self.steps = pick.choice((1, 1, 2))
        self.mapping = pick.choice(MAPPINGS)
        self.stores = []
        for _ in range(pick.choice((1, 1, 2))):
            guards = pick.sample(GUARDS + FACTS, pick.choice((0, 1, 1, 2)))
            guards = ["0 <= {index} and {index} < {n}" if pick.random() < 0.7 else "True", *guards]
            index = pick.choice(INDICES).format(n=self.n)
            self.stores.append((index, " and ".join(guards).format(n=self.n, index=index)))
        self.read = pick.choice(("0.0", "0.0", "s[i]", "s[(i + 1) % 8]"))

    @property
    def text(self) -> str:
        lines = [
            "shared s: f32[8]",
            f"grid row in {self.span} by {self.by}:",
            f"    for p in range(0, {self.steps}, 1):",
            f"        each i in {self.mapping}:",
        ]
        for index, guard in self.stores:
            # Unguarded indices may leave the tensor: that is for the bounds to say.
            lines += [f"            if {guard}:", f"                c[{index}] = {self.read}"]
        lines.append("            s[i % 8] = 1.0")
        return "\n".join(lines)

    def runs(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """(block, step, worker, task, store, element), by plain Python."""
        mapping = Mapping.parse(self.mapping)
        codes = [(compile(i, "", "eval"), compile(g, "", "eval")) for i, g in self.stores]
        for row, p in product(range(0, self.span, self.by), range(self.steps)):
            for worker in range(mapping.workers):
                for (i,) in mapping(worker):
                    if mapping.owner((i,))[0] != worker:
                        continue
                    for number, (index, guard) in enumerate(codes):
                        names = {"row": row, "p": p, "i": i}
                        if eval(guard, names):
                            yield row, p, worker, i, number, eval(index, names)


@pytest.mark.parametrize("seed", range(400))
def test_coverage_and_bounds(seed: int) -> None:
    program = Program(seed)
    found = collect(Case("", f"c: out f32[{program.n}]", program.text).kernel())
    elements = [run[-1] for run in program.runs()]
    counts = Counter(element for element in elements if 0 <= element < program.n)
    covered = all(counts[element] == 1 for element in range(program.n))
    errors = [str(error) for error in coverage_findings(found)]
    by_accident = seed in ACCIDENTS and covered and "can't prove" in "".join(errors)
    assert covered == (not errors) or by_accident, program.text + "\n" + "\n".join(errors)
    inside = all(0 <= element < program.n for element in elements)
    outside = [e for e in bounds_findings(found) if "`s`" not in e.message]
    by_accident = seed in ACCIDENTS and inside and "can't prove" in "".join(map(str, outside))
    assert inside == (not outside) or by_accident, (
        program.text + "\n" + "\n".join(map(str, outside))
    )


@pytest.mark.parametrize("seed", range(400))
def test_races(seed: int) -> None:
    program = Program(seed)
    found = collect(Case("", f"c: inout f32[{program.n}]", program.text).kernel())
    phases: dict[tuple[int, int, int], set[int]] = {}
    blocks: dict[int, set[int]] = {}
    for row, p, worker, _, _, element in program.runs():
        phases.setdefault((row, p, element), set()).add(worker)
        blocks.setdefault(element, set()).add(row)
    raced = any(len(workers) > 1 for workers in phases.values())
    raced = raced or any(len(rows) > 1 for rows in blocks.values())
    errors = [
        str(error) for error in race_findings(found) if "`c`" in str(error) or "c[" in error.message
    ]
    by_accident = seed in RACES_BY_ACCIDENT and "can't prove" in errors[0]
    assert raced == bool(errors) or by_accident, program.text + "\n" + "\n".join(errors)
