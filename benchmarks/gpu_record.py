"""The output of `gpu.py`: on the terminal, in a log, and in a file of rows, which is complete after each row."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from threading import Lock
from typing import Any

from gpu_jobs import OUT_OF_TIME, line_of
from report import write

Job = dict[str, Any]

_INTERNAL = ("family", "size", "fatal", "broken")


class Record:
    """rows  of jobs that were done, in order"""

    def __init__(self, file: Path, machine: str, log: Path | None = None) -> None:
        self.file = file
        self.machine = machine
        self.rows: list[Job] = []
        self._lock = Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        self._log = log or file.with_suffix(".log")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("")

    def say(self, text: str) -> None:
        print(text, flush=True)
        with self._log.open("a") as log:
            log.write(f"{text}\n")

    def note(self, row: Job) -> None:
        """A job is done. What is known so far stays, whatever happens to this process."""
        with self._lock:
            self.say(line_of(row))
            self.rows.append(row)
            write(self.file, self.machine, [_shown(row) for row in self.rows])

    def finish(self) -> bool:
        """Says what it all comes to; whether everything was done, and was right."""
        failed = [row for row in self.rows if "error" in row]
        left_out = [row for row in self.rows if "left_out" in row]
        for line in summary(self.rows):
            self.say(line)
        late = [row for row in left_out if row["left_out"] == OUT_OF_TIME]
        others = [row for row in left_out if row["left_out"] != OUT_OF_TIME]
        for rows, why in ((late, "for want of time"), (others, "for what went wrong before")):
            for kind, families in _counted(rows).items():
                listed = ", ".join(f"{family} ({count})" for family, count in families.items())
                self.say(f"left out of {kind}, {why}: {listed}")
        right = len(self.rows) - len(failed) - len(left_out)
        self.say(f"{right} of {len(self.rows)} are right, {len(failed)} failed; {self.file}")
        return right == len(self.rows)


def _shown(row: Job) -> Job:
    kept = {key: value for key, value in row.items() if key not in _INTERNAL}
    return {"benchmark": row["family"], **kept}


def _counted(rows: list[Job]) -> dict[str, dict[str, int]]:
    """How many rows there are of each family, by what was to be done."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        families = found.setdefault(row["kind"], {})
        families[row["family"]] = families.get(row["family"], 0) + 1
    return found


def summary(rows: list[Job]) -> list[str]:
    """For each benchmark that has a peer, and for all."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.get("ratio"):
            ratios.setdefault(row["family"], []).append(row["ratio"])
    if not ratios:
        return []
    lines = [f"{name:28} {_of(found)}" for name, found in ratios.items()]
    return [*lines, f"{'all':28} {_of([ratio for found in ratios.values() for ratio in found])}"]


def _of(ratios: list[float]) -> str:
    losses = sum(ratio < 1 for ratio in ratios)
    return f"minimum {min(ratios):.2f}, geometric mean {geometric_mean(ratios):.2f}, {losses} losses of {len(ratios)}"
