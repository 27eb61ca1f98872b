"""The machine that templates choose mappings for: the one at hand, or another that code is compiled for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from functools import cache
from pathlib import Path

from taskc.dataclass import dataclass
from taskc.ir.target import TARGETS, THREAD_REGISTERS, MatrixInstruction
from taskc.ir.types import DType
from taskc.runtime.settings import thread_limit

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Assumptions about a processor that isn't present.
_THREADS = 8
_OWN_CACHE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that mappings depend on. On a processor, a block is a vector of workers on one core:

    lanes      numbers of `width` bytes in a vector: a mapping ends in spatial(1, lanes). For `tc.machine()` these
               are f32; `of(f64)` describes the machine for plans of f64
    registers  vector registers
    threads    the number of blocks that run at a time
    fast_memory       bytes of the largest cache that a core shares with no other
    products   the instructions that multiply matrices
    name       the key of its measurements; with an empty name, nothing is stored

    On a GPU (`is_processor` is false), a block is many workers with a shared memory:

    lanes      workers that run in lockstep
    registers  4-byte registers of a worker
    threads    the number of multiprocessors
    fast_memory       bytes of a block's shared memory
    """

    lanes: int
    registers: int
    threads: int
    fast_memory: int
    # Long, and implied by the other fields.
    products: tuple[MatrixInstruction, ...] = field(default=(), hash=False)
    is_processor: bool = True
    name: str = ""
    width: int = 4

    def of(self, dtype: DType) -> Machine:
        """The machine for plans with this type in registers: a vector has fewer lanes of a wider type. Types of fewer
        than 4 bytes are computed in 32 bits."""
        width = max(32, dtype.bits) // 8 if self.is_processor else self.width
        if width == self.width:
            return self
        return replace(self, lanes=self.lanes * self.width // width, width=width)

    @property
    def vector_bytes(self) -> int:
        return self.lanes * self.width

    def instructions(
        self, left: DType, right: DType, total: DType
    ) -> tuple[MatrixInstruction, ...]:
        """The instructions for products of these types, best first."""
        types = left, right, total
        return tuple(row for row in self.products if row.types == types)


_built_for: ContextVar[Machine | None] = ContextVar("built_for", default=None)


@contextmanager
def built_for(target: str | None) -> Iterator[None]:
    """A context in which `machine()` describes a target, and traced code is compiled for it. None is the processor at
    hand."""
    token = _built_for.set(None if target is None else machine(target))
    try:
        yield
    finally:
        _built_for.reset(token)


def machine(target: str | None = None, *, threads: int | None = None) -> Machine:
    """The processor that calls run on, or the description of another target, which need not be present.

        tc.machine()                      the machine at hand
        tc.machine("sm_80")               a GPU
        tc.machine("avx2", threads=4)     a processor, whose cores have a MiB of cache of their own

    threads  the number of blocks that run at a time; by default a GPU's multiprocessors, and 8 for a processor
    """
    current = _built_for.get() if target is None and threads is None else None
    return current or _known(target, threads)


@cache
def _known(target: str | None, threads: int | None) -> Machine:
    if target is not None:
        described = _described(target)
        return described if threads is None else replace(described, threads=threads)
    if threads is not None:
        raise ValueError("TASKC_THREADS says how many threads there are on the machine at hand")
    from taskc.backend.cpu.pool import limit_threads, thread_count
    from taskc.backend.cpu.processor import host

    limit_threads(thread_limit())
    processor = host()
    return replace(
        _described(processor.target),
        threads=thread_count(),
        fast_memory=_cache_bytes(),
        name=f"{processor.name} {processor.target}",
    )


def _described(name: str) -> Machine:
    target = TARGETS.get(name)
    if target is None:
        raise ValueError(
            f"there is no machine {name!r} to build for; there is {', '.join(TARGETS)}"
        )
    if target.is_processor:
        vectors, products = target.vectors, target.products
        return Machine(target.warp, vectors, _THREADS, _OWN_CACHE_BYTES, products, name=name)
    return Machine(
        target.warp,
        THREAD_REGISTERS,
        target.processors,
        target.shared_bytes,
        target.matrix,
        False,
        name,
    )


def _cache_bytes() -> int:
    try:
        text = (_CACHES / "index2" / "size").read_text(encoding="ascii").strip()
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError):
        return _OWN_CACHE_BYTES
