"""What a template asks about the machine at hand, to choose its mappings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from taskc.ir.target import TARGETS, MatrixInstruction
from taskc.ir.types import DType
from taskc.settings import thread_limit

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Machine:
    """lanes     f32 numbers in a vector: a CPU mapping ends in spatial(1, lanes)
    registers  vector registers
    threads    how many blocks run at a time
    near       bytes of a core's own cache, the largest that it shares with no other
    products   the instructions that multiply matrices
    """

    lanes: int
    registers: int
    threads: int
    near: int
    products: tuple[MatrixInstruction, ...] = ()

    def instructions(
        self, left: DType, right: DType, total: DType
    ) -> tuple[MatrixInstruction, ...]:
        """Those for products of these types, best first."""
        types = left, right, total
        return tuple(row for row in self.products if row.types == types)


@cache
def machine() -> Machine:
    """The processor that calls run on."""
    from taskc.backend.cpu.pool import limit_threads, thread_count
    from taskc.backend.cpu.processor import host

    limit_threads(thread_limit())
    processor = host()
    lanes, products = processor.lanes, TARGETS[processor.target].products
    return Machine(lanes, 32 if lanes != 8 else 16, thread_count(), _near(), products)


def _near() -> int:
    try:
        text = (_CACHES / "index2" / "size").read_text(encoding="ascii").strip()
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError):
        return 1 << 20
