"""Which random program shows which planted bug: found by search, kept in a file, asked by the tests.

`caught_by.txt` has a line for each mutation: the number of the first program that shows it. Where a
change of the generator, or of a pass, moves one, `python -m tests.random_programs --mutations` looks again
for those lines that hold no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from sys import modules

from taskc.ir import nodes as ir
from taskc.ir.compare import same_program
from taskc.passes.pipeline import PASSES
from tests.random_programs.generator import program
from tests.random_programs.mutations import MUTATIONS, Mutation
from tests.random_programs.oracle import Oracle
from tests.random_programs.runner import check_kernel, parsed, small_machine, steps

SEED = 7
MOST = 2000
CHUNK = 8
RECORD = Path(__file__).parent / "caught_by.txt"
REFRESH = "python -m tests.random_programs --mutations --workers 2"

_RUN = {one.name: one.run for one in PASSES}
_BY_NAME = {str(mutation): mutation for mutation in MUTATIONS}


class Example:
    """A random program, its results, and what each right pass makes of which kernel."""

    def __init__(self, number: int) -> None:
        self.made = program(SEED, number)
        self.expected = Oracle(self.made).results()
        self.pairs: list[tuple[str, ir.Kernel, ir.Kernel]] = []
        kernel = parsed(self.made)
        for stage, after in steps(kernel):
            if stage != "parse":
                self.pairs.append((stage, kernel, after))
            kernel = after

    def wrong(self, stage: str) -> str | None:
        """What is wrong with what the right pass makes; nothing, if all is well."""
        for name, _, after in self.pairs:
            if name == stage:
                found = self._checked(stage, after)
                if found is not None:
                    return found
        return None

    def symptom(self, mutation: Mutation) -> str | None:
        """What the planted bug does to the program: an error, a finding or another result."""
        for name, before, after in self.pairs:
            if name != mutation.stage:
                continue
            with mutation.planted(), small_machine():
                run = getattr(modules[_RUN[name].__module__], name)  # it may be what is wrong
                try:
                    changed = run(before)
                except (TypeError, AttributeError, NameError) as error:
                    raise RuntimeError(f"{mutation}: it doesn't fit what it replaces") from error
                except Exception as error:  # of any other kind: so a wrong pass may end
                    return f"error: {type(error).__name__}: {error}"
            if same_program(changed, after):
                continue
            found = self._checked(name, changed)
            if found is not None:
                return found
        return None

    def _checked(self, stage: str, kernel: ir.Kernel) -> str | None:
        try:
            found = check_kernel(self.made, stage, kernel, self.expected)
        except Exception as error:  # of any kind: the simulator says so of what it can't run
            return f"error: {type(error).__name__}: {error}"
        return None if found is None else ": ".join(found)


@lru_cache(maxsize=16)
def example(number: int) -> Example:
    return Example(number)


# --- the record ------------------------------------------------------------------------------


def recorded() -> dict[str, int]:
    """The number of the program that shows each mutation, by the mutation's name."""
    found = {}
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        number, _, name = line.strip().partition(" ")
        found[name] = int(number)
    return found


def write(record: dict[str, int]) -> None:
    lines = [f"{record[str(m)]:5} {m}\n" for m in MUTATIONS if str(m) in record]
    RECORD.write_text("".join(lines), encoding="utf-8", newline="\n")


def caught(number: int, names: Sequence[str]) -> list[str]:
    """Those of the mutations that this program shows."""
    return [name for name in names if example(number).symptom(_BY_NAME[name]) is not None]


def _caught_in(numbers: Iterable[int], names: Sequence[str]) -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for number in numbers:
        missing = [name for name in names if name not in found]
        found |= dict.fromkeys(caught(number, missing), number)
    return list(found.items())


def stale(record: dict[str, int], pool: ProcessPoolExecutor) -> list[str]:
    """The mutations that have no line, or whose program does not show them."""
    by_number: dict[int, list[str]] = {}
    for name, number in record.items():
        if name in _BY_NAME:
            by_number.setdefault(number, []).append(name)
    shown = pool.map(caught, list(by_number), list(by_number.values()))
    held = {name for names in shown for name in names}
    return [name for name in _BY_NAME if name not in held]


def search(
    names: Sequence[str], pool: ProcessPoolExecutor, width: int
) -> Iterator[tuple[str, int]]:
    """For each mutation the first program that shows it, as they are found."""
    missing = list(names)
    chunks = iter([range(k, min(k + CHUNK, MOST)) for k in range(0, MOST, CHUNK)])
    ahead: list[Future[list[tuple[str, int]]]] = []
    while missing:
        for chunk in islice(chunks, width + 1 - len(ahead)):
            ahead.append(pool.submit(_caught_in, chunk, tuple(missing)))
        if not ahead:
            return
        for name, number in ahead.pop(0).result():
            if name in missing:
                missing.remove(name)
                yield name, number


def refresh(workers: int) -> Iterator[str]:
    """Brings the record up to date, and tells what changed; at last, what no program shows."""
    record = recorded() if RECORD.exists() else {}
    with ProcessPoolExecutor(workers) as pool:
        names = stale(record, pool)
        record = {name: number for name, number in record.items() if name not in names}
        write(record)
        for name, number in search(names, pool, workers):
            record[name] = number
            write(record)
            yield f"program {number} shows {name}"
    for name in names:
        if name not in record:
            yield f"none of {MOST} programs shows {name}"
