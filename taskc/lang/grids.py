"""The barrier of all blocks, in `tc.cuda`."""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import walk
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context
from taskc.lang.memory import require_phase
from taskc.lang.values import NOTHING, Value

_WHAT = "tc.cuda.grid_sync"


def _sync(context: Context, node: ast.Call) -> Value:
    bind(context, node, _WHAT, "")
    if not context.in_room:
        raise context.error(
            f"{_WHAT} is only for tc.cuda kernels",
            node,
            "the blocks of a kernel of phases are independent: two kernels in a @tc.program come one after the"
            " other, and @tc.cuda.kernel(workers=...) goes below phases",
        )
    if context.tiles is None:
        raise context.error(
            f"{_WHAT} is for the blocks of a grid, and here is one block",
            node,
            "say how many there are: for i in tc.tiles(blocks, by=1): ...; tc.sync() is the barrier of a block",
        )
    if context.tiles.persistent:
        raise context.error(
            f"{_WHAT} can't be used in a persistent loop, whose blocks run several tiles one after another",
            node,
            "a loop of the block's own does: for tile in range(block, tiles, blocks): ...",
        )
    require_phase(context, _WHAT, node)
    if context.in_role:
        raise context.error(
            f"{_WHAT}() waits for all workers of all blocks, and roles never meet inside",
            node,
            "it can stand before and behind tc.cuda.roles()",
        )
    context.emit(ir.Barrier("grid", loc=context.locate(node)))
    return NOTHING


def check_grid_barriers(context: Context, body: ir.Statement) -> None:
    """Bulk copies go past such a barrier: a wait for stores is one for what they read, and no fence is for GLOBAL."""
    nodes = list(walk(body))
    barriers = [node for node in nodes if isinstance(node, ir.Barrier) and node.scope == "grid"]
    if not barriers:
        return
    for node in nodes:
        if not isinstance(node, ir.Do) or OPERATIONS[node.operation].proxy != "asynchronous":
            continue
        for operand in node.operands:
            if isinstance(operand, ir.Address) and ir.is_parameter_output(operand.tensor):
                raise context.error(
                    f"{_WHAT}() doesn't order bulk copies of what the kernel writes, as of"
                    f" '{operand.tensor.name}'",
                    node.loc,
                    "copy it by workers' accesses",
                    ("the barrier is here", barriers[0].loc),
                )


HANDLERS: dict[str, Handler] = {"cuda.grid_sync": _sync}
