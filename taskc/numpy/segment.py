"""Segments: operations of a thread that wait to become one program.

    c = a + b                 noted: (row of add, inputs, numbers), and the Python line
    d = c * 2                 noted
    print(d)                  needs a value: the segment ends, and its program runs

An input is a number: from 0 on an operation of the segment, and below 0 a leaf, an array from before it (~number is its
place). A segment only grows, so another thread may run what it has so far without stopping its owner.
"""

from __future__ import annotations

import linecache
import threading
from collections import deque
from types import CodeType
from typing import Any, TypeAlias

import numpy as np

from taskc.errors import Location
from taskc.numpy.rows import Row

Memory: TypeAlias = "np.ndarray[Any, Any]"
Site: TypeAlias = tuple[CodeType, int]  # the code and instruction that noted an operation
Operation: TypeAlias = tuple[Row, tuple[int, ...], int]  # how many numbers it has

MOST = 512  # operations of a segment
UNROLLED = 16  # operations after which a loop's body ends a segment


class Segment:
    """Noted operations, in order.

    numbers  places and extents of the operations, one after another
    leaves   arrays from before, and their numbers by identity
    updated  places of leaves that operations write to
    arrays   the arrays of the operations; those that nobody else refers to need no value
    sites    for each operation the code and instruction that noted it
    """

    __slots__ = ("arrays", "leaves", "numbers", "operations", "places", "sites", "updated")

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.numbers: list[int] = []
        self.leaves: list[Memory] = []
        self.places: dict[int, int] = {}
        self.arrays: list[Any] = []
        self.updated: set[int] = set()
        self.sites: list[Site] = []

    def leaf(self, memory: Memory) -> int:
        """The number of an array from before."""
        number = self.places.get(id(memory))
        if number is None:
            number = self.places[id(memory)] = ~len(self.leaves)
            self.leaves.append(memory)
        return number


class Here(threading.local):
    """The segment to which this thread notes, and the recorder of a `tc.jit` that runs."""

    def __init__(self) -> None:
        self.segment = Segment()
        self.recorder: Any = None


here = Here()
recorders: list[
    Any
] = []  # those of all threads: while there is one, small operations are noted, too


# For `explain`: why segments ended (the operation that needed a value), operations and outputs, and the last line.
recent: deque[tuple[str, int, int, Site]] = deque(maxlen=1000)


def located(site: Site) -> Location:
    """The line that noted an operation."""
    code, instruction = site
    lines = [line for first, stop, line in code.co_lines() if first <= instruction < stop]
    line = (lines[0] if lines else None) or code.co_firstlineno
    text = linecache.getline(code.co_filename, line).rstrip("\r\n")
    start = len(text) - len(text.lstrip())
    return Location(code.co_filename, line, start, line, len(text), text)
