"""Other libraries on a device: into which stream each puts its work, and how it is told of ours.

Nothing is imported here: whoever passes an array has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def library_of(values: Any) -> str:
    """The library whose array this is."""
    return type(values).__module__.partition(".")[0]


def current_number(library: str, device: int) -> int | None:
    """The stream into which a library puts its work now; None where it doesn't tell, as JAX, or isn't there."""
    find = _NUMBERS.get(library)
    return None if find is None else find(device)


def current_numbers(device: int) -> set[int]:
    """The current streams of all libraries that have started to use the device."""
    started = [name for name in _NUMBERS if _is_started(name)]
    return {_NUMBERS[name](device) for name in started}


def note_use(values: Any, stream: int, device: int) -> bool:
    """Tell an array's library that a stream uses its memory, which stays until that has ended.

    False where the library can't be told: then whoever uses the array has to keep it.
    """
    if library_of(values) != "torch" or not hasattr(values, "record_stream"):
        return False
    values.record_stream(sys.modules["torch"].cuda.ExternalStream(stream, device=device))
    return True


def _is_started(library: str) -> bool:
    """Asking PyTorch for its stream would start it."""
    module = sys.modules.get(library)
    return module is not None and (library != "torch" or bool(module.cuda.is_initialized()))


def _of_torch(device: int) -> int:
    return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)


def _of_cupy(device: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)


_NUMBERS: dict[str, Callable[[int], int]] = {"torch": _of_torch, "cupy": _of_cupy}
