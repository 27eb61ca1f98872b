"""The file of a bundle: a head, a manifest in JSON, and sections of bytes, each under its hash.

    0    "taskc bundle" and zeros, 16 bytes
    16   the version of the format, then the number 0: 4 bytes each, little-endian, as are all numbers here
    24   the size of the manifest: 8
    32   the SHA-256 of the manifest: 32
    64   the manifest: {"sections": [[offset, bytes, SHA-256 in hex], ...], "content": ...}
    ...  the sections in that order, each at the next multiple of 64 bytes

Everything that is read is checked against its hash in the manifest, and the manifest against its hash in the head. A
file that anybody may write is read whole. A file in the cache, which taskc replaces and never changes, is mapped: a
section costs nothing until it is read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.packed import aligned
from taskc.errors import NOWHERE, CompileError, Location
from taskc.output_file import replacing

VERSION = 2  # increases with every change of the format or its meaning
_MAGIC = b"taskc bundle".ljust(16, b"\0")
_HEAD = struct.Struct("<16sIIQ32s")
_ALIGNMENT = 64
_AGAIN = "compile it anew: taskc compile MODEL.onnx -o FILE.taskc"

Bytes: TypeAlias = "bytes | memoryview"


class BundleError(CompileError):
    """A file isn't a valid bundle."""


@dataclass(slots=True)
class Sections:
    """The sections of a bundle under construction; equal ones are stored once."""

    parts: list[Bytes] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, part: Bytes) -> int:
        """Add a section; returns its number."""
        digest = hashlib.sha256(part).hexdigest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self.parts)
            self.parts.append(part)
            self.hashes.append(digest)
        return self._numbers[digest]

    @property
    def nbytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)

    def pieces(self, content: object) -> Iterator[Bytes]:
        """The bytes of the file, from its beginning on."""
        sizes = [memoryview(part).nbytes for part in self.parts]
        length = 0
        while True:  # the offsets are in the manifest, whose own length they depend on
            offsets = _offsets(_HEAD.size + length, sizes)
            rows = [list(row) for row in zip(offsets, sizes, self.hashes, strict=True)]
            text = json.dumps({"sections": rows, "content": content}, separators=(",", ":"))
            manifest = text.encode()
            if len(manifest) <= length:
                manifest = manifest.ljust(length)
                break
            length = len(manifest)
        yield _HEAD.pack(_MAGIC, VERSION, 0, length, hashlib.sha256(manifest).digest())
        yield manifest
        end = _HEAD.size + length
        for offset, size, part in zip(offsets, sizes, self.parts, strict=True):
            yield bytes(offset - end)
            yield part
            end = offset + size

    def write(self, path: Path, content: object) -> None:
        with replacing(path, only_files=True) as file:
            file.writelines(self.pieces(content))


def _offsets(start: int, sizes: list[int]) -> list[int]:
    offsets = []
    for size in sizes:
        start = -(-start // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        start += size
    return offsets


class BundleFile:
    """A bundle in a file. Sections share its memory, which nobody may write.

    is_ours  only taskc writes the file, so that it may be mapped

    """

    def __init__(self, file: BufferedReader, name: str, *, is_ours: bool = False) -> None:
        self.where = Location(name, 0, 0, 0, 0) if name else NOWHERE
        self._memory = self._mapped(file) if is_ours else self._read(file)
        self.content, self._sections = self._manifest()

    @staticmethod
    def open(path: str | os.PathLike[str]) -> BundleFile:
        name = os.fspath(path)
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for a writer
            raise BundleError(
                "this is no bundle: it is no regular file", Location(name, 0, 0, 0, 0)
            )
        with open(path, "rb") as file:
            return BundleFile(file, name)

    def error(self, message: str, hint: str | None = _AGAIN) -> BundleError:
        return BundleError(message, self.where, hint)

    @property
    def sections(self) -> int:
        return len(self._sections)

    def section(self, number: int, *, verify: bool = True) -> memoryview:
        """A section's bytes, checked against its hash unless `verify` is false."""
        offset, size, wanted = self._sections[number]
        content = self._memory[offset : offset + size]
        if verify and hashlib.sha256(content).hexdigest() != wanted:
            raise self.damaged(number)
        return content

    def damaged(self, number: int) -> BundleError:
        return self.error(f"section {number} of the bundle is damaged")

    def _mapped(self, file: BufferedReader) -> memoryview:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise self.error(f"this is no bundle: {error}", None) from None

    def _read(self, file: BufferedReader) -> memoryview:
        try:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise self._no_bundle()
            file.seek(0)
            memory = aligned(np.empty, os.fstat(file.fileno()).st_size, np.dtype(np.uint8))
            return memory[
                : file.readinto(memory.data)
            ].data.toreadonly()  # it may be shorter by now
        except (OSError, MemoryError) as error:
            raise self.error(f"this bundle can't be read: {error}", None) from None

    def _no_bundle(self) -> BundleError:
        return self.error("this is no bundle: it doesn't begin as one", None)

    def _manifest(self) -> tuple[Any, list[tuple[int, int, str]]]:
        memory = self._memory
        if len(memory) < _HEAD.size:
            raise self.error("this is no bundle: it is too short", None)
        magic, version, zero, length, digest = _HEAD.unpack(memory[: _HEAD.size])
        if magic != _MAGIC:
            raise self._no_bundle()
        if (version, zero) != (VERSION, 0):
            raise self.error(f"the bundle has the format {version}, and this taskc reads {VERSION}")
        if length > len(memory) - _HEAD.size:
            raise self.error("the bundle ends within its manifest")
        text = memory[_HEAD.size : _HEAD.size + length]
        if hashlib.sha256(text).digest() != digest:
            raise self.error("the manifest of the bundle is damaged")
        with self.reading():
            manifest = json.loads(bytes(text))
            sections = [(int(at), int(size), str(sha)) for at, size, sha in manifest["sections"]]
            end = _HEAD.size + length
            for offset, size, _ in sections:
                if offset < end or size < 0 or offset % _ALIGNMENT:
                    raise ValueError("sections lie over one another")
                end = offset + size
            content = manifest["content"]
        if end > len(memory):
            raise self.error(f"the bundle has {len(memory)} bytes of {end}")
        return content, sections

    def reading(self) -> _Reading:
        """A context in which a manifest is parsed: exceptions of malformed content mean a damaged bundle."""
        return _Reading(self)


# Exceptions that Python raises for JSON of an unexpected form.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class _Reading:
    bundle: BundleFile

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _MALFORMED):
            raise self.bundle.error(f"the bundle says what it can't: {error}") from error
