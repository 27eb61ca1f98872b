"""The results of a run: findings and memory traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from taskc.errors import NOWHERE, Finding, Location, Notes, Severity


@dataclass(frozen=True, slots=True)
class Traffic:
    """Memory traffic of one access of the program, at its worst warp.

    ways     of a SHARED tensor: into how many accesses bank conflicts split the best possible one
    sectors  of a GLOBAL tensor: 32-byte sectors that a request touches
    ideal    how few sectors could hold what it asks for
    is_full  whether that request was one of a whole warp
    advice   what would make it better, if that is known
    kind     "load", "store" or "copy", an asynchronous one by each worker
    total    of all requests: the sectors of a GLOBAL tensor, the accesses that conflicts add of a SHARED one
    """

    tensor: str
    scope: str
    location: Location
    ways: int = 1
    sectors: int = 0
    ideal: int = 0
    is_full: bool = False
    advice: str = ""
    kind: str = "load"
    total: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """findings       errors and warnings, each kind once for each place
    accesses       memory statistics, if requested; from stage synchronized on
    shared_bytes   shared memory of a block
    register_bytes registers of tiles and scalars, for each worker
    """

    findings: tuple[Finding, ...]
    accesses: tuple[Traffic, ...] = ()
    shared_bytes: int = 0
    register_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings don't count."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "no findings"


class Located(Protocol):
    """A node with a location in the program."""

    @property
    def loc(self) -> Location: ...


class Enough(Exception):  # noqa: N818 (it is no error of the simulator's)
    """The error at which the run was to end has been found."""


class Findings:
    """Collects findings: one for each kind and place, with the number of times it was seen."""

    def __init__(self, stop_at: int, *, until_error: bool = False) -> None:
        self.stop_at = stop_at
        self.until_error = until_error
        self._found: dict[object, Finding] = {}
        self._counts: dict[object, int] = {}

    def add(
        self,
        kind: str,
        message: str,
        location: Location = NOWHERE,
        *,
        count: int = 1,
        details: tuple[tuple[str, str | int], ...] = (),
        notes: Notes = (),
        severity: Severity = "error",
        where: object = None,
    ) -> None:
        """Add a finding; `where` distinguishes places that have no location."""
        key = (kind, location if location.line else where)
        if key in self._found:
            self._counts[key] += count
        elif len(self._found) < self.stop_at:
            self._found[key] = Finding(kind, severity, message, location, details, notes)
            self._counts[key] = count
            if self.until_error and severity == "error":
                raise Enough

    def result(self) -> tuple[Finding, ...]:
        return tuple(
            replace(finding, details=(*finding.details, ("count", self._counts[key])))
            for key, finding in self._found.items()
        )
