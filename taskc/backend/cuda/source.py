"""The code of a kernel: lines with their source locations in Python, and the prelude entries they need."""

from __future__ import annotations

import json
from dataclasses import dataclass

from taskc.backend.cuda.compiled import Argument, LaunchExtent, TensorMap
from taskc.backend.cuda.prelude import Entry, prelude_text
from taskc.backend.cuda.watchdog import Wait
from taskc.errors import NOWHERE, Location


@dataclass(frozen=True, slots=True)
class Line:
    indent: int
    text: str
    loc: Location = NOWHERE


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's code, and the description of its launches; see `Compiled` for the meaning of the fields.

    entries  of the prelude, preceded by `macros`; `lines` are the tables and the kernel
    """

    name: str
    arch: str
    entries: tuple[Entry, ...]
    macros: tuple[str, ...]
    lines: tuple[Line, ...]
    arguments: tuple[Argument, ...]
    threads: int
    shared: int
    blocks: LaunchExtent
    cluster: int
    maps: tuple[TensorMap, ...]
    asserts: tuple[tuple[str, Location], ...]
    prints: bool
    waits: tuple[Wait, ...] = ()

    def text(self, *, with_places: bool = True) -> str:
        """The whole translation unit; with places, `#line` directives map its lines to those of Python."""
        parts = [prelude_text(self.entries, self.macros)]
        file, line = "", 0
        for one in self.lines:
            loc = one.loc
            if with_places and loc.line and (loc.file, loc.line) != (file, line):
                file, line = loc.file, loc.line
                parts.append(f"#line {line} {json.dumps(file, ensure_ascii=False)}\n")
            parts.append("    " * one.indent + one.text + "\n")
            line += 1
        return "".join(parts)
