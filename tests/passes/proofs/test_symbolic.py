"""Random programs of symbolic sizes: what is proved for all sizes holds for each of the small ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from taskc.errors import CompileError
from taskc.ir.mapping import Mapping
from taskc.passes.proofs.accesses import collect
from taskc.passes.proofs.bounds import bounds_findings
from taskc.passes.proofs.coverage import coverage_findings
from taskc.passes.proofs.races import race_findings
from tests.passes.proofs.programs import Case, cases, check

MAPPINGS = (
    ("spatial(2, 2)", (2, 2)), ("spatial(2, 1).repeat(1, 2)", (2, 2)),
    ("repeat(2, 1).spatial(1, 4)", (2, 4)), ("spatial(2, 2)", (2, 4)), ("spatial(2, 2)", (1, 2)),
)  # fmt: skip
# Programs that are right: extent, tiles, place, guards. One of these is then changed, maybe.
RIGHT = (
    ("m * n", "m, n", "(row + i) * n + col + j", "row + i < m and col + j < n"),
    ("m * n", "m, n", "(col + j) * m + row + i", "row + i < m and col + j < n"),
    ("m * n", "m, n", "row * n + i * n + col + j", "row + i < m and col + j < n"),
    ("2 * m", "m, 2", "2 * (row + i) + col + j", "row + i < m and col + j < 2"),
    ("m * n * 2", "m, n", "((row + i) * n + col + j) * 2 + {r}", "row + i < m and col + j < n"),
    ("2 * m * n", "m, n", "2 * n * (row + i) + 2 * (col + j) + {r}", "row + i < m and col + j < n"),
    ("m", "(m + 1) // 2, 1", "2 * (row + i) + {r}", "2 * (row + i) + {r} < m and col + j < 1"),
)  # fmt: skip
EXTENTS = ("m * n", "n * m", "2 * m", "m", "m * n + 1", "m * 3")
TILES = ("m, n", "n, m", "m, 1", "m, 4")
PLACES = (
    "(row + i) * m + col + j", "(row + i) * n + n - 1 - col - j", "row + i", "3 * (row + i) + j",
    "(row + i) * n + 2 * (col + j) + {r}", "(row + i) * n + col", "2 * (row + i) + {r}",
)  # fmt: skip
SIZES = ((0, 3), (1, 1), (1, 4), (3, 1), (2, 5), (3, 3), (4, 2), (5, 4))
GUARDS = (
    "row + i < m", "col + j < n", "{place} < {extent}", "row + i < m and {place} < {extent}",
    "row + i < m and col + j < m", "row + i < m and col + j <= n",
)  # fmt: skip


class Program:
    """grid (row, col), each (i, j): one or two guarded stores."""

    def __init__(self, seed: int, role: str) -> None:
        pick = random.Random(seed)
        self.role = role
        self.extent, self.tiles, place, guard = pick.choice(RIGHT)
        change = pick.choice(("", "extent", "tiles", "place", "guard"))
        self.extent = pick.choice(EXTENTS) if change == "extent" else self.extent
        self.tiles = pick.choice(TILES) if change == "tiles" else self.tiles
        place = pick.choice(PLACES) if change == "place" else place
        guard = pick.choice(GUARDS) if change == "guard" else guard
        self.mapping, self.by = pick.choice(MAPPINGS[: 5 if pick.random() < 0.2 else 3])
        self.stores = []
        for r in (0, 1) if "{r}" in place and pick.random() < 0.8 else (0,):
            own = place.format(r=r)
            self.stores.append((own, guard.format(r=r, place=own, extent=self.extent)))

    @property
    def case(self) -> Case:
        lines = [f"grid (row, col) in ({self.tiles}) by {self.by}:"]
        lines += [f"    each (i, j) in {self.mapping}:"]
        for place, guard in self.stores:
            lines += [f"        if {guard}:", f"            c[{place}] = 1.0"]
        parameters = f"c: {self.role} f32[{self.extent}]"
        return Case("", parameters, "\n".join(lines), dimensions="m, n")

    def runs(self, m: int, n: int) -> Iterator[tuple[Any, int]]:
        """Who (block and worker) stores which element."""
        mapping = Mapping.parse(self.mapping)
        codes = [[compile(text, "", "eval") for text in store] for store in self.stores]
        names: dict[str, Any] = {"m": m, "n": n}
        rows, cols = eval(self.tiles, {}, names)
        for row, col in product(range(0, rows, self.by[0]), range(0, cols, self.by[1])):
            for worker in range(mapping.workers):
                for i, j in mapping(worker):
                    names |= {"row": row, "col": col, "i": i, "j": j}
                    for place, guard in codes:
                        if eval(guard, {}, names):
                            yield (row, col, worker), eval(place, {}, names)


Prover = Callable[[Any], Any]


def errors_of(program: Program, prover: Prover) -> list[CompileError]:
    return list(prover(collect(program.case.kernel())))


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 240), marks=pytest.mark.sweep)], ids=["few", "more"]
)
def test_what_is_proved_for_all_sizes_holds_for_small_ones(seeds: range) -> None:
    proved = Counter[str]()
    for seed in seeds:
        stored, updated = Program(seed, "out"), Program(seed, "inout")
        covered = not errors_of(stored, coverage_findings)
        inside = not errors_of(stored, bounds_findings)
        apart = not errors_of(updated, race_findings)
        proved.update(covered=covered, inside=inside, apart=apart)
        for m, n in SIZES if covered or inside or apart else ():
            extent = eval(stored.extent, {"m": m, "n": n})
            runs = list(stored.runs(m, n))
            counts = Counter(element for _, element in runs if 0 <= element < extent)
            where = f"{stored.case.text}\nm = {m}, n = {n}"
            if covered:
                assert all(counts[element] == 1 for element in range(extent)), where
            if inside:
                assert all(0 <= element < extent for _, element in runs), where
            if apart:
                owners: dict[int, set[Any]] = {}
                for who, element in runs:
                    owners.setdefault(element, set()).add(who)
                assert all(
                    len(each) == 1 for place, each in owners.items() if 0 <= place < extent
                ), where
    assert min(proved.values()) > len(seeds) // 8, proved


FLAT = """
grid (row, col) in (m, n) by (4, 8):
    each (i, j) in spatial(1, 4).repeat(4, 2):
        if row + i < m and col + j < n:
            c[{}] = 1.0
