"""Defining kernels from texts, as a notebook's cells do: `linecache` has them, no file does."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import taskc as tc
from taskc.ir import nodes as ir
from taskc.ir.compare import program_difference
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.verify import verify

# What the kernels of these tests are given; `body` is indented below it.
HEADER = """\
@tc.kernel(workers=32)
def k(a: f32[64, 32], x: f32[64], n: i32[8], c: tc.out[f32[64, 32]], y: tc.inout[f32[64]], s: f32):
"""

_numbers = itertools.count()


def cell(text: str, name: str | None = None, **names: Any) -> dict[str, Any]:
    """Run a text, and give the names that it defines."""
    file = name or f"cell_{next(_numbers)}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    public = {name: getattr(tc, name) for name in tc.__all__}
    space = {"tc": tc, "__name__": "cell", **public, **names}
    exec(compile(text, file, "exec", dont_inherit=True), space)
    return space


def indented(body: str) -> str:
    lines = body.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "".join(f"    {line[margin:]}\n" if line.strip() else "\n" for line in lines)


def kernel(body: str, header: str = HEADER, **names: Any) -> ir.Kernel:
    """The kernel with a body; it keeps the rules of its stage, and its text reads back."""
    return checked(cell(header + indented(body), **names)["k"].ir)


def checked(made: ir.Kernel) -> ir.Kernel:
    verify(made)
    text = to_text(made)
    assert program_difference(made, parse(text)) is None, text
    return made


def body_text(body: str, header: str = HEADER, **names: Any) -> str:
    """The text of the kernel's body, without the line that names the kernel."""
    text = to_text(kernel(body, header, **names))
    lines = text[text.index(" stage=") :].splitlines()[1:]
    return "\n".join(line[4:] for line in lines).rstrip("\n")
