"""Copies of operands that calls take in turn, so that each finds its own out of the caches, as a first use does."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from taskc.lang.definition import Definition
from taskc.tune.operands import Operands

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 10, "M": 20, "G": 30}
_UNKNOWN = 1 << 25  # bytes
_MOST_BYTES = 1 << 31  # of all copies
_MOST_COPIES = 1 << 12


def rotated(operands: Operands) -> tuple[Operands, ...]:
    """So many copies that between two uses of one more is touched than the caches hold, if there is the memory."""
    nbytes = max(operands.nbytes, 1)
    wanted = 1 + -(-last_cache_bytes() // nbytes)
    room = max(1, min(_MOST_BYTES, _available() // 4) // nbytes)
    count = min(wanted, room, _MOST_COPIES)
    return (operands, *[operands.copy() for _ in range(count - 1)])


def in_turn(definition: Definition, copies: tuple[Operands, ...]) -> Callable[[], object]:
    """A call of the next copy, each time."""
    calls = [operands.call_of(definition) for operands in copies]
    if len(calls) == 1:
        return calls[0]
    following = cycle(calls).__next__
    return lambda: following()()


def last_cache_bytes(folder: Path = _CACHES) -> int:
    """Of the largest cache that the system names."""
    sizes = []
    for file in folder.glob("index*/size"):
        try:
            text = file.read_text(encoding="ascii").strip()
            sizes.append(int(text[:-1]) << _UNITS[text[-1]])
        except (OSError, ValueError, KeyError):
            continue
    return max(sizes, default=_UNKNOWN)


def _available() -> int:
    """Bytes of memory that are free."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _MOST_BYTES
