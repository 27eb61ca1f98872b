"""Random kernels for the proofs, and what each does at one size: plain loops, and nothing of the compiler.

A kernel is one that is right, in most of its pieces: then some are changed, left out or wrapped in others. What
is left may be right or wrong, for all sizes or for some.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

from taskc.ir.mapping import Mapping
from tests.passes.proofs.programs import Case

# Output, and what fills it once.
RIGHT = (
    ("n", "grid row in n by 4:\n  each i in spatial(4):\n    if row + i < n:\n      c[row + i] = 1.0"),
    ("n", "each i in spatial(4):\n  for q in range(0, n, 4):\n    if q + i < n:\n      c[q + i] = 1.0"),
    ("n", "each i in spatial(4):\n  for q in range(i, n, 4):\n    c[q] = 1.0"),
    ("n", "grid b in 2 by 1:\n  each i in spatial(4):\n    for q in range(b * 4 + i, n, 8):\n      c[q] = 1.0"),
    ("m, n", "each i in spatial(4):\n  for q in range(i, m, 4):\n    for p in range(0, n, 1):\n      c[q, p] = 1.0"),
    ("n", "for q in range(0, n, 1):\n  each i in spatial(4):\n    if i == 0:\n      c[q] = 1.0"),
    ("n", "grid row in n by 4:\n  each i in spatial(4):\n    let at = row + i\n    let mask = at < n\n"
          "    if mask:\n      c[at] = 1.0"),
    ("n", "grid row in n by 4:\n  each i in spatial(4):\n    let mask = row + i < n\n    let low = row + i < 2\n"
          "    if mask and low:\n      c[row + i] = 1.0\n    if mask and not low:\n      c[row + i] = 1.0"),
    ("n", "grid row in n by 4:\n  each i in spatial(4):\n    if row + i < n:\n      if row + i < m:\n"
          "        c[row + i] = 1.0\n      else:\n        c[row + i] = 1.0"),
    ("n", "if n <= 4:\n  each i in spatial(4):\n    if i < n:\n      c[i] = 1.0\nelse:\n"
          "  for q in range(0, n, 4):\n    each i in spatial(4):\n      if q + i < n:\n        c[q + i] = 1.0"),
    ("n", "grid row in n by 4:\n  if row + 4 <= n:\n    each i in repeat(4).replicate(4):\n      c[row + i] = 1.0\n"
          "  else:\n    each i in spatial(4):\n      if row + i < n:\n        c[row + i] = 1.0"),
    ("m, n", "grid (row, col) in (m, n) by (2, 4):\n  each (i, j) in spatial(2, 2).repeat(1, 2):\n"
             "    if row + i < m and col + j < n:\n      c[row + i, col + j] = 1.0"),
    ("m, n", "grid row in m by 1:\n  for q in range(0, n, 4):\n    each i in spatial(4):\n      if q + i < n:\n"
             "        c[row, q + i] = 1.0"),
    ("m * n", "grid (row, col) in (m, n) by (1, 4):\n  each j in spatial(4):\n    if col + j < n:\n"
              "      c[row * n + col + j] = 1.0"),
    ("n, 4", "grid row in n by 1:\n  each i in spatial(4):\n    c[row, i] = 1.0"),
    ("n, 4", "for q in range(0, n, 1):\n  each i in spatial(4):\n    c[q, i] = 1.0"),
    ("4", "each i in spatial(4):\n  c[i] = 1.0"),
    ("6", "for q in range(0, 6, 4):\n  each i in spatial(4):\n    if q + i < 6:\n      c[q + i] = 1.0"),
    ("n", "grid row in (n + 3) // 4 by 1:\n  each i in spatial(4):\n    if row * 4 + i < n:\n"
          "      c[row * 4 + i] = 1.0"),
    ("(n + 3) // 4", "grid row in n by 4:\n  each i in spatial(4):\n    if i == 0:\n      c[row // 4] = 1.0"),
    ("2 * n", "grid row in n by 4:\n  each i in spatial(4):\n    if row + i < n:\n      c[2 * (row + i)] = 1.0\n"
              "      c[2 * (row + i) + 1] = 1.0"),
    ("n", "grid row in n by 4:\n  each i in spatial(4):\n    if row + i < n:\n      c[n - 1 - row - i] = 1.0"),
    ("n", "for q in range(0, m, 1):\n  if q == 0:\n    grid_free\n"),
    ("n", "for q in range(0, min(n, m), 1):\n  each i in spatial(4):\n    if i == 0:\n      c[q] = 1.0\n"
          "for q in range(min(n, m), n, 1):\n  each i in spatial(4):\n    if i == 0:\n      c[q] = 1.0"),
    ("n", "for p in range(0, n, 8):\n  for q in range(p, min(p + 8, n), 4):\n    each i in spatial(4):\n"
          "      if q + i < min(p + 8, n):\n        c[q + i] = 1.0"),
)  # fmt: skip
FREE = "for r in range(0, n, 4):\n      each i in spatial(4):\n        if r + i < n:\n          c[r + i] = 1.0"
EXTENTS = (
    "n",
    "m",
    "4",
    "1",
    "n - m + 1",
    "min(n, m)",
    "max(n, m)",
    "n + 1",
    "n // 2",
    "m * n",
    "0",
    "max(n, 1)",
)
INDICES = ("row + i", "q + i", "i", "row", "q", "row + i + 1", "row + i - 1", "0", "row // 4", "q // 2", "i // 2",
           "(row + i) % n", "row + (i ^ 1)", "row * 2 + i", "n - 1 - q", "row + q", "m")  # fmt: skip
GUARDS = (
    "m > 0", "n > 0", "n >= m", "n >= 4", "i == 0", "i < 2", "row == 0", "q == 0", "q < m", "row + i < n",
    "q + i < n", "row + i < m", "i < n", "row + 4 <= n", "n <= 4", "row < m", "i != 1", "not i < 2", "q % 2 == 0",
    "n < m or row + i < n", "flag > 0",
)  # fmt: skip
LOOPS = ("for r in range(0, m, 1):", "for r in range(0, 1, 1):", "for r in range(0, n - m + 1, 1):",
         "for r in range(0, 2, 1):", "for r in range(m, m + 1, 1):")  # fmt: skip
PROMISES = ("n >= m", "n <= 4", "m == 1", "n > 0", "m >= 1 and n >= 1", "n >= 4")


class BrokenPromiseError(Exception):
    """An assertion of the kernel doesn't hold at this size: anything may happen."""


