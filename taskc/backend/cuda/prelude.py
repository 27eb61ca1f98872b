"""What C++ has no words for, as functions of the namespace `tc`: those that a kernel uses, and no others.

They lie in two files, `numbers.cuh` (plain C++) and `instructions.cuh` (PTX, and what the compiler has
built in). An entry begins with its name and those of the entries that it needs:

    //: minimum.f64 bits64
    __device__ __forceinline__ f64 minimum(f64 a, f64 b) { ... }

An entry `name.variant` is one of several functions of a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from taskc.backend.cuda.types import STRUCTURES, TYPEDEFS


@dataclass(frozen=True, slots=True)
class Entry:
    """needs: the names of other entries that have to stand before it."""

    name: str
    needs: tuple[str, ...]
    text: str


@cache
def library() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    folder = Path(__file__).parent
    for file in ("numbers.cuh", "instructions.cuh"):
        for part in (folder / file).read_text(encoding="utf-8").split("//: ")[1:]:
            head, _, text = part.partition("\n")
            name, *needs = head.split()
            found[name] = Entry(name, tuple(needs), text.strip())
    return found


class Prelude:
    """The entries that a kernel uses, and functions that were made for it; in an order to be read in."""

    def __init__(self) -> None:
        self.used: dict[str, Entry] = {}

    def use(self, name: str) -> None:
        if name not in self.used:
            self.add(library()[name])

    def add(self, entry: Entry) -> None:
        if entry.name in self.used:
            return
        for needed in entry.needs:
            self.use(needed)
        self.used[entry.name] = entry


def prelude_text(entries: Iterable[Entry], macros: Iterable[str] = ()) -> str:
    entries = list(entries)
    if not entries:
        return TYPEDEFS
    names = {entry.name for entry in entries}
    types = [f"using tc::{dtype};" for dtype in STRUCTURES if dtype.name in names]
    texts = "\n\n".join([entry.text for entry in entries])
    lines = [TYPEDEFS, *macros, "namespace tc {\n", texts, "\n}  // namespace tc"]
    return "\n".join([*lines, *types, "\n"])
