"""How much work there is, in counts that no other load of the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

MOST = 4_000_000


def calls(work: Callable[[], object], most: int = MOST) -> int:
    """How many Python functions are called; more than `most` fails."""
    number = 0

    def count_calls(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        if event == "call":
            number += 1
            if number > most:
                raise AssertionError(f"more than {most} calls")

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


def instructions(work: Callable[[], object], most: int = MOST) -> int:
    """How many instructions of Python are executed, those of loops too; more than `most` fails."""
    number = 0

    def count_instructions(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal number
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            number += 1
            if number > most:
                raise AssertionError(f"more than {most} instructions")
        return count_instructions

    before = sys.gettrace()
    sys.settrace(count_instructions)
    try:
        work()
    finally:
        sys.settrace(before)
    return number
