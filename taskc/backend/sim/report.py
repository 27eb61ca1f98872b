"""The results of a run: findings, and memory traffic.

Traffic is bank conflicts of SHARED tensors, and sectors of GLOBAL ones. Advice on slow accesses is given only if it
helps when applied to the recorded requests.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Protocol

import numpy as np

from taskc.analysis.coalescing import bank_cycles, swizzled
from taskc.backend.sim.memory import Array
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, Finding, Location, Notes, Severity
from taskc.ir import nodes as ir
from taskc.ir.mapping import repeat
from taskc.ir.rewrite import walk


@dataclass(frozen=True, slots=True)
class AccessTraffic:
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
    accesses: tuple[AccessTraffic, ...] = ()
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


class FindingList:
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


# --- Traffic --------------------------------------------------------------------------------------


BANKS = 32
SECTOR = 32  # bytes
PADDINGS = range(1, 9)  # elements
MOST_REQUESTS = 256  # kinds of requests recorded for one place; beyond that, some are unknown


@dataclass(slots=True)
class Request:
    """A warp's access to shared memory: each lane's first element in the layout, -1 for an inactive lane."""

    offsets: Array
    elements: int  # consecutive elements of each lane
    _cost: tuple[int, int] | None = None

    def cost(self, tensor: ir.Tensor) -> tuple[int, int]:
        """The number of ways, and the accesses that bank conflicts add to the minimum."""
        if self._cost is None:
            parts = self._parts(tensor, 0)
            self._cost = max(parts, default=1), sum(parts) - len(parts)
        return self._cost

    def ways(self, tensor: ir.Tensor, padding: int = 0) -> int:
        """The most distinct words of one bank, among lanes that are served at the same time."""
        return max(self._parts(tensor, padding), default=1)

    def _parts(self, tensor: ir.Tensor, padding: int) -> list[int]:
        """The count of these words for each group of lanes served at the same time."""
        offsets = self.offsets
        if padding:
            offsets = offsets + offsets // _pitch(tensor) * padding
        size = tensor.dtype.nbytes
        addresses = swizzled(tensor.swizzle, offsets) * size + (tensor.offset or 0)
        active = self.offsets >= 0
        cycles = bank_cycles(addresses[:, None], self.elements * size, BANKS, active)
        return [int(count) for count in cycles[cycles > 0]]


@dataclass(slots=True)
class SiteTraffic:
    """The traffic of one place: its worst request, their total, and the kinds of requests to SHARED memory."""

    tensor: ir.Tensor
    worst: AccessTraffic
    total: int = 0
    requests: dict[bytes, Request] = field(default_factory=dict)

    def request(self, key: bytes, offsets: Array, elements: int) -> Request:
        request = self.requests.get(key)
        if request is None:
            request = Request(offsets, elements)
            if len(self.requests) < MOST_REQUESTS:
                self.requests[key] = request
        return request


def against_conflicts(
    kernel: ir.Kernel, tensor: ir.Tensor, here: list[Request], everywhere: list[Request]
) -> str:
    """Advice to lengthen rows, if that removes the conflicts here and makes no other access of the tensor worse."""
    shape = tensor.shape if tensor.layout is None else tensor.layout.shape
    plain = tensor.layout is None or tensor.layout == repeat(*tensor.layout.shape)
    if tensor.constant or tensor.swizzle is not None or not plain or len(shape) < 2:
        return ""
    step = _unit(kernel, tensor)
    if not step or len(here) >= MOST_REQUESTS:
        return ""
    step = max([step, *(request.elements for request in everywhere)])
    before = [request.ways(tensor) for request in everywhere]
    for padding in PADDINGS:
        if padding % step or any(request.ways(tensor, padding) > 1 for request in here):
            continue
        after = [request.ways(tensor, padding) for request in everywhere]
        if all(new <= old for new, old in zip(after, before, strict=True)):
            rows = ", ".join(map(str, (*shape[:-1], _pitch(tensor) + padding)))
            return (
                f"rows of {_pitch(tensor) + padding} elements have no conflict here:"
                f" .laid(repeat({rows}))"
            )
    return ""


def against_sectors(tensor: ir.Tensor, shape: tuple[int, ...], offsets: Array) -> str:
    """Advice on the dimension in which neighbouring workers should differ, if all of them differ in another one."""
    steps = np.unique(np.diff(offsets))
    if tensor.layout is not None or steps.size != 1 or len(shape) < 2:
        return ""
    places = np.diff(np.stack(np.unravel_index(offsets[:2], shape)), axis=1)[:, 0]
    (moved,) = np.nonzero(places)
    if moved.size != 1 or moved[0] == len(shape) - 1:
        return ""
    apart = abs(int(steps[0]))
    return (
        f"neighbouring workers differ in dimension {moved[0]} of {tensor.name}, whose elements lie"
        f" {apart} apart; let them differ in the last one"
    )


def _pitch(tensor: ir.Tensor) -> int:
    extent = tensor.shape[-1] if tensor.layout is None else tensor.layout.shape[-1]
    assert isinstance(extent, int)
    return extent


def _unit(kernel: ir.Kernel, tensor: ir.Tensor) -> int:
    """The number that row lengths must be a multiple of for the target's operations; 0 if rows can't change."""
    unit = 1
    for node in walk(kernel.body):
        if isinstance(node, ir.Do) and any(
            isinstance(place, ir.Address) and place.tensor is tensor for place in node.operands
        ):
            count = node.operands[2] if node.operation == "cp.async" else None
            if not isinstance(count, ir.Constant):
                return 0
            unit = max(unit, int(count.value))
    return unit
