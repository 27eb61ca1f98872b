"""What the language refuses: line, column and text of each error, in `rejections.txt`.

A section is a name, a program, `---`, and the error as a person sees it. A program without a kernel
is the body of the one in `tests.lang.notebook.HEADER`, whose first line is line 3 of its file.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from taskc import CompileError
from tests.lang.notebook import HEADER, cell, indented

_SECTIONS = re.split(
    r"^=== ", (Path(__file__).parent / "rejections.txt").read_text(encoding="utf-8"), flags=re.M
)[1:]


def _section(text: str) -> object:
    name, _, rest = text.partition("\n")
    program, _, expected = rest.partition("\n---\n")
    return pytest.param(program, expected.strip("\n"), id=name.replace(" ", "_"))


@pytest.mark.parametrize(("program", "expected"), [_section(text) for text in _SECTIONS])
def test_rejected(program: str, expected: str) -> None:
    whole = re.search(r"^def ", program, flags=re.M) and "@tc." in program
    text = program if whole else HEADER + indented(program)
    with pytest.raises(CompileError) as caught:
        cell(text, "k.py", math=math)
    assert str(caught.value) == expected


def test_there_are_enough_of_them() -> None:
    assert len(_SECTIONS) >= 180
