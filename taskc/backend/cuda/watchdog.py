"""A watchdog for bring-up: a kernel that waits for ever says at which barriers, and ends.

With it each turn of a wait reads the device's clock. Once nobody has begun to wait for too long, the first thread at
each wait writes into the CPU's memory its block, its warp, the barrier and the phase. Some seconds later the kernel
traps: the launch fails with an error that names all such waits, where it would hang. There are mostly two, since
whoever waits in vain lets others wait. Code that isn't watched has no instruction more: `spins` of instructions.cuh is
empty.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_RECORDS = 16  # of waits; later ones share these
_RECORD = ctypes.c_uint32 * 5  # whether there is something, block, warp, wait and place, phase
WORDS = 5 * _RECORDS
_SLOTS = 256  # places of a wait's barriers that are told apart

# The seconds after which waits are in vain, for what is compiled from now on; 0: waits are not watched.
_seconds = 0.0


def watch(seconds: float) -> None:
    """Watch the waits of kernels that are compiled from now on; 0: don't."""
    global _seconds
    _seconds = seconds


def limit() -> float:
    return _seconds


def macros() -> list[str]:
    """Definitions for code that is watched; the clock counts 2^32 ns."""
    if not _seconds:
        return []
    units = max(1, round(_seconds * 1e9 / 2**32))
    return [f"#define WATCHED_UNITS {units}u", f"#define WATCHED_RECORDS {_RECORDS}u"]


@dataclass(frozen=True, slots=True)
class Wait:
    """name   of the barrier, or what is waited for
    line   where it stands, as FILE:LINE
    """

    name: str
    line: str


def numbered(wait: int, place: str) -> str:
    """A wait and the place of its barrier as one number, in C++."""
    return f"{wait * _SLOTS}u + ({place}) % {_SLOTS}u"


def said_at(address: int, kernel: str, waits: tuple[Wait, ...]) -> str:
    """The watchdog's records in words, or ""."""
    said = []
    for is_there, block, warp, number, parity in (_RECORD * _RECORDS).from_address(address):
        if is_there:
            wait, place = waits[number // _SLOTS], number % _SLOTS
            said.append(
                f"block {block}, warp {warp} of {kernel}() waited in vain for {wait.name}[{place}],"
                f" parity {parity} ({wait.line})"
            )
    return "; ".join(said)
