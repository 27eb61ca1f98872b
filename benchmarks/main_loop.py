"""The main loop of a GPU kernel, in the text that NVIDIA's disassembler makes of it."""

from __future__ import annotations

import re

_LABEL = re.compile(r"^(\.L\w+):", re.MULTILINE)
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_PRODUCTS = ("HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA", "QMMA")


def main_loop(sass: str) -> list[str]:
    """Instructions of the shortest loop with the most matrix instructions; without any, of the longest loop.

    They are opcodes with modifiers, in code order from the loop's first line to its back edge: HGMMA.64x128x16.F32.
    Code that a branch inside the loop may skip is left out.
    """
    begins = {instructions[1]: instructions.start() for instructions in _LABEL.finditer(sass)}
    instructions = [
        (one.start(), one[1], _TARGET.search(one[2])) for one in _INSTRUCTION.finditer(sass)
    ]
    jumps = [
        (at, begins[target[1]])
        for at, name, target in instructions
        if name.startswith("BRA") and target is not None and target[1] in begins
    ]

    def within(first: int, last: int) -> list[tuple[int, str]]:
        return [(at, name) for at, name, _ in instructions if first <= at <= last]

    def worth(loop: tuple[int, int]) -> tuple[int, int]:
        names = [name for _, name in within(*loop)]
        products = sum(name.startswith(_PRODUCTS) for name in names)
        return products, -len(names) if products else len(names)

    loops = [(first, last) for last, first in jumps if first < last]
    if not loops:
        return []
    first, last = max(loops, key=worth)
    skipped = [(a, b) for a, b in jumps if first <= a < b <= last]
    return [name for at, name in within(first, last) if not any(a < at < b for a, b in skipped)]
