"""Compiled code on disk: by content, whole or not at all, and no more than so much of it.

An entry's name is the hash of everything that it was made from, so entries never go stale; its first
bytes are the hash of the rest, so what a crash or a disk broke is as good as missing. Where nothing can
be written nothing is kept, and that is no error.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIMIT = 256 << 20  # bytes; the entries that were used longest ago go first
_PRUNED_EVERY = 32  # writes
_MAGIC = b"taskc 1\n"
_SOURCES = ("*.py", "*.ll", "*.cuh")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Cache:
    folder: Path
    limit: int = LIMIT
    _writes: int = 0

    def get(self, key: str) -> bytes | None:
        path = self.folder / key
        try:
            if not self._is_private():
                return None
            content = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + 32
        payload = content[start:]
        if content[:start] != _MAGIC + hashlib.sha256(payload).digest():
            logger.warning("the cache entry %s is damaged and is made again", path)
            return None
        with suppress(OSError):  # a read-only cache: its owner prunes it
            os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private():
                logger.warning("%s can be written by others: nothing is kept there", self.folder)
                return
            self._write(key, _MAGIC + hashlib.sha256(payload).digest() + payload)
        except OSError as error:
            logger.debug("nothing is kept in %s: %s", self.folder, error)
            return
        if self._writes % _PRUNED_EVERY == 0:
            self.prune()
        self._writes += 1

    def _write(self, key: str, content: bytes) -> None:
        """Under another name first: who reads at the same time finds all of it or nothing."""
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            try:
                file.write(content)
                file.close()
                os.replace(file.name, self.folder / key)
            except BaseException:
                with suppress(OSError):
                    os.unlink(file.name)
                raise

    def prune(self) -> None:
        """Deletes what was used longest ago, until the rest is within the limit."""
        entries = []
        try:
            with os.scandir(self.folder) as found:
                for entry in found:
                    with suppress(FileNotFoundError):  # another process prunes, too
                        status = entry.stat()
                        entries.append((status.st_mtime, status.st_size, entry.path))
        except OSError:
            return
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit:
                break
            try:
                os.unlink(path)
            except OSError:
                continue
            total -= size

    def _is_private(self) -> bool:
        """Ours, and writable by nobody else: its code will be run."""
        if not hasattr(os, "getuid"):
            return True
        status = os.stat(self.folder)
        return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


def key_of(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()


@cache
def sources_version(version: str, kept: Path, *folders: Path) -> str:
    """The version and the content of every source: a development tree compiles anew, and a copy of one doesn't.

    kept  the folder of a cache: it remembers the content of sources that haven't been touched since
    """
    found = [
        (folder, path)
        for folder in folders
        for kind in _SOURCES
        for path in sorted(folder.rglob(kind))
    ]
    seen = [version]
    for _, path in found:
        status = path.stat()
        seen.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    memory, key = Cache(kept), key_of(*seen)
    known = memory.get(key)
    if known is not None:
        return known.decode()
    parts = [version]
    for folder, path in found:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        parts.append(f"{folder.name}/{path.relative_to(folder).as_posix()} {content}")
    made = key_of(*parts)
    memory.put(key, made.encode())
    return made
