"""Models in the cache: a file's model that was compiled before loads as a bundle does.

Its key is a hash of everything that compilation depends on: the file's bytes and those of other files with its tensors,
the options, taskc's sources, the machine, and its tuning results. The entry has the names of inputs and outputs; each
of the first sets of shapes that the model is called with adds a bundle. The programs of a model with states serve all
lengths, so a process adds one bundle of them. A cache hit loads neither the package onnx nor any operator.

Hashing a gigabyte takes half a second. So the hash is cached, too, and a first call doesn't wait for it: if the cache
has no model whose file is of this size, the file is hashed when its programs are written, after the first result.

Models that the hash can't cover aren't cached: any compiled with a user's own passes or operators.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import taskc
from taskc import CompileError
from taskc.backend.cache import Cache, key_of, sources_version
from taskc.dataclass import dataclass
from taskc.ir.reentry import Turn
from taskc.ir.spans import span
from taskc.onnx.bundled import Bundled, BundledEntry, entries_json, head_json, states_in
from taskc.onnx.model import ProgramSource
from taskc.operators.graph import Graph
from taskc.programs.plan import Json
from taskc.runtime import user_passes
from taskc.runtime.bundle import Bundle, BundleError, BundleFile, Writer
from taskc.runtime.driver import Once
from taskc.runtime.machine import machine
from taskc.runtime.served import Arrays, Runnable, Types, types_of
from taskc.runtime.settings import VERSION, cache_folder, target_name
from taskc.runtime.targets import expect_kernels
from taskc.tune.database import database

if TYPE_CHECKING:
    from taskc.onnx.importer import Imported
    from taskc.onnx.stages import Traced

LIMIT = 2 << 30  # bytes of all bundles; the least recently used ones are dropped first
_LARGEST = LIMIT // 2
_MAX_STORED = 2  # programs of a model that one process adds to the cache
_MAX_LOOKUPS = 64  # sets of shapes that it looks up
_MAX_BUNDLES = 4  # of a model with states
_PACKAGE = Path(taskc.__file__).parent
_NODES_A_KERNEL = (
    8  # of the graph as it is read, where many nodes are fused and many kernels shared
)
_SETTLED = 2 * 10**9  # nanoseconds: no file system's clock is coarser
_ELSEWHERE = "elsewhere"  # a tensor is in a file whose name can't be told
# The key of external data in a tensor's protobuf, with its length, which may be encoded in more bytes than needed, and
# behind it the length of the file's name.
_LOCATION = re.compile(rb"(?:\x08|\x88\x80{0,8}\x00)location(?:\x12([\x01-\x7f]))?")
_LONGEST_LOCATION = 20

logger = logging.getLogger(__name__)


def from_cache(
    path: Path, options: Mapping[str, Any], trace: Callable[[], Traced]
) -> CachedModel | None:
    """The programs of a file's model, from the cache or to be added to it; None where it can't be cached."""
    if not _is_plain():
        return None
    cache = Cache(cache_folder() / "models", LIMIT)
    try:
        file = _File(path, _state(path), (repr(sorted(options.items())), *_surroundings()), cache)
        key = file.known_key()
    except (OSError, ValueError):
        return None  # reading the model reports the error
    return None if key == _ELSEWHERE else CachedModel(file, key, cache, trace)


def _state(path: Path) -> tuple[int, ...]:
    """The identity, size and times of a file; they differ if the file changes."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _has_settled(state: tuple[int, ...], at: int) -> bool:
    """Whether a change after this time would be seen: two within one tick of a clock may leave the same times."""
    *_, modified, changed = state
    return at - max(modified, changed) > _SETTLED


@dataclass(slots=True)
class _File:
    """A model's file in a state.

    context  everything else that compilation depends on
    kept     remembers the hashes of files, and the sizes of those that it has models of
    others   the states of files with tensors of the model, when they were hashed
    begun    when the model began to be read, if it isn't in the cache
    """

    path: Path
    state: tuple[int, ...]
    context: tuple[str, ...]
    kept: Cache
    others: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    begun: int = field(default_factory=time.time_ns)

    @property
    def is_same(self) -> bool:
        """Whether the files are still in their states."""
        try:
            return all(
                _state(path) == state
                for path, state in ((self.path, self.state), *self.others.items())
            )
        except OSError:
            return False

    @property
    def was_read(self) -> bool:
        """Whether the files are as they were when the model was read."""
        return self.is_same and all(
            _has_settled(state, self.begun) for state in self.others.values()
        )

    @property
    def mark(self) -> str:
        """The key of an entry that is present if the cache has a model of such a file."""
        _, _, size, *_ = self.state
        return key_of("size", str(size), *self.context)

    def known_key(self) -> str | None:
        """The key, if it can be known at once, or if the cache may have the model."""
        known = self.kept.get(_key_of_hash(self.path, self.state))
        if known is not None:
            return self._key(known.decode())
        is_settled = _has_settled(self.state, time.time_ns())
        return self.key() if self.kept.get(self.mark) is not None or not is_settled else None

    def key(self) -> str:
        """The key of the model."""
        return self._key(self._hash(self.path, self.state))

    def _hash(self, path: Path, state: tuple[int, ...]) -> str:
        """`_hashed` of a file in a state, which is cached once that has settled."""
        digest = _hashed(path)
        if _has_settled(state, time.time_ns()) and _state(path) == state:
            self.kept.put(_key_of_hash(path, state), digest.encode())
        return digest

    def _key(self, content: str) -> str:
        """The key for the hash of the model's file, and the other files that it names."""
        digest, *names = content.split("\n")
        digests = [digest]
        for name in names:
            path = self.path.parent / name
            state = self.others.setdefault(path, _state(path))
            known = self.kept.get(_key_of_hash(path, state))
            digests.append(self._hash(path, state) if known is None else known.decode())
        return _ELSEWHERE if _ELSEWHERE in digests else key_of(*digests, *self.context)


