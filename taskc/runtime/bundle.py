"""Bundles: compiled programs in one file, which are called without being traced, fused or compiled again.

    write(definition, path)        save a program with its machine code, its constants and its steps
    Bundle.open(path).program(n)   load the program, which is called as before

A bundle has as much of a program as plans need: its kernels have lost their bodies. So it can be planned for all sizes
that the program can, without a parser.

A bundle holds machine code, so it is loaded only if somebody names its file. Code, steps and everything else that could
make a kernel access wrong memory is checked against its hash before use. Large arrays of floats are checked against a
checksum, which is as fast as reading memory, and against their hashes on request.

The file of a bundle: a head, a manifest in JSON, and sections of bytes, each under its hash.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from taskc.arrays.arguments import Array, Signature
from taskc.arrays.packed import aligned
from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Kernel, Tensor
from taskc.output_file import replacing
from taskc.programs.arena import Block, blocks_of
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Program, kernels_of, map_kernels
from taskc.programs.plan import Json, from_record, recorded
from taskc.runtime.driver import scheduled, whole_program
from taskc.runtime.settings import VERSION, tier
from taskc.runtime.targets import find_target, finish_compiling, kernel_cache, loaded_program

if TYPE_CHECKING:
    from taskc.backend.cpu.compile import LoadedKernel

FORMAT = 3  # increases with every change of the format or its meaning
_MAGIC = b"taskc bundle".ljust(16, b"\0")
_HEAD = struct.Struct("<16sIIQ32s")
_ALIGNMENT = 64
_AGAIN = "compile it anew: taskc compile MODEL.onnx -o FILE.taskc"

Bytes: TypeAlias = "bytes | memoryview"


# Exceptions that Python raises for JSON of an unexpected form.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


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
        yield _HEAD.pack(_MAGIC, FORMAT, 0, length, hashlib.sha256(manifest).digest())
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
        self.is_ours = is_ours
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
        if (version, zero) != (FORMAT, 0):
            raise self.error(f"the bundle has the format {version}, and this taskc reads {FORMAT}")
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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context in which a manifest is parsed: exceptions of malformed content mean a damaged bundle."""
        try:
            yield
        except _MALFORMED as error:
            raise self.error(f"the bundle says what it can't: {error}") from error


_LARGE = 1 << 20  # bytes of floats, whose SHA-256 would take longer than the rest of loading


@dataclass(slots=True)
class Writer:
    """A bundle under construction.

    in_cache  kernels are named by their keys in the cache; otherwise the bundle holds their full code
    """

    in_cache: bool = False
    sections: Sections = field(default_factory=Sections)
    programs: list[Json] = field(default_factory=list)
    _objects: dict[str, int] = field(default_factory=dict)

    def add(self, definition: ProgramDefinition) -> int:
        """Compile a program for the processor at hand; returns its number in the bundle."""
        from taskc.backend.cpu.pool import pool_object
        from taskc.backend.cpu.program import LoadedProgram

        runner = whole_program(definition, "cpu")
        if runner is None:
            raise CompileError(
                f"'{definition.ir.name}' isn't run on the processor as a whole", definition.ir.loc
            )
        assert isinstance(runner.code, LoadedProgram)
        program, _ = scheduled(definition)
        if not self.in_cache:
            finish_compiling()
        add = self.sections.add
        code = pool_object()
        self._objects[code.key] = add(code.code)
        self.programs.append(
            {
                "steps": add(json.dumps(_steps(program), separators=(",", ":")).encode()),
                "tuples": {name: [*parts] for name, parts in definition.tuples.items()},
                "kernels": [
                    kernel.key if self.in_cache else add(kernel.compiled.to_bytes())
                    for kernel in runner.code.kernels
                ],
                "constants": [
                    [add(_bytes_of(memory)), _checksum_of(tensor, memory)]
                    for tensor, memory in program.constants
                ],
            }
        )
        return len(self.programs) - 1

    def content(self, model: Json = None) -> Json:
        from taskc.backend.cpu.processor import host

        return {
            "taskc": VERSION,
            "processor": host().described,
            "objects": self._objects,
            "programs": self.programs,
            "model": model,
        }


def write(definition: ProgramDefinition, path: Path) -> None:
    """Write a bundle of one program, compiled for the processor at hand."""
    writer = Writer()
    writer.add(definition)
    writer.sections.write(path, writer.content())


