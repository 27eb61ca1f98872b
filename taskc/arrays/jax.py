"""JAX's arrays as arguments: an adapter as `taskc.arrays.dlpack.ArrayLibrary` describes.

JAX is never imported here: the caller who passes its arrays has done so.
"""

from __future__ import annotations

import sys
from typing import Any

from taskc.arrays.device import Device
from taskc.ir.types import TensorType

NAME = "jax"


def takes(value: Any) -> bool:
    library = sys.modules.get(NAME)
    return library is not None and isinstance(value, (library.Array, library.core.Tracer))


def argument(value: Any, is_written: bool) -> Any:
    if isinstance(value, sys.modules[NAME].core.Tracer):
        raise BufferError(
            "is traced by JAX, and has no elements; tc.jax.operator() makes a kernel a function that takes it"
        )
    if is_written:
        raise BufferError("is written in place, and JAX's arrays never change")
    return value


def new_output(described: TensorType, place: Device | None) -> None:
    """None: a call returns NumPy's arrays, or the device's."""


def note_written(value: Any) -> None:
    """Nothing is."""
