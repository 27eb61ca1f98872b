"""Types, nodes and mappings, of which programs at every stage consist."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from taskc.ir.compare import program_difference, same_program
    from taskc.ir.nodes import Kernel
    from taskc.ir.printer import calls_text, expression_text, statement_text, to_text
    from taskc.ir.program import Program

__all__ = [
    "calls_text",
    "expression_text",
    "parse",
    "parse_program",
    "program_difference",
    "same_program",
    "statement_text",
    "to_text",
]

# They load at their first use: kernels can be written without them.
_LOADED_LATER = {
    "calls_text": "printer",
    "program_difference": "compare",
    "expression_text": "printer",
    "same_program": "compare",
    "statement_text": "printer",
    "to_text": "printer",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_LOADED_LATER[name]}"), name)
    globals()[name] = found
    return found


def parse(text: str, file: str = "<ir>") -> Kernel:
    """Parse the text of a kernel; raises a CompileError with the location of an error."""
    from taskc.ir.parser import parse as parse_text

    return parse_text(text, file)


def parse_program(
    text: str, file: str = "<ir>", constants: Mapping[str, np.ndarray] | None = None
) -> Program:
    """Parse the text of a program and of its callees; raises a CompileError with the location of an error.

    constants  the memory of each by what stands for it in the text
    """
    from taskc.ir.parser_programs import parse_program as parse_text

    return parse_text(text, file, constants)
