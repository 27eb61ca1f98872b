"""What to change about slow accesses, where trying it out on what was recorded shows that it helps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskc.analysis.banks import bank_cycles, swizzled
from taskc.backend.sim.memory import Array
from taskc.ir import nodes as ir
from taskc.ir.mapping import repeat
from taskc.ir.rewrite import walk

BANKS = 32
PADDINGS = range(1, 9)  # elements
MOST_REQUESTS = 256  # of one place; where there are more kinds, not all are known


@dataclass(slots=True)
class Request:
    """A warp's access to shared memory: each lane's first element in the layout, -1 for none."""

    offsets: Array
    elements: int  # for each lane, one behind the other
    _cost: tuple[int, int] | None = None

    def cost(self, tensor: ir.Tensor) -> tuple[int, int]:
        """`ways`, and how many accesses conflicts add to the fewest possible ones."""
        if self._cost is None:
            parts = self._parts(tensor, 0)
            self._cost = max(parts, default=1), sum(parts) - len(parts)
        return self._cost

    def ways(self, tensor: ir.Tensor, padding: int = 0) -> int:
        """The most different words of one bank, among the lanes that are served at a time."""
        return max(self._parts(tensor, padding), default=1)

    def _parts(self, tensor: ir.Tensor, padding: int) -> list[int]:
        """Counts these words for each group of lanes that are served at a time."""
        offsets = self.offsets
        if padding:
            offsets = offsets + offsets // _pitch(tensor) * padding
        size = tensor.dtype.nbytes
        addresses = swizzled(tensor.swizzle, offsets) * size + (tensor.offset or 0)
        active = self.offsets >= 0
        cycles = bank_cycles(addresses[:, None], self.elements * size, BANKS, active)
        return [int(count) for count in cycles[cycles > 0]]


def against_conflicts(
    kernel: ir.Kernel, tensor: ir.Tensor, here: list[Request], everywhere: list[Request]
) -> str:
    """Longer rows, if those leave no conflict here and make none of the tensor's accesses worse."""
    shape = tensor.shape if tensor.layout is None else tensor.layout.shape
    plain = tensor.layout is None or tensor.layout == repeat(*tensor.layout.shape)
    if tensor.constant or tensor.swizzle is not None or not plain or len(shape) < 2:
        return ""
    step = _unit(kernel, tensor)
    if not step or len(here) >= MOST_REQUESTS:
        return ""
    step = max([step, *(request.elements for request in everywhere)])
    before = [request.ways(tensor) for request in everywhere]
    for padding in PADDINGS:
        if padding % step or any(request.ways(tensor, padding) > 1 for request in here):
            continue
        after = [request.ways(tensor, padding) for request in everywhere]
        if all(new <= old for new, old in zip(after, before, strict=True)):
            rows = ", ".join(map(str, (*shape[:-1], _pitch(tensor) + padding)))
            return (
                f"rows of {_pitch(tensor) + padding} elements have no conflict here:"
                f" .laid(repeat({rows}))"
            )
    return ""


def against_sectors(tensor: ir.Tensor, shape: tuple[int, ...], offsets: Array) -> str:
    """Which dimension neighbouring workers are to differ in, if all of them differ in another one."""
    steps = np.unique(np.diff(offsets))
    if tensor.layout is not None or steps.size != 1 or len(shape) < 2:
        return ""
    places = np.diff(np.stack(np.unravel_index(offsets[:2], shape)), axis=1)[:, 0]
    (moved,) = np.nonzero(places)
    if moved.size != 1 or moved[0] == len(shape) - 1:
        return ""
    apart = abs(int(steps[0]))
    return (
        f"neighbouring workers differ in dimension {moved[0]} of {tensor.name}, whose elements lie"
        f" {apart} apart; let them differ in the last one"
    )


def _pitch(tensor: ir.Tensor) -> int:
    extent = tensor.shape[-1] if tensor.layout is None else tensor.layout.shape[-1]
    assert isinstance(extent, int)
    return extent


def _unit(kernel: ir.Kernel, tensor: ir.Tensor) -> int:
    """What rows must be a multiple of for the target's operations; 0: they are as they are."""
    unit = 1
    for node in walk(kernel.body):
        if isinstance(node, ir.Do) and any(
            isinstance(place, ir.Address) and place.tensor is tensor for place in node.operands
        ):
            count = node.operands[2] if node.operation == "cp.async" else None
            if not isinstance(count, ir.Constant):
                return 0
            unit = max(unit, int(count.value))
    return unit
