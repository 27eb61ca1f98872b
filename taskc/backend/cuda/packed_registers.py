"""What asynchronous products take from registers, in words of 4 bytes.

    do wgmma.fence()                                   const auto packed_p = tc::packed_whole(p);
    do wgmma.m64n64k16.f16(&acc[0], &p[8], ...)   ->   tc::wgmma_fence();
                                                       tc::wgmma_m64n64k16_f16(&acc[0], packed_p.words + 8 / 2, ...);

It is packed in front of their fence: what was packed behind it the assembler would take for a change of
registers that a product in flight reads, and have that product end first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from taskc.backend.cuda.expressions import Expressions
from taskc.ir import nodes as ir
from taskc.ir.nodes import Statement, Tensor
from taskc.ir.rewrite import walk
from taskc.ir.target import is_asynchronous


class PackedRegisters:
    """`names` are those of the words that are known where the code stands."""

    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions
        self.names: dict[Tensor, str] = {}

    def before(self, statements: Sequence[Statement]) -> Iterator[str]:
        """What stands in front of the first of the statements, for the products behind it, if it is a fence."""
        if not _is_fence(statements[0]):
            return
        names = self.expressions.names
        behind = takewhile(lambda statement: not _is_fence(statement), statements[1:])
        for tensor in dict.fromkeys(_left_registers(behind)):
            self.names[tensor] = names.fresh(f"packed_{names[tensor]}")
            yield f"const auto {self.names[tensor]} = {self._whole(tensor)};"

    def __call__(self, place: ir.Address) -> str:
        """Tells where the words of a fragment begin; where no fence is in sight they are packed for it alone."""
        (index,) = place.indices
        words = self.names.get(place.tensor) or self._whole(place.tensor)
        return f"{words}.words + ({self.expressions(index)}) / {4 // place.tensor.dtype.nbytes}"

    def _whole(self, tensor: Tensor) -> str:
        return f"{self.expressions.use('packed_whole')}({self.expressions.names[tensor]})"


def _is_fence(statement: Statement) -> bool:
    return isinstance(statement, ir.Do) and statement.operation == "wgmma.fence"


def _left_registers(statements: Iterable[Statement]) -> Iterator[Tensor]:
    for node in (node for statement in statements for node in walk(statement)):
        if isinstance(node, ir.Do) and is_asynchronous(node.operation):
            left = node.operands[1]
            if isinstance(left, ir.Address) and left.tensor.scope == ir.REGISTER:
                yield left.tensor
