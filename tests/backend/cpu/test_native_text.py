"""The text of LLVM's that is checked in is what clang makes of the C, for every processor."""

from __future__ import annotations

import re
from importlib.util import find_spec

import llvmlite.binding as llvm
import pytest

from taskc.backend.cpu.module import head_text
from taskc.backend.cpu.pool import pool_text
from taskc.backend.cpu.processor import typical

from .native_text import TEXT, llvm_text


@pytest.mark.skipif(find_spec("ziglang") is None, reason="pip install -e '.[native]' brings clang")
def test_the_text_is_of_the_c() -> None:
    assert TEXT.read_text("utf-8") == llvm_text(), "python -m tests.backend.cpu.native_text"


def test_the_text_says_nothing_of_a_target() -> None:
    text = TEXT.read_text("utf-8")
    assert not re.search(r"target |x86|#\d|!\d|zeroext|signext", text)
    assert text.count("asm sideeffect") == text.count('asm sideeffect "pause", ""()')


@pytest.mark.parametrize(("name", "of_elf"), [("neon", 183), ("sse2", 62)])
def test_it_is_compiled_for_others(name: str, of_elf: int) -> None:
    """But for the instruction of the pause: LLVM reads that of the processor at hand alone."""
    processor = typical(name)
    module = llvm.parse_assembly(f"{head_text(processor)}\n{pool_text('another')}")
    module.verify()
    code = processor.machine.emit_object(module)
    assert int.from_bytes(code[18:20], "little") == of_elf
