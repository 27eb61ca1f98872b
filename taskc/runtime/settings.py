"""taskc's settings from its environment: environment variables and the cache folder."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from taskc.errors import CompileError

VERSION = "0.1.0"

# All variables: name and purpose. There should be at most five.
VARIABLES: tuple[tuple[str, str], ...] = (
    ("TASKC_DUMP", "a folder: the program after each pass is written into it"),
    ("TASKC_TARGET", "the target that a call runs on, in place of the default one"),
    ("TASKC_CACHE", "the cache folder, in place of the platform's"),
    ("TASKC_THREADS", "the most threads that a kernel runs on, of the processors that there are"),
    (
        "TASKC_TIER",
        "quick or full: only such code on the processor, in place of quick code that full code replaces",
    ),
)


def target_name(default: str) -> str:
    """The target that calls run on."""
    return os.environ.get("TASKC_TARGET") or default


def thread_limit() -> int | None:
    """The most threads that a kernel runs on."""
    given = os.environ.get("TASKC_THREADS")
    if not given:
        return None
    if not (given.isascii() and given.isdecimal()) or int(given) < 1:
        raise CompileError(f"TASKC_THREADS is a number of at least 1, not {given!r}")
    return int(given)


def tier() -> str | None:
    """The only tier of code on the processor: "quick" or "full"; None: first the one, then the other."""
    given = os.environ.get("TASKC_TIER") or None
    if given not in (None, "quick", "full"):
        raise CompileError(f"TASKC_TIER is quick or full, not {given!r}")
    return given


def cache_folder() -> Path:
    """The folder of compiled kernels. It need not exist."""
    given = os.environ.get("TASKC_CACHE")
    if given:
        return Path(given).absolute()
    variable = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    base = os.environ.get(variable)
    if base:
        return Path(base) / "taskc"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in containers
        return _temporary_folder()
    folders = {"win32": ("AppData", "Local"), "darwin": ("Library", "Caches")}
    return home.joinpath(*folders.get(sys.platform, (".cache",))) / "taskc"


@cache
def _temporary_folder() -> Path:
    """A folder of this process alone: somebody else could have created one with a predictable name."""
    import atexit
    import shutil
    import tempfile

    folder, owner = tempfile.mkdtemp(prefix="taskc-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)
