"""Abuse from the command line: `python -m tests.abuse --workers 2`, or one part: `--part mappings --count 20000`.

Cases run a chunk at a time in processes of their own, which say which case they are at: a crash or a hang is laid
to that case, and the chunk goes on behind it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.abuse import calls, files, mutants, problems


@dataclass(frozen=True)
class Part:
    """What runs case number k and says how many cases that were; how many k there are; how many to a process."""

    run: Callable[[int], int]
    count: int
    chunk: int = 250


PARTS = {
    "calls": Part(calls.run_case, 2000, 50),
    "templates": Part(problems.run_problem, 2000, 50),
    "sources": Part(mutants.run_mutant_of_a_source, 20_000),
    "texts": Part(mutants.run_mutant_of_a_text, 20_000),
    "mappings": Part(mutants.run_mutant_of_a_mapping, 20_000, 2000),
    "rows": Part(files.run_mutant_of_a_row, 10_000, 1000),
    "databases": Part(files.run_hostile_database, 10_000, 1000),
    "commands": Part(mutants.run_mutant_of_a_command, 20_000),
}
SECONDS = 20  # for a case


class TooLongError(Exception):
    pass


def run_here(part: Part, first: int, count: int, place: Path) -> None:
    """The cases in this process: a line for each that is wrong, and in the end how many there were."""

    def on_alarm(*_: object) -> None:
        raise TooLongError(f"longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, on_alarm)
    cases = 0
    for number in range(first, first + count):
        place.write_text(str(number), encoding="ascii")
        signal.alarm(SECONDS)
        try:
            cases += part.run(number)
        except Exception as error:
            cases += 1
            if not mutants.is_meant(error) or part.run in (calls.run_case, problems.run_problem):
                signal.alarm(0)
                frames = traceback.format_exc(limit=-4)
                print(f"WRONG {number}: {frames}", flush=True)
        signal.alarm(0)
    print(f"CASES {cases}", flush=True)


def run_apart(name: str, first: int, count: int) -> Iterator[tuple[int, list[str]]]:
    """The cases in processes of their own: how many there were, and what was wrong."""
    end = first + count
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "number")
        while first < end:
            command = [sys.executable, "-m", "tests.abuse", "--child", str(place), "--part", name]
            command += ["--first", str(first), "--count", str(end - first)]
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=(end - first) * SECONDS,
                )
                out, how = done.stdout, f"exit {done.returncode}: {done.stderr[-2000:]}"
            except subprocess.TimeoutExpired as error:
                out, how = (error.stdout or b"").decode(errors="replace"), "hang"
            wrong = ["WRONG " + text for text in out.split("WRONG ")[1:]]
            if "CASES " in out:
                yield int(out.rpartition("CASES ")[2].split()[0]), wrong
                return
            at = int(place.read_text(encoding="ascii")) if place.exists() else first
            yield at - first + 1, [*wrong, f"WRONG {at}: {how}"]
            first = at + 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="one of them (default: all)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--count", type=int, help="how many (default: as each part says)")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_here(PARTS[options.part], options.first, options.count, options.child)
        return 0
    os.environ["TASKC_THREADS"] = "1"
    failures = 0
    for name in [options.part] if options.part else PARTS:
        part = PARTS[name]
        end = options.first + (options.count or part.count)
        chunks = [(k, min(part.chunk, end - k)) for k in range(options.first, end, part.chunk)]
        start, cases = time.monotonic(), 0
        with ThreadPoolExecutor(options.workers) as pool:
            for found in pool.map(lambda chunk, name=name: list(run_apart(name, *chunk)), chunks):
                for count, wrong in found:
                    cases += count
                    failures += len(wrong)
                    print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
        print(f"{name}: {cases} cases, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