def _steps(program: Program) -> Json:
    """The record of a scheduled program, as far as its plans depend on it."""
    bare = map_kernels(replace(program, constants=()), _without_body)
    tensors = [tensor for tensor, _ in program.constants]
    return recorded(bare, tensors, *blocks_of(program), also=[Block])


def _without_body(kernel: Kernel) -> Kernel:
    return Kernel(kernel.name, kernel.parameters, kernel.dimensions, 1, ir.Sequence(()))


def _bytes_of(memory: Array) -> memoryview:
    return np.ascontiguousarray(np.asarray(memory)).reshape(-1).view(np.uint8).data


def _checksum_of(tensor: Tensor, memory: Array) -> str | None:
    """The checksum of a large constant without indices, checked in place of its hash; None for others."""
    from taskc.backend.cpu.pool import pool

    is_weights = memory.nbytes >= _LARGE and tensor.dtype.is_float
    return pool().checksum(_bytes_of(memory)) if is_weights else None


class Bundle:
    """An opened bundle, compiled for this processor or a compatible one.

    verify  check everything against its hash now, large weights too
    """

    def __init__(self, file: BundleFile, *, verify: bool = False) -> None:
        from taskc.backend.cpu.jit import give_code
        from taskc.backend.cpu.processor import host

        self.file = file
        with file.reading():
            content = file.content
            problem = host().problem_of(content["processor"])
            if problem:
                raise file.error(f"the bundle was compiled for another processor: {problem}")
            find_target("cpu")  # sets up the cache of such code
            give_code({str(key): self._bytes(n) for key, n in content["objects"].items()})
            self._programs: list[Json] = content["programs"]
            self.model: Json = content["model"]
        if verify:
            for number in range(file.sections):
                file.section(number)

    @staticmethod
    def open(path: str | os.PathLike[str], *, verify: bool = False) -> Bundle:
        """Open a file and read it whole: later changes to the file don't matter."""
        return Bundle(BundleFile.open(path), verify=verify)

    def _bytes(self, number: int) -> bytes:
        return bytes(self.file.section(number))

    def _constant(self, number: int, checksum: str | None) -> memoryview:
        from taskc.backend.cpu.pool import pool

        content = self.file.section(number, verify=checksum is None)
        if checksum is not None and pool().checksum(content) != checksum:
            raise self.file.damaged(number)
        return content

    def _kernel(self, kernel: Kernel, code: int | str) -> LoadedKernel:
        """A kernel whose code is a section of the bundle, or in the cache's own, the entry with this key."""
        from taskc.backend.cpu.compile import CompiledObject, LoadedKernel

        if isinstance(code, int):
            return LoadedKernel(kernel, CompiledObject.from_bytes(self._bytes(code)))
        if not self.file.is_ours or not isinstance(code, str):
            raise ValueError(f"{code!r} is no section")
        cache = kernel_cache()
        content = cache.get(code)
        if content is None:
            raise self.file.error("the code of a kernel is no longer in the cache")
        compiled = CompiledObject.from_bytes(content)
        return LoadedKernel(kernel, compiled, code, cache, stays_quick=tier() is not None)

    def program(self, number: int) -> BundledProgram:
        """A program, with its machine code loaded into this process."""
        with self.file.reading():
            content = self._programs[number]
            steps = json.loads(self._bytes(content["steps"]))
            program, tensors, *blocks = from_record(steps, also=[Block])
            memories = [
                np.frombuffer(self._constant(*record), np.uint8) for record in content["constants"]
            ]
            program = replace(program, constants=tuple(zip(tensors, memories, strict=True)))
            pairs = zip(kernels_of(program).values(), content["kernels"], strict=True)
            kernels = [self._kernel(kernel, code) for kernel, code in pairs]
            tuples = {name: tuple(parts) for name, parts in content["tuples"].items()}
        return BundledProgram(program, kernels, blocks, tuples)


class BundledProgram:
    """A program of a bundle, called like the program that was saved."""

    def __init__(
        self,
        program: Program,
        kernels: list[Any],
        blocks: list[Block],
        tuples: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.ir = program
        self._signature = Signature(program, tuples)
        self._runner = loaded_program(program, kernels, blocks)
        self._call = self._runner.direct(self._checked) or self._checked

    def __repr__(self) -> str:
        return f"<program {self.ir.name!r} of a bundle>"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._call(*args, **keywords)

    def _checked(self, *args: Any, **keywords: Any) -> Any:
        """A call with arguments that the compiled entry doesn't accept."""
        bound = self._signature.bind(args, keywords, find_target("cpu").alignment)
        self._runner.run(bound)
        return bound.returned
