"""Clusters in `tc.cuda`: ranks, a barrier of all their blocks, and access to the memory of peers."""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.build import modulo
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context
from taskc.lang.conversions import index
from taskc.lang.values import NOTHING, Value, describe


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


HANDLERS: dict[str, Handler] = {
    "cuda.cluster_rank": _rank,
    "cuda.cluster_sync": _sync,
    "cuda.peer": _peer,
}
