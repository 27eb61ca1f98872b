"""`tc.print` on the processor: compiled code hands the values over, and Python writes the line.

It is what the simulator prints. Lines of several blocks come in the order in which threads get to them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence

import numpy as np

from taskc.backend.printed import printed
from taskc.ir.types import DTYPES


def writer(prints: Sequence[tuple[str, Sequence[str]]]) -> Callable[[int, int], None]:
    """Takes the number of a print, and the address of its values, a word each."""

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
