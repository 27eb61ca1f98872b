"""Barriers, which only `tc.cuda` kernels have: of a warp, a role, a block, all blocks; and mbarriers."""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import walk
from taskc.ir.types import u64
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context
from taskc.lang.conversions import constant_integer
from taskc.lang.memory import allocate
from taskc.lang.values import NOTHING, Value

_GRID_SYNC = "tc.cuda.grid_sync"


def _barrier(what: str, scope: str) -> Handler:
    def handler(context: Context, node: ast.Call) -> Value:
        bind(context, node, what)
        context.require_cuda_kernel(what, node)
        context.require_statement(what, node)
        if scope == "block" and context.in_role:
            raise context.error(
                "tc.sync() waits for the whole block, and roles never meet inside",
                node,
                "use tc.cuda.syncrole(), or an mbarrier",
            )
        if scope == "role" and not context.in_role:
            raise context.error(f"{what} is only for roles", node, "use tc.sync()")
        if scope != "warp" and context.each:
            raise context.error(f"{what} can't be used in a mapping loop", node)
        context.emit(ir.Barrier(scope, loc=context.locate(node)))
        return NOTHING

    return handler


def _barriers(context: Context, node: ast.Call) -> ir.Tensor:
    what = "tc.cuda.barriers"
    bound = bind(context, node, what)
    context.require_cuda_kernel(what, node)
    context.require_phase(what, node)
    count = constant_integer(
        context, context.evaluate(bound["count"]), bound["count"], "the number"
    )
    if count < 1:
        raise context.error(f"{what} needs at least 1", bound["count"])
    name, loc = context.name_for(node, "barriers"), context.locate(node)
    return allocate(context, ir.Tensor(name, u64, (count,), ir.BARRIER, loc=loc))


def _grid_sync(context: Context, node: ast.Call) -> Value:
    bind(context, node, _GRID_SYNC)
    context.require_cuda_kernel(
        _GRID_SYNC,
        node,
        "the blocks of a kernel of phases are independent: two kernels in a @tc.program come one after the"
        " other, and @tc.cuda.kernel(workers=...) goes below phases",
    )
    if context.tiles is None:
        raise context.error(
            f"{_GRID_SYNC} is for the blocks of a grid, and here is one block",
            node,
            "say how many there are: for i in tc.tiles(blocks, by=1): ...; tc.sync() is the barrier of a block",
        )
    if context.tiles.persistent:
        raise context.error(
            f"{_GRID_SYNC} can't be used in a persistent loop, whose blocks run several tiles one after another",
            node,
            "a loop of the block's own does: for tile in range(block, tiles, blocks): ...",
        )
    context.require_phase(_GRID_SYNC, node)
    if context.in_role:
        raise context.error(
            f"{_GRID_SYNC}() waits for all workers of all blocks, and roles never meet inside",
            node,
            "it can stand before and behind tc.cuda.roles()",
        )
    context.emit(ir.Barrier("grid", loc=context.locate(node)))
    return NOTHING


def check_grid_barriers(context: Context, body: ir.Statement) -> None:
    """Raise an error for bulk copies of an output in a kernel with grid barriers, which don't order them."""
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
                    f"{_GRID_SYNC}() doesn't order bulk copies of what the kernel writes, as of"
                    f" '{operand.tensor.name}'",
                    node.loc,
                    "copy it by workers' accesses",
                    ("the barrier is here", barriers[0].loc),
                )


HANDLERS: dict[str, Handler] = {
    "sync": _barrier("tc.sync", "block"),
    "cuda.syncwarp": _barrier("tc.cuda.syncwarp", "warp"),
    "cuda.syncrole": _barrier("tc.cuda.syncrole", "role"),
    "cuda.grid_sync": _grid_sync,
    "cuda.barriers": _barriers,
}
