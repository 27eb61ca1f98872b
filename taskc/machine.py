"""What a template asks about the machine at hand, to choose its mappings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from taskc.ir.target import TARGETS, THREAD_REGISTERS, MatrixInstruction
from taskc.ir.types import DType
from taskc.settings import thread_limit

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Machine:
    """What mappings depend on. Of a processor, whose blocks are vectors of workers on one core:

    lanes      f32 numbers in a vector: a mapping ends in spatial(1, lanes)
    registers  vector registers
    threads    how many blocks run at a time
    fast_memory       bytes of a core's own cache, the largest that it shares with no other
    products   the instructions that multiply matrices
    name       what was measured on it is kept under this; nothing, under an empty one

    What is known of one whose blocks are many workers around a memory of their own (`is_processor` is false):

    lanes      workers that run in lockstep
    registers  4-byte registers of a worker
    threads    how many groups of blocks run at a time, one to a multiprocessor
    fast_memory       bytes of the memory that a block has
    """

    lanes: int
    registers: int
    threads: int
    fast_memory: int
    products: tuple[MatrixInstruction, ...] = field(default=(), hash=False)  # long, and the same
    is_processor: bool = True
    name: str = ""

    def instructions(
        self, left: DType, right: DType, total: DType
    ) -> tuple[MatrixInstruction, ...]:
        """The instructions for products of these types, best first."""
        types = left, right, total
        return tuple(row for row in self.products if row.types == types)


@cache
def machine(target: str | None = None) -> Machine:
    """The processor that calls run on; or what is known of a target: `tc.machine("sm_80")`."""
    if target is not None:
        return _described(target)
    from taskc.backend.cpu.pool import limit_threads, thread_count
    from taskc.backend.cpu.processor import host

    limit_threads(thread_limit())
    processor = host()
    here, name = TARGETS[processor.target], f"{processor.name} {processor.target}"
    return Machine(
        here.warp, here.vectors, thread_count(), _cache_bytes(), here.products, name=name
    )


def _described(name: str) -> Machine:
    target = TARGETS.get(name)
    if target is None or target.is_processor:
        known = ", ".join(name for name, target in TARGETS.items() if not target.is_processor)
        raise ValueError(f"there is no machine {name!r} to build for; there is {known}")
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
        return 1 << 20
