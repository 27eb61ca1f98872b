"""The access rules for registers of asynchronous matrix products.

From its start until a wait for its group a product has its accumulator, and a left operand that is
in registers. What ordinary code touches is the products' only after the next `wgmma.fence`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from taskc.backend.sim.memory import Array, Memory
from taskc.backend.sim.report import Located

if TYPE_CHECKING:
    from taskc.backend.sim.machine import Frame

Pick: TypeAlias = Callable[[Array], "tuple[Array, Any]"]
"""Where an access goes: a view of an array of all registers, and an index into it."""


class Registers:
    """The state of a memory's registers, in arrays of the data's shape.

    touched  by ordinary code since the last fence
    held     1 + the number of the product that has it; 0: none
    """

    __slots__ = ("held", "touched")

    def __init__(self, shape: tuple[int, ...], is_filled: bool) -> None:
        self.touched = np.full(shape, is_filled)
        self.held = np.zeros(shape, np.int32)


def touch_registers(frame: Frame, memory: Memory, pick: Pick, verb: str, node: Located) -> None:
    """Check and note an access of ordinary code to registers."""
    registers = memory.registers
    assert registers is not None
    held, index = pick(registers.held)
    now = np.asarray(held[index])
    wrong = now != 0
    mask: Any = True
    if frame.mask is not None:
        mask = np.broadcast_to(frame.mask, np.broadcast_shapes(np.shape(frame.mask), now.shape))
        mask = (
            mask if mask.shape == now.shape else mask.any(axis=tuple(range(mask.ndim - now.ndim)))
        )
        wrong = wrong & mask
    if np.count_nonzero(wrong):
        product = frame.group.products.issued[int(now[wrong].flat[0]) - 1]
        lanes = wrong if wrong.ndim >= 2 else wrong.reshape(1, -1)
        block, worker, _ = frame.someone(lanes)
        details: tuple[tuple[str, str | int], ...] = (("block", block),)
        if worker is not None:
            details = (*details, ("worker", worker))
        frame.run.findings.add(
            "unwaited-product",
            f"registers of {memory.tensor.name} are {verb} while a matrix product has them",
            node.loc,
            count=int(np.count_nonzero(wrong)),
            details=details,
            notes=(("the product is issued here", product.loc),),
            where=node,
        )
    touched, index = pick(registers.touched)
    np.logical_or.at(touched, index, mask)
