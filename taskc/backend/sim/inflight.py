"""Matrix products in flight: what each warp has issued, in which groups, and not waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from taskc.backend.sim.machine import Frame, Group
from taskc.backend.sim.memory import Memory
from taskc.errors import Location
from taskc.ir import nodes as ir
from taskc.ir.target import WarpgroupInstruction, is_asynchronous


@dataclass(frozen=True, slots=True)
class Part:
    """Registers of one warp: some slots of a tensor."""

    memory: Memory
    slots: slice


@dataclass(frozen=True, slots=True)
class Issued:
    """One product, as one warp has issued it.

    `number` counts from 1 in the block; `clock` is that of the warpgroup's channel.
    """

    number: int
    row: WarpgroupInstruction
    channel: int
    clock: int
    accumulator: Part
    left: Part | None
    loc: Location


@dataclass(slots=True)
class Progress:
    """What one warp has issued and not waited for, in groups."""

    has_fenced: bool = False
    open: list[Issued] = field(default_factory=list)
    closed: list[list[Issued]] = field(default_factory=list)


@dataclass(slots=True)
class InFlight:
    """The products of a block: all that were issued, how far each warp is, and who waits for whom."""

    issued: list[Issued] = field(default_factory=list)
    warps: dict[int, Progress] = field(default_factory=dict)
    parties: dict[object, list[Frame]] = field(default_factory=dict)


def products_of(group: Group) -> InFlight:
    if group.products is None:
        group.products = InFlight()
    products: InFlight = group.products
    return products


def progress_of(frame: Frame) -> Progress:
    return products_of(frame.group).warps.setdefault(frame.warp, Progress())


def registers_of_products(nodes: Iterable[ir.Statement]) -> Iterator[ir.Tensor]:
    """The tensors whose registers asynchronous products have."""
    for node in nodes:
        match node:
            case ir.Mma(how=how) if is_asynchronous(how):
                yield from (node.accumulator, node.left.tensor)
            case ir.Do(operation=operation) if is_asynchronous(operation):
                yield from (x.tensor for x in node.operands[:2] if isinstance(x, ir.Address))
            case _:
                pass  # its products are complete behind it


def report_unfinished(group: Group) -> None:
    """Products that nobody has waited for when the block ends."""
    if group.products is None:
        return
    for progress in group.products.warps.values():
        for product in (*progress.open, *(p for closed in progress.closed for p in closed)):
            why = ", in no group: nothing commits it" if product in progress.open else ""
            message = f"the block ends while a matrix product is in flight{why}"
            group.report("unwaited-product", message, product.loc, product.loc)