"""
CANT = "can't prove that every element of `c` is stored exactly once: "


@cases(
    Case(
        "row-major", "c: out f32[m * n]", FLAT.format("(row + i) * n + col + j"),
        dimensions="m, n",
    ),
    Case(
        "column-major", "c: out f32[m * n]", FLAT.format("(col + j) * m + row + i"),
        dimensions="m, n",
    ),
    Case(
        "with a name in between", "c: out f32[m * n]",
        """
        grid (row, col) in (m, n) by (4, 8):
            each (i, j) in spatial(1, 4).repeat(4, 2):
                let x = row + i
                let start = x * n
                if x < m and col + j < n:
                    c[start + col + j] = 1.0
        """,
        dimensions="m, n",
    ),
    Case(
        "the stride of another dimension", "c: out f32[m * n]",
        FLAT.format("(row + i) * m + col + j"),
        CANT + "elements where `row + i < m` does not hold are not stored", "c[(", "tc.inout",
        dimensions="m, n",
    ),
    Case(
        "columns that run into the next row", "c: out f32[m * n]",
        """
        grid (row, col) in (m, n) by (4, 8):
            each (i, j) in spatial(1, 4).repeat(4, 2):
                if row + i < m and (row + i) * n + col + j < m * n:
                    c[(row + i) * n + col + j] = 1.0
        """,
        CANT + "elements where `row + i < m` does not hold are not stored", "c[(",
        dimensions="m, n",
    ),
    Case(
        "in three parts", "c: out f32[m * n * p]",
        """
        grid (row, col) in (m, n) by (1, 1):
            each q in repeat(2).spatial(4):
                for r in range(0, p, 8):
                    if r + q < p:
                        c[(row * n + col) * p + r + q] = 1.0
        """,
        dimensions="m, n, p",
    ),
    Case(
        "real and imaginary parts", "c: out f32[2 * m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                if row + i < m:
                    c[2 * (row + i)] = 1.0
                    c[2 * (row + i) + 1] = 2.0
        """,
        dimensions="m",
    ),
    Case(
        "even and odd elements of any number", "c: out f32[m]",
        """
        grid row in (m + 1) // 2 by 4:
            each i in spatial(4):
                if 2 * (row + i) < m:
                    c[2 * (row + i)] = 1.0
                if 2 * (row + i) + 1 < m:
                    c[2 * (row + i) + 1] = 2.0
        """,
        dimensions="m",
    ),
    Case(
        "even and odd elements, but the last", "c: out f32[m]",
        """
        grid row in m // 2 by 4:
            each i in spatial(4):
                if row + i < m // 2:
                    c[2 * (row + i)] = 1.0
                    c[2 * (row + i) + 1] = 2.0
        """,
CANT + "elements where `row + i < m // 2` does not hold are not stored", "c[2 * (row + i)] = 1", dimensions="m",
    ),
    Case(
        "real parts alone", "c: out f32[2 * m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                if row + i < m:
                    c[2 * (row + i)] = 1.0
        """,
        "c[1] is never stored", "c[2", dimensions="m",
    ),
    Case(
        "two halves", "c: out f32[m]",
        """
        grid row in m // 2 by 4:
            each i in spatial(4):
                if row + i < m // 2:
                    c[row + i] = 1.0
                    c[row + i + m // 2] = 2.0
        """,
        dimensions="m multiple=2",
    ),
    Case(
        "two halves of an odd number", "c: out f32[m]",
        """
        grid row in m // 2 by 4:
            each i in spatial(4):
                if row + i < m // 2:
                    c[row + i] = 1.0
                    c[row + i + m // 2] = 2.0
        """,
        CANT + "elements where `row + i < m // 2` does not hold are not stored", "c[row + i] =",
        dimensions="m",
    ),
    Case(
        "the second half twice", "c: out f32[m]",
        """
        grid row in m // 2 by 4:
            each i in spatial(4):
                if row + i < m // 2:
                    c[row + i + m // 2] = 1.0
                    c[row + i + m // 2] = 2.0
        """,
        CANT + "index `row + i + m // 2` is not a sum of loop variables",
        "c[row + i + m // 2] = 1", dimensions="m multiple=2",
    ),
    Case(
        "real parts twice", "c: out f32[2 * m]",
        """
        grid row in m by 4:
            each i in spatial(4):
                if row + i < m:
                    c[2 * (row + i)] = 1.0
                    c[2 * (row + i) + 1] = 1.0
                    c[2 * (row + i)] = 2.0
        """,
        "c[0] is stored twice", "c[2 * (row + i)] = 2", dimensions="m",
    ),
)  # fmt: skip
def test_flattened_outputs(case: Case) -> None:
    check(case, coverage_findings)


@cases(
    Case("row-major", "c: inout f32[m * n]", FLAT.format("(row + i) * n + col + j"), dimensions="m, n"),
    Case(
        "the stride of another dimension", "c: inout f32[m * n]",
        FLAT.format("(row + i) * m + col + j"),
        "can't prove that two workers never meet at one element of `c`, which this writes", "c[(",
        dimensions="m, n",
    ),
)  # fmt: skip
def test_flattened_updates(case: Case) -> None:
    errors = list(race_findings(collect(case.kernel())))
    assert bool(errors) == (case.message is not None)
    assert case.message in (None, *(error.message for error in errors))
