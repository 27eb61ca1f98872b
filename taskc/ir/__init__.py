"""Types, nodes and mappings, of which programs at every stage consist."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskc.ir.compare import program_difference, same_program
    from taskc.ir.nodes import Kernel
    from taskc.ir.printer import expression_text, statement_text, to_text

__all__ = [
    "expression_text",
    "parse",
    "program_difference",
    "same_program",
    "statement_text",
    "to_text",
]

# They load at their first use: kernels can be written without them.
_LOADED_LATER = {
    "program_difference": "taskc.ir.compare",
    "expression_text": "taskc.ir.printer",
    "same_program": "taskc.ir.compare",
    "statement_text": "taskc.ir.printer",
    "to_text": "taskc.ir.printer",
}


def add_names(module: str, *names: str) -> None:
    """Offer names of a module above this layer here, too: the texts of programs are read as those of kernels are."""
    _LOADED_LATER.update(dict.fromkeys(names, module))


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_LOADED_LATER[name]), name)
    globals()[name] = found
    return found


def parse(text: str, file: str = "<ir>") -> Kernel:
    """Parse the text of a kernel; raises a CompileError with the location of an error."""
    from taskc.ir.parser import parse as parse_text

    return parse_text(text, file)
