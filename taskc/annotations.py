"""Annotations of kernels' parameters: element types and roles.

Type checkers read `annotations.pyi` in place of this file.
"""

from __future__ import annotations

from taskc.ir import types
from taskc.lang.names import inout, out, typed

_TYPES = {name: value for name, value in vars(types).items() if isinstance(value, types.DType)}
__all__ = [*_TYPES, "inout", "out", "typed"]
globals().update(_TYPES)
