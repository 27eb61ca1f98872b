"""`tc.print` on the CPU: compiled code passes the values, and Python writes the line.

The text is the simulator's. Lines of different blocks appear in the order in which threads reach them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence

import numpy as np

from taskc.backend.printed import printed
from taskc.ir.types import DTYPES


def writer(prints: Sequence[tuple[str, Sequence[str]]]) -> Callable[[int, int], None]:
    """The callback of compiled code: it takes the number of a print, and the address of its values, a word each."""

    def write(number: int, words: int) -> None:
        sys.stdout.write(f"{_line(*prints[number], words)}\n")

    return write


def _line(text: str, names: Sequence[str], words: int) -> str:
    values = []
    for place, name in enumerate(names):
        dtype = np.dtype(DTYPES[name].numpy)
        word = ctypes.string_at(words + 8 * place, dtype.itemsize)
        values.append(np.frombuffer(word, dtype)[0])
    return printed(text, values)
