"""The stages of compiling a kernel into the cache folder, and their times.

Each stage runs once for each text of the stage before: different kernels that are lowered to the same text are compiled
once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from taskc.backend.cache import Cache
from taskc.backend.cpu.compile import Compiled, compile_kernel, refuse
from taskc.backend.cpu.processor import host
from taskc.backend.cpu.target import cache_key
from taskc.ir import nodes as ir, parse, parse_program
from taskc.ir.depth import deep
from taskc.ir.printer import to_text
from taskc.lang.definition import Definition, KernelDefinition, Packs
from taskc.lang.program import ProgramDefinition
from taskc.passes.pipeline import lower_steps
from taskc.runtime.settings import cache_folder
from taskc.runtime.targets import compiler_version

# --- Definitions as text, for other processes, which then need none of the user's code to compile and call them


Pack: TypeAlias = "tuple[int, ...] | Parcel"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A definition as data.

    ir     the text of a kernel at the stage at which its author wrote it, or of a program with its kernels
    packs  the source of each packed parameter by name: a shape, or the kernel that packs

    Parcels that run the same are equal: they have no locations, documentation, examples or names of a tuple's parts.
    """

    ir: str
    packs: Mapping[str, Pack] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The parcel in one line, which `Parcel.parse` reads; the same for equal parcels."""
        return json.dumps(_data(self), sort_keys=True)

    @staticmethod
    def parse(text: str) -> Parcel:
        return _parcel(json.loads(text))

    def definition(self) -> KernelDefinition | ProgramDefinition:
        """A definition that runs like the original one."""
        if self.ir.startswith("program "):
            return ProgramDefinition.of(parse_program(self.ir), _packs(self))
        return _kernel(self)

    def __hash__(self) -> int:
        return hash(self.text)


def parcel_of(definition: Definition) -> Parcel:
    packs = {
        name: parcel_of(pack) if isinstance(pack, KernelDefinition) else tuple(map(int, pack))
        for name, pack in definition.packs.items()
    }
    return Parcel(to_text(definition.ir), packs)


def _kernel(parcel: Parcel) -> KernelDefinition:
    return KernelDefinition.of(parse(parcel.ir), _packs(parcel))


def _packs(parcel: Parcel) -> Packs:
    return {
        name: _kernel(pack) if isinstance(pack, Parcel) else pack
        for name, pack in parcel.packs.items()
    }


def _data(parcel: Parcel) -> dict[str, Any]:
    packs = {
        name: _data(pack) if isinstance(pack, Parcel) else list(pack)
        for name, pack in parcel.packs.items()
    }
    return {"ir": parcel.ir, "packs": packs}


def _parcel(data: dict[str, Any]) -> Parcel:
    packs = {
        name: tuple(pack) if isinstance(pack, list) else _parcel(pack)
        for name, pack in data["packs"].items()
    }
    return Parcel(data["ir"], packs)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of compiling kernels, and the kernels that pack for them.

    seconds  of the stages that ran: parse, prove, lower, compile. Others were cache hits
    code     the hash of the machine code: candidates with equal code take the same time
    """

    seconds: Mapping[str, float]
    code: str


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


def compiled(parcel: Parcel) -> Stages:
    """Compile a parcel's kernels into the cache, where calls find them."""
    clock = _Clock()
    with clock.stage("parse"):
        definition = parcel.definition()
    cache = Cache(cache_folder() / "cpu")
    code = hashlib.sha256()
    if not isinstance(definition, KernelDefinition):  # the text has the calls
        code.update(parcel.ir.encode())
    for kernel in definition.kernels:
        code.update(hashlib.sha256(_code(kernel.ir, cache, clock)).digest())
    for pack in definition.packs.values():
        if isinstance(pack, KernelDefinition):
            _code(pack.ir, cache, clock)
    return Stages(dict(clock.seconds), code.hexdigest())


def _code(kernel: ir.Kernel, cache: Cache, clock: _Clock) -> bytes:
    refuse(kernel)
    version = compiler_version()
    key = cache_key(kernel, version)
    cached = cache.get(key)
    if cached is None:
        lean = _lowered(kernel, clock)
        key_of_lean = cache_key(lean, version)
        cached = cache.get(key_of_lean)
        if cached is None:
            with clock.stage("compile"), deep(kernel.loc):
                cached = compile_kernel(lean, host()).to_bytes()
            cache.put(key_of_lean, cached)
        cache.put(key, cached)
    return Compiled.from_bytes(cached).code


def _lowered(kernel: ir.Kernel, clock: _Clock) -> ir.Kernel:
    lean = replace(kernel, target=host().target)
    for step in lower_steps(lean):
        clock.seconds["prove" if step.name == "prove" else "lower"] += step.seconds
        lean = step.kernel
    return lean
