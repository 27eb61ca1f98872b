"""The compile cache: compiled code on disk, by content, whole or not at all, and limited in size.

An entry's name is the hash of everything that it was made from (for a kernel, `code_text`), so entries never go
stale. Its first bytes are the hash of its name and the rest: an entry that a crash or a disk broke, or that stands
under another's name, counts as missing. Where nothing can be written nothing is kept, and that is no error.

The entries are code that will be run. So a folder is opened once, without following a link, and its owner and
permissions are checked; all accesses go through it, and each entry is checked likewise. Where a system has no such
calls (Windows), folders are the user's own by its rules, and paths serve.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path

from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.printer import to_text
from taskc.ir.rewrite import all_below
from taskc.ir.spans import span

LIMIT = 256 << 20  # bytes; the entries that were used longest ago go first
_PRUNED_EVERY = 32  # writes
_MAGIC = b"taskc 2\n"
_SOURCES = (".py", ".ll", ".cuh", ".lark", ".jsonl")
# An entry, and one that is being written. Nothing else is the cache's to delete.
_NAME = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{16})?")
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OPENS_FOLDERS = (
    hasattr(os, "O_DIRECTORY") and {os.open, os.unlink, os.rename} <= os.supports_dir_fd
)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_ENTRY = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe would wait for a writer
    | getattr(os, "O_BINARY", 0)
)
_NEW = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A checked folder: entries are opened relative to its descriptor."""

    folder: Path
    descriptor: int | None

    def at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.folder / name)

    def open(self, name: str, flags: int) -> int:
        return os.open(self.at(name), flags, 0o600, dir_fd=self.descriptor)

    def delete(self, name: str) -> None:
        os.unlink(self.at(name), dir_fd=self.descriptor)

    def rename(self, name: str, to: str) -> None:
        place = self.descriptor
        os.replace(self.at(name), self.at(to), src_dir_fd=place, dst_dir_fd=place)

    def entries(self) -> list[tuple[float, int, str]]:
        """The time of last use, the size in bytes and the name of each entry."""
        listing = []
        with os.scandir(self.folder if self.descriptor is None else self.descriptor) as listed:
            for entry in listed:
                with suppress(FileNotFoundError):  # another process prunes, too
                    status = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name) and not _problem(status, stat.S_ISREG):
                        listing.append((status.st_mtime, status.st_size, entry.name))
        return listing


@dataclass(slots=True)
class Cache:
    folder: Path
    limit: int = LIMIT
    _writes: int = 0

    @span("cache/read")
    def get(self, key: str) -> bytes | None:
        file = self.open(key)
        if file is None:
            return None
        try:
            with file:
                content = file.read()
        except OSError:
            return None
        start = len(_MAGIC) + 32
        payload = content[start:]
        if content[:start] == _head(key, payload):
            return payload
        logger.warning("the cache entry %s is damaged and is made again", self.folder / key)
        return None

    def open(self, key: str) -> BufferedReader | None:
        """The file of an entry that only this user can write; the caller checks that it is complete."""
        try:
            with _opened(self.folder) as folder:
                return None if folder is None else self._open(folder, key)
        except OSError:
            return None

    def _open(self, folder: _Opened, key: str) -> BufferedReader | None:
        file = open(folder.open(key, _ENTRY), "rb")  # noqa: SIM115 (the caller's)
        problem = _problem(os.fstat(file.fileno()), stat.S_ISREG)
        if problem:
            file.close()
            _warn(f"the cache entry {self.folder / key} {problem}: it is made again")
            return None
        with suppress(OSError):  # a read-only cache: its owner prunes it
            os.utime(file.fileno() if os.utime in os.supports_fd else self.folder / key)
        return file

    def put(self, key: str, payload: bytes) -> None:
        self.write(key, [_head(key, payload), payload])

    @span("cache/write")
    def write(
        self, key: str, pieces: Iterable[bytes | memoryview], *, durable: bool = False
    ) -> None:
        """Write an entry, whose content has to say itself whether it is complete and what its name is.

        durable  the content is on the disk before the name is, even if the power fails
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(self.folder) as folder:
                if folder is None:
                    return
                _write(folder, key, pieces, durable)
                if self._writes % _PRUNED_EVERY == 0:
                    self._prune(folder)
                self._writes += 1
        except OSError as error:
            logger.debug("nothing is kept in %s: %s", self.folder, error)

    def prune(self) -> None:
        """Delete the least recently used entries until the rest is within the limit."""
        with suppress(OSError), _opened(self.folder) as folder:
            if folder is not None:
                self._prune(folder)

    def _prune(self, folder: _Opened) -> None:
        entries = folder.entries()
        total = sum(size for _, size, _ in entries)
        for _, size, name in sorted(entries):
            if total <= self.limit:
                break
            try:
                folder.delete(name)
            except OSError:
                continue
            total -= size


def _head(key: str, payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + b"\n" + payload).digest()


def _write(folder: _Opened, key: str, pieces: Iterable[bytes | memoryview], durable: bool) -> None:
    """Write under a temporary name and rename: concurrent readers find the whole entry or none."""
    name = f"{key}.{secrets.token_hex(8)}"
    descriptor = folder.open(name, _NEW)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(pieces)
            if durable:
                file.flush()
                os.fsync(descriptor)
        folder.rename(name, key)
    except BaseException:
        with suppress(OSError):
            folder.delete(name)
        raise


@contextmanager
def _opened(path: Path) -> Iterator[_Opened | None]:
    """A folder of the cache; None, and a warning, where it isn't ours alone. Ours is made so."""
    if not _OPENS_FOLDERS:
        yield _Opened(path, None)
        return
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError:
        if path.is_symlink():
            _warn(f"{path} is a symbolic link: nothing is kept there")
        raise
    try:
        problem = _mended(path, descriptor)
        if problem:
            _warn(f"{path} {problem}: nothing is kept there")
        yield None if problem else _Opened(path, descriptor)
    finally:
        os.close(descriptor)