@dataclass
class Run:
    """What one execution did: who stored which element in which phase."""

    stores: list[tuple[int, tuple[int, ...], int, tuple[int, ...]]] = field(default_factory=list)
    phase: int = 0

    def tasks(self, text: str) -> Iterator[tuple[int, Any]]:
        """(worker, task) of all that store: the first owners."""
        self.phase += 1
        mapping = Mapping.parse(text)
        for worker in range(mapping.workers):
            for task in mapping(worker):
                if mapping.owner(task)[0] == worker:
                    yield worker, task[0] if len(task) == 1 else task


def _parts(text: str) -> list[str]:
    """The elements of a tuple as it is written; a single one has no parentheses."""
    if text[0] != "(":
        return [text]
    commas, depth = [0], 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 1:
            commas.append(place)
        if not depth and place < len(text) - 1:
            return [text]
    commas.append(len(text) - 1)
    return [text[a + 1 : b].strip() for a, b in pairwise(commas)]


class RandomKernel:
    def __init__(self, seed: int) -> None:
        pick = self.pick = random.Random(seed)
        self.extent, body = pick.choice(RIGHT)
        lines = body.replace("grid_free", FREE).rstrip().split("\n")
        for _ in range(pick.choice((0, 1, 1, 1, 2, 2, 3))):
            lines = self.changed(lines)
        self.multiples = pick.choice(((1, 1), (1, 1), (1, 1), (4, 1), (1, 2), (2, 2)))
        self.lines = lines

    def changed(self, lines: list[str]) -> list[str]:
        pick = self.pick
        place = pick.randrange(len(lines))
        line = lines[place]
        indent = line[: len(line) - len(line.lstrip())]
        end = place + 1
        while end < len(lines) and lines[end].startswith(indent + " "):
            end += 1
        inner = ["  " + below for below in lines[place:end]]
        kind = pick.choice(
            ("extent", "guard", "loop", "promise", "index", "bound", "drop", "number", "output")
        )
        if kind == "output":
            self.extent = pick.choice((*EXTENTS[:9], "n, 4", "m, n", "n, 1", "m, 1"))
        elif kind == "guard" and "else" not in line:
            return [*lines[:place], f"{indent}if {pick.choice(GUARDS)}:", *inner, *lines[end:]]
        elif kind == "loop" and "else" not in line and "grid" not in line:
            return [*lines[:place], f"{indent}{pick.choice(LOOPS)}", *inner, *lines[end:]]
        elif kind == "promise" and "else" not in line:
            return [*lines[:place], f'{indent}assert {pick.choice(PROMISES)}, ""', *lines[place:]]
        elif kind == "index" and "c[" in line and "," not in line:
            return [*lines[:place], f"{indent}c[{pick.choice(INDICES)}] = 1.0", *lines[place + 1 :]]
        elif kind == "bound" and "if " in line:
            line = line.replace("<", pick.choice(("<=", "<", "!="))) if "<=" not in line else line
        elif kind == "drop" and end == place + 2 and "if " in line:
            return [*lines[:place], indent + lines[place + 1].lstrip(), *lines[end:]]
        elif kind == "number" and "each" not in line:
            line = re.sub(r"\b[0-4]\b", lambda one: self.other(one[0]), line, count=1)
        elif kind == "extent" and ("for " in line or "grid" in line):
            line = re.sub(r"\b[mn]\b", lambda one: pick.choice(EXTENTS), line, count=1)
        return [*lines[:place], line, *lines[place + 1 :]]

    def other(self, number: str) -> str:
        return self.pick.choice((number, "1", "2", "3", "4", "5"))

    def case(self, role: str) -> Case:
        multiples = [
            f"{d} multiple={k}" if k > 1 else d for d, k in zip("mn", self.multiples, strict=True)
        ]
        body = "\n".join(self.lines)
        parameters = f"a: f32[m], b: f32[n], c: {role} f32[{self.extent}], flag: i32"
        return Case("", parameters, body, dimensions=", ".join(multiples))

    # The meaning.

    def compiled(self) -> Any:
        lines = [self.translated(line) for line in self.lines]
        return compile("\n".join(lines), "<kernel>", "exec")

    def translated(self, line: str) -> str:
        text = line.lstrip()
        indent = line[: len(line) - len(text)]
        if text.startswith("grid"):
            found = re.fullmatch(r"grid (.*) in (.*) by (.*):", text)
            assert found is not None
            variables, shape, by = map(_parts, found.groups())
            ranges = [f"range(0, {extent}, {step})" for extent, step in zip(shape, by, strict=True)]
            names = ", ".join(variables)
            loop = f"{indent}for block in product({', '.join(ranges)}):"
            return f"{loop}\n{indent} {names}, = block\n{indent} if 1:"
        if text.startswith("each"):
            found = re.fullmatch(r"each (.*) in (.*):", text)
            assert found is not None
            return f"{indent}for worker, {found[1]} in run.tasks({found[2]!r}):"
        if text.startswith("let "):
            return indent + text[4:]
        if text.startswith("assert"):
            return f"{indent}if not ({text[7 : text.rindex(',')]}): raise Broken"
        if text.startswith("c["):
            return f"{indent}run.stores.append((run.phase, block, worker, ({text[2 : text.rindex(']')]},)))"
        return line

    def run(self, m: int, n: int, flag: int) -> tuple[Run, tuple[int, ...]]:
        """What happens at a size, and the output's shape."""
        run = Run()
        names: dict[str, Any] = {
            "m": m, "n": n, "flag": flag, "run": run, "product": product, "block": (), "worker": 0,
            "Broken": BrokenPromiseError,
        }  # fmt: skip
        shape = eval(f"({self.extent},)", dict(names))
        try:
            exec(self.compiled(), names)
        except ZeroDivisionError:
            raise BrokenPromiseError from None  # Python's division isn't ours
        return run, shape
