"""Synchronization in `tc.cuda` kernels: barriers, mbarriers, clusters and roles.

A barrier is of a warp, a role, a block or all blocks. A cluster has ranks, a barrier of all its blocks, and access to
the memory of peers. Roles of warps are warp specialization as a kernel's author writes it.
"""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.build import modulo
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import walk
from taskc.ir.target import WARP
from taskc.ir.types import u64
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context
from taskc.lang.conversions import constant_integer, index
from taskc.lang.intrinsics import INTRINSICS
from taskc.lang.memory import allocate
from taskc.lang.values import NOTHING, Value, describe

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
    """Reject bulk copies of an output in a kernel with grid barriers, since those don't order them."""
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


def _rank(context: Context, node: ast.Call) -> ir.Expression:
    what = "tc.cuda.cluster_rank"
    bind(context, node, what)
    context.require_cuda_kernel(what, node)
    context.require_cluster(what, node)
    return modulo(context.block_number, context.cluster)


def _sync(context: Context, node: ast.Call) -> Value:
    what = "tc.cuda.cluster_sync"
    bind(context, node, what)
    context.require_cuda_kernel(what, node)
    context.require_cluster(what, node)
    context.require_phase(what, node)
    for operation in ("cluster.arrive", "cluster.wait"):
        context.emit(ir.Do(operation, (), loc=context.locate(node)))
    return NOTHING


def _peer(context: Context, node: ast.Call) -> ir.Tensor:
    """`tc.cuda.peer(s, rank)[i]`"""
    what = "tc.cuda.peer"
    bound = bind(context, node, what)
    context.require_cuda_kernel(what, node)
    context.require_cluster(what, node)
    context.require_statement(what, node)
    of = context.evaluate(bound["buffer"])
    if not isinstance(of, ir.Tensor) or of.scope not in (ir.SHARED, ir.BARRIER):
        raise context.error(
            f"a peer has tc.shared and tc.cuda.barriers of its own, and this is {describe(of)}",
            bound["buffer"],
        )
    if of in context.peers:
        raise context.error(f"'{of.name}' is a peer's already", bound["buffer"])
    rank = index(context, context.evaluate(bound["rank"]), bound["rank"])
    if isinstance(rank, ir.Constant) and not 0 <= rank.value < context.cluster:
        raise context.error(
            f"the ranks of this cluster are 0 to {context.cluster - 1}, and this is {rank.value}",
            bound["rank"],
        )
    loc = context.locate(node)
    name = context.name_for(node, f"peer_{of.name}")
    tensor = ir.Tensor(name, of.dtype, of.shape, of.scope, of.layout, of.swizzle, loc=loc)
    context.peers.add(tensor)
    context.emit(ir.Peer(tensor, of, rank, loc=loc))
    return tensor


def roles_statement(context: Context, node: ast.With) -> None:
    """`with tc.cuda.roles():` around `with tc.cuda.role("name", warps=n):` blocks."""
    _required_call(context, node, "cuda.roles")
    context.require_cuda_kernel("tc.cuda.roles", node)
    if context.in_role:
        raise context.error("roles can't be nested", node)
    context.require_phase("tc.cuda.roles", node)
    workers, first = context.group, 0
    roles = []
    context.in_role = True
    for statement in node.body:
        if not isinstance(statement, ast.With):
            raise context.error(
                "only roles stand here", statement, 'with tc.cuda.role("producer", warps=1): ...'
            )
        bound = _required_call(context, statement, "cuda.role")
        name = context.evaluate(bound["name"])
        if not isinstance(name, str):
            raise context.error("the name of a role is a string", bound["name"])
        warps_node = bound["warps"]
        warps = constant_integer(context, context.evaluate(warps_node), warps_node, "the number")
        if warps < 1:
            raise context.error("a role has at least 1 warp", warps_node)
        context.group, context.first = warps * WARP, first
        roles.append(ir.Role(name, first, context.group, context.body(statement.body)))
        first += context.group
    context.in_role = False
    context.group, context.first = workers, 0
    if first != workers:
        raise context.error(
            f"the roles have {first} workers together, and the kernel has {workers}", node
        )
    context.emit(ir.Roles(tuple(roles), loc=context.locate(node)))


def _required_call(context: Context, node: ast.With, name: str) -> dict[str, ast.expr]:
    item = node.items[0]
    call = item.context_expr
    is_one = len(node.items) == 1 and item.optional_vars is None
    if is_one and isinstance(call, ast.Call) and context.evaluate(call.func) is INTRINSICS[name]:
        return bind(context, call, f"tc.{name}")
    expected = 'tc.cuda.role("name", warps=n)' if name == "cuda.role" else "tc.cuda.roles()"
    raise context.error(f"'with' is only for {expected} here", node)


def _only_with(name: str) -> Handler:
    def handler(context: Context, node: ast.Call) -> Value:
        raise context.error(f"tc.{name} is used in a 'with' statement", node)

    return handler


HANDLERS: dict[str, Handler] = {
    "sync": _barrier("tc.sync", "block"),
    "cuda.syncwarp": _barrier("tc.cuda.syncwarp", "warp"),
    "cuda.syncrole": _barrier("tc.cuda.syncrole", "role"),
    "cuda.grid_sync": _grid_sync,
    "cuda.barriers": _barriers,
    "cuda.cluster_rank": _rank,
    "cuda.cluster_sync": _sync,
    "cuda.peer": _peer,
    "cuda.roles": _only_with("cuda.roles"),
    "cuda.role": _only_with("cuda.role"),
}
