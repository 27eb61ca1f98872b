"""Instructions that are written apart become a function, unless they need what only their place has."""

from __future__ import annotations

import pytest

from taskc.backend.cpu.instructions import Builder

TYPES = {"%9": "i64", "%10": "float", "%p": "ptr"}


def written(*lines: str) -> Builder:
    builder = Builder()
    with builder.apart(TYPES):
        for line in lines:
            builder.emit(line)
    return builder


def test_a_function_is_passed_what_it_reads() -> None:
    """Numbers are in LLVM's order: 9 before 10."""
    builder = written("%11 = fadd float %10, 1.0", "store float %11, ptr %p", "%12 = add i64 %9, 1")
    (function,) = builder.declared
    assert builder.lines == [f"  call void @{function}(i64 %9, ptr %p, float %10)"]
    assert "%11 = fadd" in builder.declared[function]


@pytest.mark.parametrize("line", ["%11 = add i64 %unknown, 1", "br label %exit"])
def test_other_instructions_stay(line: str) -> None:
    builder = written(line)
    assert builder.lines == [f"  {line}"]
    assert not builder.declared
