"""The functions of the CUDA driver, each call checked.

`api()` starts the driver at the first use and gives its functions under their own names: `api().cuMemAlloc(n)`
is the pointer, or a `DeviceError` that names the call and says what CUDA says. Nothing of CUDA is imported
before, and what is missing on a machine is said in one sentence.

CUDA reports what goes wrong inside a kernel at some later call. So the kernels that were launched and may still
run are remembered, and an error of that kind names them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from taskc.ir.reentry import Turn

# What `cuda-python` and NVRTC, which pyproject.toml pins, make: an older driver refuses their cubins.
NEEDED = 13000
_REMEMBERED = 16  # launches

# Results that say that some kernel failed before, and not this call: of the memory, the code, the time.
_OF_KERNELS = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999})


class DeviceError(RuntimeError):
    """There is no usable GPU, or it reports an error."""


class Api:
    """The driver's functions. Attributes are made at their first use: each checks its result."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        # (stream, kernel) of what was launched and not waited for, the last ones only
        self.launched: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        self.contexts: dict[int, Any] = {}
        # They add in words why a kernel failed, or "".
        self.looks: list[Callable[[], str]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(self.driver, name)

        def checked(*arguments: Any) -> Any:
            try:
                status, *results = function(*arguments)
            except RuntimeError as error:  # the function isn't in the driver's library
                raise DeviceError(f"{name}: {error}; {_remedy()}") from error
            if status != 0:
                raise self.failure(name, status)
            return results[0] if len(results) == 1 else tuple(results) or None

        setattr(self, name, checked)
        return checked

    def has_passed(self, event: Any) -> bool:
        """Whether an event has happened."""
        (status,) = self.driver.cuEventQuery(event)[:1]
        if status not in (0, self.driver.CUresult.CUDA_ERROR_NOT_READY):
            raise self.failure("cuEventQuery", status)
        return bool(status == 0)

    def failure(self, name: str, status: Any) -> DeviceError:
        """The error of a call, with the kernels that it may be about."""
        text = f"{name} failed: {self.described(status)}"
        names = list(dict.fromkeys(kernel for _, kernel in self.launched))
        if int(status) in _OF_KERNELS and names:
            which = " or ".join([f"{kernel}()" for kernel in names])
            text += f"; it happened in {which}, launched since the last synchronization"
        if int(status) in _OF_KERNELS:
            text += "".join([f"; {said}" for said in [look() for look in self.looks] if said])
        return DeviceError(text)

    def described(self, status: Any) -> str:
        """A result in CUDA's words."""
        parts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            failed, text = getattr(self.driver, function)(status)
            if failed == 0 and text is not None:
                parts.append(text.decode(errors="replace"))
        return ", ".join(parts) or f"error {int(status)}"

    def forget(self, stream: int | None) -> None:
        """The launches of a stream, or of all, have ended without an error."""
        kept = [] if stream is None else [one for one in self.launched if one[0] != stream]
        self.launched = deque(kept, maxlen=_REMEMBERED)


_started: Api | None = None
_forked = False
_turn = Turn()


def api() -> Api:
    """The driver, started."""
    if _started is None:
        return _start()
    return _started


def _start() -> Api:
    global _started
    with _turn.taken():  # or not: then it is started twice, which does nothing
        if _started is None:
            if _forked:
                raise DeviceError(
                    "CUDA was in use when this process was forked, and can't be used in it;"
                    ' start processes with multiprocessing\'s "spawn"'
                )
            _started = started(load_driver())
        return _started


def load_driver() -> Any:
    """cuda-python's module of the driver; it can be imported without one."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"kernels are launched through cuda-python, which can't be imported: {error}"
        ) from error
    return driver


def started(driver: Any) -> Api:
    """A driver that has been found fit for use."""
    made = Api(driver)
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # cuda-python's words for a library that can't be loaded
        raise DeviceError(
            f"there is no NVIDIA driver on this machine ({error}), so nothing can run on a GPU"
        ) from error
    if status != 0:
        raise DeviceError(f"the NVIDIA driver can't be started: {made.described(status)}")
    version = made.cuDriverGetVersion()
    if version < NEEDED:
        raise DeviceError(
            f"the NVIDIA driver supports CUDA {shown_version(version)}, and taskc needs a driver for"
            f" CUDA {shown_version(NEEDED)} or later; {_remedy()}"
        )
    if made.cuDeviceGetCount() == 0:
        raise DeviceError("there is an NVIDIA driver on this machine, but no GPU that it can use")
    return made


def _remedy() -> str:
    return "install version 580 or later of the driver"


def shown_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _forget_in_child() -> None:
    """A context can't be used in the child of a fork."""
    global _started, _forked
    _forked = _forked or _started is not None
    _started = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
