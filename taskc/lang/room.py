"""What only a `tc.cuda` kernel may say: barriers, roles, and the operations of the target."""

from __future__ import annotations

import ast

from taskc.ir import nodes as ir
from taskc.ir.operations import OFFERED, Operation
from taskc.ir.target import LEAST_REGISTERS, MATRIX_MOVES, MOST_COUNTED, MOST_REGISTERS, WARP
from taskc.ir.types import DType, boolean, u64
from taskc.lang.calls import Handler, bind
from taskc.lang.context import Context, Place
from taskc.lang.conversions import constant_integer, scalar
from taskc.lang.memory import allocate, element_place, require_phase
from taskc.lang.names import INTRINSICS
from taskc.lang.values import NOTHING, Value


def require_room(context: Context, what: str, node: Place) -> None:
    if not context.in_room:
        raise context.error(
            f"{what} is only for tc.cuda kernels",
            node,
            "a kernel of phases needs none; to go below them, use @tc.cuda.kernel(workers=...)",
        )


def require_cluster(context: Context, what: str, node: Place) -> None:
    if context.cluster == 1:
        raise context.error(
            f"{what} is for blocks of a cluster, and there is none",
            node,
            "say how many blocks it has: for i in tc.tiles(n, by=64, cluster=2): ...",
        )


def _barrier(what: str, scope: str) -> Handler:
    def handler(context: Context, node: ast.Call) -> Value:
        bind(context, node, what, "")
        require_room(context, what, node)
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


def _worker(context: Context, node: ast.Call) -> ir.Variable:
    bind(context, node, "tc.worker", "")
    if not context.may_name_worker:
        raise context.error(
            "in a kernel of phases tc.worker() is only for naming the worker of a loop",
            node,
            "a worker is known by its task: for i in spatial(64): ...; that of another worker is"
            " for i in mapping.on(tc.worker() ^ 1): ...",
        )
    return context.worker


def _barriers(context: Context, node: ast.Call) -> ir.Tensor:
    what = "tc.cuda.barriers"
    bound = bind(context, node, what, "count")
    require_room(context, what, node)
    require_phase(context, what, node)
    count = constant_integer(
        context, context.evaluate(bound["count"]), bound["count"], "the number"
    )
    if count < 1:
        raise context.error(f"{what} needs at least 1", bound["count"])
    name, loc = context.name_for(node, "barriers"), context.locate(node)
    return allocate(context, ir.Tensor(name, u64, (count,), ir.BARRIER, loc=loc))


def _operation(name: str, row: Operation) -> Handler:
    what = f"tc.cuda.{name}"
    repeats = bool(row.operands) and row.operands[-1].endswith("*")

    def handler(context: Context, node: ast.Call) -> Value:
        require_room(context, what, node)
        context.require_statement(what, node)
        if row.participants == "cluster":
            require_cluster(context, what, node)
        if node.keywords:
            raise context.error(f"{what} takes no keywords", node.keywords[0])
        least = len(row.operands)
        if len(node.args) < least or (len(node.args) > least and not repeats):
            few = f"{least} argument{'s' if least != 1 else ''}"
            more = " or more" if repeats else ""
            kinds = ", ".join(operand.rstrip("*") for operand in row.operands)
            hint = f"they are: {kinds}" if kinds else None
            raise context.error(f"{what} takes {few}{more}", node, hint)
        operands = tuple(
            [
                _operand(context, what, kind, part)
                for kind, part in zip(row.kinds(len(node.args)), node.args, strict=True)
            ]
        )
        _check_numbers(context, what, row.name, operands, node)
        loc = context.locate(node)
        dtype = operands[0].dtype if row.result == "operand" else row.result
        if dtype is None:
            context.emit(ir.Do(row.name, operands, loc=loc))
            return NOTHING
        assert isinstance(dtype, DType)
        result = ir.Variable(context.name_for(node, name), dtype, loc=loc)
        context.results.add(result)
        context.emit(ir.Do(row.name, operands, result, loc=loc))
        return result

    return handler


