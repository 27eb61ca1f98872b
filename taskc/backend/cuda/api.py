"""The functions of the CUDA driver, with each call's status checked.

`api()` starts the driver at the first use and has its functions under their own names: `api().cuMemAlloc(n)`
returns the pointer, or raises a `DeviceError` that names the call and quotes CUDA's description. No module of CUDA
is imported before that, and anything missing on a machine is reported in one sentence.

CUDA reports an error inside a kernel at some later call. So launched kernels that may still run are remembered,
and such an error names them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from taskc.ir.reentry import Turn

# The CUDA version of `cuda-python` and NVRTC, as pinned in pyproject.toml: older drivers refuse their cubins.
NEEDED = 13000
_REMEMBERED = 16  # launches

# Results that report the failure of an earlier kernel, not of this call: faults of memory, code or time limits.
_OF_KERNELS = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999})


class DeviceError(RuntimeError):
    """There is no usable GPU, or it reports an error."""


class Api:
    """The driver's functions. Each is an attribute, created at its first use, that checks the call's result."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        # (stream, kernel) of the last launches that haven't been waited for
        self.launched: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        self.contexts: dict[int, Any] = {}
        # Callbacks that explain why a kernel failed, or return "".
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
        """Whether an event has completed."""
        (status,) = self.driver.cuEventQuery(event)[:1]
        if status not in (0, self.driver.CUresult.CUDA_ERROR_NOT_READY):
            raise self.failure("cuEventQuery", status)
        return bool(status == 0)

    def failure(self, name: str, status: Any) -> DeviceError:
        """The error of a call; for results in _OF_KERNELS it names the kernels that may have caused it."""
        text = f"{name} failed: {self.described(status)}"
        names = list(dict.fromkeys(kernel for _, kernel in self.launched))
        if int(status) in _OF_KERNELS and names:
            which = " or ".join([f"{kernel}()" for kernel in names])
            text += f"; it happened in {which}, launched since the last synchronization"
        if int(status) in _OF_KERNELS:
            text += "".join([f"; {said}" for said in [look() for look in self.looks] if said])
        return DeviceError(text)

    def described(self, status: Any) -> str:
        """A result's name and description from CUDA."""
        parts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            failed, text = getattr(self.driver, function)(status)
            if failed == 0 and text is not None:
                parts.append(text.decode(errors="replace"))
        return ", ".join(parts) or f"error {int(status)}"

    def forget(self, stream: int | None) -> None:
        """Forget the launches of a stream, or all: they have ended without an error."""
        remaining = [] if stream is None else [one for one in self.launched if one[0] != stream]
        self.launched = deque(remaining, maxlen=_REMEMBERED)


_started: Api | None = None
_forked = False
_turn = Turn()


def api() -> Api:
    """The driver, started at the first use."""
    if _started is None:
        return _start()
    return _started


def _start() -> Api:
    global _started
    with _turn.taken():  # without the lock it is started twice, which does nothing
        if _started is None:
            if _forked:
                raise DeviceError(
                    "CUDA was in use when this process was forked, and can't be used in it;"
                    ' start processes with multiprocessing\'s "spawn"'
                )
            _started = started(load_driver())
        return _started


def load_driver() -> Any:
    """The driver module of cuda-python, which can be imported without a driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"kernels are launched through cuda-python, which can't be imported: {error}"
        ) from error
    return driver


def started(driver: Any) -> Api:
    """Start a driver and check that it can be used."""
    checked_api = Api(driver)
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # how cuda-python reports a library that can't be loaded
        raise DeviceError(
            f"there is no NVIDIA driver on this machine ({error}), so nothing can run on a GPU"
        ) from error
    if status != 0:
        raise DeviceError(f"the NVIDIA driver can't be started: {checked_api.described(status)}")
    version = checked_api.cuDriverGetVersion()
    if version < NEEDED:
        raise DeviceError(
            f"the NVIDIA driver supports CUDA {shown_version(version)}, and taskc needs a driver for"
            f" CUDA {shown_version(NEEDED)} or later; {_remedy()}"
        )
    if checked_api.cuDeviceGetCount() == 0:
        raise DeviceError("there is an NVIDIA driver on this machine, but no GPU that it can use")
    return checked_api


def _remedy() -> str:
    return "install version 580 or later of the driver"


def shown_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _forget_in_child() -> None:
    """After a fork: a context can't be used in the child."""
    global _started, _forked
    _forked = _forked or _started is not None
    _started = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
