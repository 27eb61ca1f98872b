"""Bundles: compiled programs in one file, which are called without being traced, fused or compiled again.

    write(definition, path)        save a program with its machine code, its constants and its steps
    Bundle.open(path).program(n)   load the program, which is called as before

A bundle has as much of a program as plans need: its kernels have lost their bodies. So it can be planned for all sizes
that the program can, without a parser.

A bundle holds machine code, so it is loaded only if somebody names its file. Code, steps and everything else that could
make a kernel access wrong memory is checked against its hash before use. Large arrays of floats are checked against a
checksum, which is as fast as reading memory, and against their hashes on request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from taskc.arrays.arguments import Array, Signature
from taskc.errors import CompileError
from taskc.ir import nodes as ir
from taskc.ir.nodes import Kernel, Tensor
from taskc.ir.program import Program, kernels_of, map_kernels
from taskc.ir.record import Json, from_record, recorded
from taskc.lang.program import ProgramDefinition
from taskc.programs.lifetimes import Block, blocks_of
from taskc.runtime.bundle_file import BundleFile, Sections
from taskc.runtime.driver import scheduled, whole_program
from taskc.runtime.settings import VERSION
from taskc.runtime.targets import find_target, loaded_program

_LARGE = 1 << 20  # bytes of floats, whose SHA-256 would take longer than the rest of loading


@dataclass(slots=True)
class Writer:
    """A bundle under construction."""

    sections: Sections = field(default_factory=Sections)
    programs: list[Json] = field(default_factory=list)
    _objects: dict[str, int] = field(default_factory=dict)

    def add(self, definition: ProgramDefinition) -> int:
        """Compile a program for the processor at hand; returns its number in the bundle."""
        from taskc.backend.cpu.pool import pool_object
        from taskc.backend.cpu.program import LoadedProgram, entry_object
        from taskc.backend.cpu.unpacking import has_entry

        runner = whole_program(definition, "cpu")
        if runner is None:
            raise CompileError(
                f"'{definition.ir.name}' isn't run on the processor as a whole", definition.ir.loc
            )
        assert isinstance(runner.code, LoadedProgram)
        program, _ = scheduled(definition)
        add = self.sections.add
        for compiled in (pool_object(), *([entry_object(program)] if has_entry(program) else [])):
            self._objects[compiled.key] = add(compiled.code)
        self.programs.append(
            {
                "steps": add(json.dumps(_steps(program), separators=(",", ":")).encode()),
                "tuples": {name: [*parts] for name, parts in definition.tuples.items()},
                "kernels": [add(kernel.compiled.to_bytes()) for kernel in runner.code.kernels],
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
        from taskc.backend.cpu.object_cache import give_code
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

    def program(self, number: int) -> BundledProgram:
        """A program, with its machine code loaded into this process."""
        from taskc.backend.cpu.compile import Compiled, Loaded

        with self.file.reading():
            content = self._programs[number]
            steps = json.loads(self._bytes(content["steps"]))
            program, tensors, *blocks = from_record(steps, also=[Block])
            memories = [
                np.frombuffer(self._constant(*record), np.uint8) for record in content["constants"]
            ]
            program = replace(program, constants=tuple(zip(tensors, memories, strict=True)))
            compiled = [Compiled.from_bytes(self._bytes(n)) for n in content["kernels"]]
            pairs = zip(kernels_of(program).values(), compiled, strict=True)
            kernels = [Loaded(kernel, code) for kernel, code in pairs]
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
