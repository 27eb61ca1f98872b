"""Other libraries on a device: each one's current stream, and how it is told about our use of its memory.

Nothing is imported here: a caller that passes an array has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def library_of(values: Any) -> str:
    """The library that an array comes from."""
    return type(values).__module__.partition(".")[0]


def current_number(library: str, device: int) -> int | None:
    """A library's current stream; None if it doesn't expose one, as JAX, or isn't imported."""
    find = _NUMBERS.get(library)
    return None if find is None else find(device)


def current_numbers(device: int) -> set[int]:
    """The current streams of all libraries that have started to use the device."""
    started = [name for name in _NUMBERS if _is_started(name)]
    return {_NUMBERS[name](device) for name in started}


def note_use(values: Any, stream: int, device: int) -> bool:
    """Tell an array's library that a stream uses its memory, so that it isn't reused before that work ends.

    False if the library can't be told: then the caller has to keep the array alive.
    """
    if library_of(values) != "torch" or not hasattr(values, "record_stream"):
        return False
    values.record_stream(sys.modules["torch"].cuda.ExternalStream(stream, device=device))
    return True


def _is_started(library: str) -> bool:
    """Whether a library has started CUDA; asking PyTorch for its stream would start it."""
    module = sys.modules.get(library)
    return module is not None and (library != "torch" or bool(module.cuda.is_initialized()))


def _of_torch(device: int) -> int:
    return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)


def _of_cupy(device: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)


_NUMBERS: dict[str, Callable[[int], int]] = {"torch": _of_torch, "cupy": _of_cupy}
