"""Tensors in files of their own beside a model: read only from below the model's folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from taskc.onnx.written import Part


class Folder:
    """The folder that a model's external data lies in; a model that came as bytes has none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # Of each file the bytes that tensors have taken. Tensors that share all of theirs are one array; others don't
        # overlap, so that a small file can't fill the memory.
        self._read: dict[Path, dict[tuple[int, int], bytes]] = {}

    def read(self, entries: dict[str, str], nbytes: int, part: Part) -> bytes:
        """The bytes that a tensor's entries name, as many as its shape asks for."""
        file = self._file(entries.get("location", ""), part)
        offset = _number(entries, "offset", 0, part)
        length = _number(entries, "length", nbytes, part)
        if length != nbytes:
            raise part.error(f"has {length} bytes, but its shape asks for {nbytes}")
        known = self._read.setdefault(file, {})
        if (offset, length) not in known:
            taken = length + sum(map(len, known.values()))
            known[offset, length] = _bytes(file, offset, length, taken, part)
        return known[offset, length]

    def _file(self, location: str, part: Part) -> Path:
        if self.path is None:
            message = f"is in the file '{location}', and a model given as bytes has no folder"
            raise part.error(message, "give the model by its path")
        outside = part.error(f"is in '{location}', which isn't below the model's folder")
        if not location or "\0" in location or Path(location).is_absolute():
            raise outside
        file = Path(os.path.realpath(self.path / location))
        if not file.is_relative_to(os.path.realpath(self.path)):
            raise outside
        return file


def _bytes(file: Path, offset: int, length: int, taken: int, part: Part) -> bytes:
    try:
        # Opening a pipe would wait for somebody to write to it.
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise part.error(f"is in '{file}', which is no regular file")
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if offset + length > size:
                raise part.error(f"ends at byte {offset + length} of '{file}', which has {size}")
            if taken > size:
                raise part.error(f"lies over a part of another tensor in '{file}'")
            opened.seek(offset)
            found = opened.read(length)
    except OSError as error:
        raise part.error(f"is in '{file}': {error.strerror}") from None
    if len(found) != length:
        raise part.error(f"is in '{file}', which became shorter while it was read")
    return found


def _number(entries: dict[str, str], key: str, default: int, part: Part) -> int:
    written = entries.get(key, str(default))
    if not (written.isascii() and written.isdigit() and len(written) < 20):
        raise part.error(f"has the {key} '{written}' in its external data")
    return int(written)
