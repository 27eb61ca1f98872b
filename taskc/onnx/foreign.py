"""Values that programs don't compute with: strings, sequences, optional values, and tensors of rare element types.

"tensor(string)"         an array of objects, each a str
"tensor(int4)"           an array of ml_dtypes' type
"seq(tensor)"            a list
"optional(seq(tensor))"  None, or a list
"map"                    a dictionary
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from taskc.ir.types import from_numpy

# By ONNX's names.
RARE: dict[str, np.dtype[Any]] = {
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
    "int2": np.dtype(ml_dtypes.int2),
    "uint2": np.dtype(ml_dtypes.uint2),
    "float4e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    "float8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8e8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
}


_RARE = frozenset(RARE.values())


def is_rare(value: Any) -> bool:
    """Whether a value is an array of a rare element type, which only constants of programs may have."""
    return getattr(value, "dtype", None) in _RARE


def is_tensor(value: Any) -> bool:
    """Whether programs compute with a value."""
    try:
        from_numpy(value.dtype)
    except (AttributeError, ValueError):
        return False
    return not is_rare(value)


def foreign_value(foreign: str, given: Any) -> Any:
    """An argument as a value of a type by ONNX's name; a TypeError where it is none."""
    kind, _, inner = foreign.rstrip(")").partition("(")
    if kind == "optional":
        return None if given is None else foreign_value(inner, given)
    if kind == "seq":
        if not isinstance(given, list | tuple):
            raise TypeError(f"it is a list, not {type(given).__name__}")
        return [foreign_value(inner, one) for one in given]
    if kind == "map":
        if not isinstance(given, Mapping):
            raise TypeError(f"it is a dictionary, not {type(given).__name__}")
        return given
    array = np.asarray(given)
    if inner == "string":
        if array.dtype.kind not in "OUTS":
            raise TypeError(f"it is an array of strings, not of {array.dtype}")
        is_bytes = array.dtype.kind == "S"
        return np.char.decode(array).astype(object) if is_bytes else array.astype(object)
    if inner and array.dtype != RARE[inner]:
        raise TypeError(f"it is of {inner}, not {array.dtype}")
    return array
