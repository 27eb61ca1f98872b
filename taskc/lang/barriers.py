"""Barriers, clusters and roles of a `tc.cuda` kernel: where its workers wait for each other.

Barriers are of a warp, a role, a block, a cluster or the grid, or mbarriers in shared memory. A cluster's blocks have
ranks, and access to the memory of peers. Roles of warps are warp specialization, as its author writes it.
"""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.build import modulo
from taskc.ir.operations import OPERATIONS
from taskc.ir.rewrite import all_below
from taskc.ir.target import WARP
from taskc.ir.types import u64
from taskc.lang.calls import HANDLERS, bind, handles
from taskc.lang.context import Context, refuse
from taskc.lang.conversions import constant_integer, index
from taskc.lang.memory import allocate
from taskc.lang.names import INTRINSICS
from taskc.lang.values import NOTHING, Value, describe

_GRID_SYNC = "tc.cuda.grid_sync"


def _barrier(name: str, scope: str) -> None:
    what = f"tc.{name}"

    @handles(name, in_cuda=True, as_statement=True)
    def handler(context: Context, node: ast.Call) -> Value:
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


_barrier("sync", "block")
_barrier("cuda.syncwarp", "warp")
_barrier("cuda.syncrole", "role")


@handles("cuda.barriers", in_cuda=True, as_phase=True)
def _barriers(context: Context, node: ast.Call, count: ast.expr) -> ir.Tensor:
    number = constant_integer(context, context.evaluate(count), count, "the number")
    if number < 1:
        raise context.error("tc.cuda.barriers needs at least 1", count)
    name, loc = context.name_for(node, "barriers"), context.locate(node)
    return allocate(context, ir.Tensor(name, u64, (number,), ir.BARRIER, loc=loc))


@handles("cuda.grid_sync")
def _grid_sync(context: Context, node: ast.Call) -> Value:
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
    barriers = [node for node in all_below(body, ir.Barrier) if node.scope == "grid"]
    if not barriers:
        return
    for node in all_below(body, ir.Do):
        if OPERATIONS[node.operation].proxy != "asynchronous":
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


@handles("cuda.cluster_rank", in_cuda=True, in_cluster=True)
def _rank(context: Context, node: ast.Call) -> ir.Expression:
    return modulo(context.block_number, context.cluster)


@handles("cuda.cluster_sync", in_cuda=True, in_cluster=True, as_phase=True)
def _sync(context: Context, node: ast.Call) -> Value:
    for operation in ("cluster.arrive", "cluster.wait"):
        context.emit(ir.Do(operation, (), loc=context.locate(node)))
    return NOTHING


@handles("cuda.peer", in_cuda=True, in_cluster=True, as_statement=True)
def _peer(context: Context, node: ast.Call, buffer: ast.expr, rank: ast.expr) -> ir.Tensor:
    """`tc.cuda.peer(s, rank)[i]`"""
    of = context.evaluate(buffer)
    if not isinstance(of, ir.Tensor) or of.scope not in (ir.SHARED, ir.BARRIER):
        raise context.error(
            f"a peer has tc.shared and tc.cuda.barriers of its own, and this is {describe(of)}",
            buffer,
        )
    if of in context.peers:
        raise context.error(f"'{of.name}' is a peer's already", buffer)
    number = index(context, context.evaluate(rank), rank)
    if isinstance(number, ir.Constant) and not 0 <= number.value < context.cluster:
        raise context.error(
            f"the ranks of this cluster are 0 to {context.cluster - 1}, and this is {number.value}",
            rank,
        )
    loc = context.locate(node)
    name = context.name_for(node, f"peer_{of.name}")
    tensor = ir.Tensor(name, of.dtype, of.shape, of.scope, of.layout, of.swizzle, loc=loc)
    context.peers.add(tensor)
    context.emit(ir.Peer(tensor, of, number, loc=loc))
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


for _name in ("cuda.roles", "cuda.role"):
    HANDLERS[_name] = refuse(f"tc.{_name} is used in a 'with' statement")
