"""A watchdog for bring-up: a kernel that hangs reports the barriers that it waits at, and ends.

With it, each turn of a wait reads the device's clock. After too long without any new wait, the first thread at each
wait writes its block, its warp, the barrier and the phase to the CPU's memory. Some seconds later the kernel traps:
the launch fails with an error that names all such waits, instead of hanging. There are mostly two waits, since a
worker that waits in vain makes others wait. Unwatched code has no extra instruction: `spins` of instructions.cuh is
empty.
"""

from __future__ import annotations

import ctypes

from taskc.dataclass import dataclass

_RECORDS = 16  # records of waits; later waits share these
_RECORD = ctypes.c_uint32 * 5  # a flag that it is filled, block, warp, wait and place, phase
WORDS = 5 * _RECORDS
_SLOTS = 256  # places of a wait's barriers that are distinguished

# Seconds after which a wait counts as hanging, for code compiled from now on; 0 disables the watchdog.
_seconds = 0.0


def watch(seconds: float) -> None:
    """Watch the waits of kernels that are compiled from now on; 0 disables it."""
    global _seconds
    _seconds = seconds


def limit() -> float:
    return _seconds


def macros() -> list[str]:
    """Macros for watched code; a unit of the clock is 2^32 ns."""
    if not _seconds:
        return []
    units = max(1, round(_seconds * 1e9 / 2**32))
    return [f"#define WATCHED_UNITS {units}u", f"#define WATCHED_RECORDS {_RECORDS}u"]


@dataclass(frozen=True, slots=True)
class WatchedWait:
    """name   the barrier's name, or a description of the wait
    line   its location, as FILE:LINE
    """

    name: str
    line: str


def numbered(wait: int, place: str) -> str:
    """A wait and the place of its barrier as one number, in C++."""
    return f"{wait * _SLOTS}u + ({place}) % {_SLOTS}u"


def said_at(address: int, kernel: str, waits: tuple[WatchedWait, ...]) -> str:
    """The watchdog's records as a message, or ""."""
    messages = []
    for is_there, block, warp, number, parity in (_RECORD * _RECORDS).from_address(address):
        if is_there:
            wait, place = waits[number // _SLOTS], number % _SLOTS
            messages.append(
                f"block {block}, warp {warp} of {kernel}() waited in vain for {wait.name}[{place}],"
                f" parity {parity} ({wait.line})"
            )
    return "; ".join(messages)