def _check_numbers(
    context: Context,
    what: str,
    operation: str,
    operands: tuple[ir.Expression, ...],
    node: ast.Call,
) -> None:
    """The hardware's limits of what is constant."""
    match operation, operands:
        case "cp.async", (
            ir.Address() as target,
            ir.Address() as source,
            ir.Constant() as count,
            _,
        ):
            if target.dtype != source.dtype:
                raise context.error(
                    f"{what} copies {source.dtype} into {target.dtype}, and converts nothing", node
                )
            size = int(count.value) * target.dtype.nbytes
            if size not in (4, 8, 16):
                raise context.error(
                    f"{what} copies 4, 8 or 16 bytes at once, and this is {size}", node.args[2]
                )
        case str(name), (ir.Address() as target, ir.Address() as source) if name in MATRIX_MOVES:
            if target.dtype != source.dtype or not MATRIX_MOVES[name].fits(target.dtype):
                kinds = (
                    "16-bit types" if MATRIX_MOVES[name].transposed else "types of 8, 16 or 32 bits"
                )
                raise context.error(
                    f"{what} moves {kinds}, and this is {source.dtype} into {target.dtype}", node
                )
        case "barrier.named", (ir.Constant(value=number), ir.Constant(value=workers)):
            if not 1 <= number <= 15:
                raise context.error(
                    f"the numbers of named barriers are 1 to 15, and this is {number}",
                    node.args[0],
                    "tc.sync() is the barrier of all" if number == 0 else None,
                )
            if workers < 1 or workers % WARP:
                raise context.error(
                    f"whole warps of {WARP} workers meet at {what}, and this counts {workers}",
                    node.args[1],
                )
        case "mbarrier.init", (_, ir.Constant(value=arrivals)):
            if arrivals < 1:
                raise context.error(
                    f"an mbarrier counts at least 1 arrival, and this {arrivals}", node.args[1]
                )
            if arrivals > MOST_COUNTED:
                raise context.error(
                    f"an mbarrier counts at most {MOST_COUNTED} arrivals, and this {arrivals}",
                    node.args[1],
                )
        case "mbarrier.expect", (_, ir.Constant(value=count)):
            if not 0 <= count <= MOST_COUNTED:
                raise context.error(
                    f"an mbarrier counts 0 to {MOST_COUNTED} bytes, and this {count}", node.args[1]
                )
        case "setmaxnreg", (ir.Constant(value=count),):
            if not LEAST_REGISTERS <= count <= MOST_REGISTERS or count % 8:
                raise context.error(
                    f"a worker has {LEAST_REGISTERS} to {MOST_REGISTERS} registers, a multiple of 8,"
                    f" and this is {count}",
                    node.args[0],
                )
        case _:
            pass  # its constants have no limits


def _operand(context: Context, what: str, kind: str, node: ast.expr) -> ir.Expression:
    if kind in ("place", "remote"):
        tensor, indices = element_place(context, node, what)
        if kind == "place" and tensor in context.peers:
            raise context.error(
                f"{what} takes memory of its own block, and '{tensor.name}' is a peer's", node
            )
        return ir.Address(tensor, indices, loc=context.locate(node))
    value = context.evaluate(node)
    if kind == "constant":
        number = constant_integer(context, value, node, f"this argument of {what}")
        return ir.Constant(number, loc=context.locate(node))
    if isinstance(value, bool):
        return ir.Constant(value, boolean, loc=context.locate(node))
    return scalar(context, value, node)


# --- roles -----------------------------------------------------------------------------------


def roles_statement(context: Context, node: ast.With) -> None:
    """`with tc.cuda.roles():` around `with tc.cuda.role("name", warps=n):` blocks."""
    _required_call(context, node, "cuda.roles", "")
    require_room(context, "tc.cuda.roles", node)
    if context.in_role:
        raise context.error("roles can't be nested", node)
    require_phase(context, "tc.cuda.roles", node)
    workers, first = context.group, 0
    roles = []
    context.in_role = True
    for statement in node.body:
        if not isinstance(statement, ast.With):
            raise context.error(
                "only roles stand here", statement, 'with tc.cuda.role("producer", warps=1): ...'
            )
        bound = _required_call(context, statement, "cuda.role", "name * warps")
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


def _required_call(
    context: Context, node: ast.With, name: str, signature: str
) -> dict[str, ast.expr]:
    item = node.items[0]
    call = item.context_expr
    is_one = len(node.items) == 1 and item.optional_vars is None
    if is_one and isinstance(call, ast.Call) and context.evaluate(call.func) is INTRINSICS[name]:
        return bind(context, call, f"tc.{name}", signature)
    expected = 'tc.cuda.role("name", warps=n)' if name == "cuda.role" else "tc.cuda.roles()"
    raise context.error(f"'with' is only for {expected} here", node)


def _only_with(name: str) -> Handler:
    def handler(context: Context, node: ast.Call) -> Value:
        raise context.error(f"tc.{name} is used in a 'with' statement", node)

    return handler


HANDLERS: dict[str, Handler] = {
    "sync": _barrier("tc.sync", "block"),
    "worker": _worker,
    "cuda.syncwarp": _barrier("tc.cuda.syncwarp", "warp"),
    "cuda.syncrole": _barrier("tc.cuda.syncrole", "role"),
    "cuda.barriers": _barriers,
    "cuda.roles": _only_with("cuda.roles"),
    "cuda.role": _only_with("cuda.role"),
    **{
        f"cuda.{row.name.replace('.', '_')}": _operation(row.name.replace(".", "_"), row)
        for row in OFFERED
    },
}
