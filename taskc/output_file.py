"""Files that somebody asked for: each is there whole or not at all, whatever ends the writing."""

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
    """A new file beside the named one, whose place it takes if nothing goes wrong; its readers keep the old one.

    A link stays, and what it leads to is replaced. A pipe or a device is written to, and never replaced.

    only_files  what is there and no regular file is refused
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
    beside = place.with_name(f".{secrets.token_hex(8)}.taskc-part")
    try:
        with open(beside, "xb") as file:
            yield file
        if mode is not None:
            os.chmod(beside, stat.S_IMODE(mode))
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    with replacing(path) as file:
        file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
