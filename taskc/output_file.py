"""Output files that users ask for: each is written whole or not at all, even if writing is interrupted."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str], *, only_files: bool = False) -> Iterator[BinaryIO]:
    """A new file that replaces the named one if nothing goes wrong; readers of the old one keep it.

    A link stays, and its target is replaced. A pipe or a device is written to, and never replaced.

    only_files  refuse to write to anything but a regular file
    """
    place = Path(os.path.realpath(path))
    try:
        mode: int | None = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        if only_files:
            raise OSError(f"{os.fspath(path)} is no regular file, and isn't replaced")
        with open(path, "wb") as file:
            yield file
        return
    partial = place.with_name(f".{secrets.token_hex(8)}.taskc-part")
    try:
        with open(partial, "xb") as file:
            yield file
        if mode is not None:
            os.chmod(partial, stat.S_IMODE(mode))
        os.replace(partial, place)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    with replacing(path) as file:
        file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
