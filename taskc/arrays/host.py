"""Arrays that a program is given while it is traced: NumPy's, and other libraries' in the CPU's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskc.arrays.dlpack import as_array
from taskc.errors import CompileError, Location


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")


def host_array(value: Any, site: Location) -> np.ndarray[Any, Any]:
    """An array, or what NumPy makes one of; memory of another library isn't copied."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        array: np.ndarray[Any, Any] = np.asarray(value)
        return array
    try:
        return as_array(value)
    except (BufferError, RuntimeError, ValueError) as error:
        raise CompileError(
            f"a {type(value).__name__} can't be read as a constant: {error}", site
        ) from None
