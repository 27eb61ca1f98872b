"""`tc.compile(model)`: compile a model for calls, or find it in the cache.

A file's model that was compiled before loads as a bundle does. Its key is a hash of everything that compilation depends
on: the file's bytes, the options, taskc's sources, the machine, and its tuning results. The entry has the names of
inputs and outputs; each of the first sets of shapes that the model is called with adds a bundle. A cache hit loads
neither the package onnx nor any operator.

Hashing a gigabyte takes half a second. So the hash is cached, too, and a first call doesn't wait for it: if the cache
has no model whose file is of this size, the file is hashed when its programs are written, after the first result.

Models that the hash can't cover aren't cached: those with tensors in other files, and any compiled with a user's own
passes or operators.
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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import taskc
from taskc import CompileError, DType, bf16
from taskc.backend.cache import Cache, key_of, sources_version
from taskc.backend.limits import NO_LIMITS, Limits
from taskc.dataclass import dataclass
from taskc.ir.spans import span
from taskc.onnx.bundled import Bundled, BundledEntry, ends_of, entries_json, head_json
from taskc.onnx.model import PROCESSOR, Model, Place, ProgramSource, place_of
from taskc.onnx.weights import read_ahead
from taskc.operators.graph import Graph
from taskc.programs.plan import Json
from taskc.progress import line, report
from taskc.runtime import user_passes
from taskc.runtime.bundle import Bundle, BundleError, BundleFile, Writer
from taskc.runtime.driver import Once
from taskc.runtime.machine import built_for, machine
from taskc.runtime.served import Arrays, Runnable, Types, types_of
from taskc.runtime.settings import VERSION, cache_folder, target_name
from taskc.runtime.targets import expect_kernels
from taskc.tune.database import database

if TYPE_CHECKING:
    from onnx import ModelProto

    from taskc.onnx.importer import Imported
    from taskc.onnx.stages import Traced

    ModelSource: TypeAlias = str | os.PathLike[str] | bytes | ModelProto | Graph

LIMIT = 2 << 30  # bytes of all bundles; the least recently used ones are dropped first
_LARGEST = LIMIT // 2
_MAX_STORED = 2  # sets of shapes of a model that one process adds to the cache
_MAX_LOOKUPS = 64  # sets of shapes that it looks up
_PACKAGE = Path(taskc.__file__).parent
_NODES_A_KERNEL = (
    8  # of the graph as it is read, where many nodes are fused and many kernels shared
)
_SETTLED = 2 * 10**9  # nanoseconds: no file system's clock is coarser
_ELSEWHERE = "elsewhere"  # a tensor is in another file
# The key of external data in a tensor's protobuf, with its length, which may be encoded in more bytes than needed.
_LOCATION = re.compile(rb"(?:\x08|\x88\x80{0,8}\x00)location")
_LONGEST_LOCATION = 18

logger = logging.getLogger(__name__)

# The types to which operands of products with weights are rounded.
PRECISIONS: dict[str, DType | None] = {"f32": None, "bf16": bf16}


@line()
def compile(
    model: ModelSource,
    target: str = "cpu",
    *,
    exact: bool = False,
    precision: str = "f32",
    threads: int | None = None,
    memory: int | None = None,
    wait: bool = False,
    states: Mapping[str, str] | None = None,
    capacity: int | None = None,
    first: ModelSource | None = None,
) -> Any:
    """Compile an ONNX model: a file, its bytes, a ModelProto, or a graph of `tc.onnx`; with states a `Sequence`.

    target  "cpu", or "cuda": the first CUDA device. NumPy arrays are copied there, and outputs back. If an input lies
            on the device, outputs stay there
    exact  convolutions sum their products one by one. Otherwise 3 x 3 ones may use Winograd's algorithm where it is
           faster, with errors up to ten times as large: 5e-5 for results of about 1
    precision  "bf16" rounds both operands of f32 products with weights to bf16, and sums in f32: `taskc verify
               --precision bf16` measures the difference
    threads  the most threads of a call
    memory  the most bytes of weights and temporaries that each program takes; a call that needs more is an error
    wait    the first call for new shapes returns once everything has its full code (`tc.finish_compiling`)
    states  outputs that the session keeps for inputs of its next call, by patterns of names:
            {"present.*": "past_key_values.*"}. The model appends to each along one axis, up to `capacity` places
    first   the model of each sequence's first call, if it's another one: it returns the states and takes none
    """
    limits = Limits(threads, memory)
    if hasattr(model, "forward") or hasattr(model, "parameters"):
        raise CompileError(
            f"a model is a file, its bytes or a ModelProto, and this is the module {type(model).__name__}",
            hint="torch.onnx.export(module, inputs, path, dynamo=True) writes a file; docs/torch.md has kernels for"
            " PyTorch",
        )
    if precision not in PRECISIONS:
        raise CompileError(
            f"there is no precision {precision!r}",
            hint=f"there is {', '.join(map(repr, PRECISIONS))}",
        )
    place = place_of(target)
    if place is not PROCESSOR and limits != NO_LIMITS:
        raise CompileError("threads and memory are limits of the processor's programs")
    options = {"exact": exact, "operands": PRECISIONS[precision]}
    if states is None and first is not None:
        raise CompileError(
            "the model of a first call computes states",
            hint="tc.compile(model, first=..., states=...)",
        )
    if states is not None:
        if place is not PROCESSOR:
            raise CompileError("states are kept by sessions on the processor")
        from taskc.onnx.sequences import sequence_of  # few models have states
        from taskc.onnx.states import branches_of

        later = _traced(model, options, place)
        begins = None if first is None else _traced(first, options, place)
        branches = branches_of(later.graph) if first is None else None
        if branches is not None:
            begins, later = (_traced(branch, options, place) for branch in branches)
        return sequence_of(later, begins, states, capacity, limits, wait)
    if isinstance(model, (str, os.PathLike)) and place is PROCESSOR:
        cached = _from_cache(Path(model), options, lambda: _traced(model, options, place))
        if cached is not None:
            return Model(*ends_of(cached.head), cached, limits=limits, wait=wait)
    traced = _traced(model, options, place)
    name, inputs, outputs = traced.graph.name, traced.graph.inputs, traced.graph.returned
    return Model(name, inputs, outputs, traced, limits=limits, place=place, wait=wait)


def _traced(
    model: ModelSource,
    options: dict[str, Any],
    place: Place,
) -> Traced:
    if isinstance(model, (str, os.PathLike)):
        report(f"reading {model}")
    with read_ahead(model) as parts:
        with span("import"):
            from taskc.onnx.passes.pipeline import rewritten
            from taskc.onnx.stages import Traced  # slow: loads what all operators need

        if not isinstance(model, Graph):
            with span("import"):
                from taskc.onnx.importer import is_known
                from taskc.onnx.reader import read  # slow: loads the package onnx
            with span("read the model"):
                model = read(model, is_known, parts)
    with built_for(place.machine), span("rewrite the model"):
        return Traced(rewritten(model, **options), place, model)


# --- The cache ----------------------------------------------------------------------------------


def _from_cache(
    path: Path, options: Mapping[str, Any], trace: Callable[[], Traced]
) -> _CachedModel | None:
    """The programs of a file's model, from the cache or to be added to it; None where it can't be cached."""
    if not _is_plain():
        return None
    cache = Cache(cache_folder() / "models", LIMIT)
    try:
        file = _File(path, _state(path), (repr(sorted(options.items())), *_surroundings()), cache)
        key = file.known_key()
    except (OSError, ValueError):
        return None  # reading the model reports the error
    return None if key == _ELSEWHERE else _CachedModel(file, key, cache, trace)


def _state(path: Path) -> tuple[int, ...]:
    """The identity, size and times of a file; they differ if the file changes."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True, slots=True)
