"""Functions of the namespace `tc` for operations that C++ lacks; a kernel gets only those that it uses.

They are in two files, `numbers.cuh` (plain C++) and `instructions.cuh` (PTX, and compiler built-ins). An entry
begins with its name and the names of the entries that it needs:

    //: minimum.f64 bits64
    __device__ __forceinline__ f64 minimum(f64 a, f64 b) { ... }

An entry `name.variant` is one of several functions with the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from taskc.backend.cuda.names import STRUCTURES, TYPEDEFS


@dataclass(frozen=True, slots=True)
class Entry:
    """needs: the names of entries that have to come before it."""

    name: str
    needs: tuple[str, ...]
    text: str


@cache
def library() -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    folder = Path(__file__).parent
    for file in ("numbers.cuh", "instructions.cuh"):
        for part in (folder / file).read_text(encoding="utf-8").split("//: ")[1:]:
            head, _, text = part.partition("\n")
            name, *needs = head.split()
            entries[name] = Entry(name, tuple(needs), text.strip())
    return entries


class Prelude:
    """The entries that a kernel uses, and functions generated for it, in dependency order."""

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
