"""What taskc reads from its surroundings: environment variables and the cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from taskc.errors import CompileError

VERSION = "0.1.0"

# All of them: the name, and what it is for. There are to be five at most.
VARIABLES: tuple[tuple[str, str], ...] = (
    ("TASKC_DUMP", "a folder: the program after each pass is written into it"),
    ("TASKC_TARGET", "the target that a call runs on, in place of the default one"),
    ("TASKC_CACHE", "the cache folder, in place of the platform's"),
    ("TASKC_THREADS", "the most threads that a kernel runs on, of the processors that there are"),
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


def cache_folder() -> Path:
    """Where compiled kernels are kept. The folder need not exist."""
    given = os.environ.get("TASKC_CACHE")
    if given:
        return Path(given)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "taskc" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "taskc"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "taskc"