def _key_of_hash(path: Path, state: tuple[int, ...]) -> str:
    return key_of("file", os.path.abspath(path), repr(state))


@span("hash the file")
def _hashed(path: Path) -> str:
    """The SHA-256 of a file, and the other files that have tensors of it, a line each."""
    digest, end, has_others = hashlib.sha256(), b"", False
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            seen = end + piece
            # The pattern alone is ten times slower.
            has_others |= b"location" in seen and _LOCATION.search(seen) is not None
            digest.update(piece)
            end = seen[-_LONGEST_LOCATION:]
    return (
        "\n".join([digest.hexdigest(), *_others(path.read_bytes())])
        if has_others
        else digest.hexdigest()
    )


def _others(content: bytes) -> list[str]:
    """The names of other files with a model's tensors."""
    names = set()
    for match in _LOCATION.finditer(content):
        end = match.end() + (match[1][0] if match[1] else 0)
        name = content[match.end() : end].decode(errors="replace")
        if not name or not name.isprintable():
            return [_ELSEWHERE]
        names.add(name)
    return sorted(names)


def _is_plain() -> bool:
    """Whether compilation depends on nothing but the inputs of `_surroundings`."""
    registries = map(sys.modules.get, ("taskc.operators.call", "taskc.onnx.passes.pipeline"))
    return (
        not user_passes.registered()
        and not any(module is not None and module.registered() for module in registries)
        and target_name("cpu") == "cpu"
        and not os.environ.get("TASKC_DUMP")
    )


def _surroundings() -> Iterator[str]:
    """Everything besides the file and the options that compilation depends on."""
    from taskc.backend.cpu.processor import host

    yield sources_version(VERSION, cache_folder() / "sources", _PACKAGE)
    yield host().fingerprint
    yield repr(machine())
    yield _installed("onnx")
    tuned = database().path
    for path in (tuned, tuned.with_name(f"{tuned.name}-wal")):
        try:
            yield hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            yield ""


def _installed(package: str) -> str:
    """The versions that the folders of a package's metadata name. importlib.metadata takes 20 ms to load."""
    found = find_spec(package)
    if found is None or found.origin is None:
        return ""
    folder = Path(found.origin).parent.parent
    return " ".join(sorted(path.name for path in folder.glob(f"{package}-*.dist-info")))


def _aside(write: Callable[[], None]) -> None:
    """Write in a thread: a first call needn't wait for the disk, and the process waits when it ends."""
    threading.Thread(target=write, name="taskc keeps a model").start()