def _mended(path: Path, descriptor: int) -> str:
    """The reason why a folder can't be trusted; one of ours that others may write is closed to them first."""
    status = os.fstat(descriptor)
    problem = _problem(status, stat.S_ISDIR)
    if problem and status.st_uid == os.getuid():  # what others have put there has another owner
        with suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_OTHERS)
        if not _problem(os.fstat(descriptor), stat.S_ISDIR):
            _warn(f"{path} could be written by others; now it can't")
            return ""
    return problem


def _problem(status: os.stat_result, is_kind: Callable[[int], bool]) -> str:
    """The reason why a file or a folder can't be trusted; empty if it can."""
    if not is_kind(status.st_mode):
        return "is no file" if is_kind is stat.S_ISREG else "is no folder"
    if not hasattr(os, "getuid"):
        return ""
    if status.st_uid not in (os.getuid(), 0):
        return "belongs to another user"
    return "can be written by others" if status.st_mode & _OTHERS else ""


def problem_of(path: Path, is_kind: Callable[[int], bool] = stat.S_ISDIR) -> str:
    """The reason why a folder or a file isn't used; empty if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    return "is a symbolic link" if stat.S_ISLNK(status.st_mode) else _problem(status, is_kind)


def private_folder_problem(path: Path) -> str:
    """`problem_of` a folder; one of ours that others may write is closed to them first."""
    problem = problem_of(path)
    if not problem or not _OPENS_FOLDERS or path.is_symlink():
        return problem
    descriptor = os.open(path, _FOLDER)
    try:
        return _mended(path, descriptor)
    finally:
        os.close(descriptor)


_warned: set[str] = set()


def _warn(text: str) -> None:
    """Log a warning once in a process."""
    if text not in _warned:
        _warned.add(text)
        logger.warning("%s", text)


def key_of(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()


@cache
@span("cache/keys")
def sources_version(version: str, kept: Path, *folders: Path) -> str:
    """The version and the content of every source: a development tree compiles anew, and a copy of one doesn't.

    kept  the folder of a cache: it remembers the content of sources that haven't been touched since
    """
    sources = [(folder, path) for folder in folders for path in sorted(_sources(str(folder)))]
    seen = [version]
    for _, path in sources:
        status = os.stat(path)
        seen.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    memory, key = Cache(kept), key_of(*seen)
    known = memory.get(key)
    if known is not None:
        return known.decode()
    parts = [version]
    for folder, path in sources:
        content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        parts.append(f"{folder.name}/{Path(path).relative_to(folder).as_posix()} {content}")
    key_of_all = key_of(*parts)
    memory.put(key, key_of_all.encode())
    return key_of_all


def _sources(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from [os.path.join(place, name) for name in names if name.endswith(_SOURCES)]


@span("cache/keys")
def code_text(kernel: ir.Kernel) -> str:
    """The kernel's text and the locations of its assertions, which are part of their messages."""
    places = [node.loc for node in all_below(kernel.body, ir.Assert)]
    return f"{to_text(kernel)}{places!r}"
