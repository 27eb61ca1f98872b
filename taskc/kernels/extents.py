"""Which extents of a template are numbers: those by which it chooses layouts and registers."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from taskc import CompileError


def require_numbers(template: str, **extents: Any) -> None:
    """Raises an error where one of them is known only at a call."""
    for name, extent in extents.items():
        if not isinstance(extent, Integral):
            raise CompileError(
                f"{name} of {template} is known when a kernel is made, and {extent} only at a call",
                hint="its layouts and registers are chosen by it: give it as a number",
            )
