"""Arguments that are arrays: whose they are, and their memory, in the CPU's, as NumPy's arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from taskc.arrays import jax, torch
from taskc.arrays.device import Device
from taskc.arrays.dlpack import NotOnHostError, as_array
from taskc.errors import CompileError, Location
from taskc.ir.types import TensorType


class Library(Protocol):
    """A library whose arrays a call treats differently from others that export DLPack: a module is one."""

    NAME: str

    def takes(self, value: Any) -> bool:
        """Whether a value is one of the library's arrays."""

    def argument(self, value: Any, is_written: bool) -> Any:
        """The object that exports an array's memory. A BufferError says of the argument why none does."""

    def new_output(self, described: TensorType, place: Device | None) -> Any:
        """An array that a call returns which has got one of the library's; None where it returns an ordinary one."""

    def note_written(self, value: Any) -> None:
        """Tells the library that an array is written in place. The call can't fail any more."""


LIBRARIES: tuple[Library, ...] = (torch, jax)


def library_of(value: Any) -> Library | None:
    if type(value) is not np.ndarray:
        for library in LIBRARIES:
            if library.takes(value):
                return library
    return None


def is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")


def host_view(value: Any) -> np.ndarray[Any, Any] | None:
    """An array's memory, not copied; None where the value is no array.

    A BufferError says why it can't be read: a NotOnHostError, because it lies elsewhere.
    """
    if type(value) is np.ndarray:  # asking for more loads NumPy's masked arrays
        return value
    if isinstance(value, np.ma.MaskedArray):
        return None
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        if hasattr(value, "__cuda_array_interface__"):
            raise NotOnHostError
        return None
    try:
        return as_array(value)
    except (RuntimeError, ValueError) as error:
        raise BufferError(str(error)) from error


def host_array(value: Any, site: Location) -> np.ndarray[Any, Any]:
    """A constant of a traced program: an array, or what NumPy makes one of."""
    try:
        array = host_view(value)
    except BufferError as error:
        raise CompileError(
            f"a {type(value).__name__} can't be read as a constant: {error}", site
        ) from None
    return np.asarray(value) if array is None else array