class CachedModel(ProgramSource):
    """The programs of a file's model, from the cache, or traced and added to it."""

    def __init__(
        self, file: _File, key: str | None, kept: Cache, trace: Callable[[], Traced]
    ) -> None:
        self._file = file
        self._key = key  # None until programs are written: the cache has none
        self._kept = kept
        self._trace = trace
        self._traced: Once[Traced] = Once()
        self._opened: dict[Types, Bundled | None] = {}
        self._missing: set[Types] = set()  # not in the cache, and not added yet
        self._room = _MAX_STORED
        self._is_plain = True
        self._writing = Turn()
        # The programs to be written, by the names of their bundles, which have the model's key in front.
        self._pairs: dict[str, tuple[tuple[Arrays, Runnable], ...]] = {}
        head = None if key is None else kept.get(key)
        if head is None:
            traced = self._source()
            head = json.dumps(head_json(*traced.ends, traced.states)).encode()
        self.head: Json = json.loads(head)
        self._has_states = states_in(self.head) is not None
        self._numbered: Once[list[Bundled]] = Once()

    @property
    def graph(self) -> Graph:
        return self._source().graph

    def traced(self, arrays: Arrays) -> Imported:
        return self._source().traced(arrays)

    def run(self, arrays: Arrays) -> list[Any]:
        return self._source().run(arrays)

    def staged(self) -> tuple[Runnable, ...]:
        return tuple([one for traced in self._traced.values[:1] for one in traced.staged()])

    def find(self, arrays: Arrays, *, is_traced: bool) -> Runnable | None:
        """The program for arrays like these; None where the graph runs in stages, which aren't cached."""
        loaded = None if is_traced else self._loaded(arrays)
        if loaded is not None:
            return loaded
        expect_kernels(max(1, len(self.graph.nodes) // _NODES_A_KERNEL))
        traced = self._source().find(arrays, is_traced=True)
        if traced is not None and traced.program is not None:
            expect_kernels(len(traced.program.kernels))
        return traced

    def _loaded(self, arrays: Arrays) -> BundledEntry | None:
        types = types_of(arrays.values())
        if self._has_states:
            bundles = self._numbered.get(self._open_all)
            found = next(filter(None, [one.loaded(arrays) for one in bundles]), None)
            if found is None:
                self._missing.add(types)
            return found
        if types not in self._opened:
            if len(self._opened) >= _MAX_LOOKUPS:
                return None
            if self._opened.setdefault(types, self._open(repr(types))) is None:
                self._missing.add(types)
        opened = self._opened[types]
        return None if opened is None else opened.loaded(arrays)

    def _open_all(self) -> list[Bundled]:
        """The bundles of a model with states: each process that needs other programs adds one."""
        bundles: list[Bundled] = []
        while len(bundles) < _MAX_BUNDLES and (bundled := self._open(str(len(bundles)))):
            bundles.append(bundled)
        return bundles

    def store(self, arrays: Arrays, runnable: Runnable) -> None:
        types = types_of(arrays.values())
        if types not in self._missing:
            return
        self._missing.discard(types)
        if self._room < 1 or not self._is_plain or not _is_plain():
            return
        self._room -= 1
        # Inputs that the program doesn't take decide what is compiled: copy them, as their owner may change them.
        # Of others, only types are needed.
        inputs = {
            name: np.broadcast_to(np.zeros((), array.dtype), array.shape)
            if name in runnable.inputs
            else array.copy()
            for name, array in arrays.items()
        }
        bundle = str(len(self._numbered.get(self._open_all))) if self._has_states else repr(types)
        pairs = (*self._pairs.get(bundle, ()), (inputs, runnable))
        self._pairs[bundle] = pairs
        _aside(lambda: self._write(bundle, pairs))

    def _source(self) -> Traced:
        return self._traced.get(self._trace_anew)

    def _trace_anew(self) -> Traced:
        is_plain = _is_plain()  # before and after, as users may register passes meanwhile
        traced = self._trace()
        if not self._file.is_same:
            raise CompileError(
                f"{self._file.path} has changed since the model was compiled, which is read again"
                " for shapes that are new",
                hint="compile it anew",
            )
        self._is_plain = is_plain and _is_plain()
        return traced

    def _open(self, bundle: str) -> Bundled | None:
        """The cached bundle of this name, with everything loaded."""
        key = None if self._key is None else key_of(self._key, bundle)
        file = None if key is None else self._kept.open(key)
        if key is None or file is None:
            return None
        try:
            with file:
                opened = Bundle(BundleFile(file, str(self._kept.folder / key), is_ours=True))
            with opened.file.reading():
                if opened.model["key"] != key:
                    raise ValueError("it is another one's")
            bundled = Bundled(opened)
            bundled.load()
        except BundleError as error:
            logger.warning(
                "what the cache has of %s is made again: %s", self._file.path, error.message
            )
            return None
        return bundled

    @span("cache/keep the model")
    @span("write the model's programs")
    def _write(self, bundle: str, pairs: tuple[tuple[Arrays, Runnable], ...]) -> None:
        with self._writing.taken():
            key = self._written_key()
            if key is None or len(self._pairs[bundle]) > len(pairs):
                return  # another thread writes these and more
            name = key_of(key, bundle)
            writer = Writer(in_cache=True)
            content = {"key": name, **self.head, "entries": entries_json(writer, pairs)}
            if writer.sections.nbytes <= _LARGEST and _is_plain():
                self._kept.put(self._file.mark, b"")
                self._kept.put(key, json.dumps(self.head).encode())
                pieces = writer.sections.pieces(writer.content(content))
                self._kept.write(name, pieces, durable=True)

    def _written_key(self) -> str | None:
        """The key under which programs are written; None where there can't be one."""
        if self._key is None:
            try:
                key = self._file.key()
            except OSError:
                return None
            if key == _ELSEWHERE or not self._file.was_read:
                return None
            self._key = key
        return self._key
