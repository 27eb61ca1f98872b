"""Mathematical functions."""

from __future__ import annotations

from taskc.backend.cpu.builder import Value
from taskc.backend.cpu.elementwise import Elementwise
from taskc.errors import InternalError


def math_function(elementwise: Elementwise, name: str, operands: tuple[Value, ...]) -> Value:
    raise InternalError(f"no code for {name}")
