"""A watchdog for bring-up: a kernel that waits for ever says at which barrier, and ends.

With it each turn of a wait reads the device's clock. A thread that has waited too long writes into the CPU's memory
its block, its warp, the wait and the phase, and traps: the launch fails with an error that names all of that, where it
would hang. Code that isn't watched has no instruction more (`spins` of instructions.cuh is empty).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

WORDS = 6  # whether there is something, block, warp, wait, place, phase
_SLOTS = 256  # places of a wait's barriers that are told apart

# The seconds after which a wait is in vain, for what is compiled from now on; 0: waits are not watched.
_seconds = 0.0


def watch(seconds: float) -> None:
    """Watch the waits of kernels that are compiled from now on; 0: don't."""
    global _seconds
    _seconds = seconds


def limit() -> float:
    return _seconds


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
    """The watchdog's record in words, or ""."""
    words = (ctypes.c_uint32 * WORDS).from_address(address)
    if not words[0]:
        return ""
    _, block, warp, number, parity, _ = words
    wait, place = waits[number // _SLOTS], number % _SLOTS
    return (
        f"block {block}, warp {warp} of {kernel}() waited in vain for {wait.name}[{place}], parity {parity}"
        f" ({wait.line})"
    )
