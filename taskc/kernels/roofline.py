"""The least that a problem takes on a machine: what the tuner's results are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from taskc import Machine, TensorType
from taskc.ir.target import DotInstruction, TileInstruction
from taskc.kernels.machine_facts import GPU, PROCESSOR
from taskc.tune.space import Work

Types = Iterable[TensorType]


def work_of_products(
    products: int, multiplied: tuple[object, object, object], operands: Types, machine: Machine
) -> Work:
    """Of so many multiply-adds, of numbers of these types, into a sum of the third one."""
    facts = PROCESSOR if machine.is_processor else GPU
    rate = 2 * products_per_second(multiplied, machine)
    return Work(2 * products, _bytes(operands), rate, facts.bytes_per_second)


def products_per_second(multiplied: tuple[object, object, object], machine: Machine) -> float:
    """Multiply-adds at the peak of the widest instruction that there is for such numbers."""
    rows = [row for row in machine.products if row.types == multiplied]
    if not machine.is_processor:
        width = getattr(multiplied[0], "nbytes", 4)
        per_cycle = GPU.byte_products_per_cycle / width if rows else GPU.fused_per_cycle
        return per_cycle * machine.threads * GPU.cycles_per_second
    width = getattr(multiplied[2], "nbytes", 4)
    in_vector = machine.vector_bytes / width * PROCESSOR.fused_per_cycle
    packs = [row.pack for row in rows if isinstance(row, DotInstruction)]
    tiles = [16.0 * row.pack for row in rows if isinstance(row, TileInstruction)]
    per_cycle = in_vector * max([1.0, *packs, *tiles])
    return per_cycle * machine.threads * PROCESSOR.cycles_per_second


def _bytes(operands: Types) -> int:
    return sum(
        item.dtype.bytes_of(prod(n for n in item.shape if isinstance(n, int))) for item in operands
    )