class _File:
    """A model's file in a state.

    context  everything else that compilation depends on
    kept     remembers the hashes of files, and the sizes of those that it has models of
    """

    path: Path
    state: tuple[int, ...]
    context: tuple[str, ...]
    kept: Cache

    @property
    def is_same(self) -> bool:
        """Whether the file is still in this state."""
        try:
            return _state(self.path) == self.state
        except OSError:
            return False

    @property
    def has_settled(self) -> bool:
        """Whether a change from now on would be seen: two within one tick of a clock may leave the same times."""
        *_, modified, changed = self.state
        return time.time_ns() - max(modified, changed) > _SETTLED

    @property
    def mark(self) -> str:
        """The key of an entry that is present if the cache has a model of such a file."""
        _, _, size, *_ = self.state
        return key_of("size", str(size), *self.context)

    @property
    def _key_of_hash(self) -> str:
        return key_of("file", os.path.abspath(self.path), repr(self.state))

    def known_key(self) -> str | None:
        """The key, if it can be known at once, or if the cache may have the model."""
        known = self.kept.get(self._key_of_hash)
        if known is not None:
            return self._key(known.decode())
        return self.key() if self.kept.get(self.mark) is not None or not self.has_settled else None

    def key(self) -> str:
        """The key of the model; the hash of the file is cached once that has settled."""
        digest = _hashed(self.path)
        if self.has_settled and self.is_same:
            self.kept.put(self._key_of_hash, digest.encode())
        return self._key(digest)

    def _key(self, digest: str) -> str:
        return digest if digest == _ELSEWHERE else key_of(digest, *self.context)


