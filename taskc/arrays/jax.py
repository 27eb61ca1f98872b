"""JAX's arrays as arguments: which objects they are.

JAX is never imported here: who passes one has done so.
"""

from __future__ import annotations

import sys
from typing import Any


def is_traced(value: Any) -> bool:
    """Whether it stands for an array in a function that JAX transforms."""
    library = sys.modules.get("jax")
    return library is not None and isinstance(value, library.core.Tracer)


def is_array(value: Any) -> bool:
    """Whether it is an array with elements."""
    library = sys.modules.get("jax")
    return library is not None and isinstance(value, library.Array) and not is_traced(value)
