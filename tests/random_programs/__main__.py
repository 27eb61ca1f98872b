"""Random programs from the command line: `python -m tests.random_programs --count 50000 --seed 7`.

With `--mutations`: which of them show the bugs that tests/random_programs/mutations plants in passes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.random_programs.coverage import PROGRAMS, Coverage
from tests.random_programs.generator import program
from tests.random_programs.minimize import minimal
from tests.random_programs.oracle import Oracle, OracleError
from tests.random_programs.render import source
from tests.random_programs.runner import Failure, check, run_many
from tests.random_programs.search import RECORD, refresh

CHUNK = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many programs (default 2000)")
    parser.add_argument("--seed", type=int, default=7, help="of the sequence (default 7)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--program", type=int, help="only this one, with its source")
    parser.add_argument(
        "--mutations", action="store_true", help="bring caught_by.txt up to date, and nothing else"
    )
    options = parser.parse_args()
    if options.mutations:
        return _mutations(options.workers)
    if options.program is not None:
        return _one(options.seed, options.program)
    start = time.monotonic()
    coverage = Coverage()
    failures: list[tuple[int, Failure]] = []
    for found, covered in _results(options):
        coverage.merge(Coverage.from_json(covered))
        failures += found
        seconds = time.monotonic() - start
        line = f"{coverage.programs} of {options.count} programs, {len(failures)} failures, {seconds:.0f} s"
        end = "\r" if sys.stderr.isatty() else "\n"
        print(line, end=end, file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(coverage.table())
    missing = coverage.missing()
    if missing:
        print("\nmet too rarely:", *missing, sep="\n  ")
    for number, failure in failures:
        print(f"\nprogram {number} of seed {options.seed}: {failure}")
    if failures:
        _report(options.seed, *failures[0])
    return 1 if failures or (missing and coverage.programs >= PROGRAMS) else 0


def _results(
    options: argparse.Namespace,
) -> Iterator[tuple[list[tuple[int, Failure]], dict[str, object]]]:
    end = options.first + options.count
    chunks = [range(k, min(k + CHUNK, end)) for k in range(options.first, end, CHUNK)]
    if options.workers == 1:
        for chunk in chunks:
            yield run_many(options.seed, chunk)
        return
    with ProcessPoolExecutor(options.workers) as pool:
        yield from pool.map(run_many, [options.seed] * len(chunks), chunks)


def _mutations(workers: int) -> int:
    start = time.monotonic()
    lines = []
    for line in refresh(workers):
        print(line, flush=True)
        lines.append(line)
    print(f"{RECORD.name} is up to date, {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if any(line.startswith("none ") for line in lines) else 0


def _one(seed: int, number: int) -> int:
    made = program(seed, number)
    print(source(made))
    failure = check(made)
    if failure is None:
        print("every pass keeps its result")
        return 0
    _report(seed, number, failure)
    return 1


def _report(seed: int, number: int, failure: Failure) -> None:
    """The smallest program with the same failure, and the IR around the pass."""

    def fails(candidate: object) -> bool:
        try:
            expected = Oracle(candidate).results()  # type: ignore[arg-type]
        except (OracleError, KeyError, ArithmeticError, ValueError):
            return False
        found = check(candidate, expected=expected)  # type: ignore[arg-type]
        return found is not None and (found.stage, found.what) == (failure.stage, failure.what)

    smallest = minimal(program(seed, number), fails)
    final = check(smallest) or failure
    print(f"\nthe smallest program like number {number}:\n\n{source(smallest)}\n{final}")
    print(f"\nbefore {final.stage}:\n{final.before}\nafter:\n{final.after}")


if __name__ == "__main__":
    sys.exit(main())