@span("hash the file")
def _hashed(path: Path) -> str:
    digest, end = hashlib.sha256(), b""
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            seen = end + piece
            if b"location" in seen and _LOCATION.search(
                seen
            ):  # the pattern alone is ten times slower
                return _ELSEWHERE
            digest.update(piece)
            end = seen[-_LONGEST_LOCATION:]
    return digest.hexdigest()


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


class _CachedModel(ProgramSource):
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
        head = None if key is None else kept.get(key)
        if head is None:
            graph = self.graph
            head = json.dumps(head_json(graph.name, graph.inputs, graph.returned)).encode()
        self.head: Json = json.loads(head)

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
        if types not in self._opened:
            if len(self._opened) >= _MAX_LOOKUPS:
                return None
            bundled = (
                None if self._key is None else self._open(key_of(self._key, repr(types)), arrays)
            )
            if self._opened.setdefault(types, bundled) is None:
                self._missing.add(types)
        opened = self._opened[types]
        return None if opened is None else opened.loaded(arrays)

    def store(self, arrays: Arrays, runnable: Runnable) -> None:
        types = types_of(arrays.values())
        if types not in self._missing:
            return
        self._missing.discard(types)
        if self._room < 1 or not self._is_plain or not _is_plain():
            return
        self._room -= 1
        # Inputs that the program doesn't take decide what is compiled: copy them, as their owner may change them.
        inputs = {
            name: array if name in runnable.inputs else array.copy()
            for name, array in arrays.items()
        }
        _aside(lambda: self._write(types, inputs, runnable))

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

    def _open(self, key: str, arrays: Arrays) -> Bundled | None:
        """The cached bundle of this key, with everything loaded that these arrays need."""
        file = self._kept.open(key)
        if file is None:
            return None
        try:
            with file:
                bundle = Bundle(BundleFile(file, str(self._kept.folder / key), is_ours=True))
            with bundle.file.reading():
                if bundle.model["key"] != key:
                    raise ValueError("it is another one's")
            bundled = Bundled(bundle)
            bundled.loaded(arrays)
        except BundleError as error:
            logger.warning(
                "what the cache has of %s is made again: %s", self._file.path, error.message
            )
            return None
        return bundled

    @span("cache/keep the model")
    @span("write the model's programs")
    def _write(self, types: Types, arrays: Arrays, runnable: Runnable) -> None:
        key = self._written_key()
        if key is None:
            return
        name = key_of(key, repr(types))
        writer = Writer(in_cache=True)
        content = {"key": name, **self.head, "entries": entries_json(writer, [(arrays, runnable)])}
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
            if key == _ELSEWHERE or not self._file.is_same:
                return None
            self._key = key
        return self._key
