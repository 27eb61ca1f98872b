"""Loops: over mappings, tiles of the grid, pipelines, ranges, and constants while parsing; and how they end.

`break` and `continue` clear cells, by which the rest of a loop is skipped: see jumps.py.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import walk
from taskc.ir.target import TARGETS
from taskc.ir.types import boolean
from taskc.lang.assignments import settled
from taskc.lang.barriers import check_grid_barriers
from taskc.lang.calls import HANDLERS, handles
from taskc.lang.context import UNBOUND, Context, Scope
from taskc.lang.conversions import constant_integer, extent, flag, index
from taskc.lang.jumps import Leaving, Loop, Skippable, may_end
from taskc.lang.memory import wrong_workers
from taskc.lang.names import INTRINSICS
from taskc.lang.operators import compute
from taskc.lang.values import (
    MappingLoop,
    PipelineLoop,
    RangeLoop,
    TilesLoop,
    Value,
    counted,
    describe,
    is_constant,
)
from taskc.lang.views import is_nonnegative


@contextmanager
def leaving(context: Context, node: Loop, what: str | None = None) -> Iterator[Leaving]:
    """The context of the parse of a loop's body."""
    loop = Leaving(what, context.in_role)
    if what is None and may_end(node):
        loop.goes_on = _cell(context, "goes_on", node)
    context.frame.loops.append(loop)
    yield loop
    context.frame.loops.pop()


def while_it_goes_on(context: Context, loop: Leaving, body: ir.Statement) -> ir.Statement:
    """The body, unless an iteration before has ended the loop."""
    if loop.goes_on is None:
        return body
    return ir.If(_is_set(context, loop.goes_on), body, loc=loop.goes_on.loc)


def conditioned(context: Context, loop: Leaving, condition: ir.Expression) -> ir.Expression:
    """The condition, which isn't evaluated once an iteration has ended the loop."""
    if loop.goes_on is None:
        return condition
    return ir.Binary("and", _is_set(context, loop.goes_on), condition, loc=condition.loc)


def _cell(context: Context, name: str, node: ast.stmt) -> ir.Tensor:
    loc = context.locate(node)
    tensor = context.new_cell(name, ir.Constant(True, boolean, loc=loc), loc).tensor
    assert tensor is not None
    return tensor


def _is_set(context: Context, cell: ir.Tensor) -> ir.Read:
    context.note_read(cell, cell.loc)
    return ir.Read(cell, (), loc=cell.loc)


def _clear(context: Context, cell: ir.Tensor, node: ast.stmt) -> None:
    loc = context.locate(node)
    context.note_write(cell, loc)
    context.emit(ir.Store(cell, (), ir.Constant(False, boolean, loc=loc), loc=loc))


def skippable(context: Context, node: Skippable) -> None:
    runs = _cell(context, "runs", node)
    loop = context.frame.loops[-1]
    loop.runs.append(runs)
    context.execute(node.statement)
    loop.runs.pop()
    condition = _is_set(context, runs)
    context.emit(ir.If(condition, context.body(node.rest), loc=context.locate(node)))


def jump(context: Context, node: ast.Break | ast.Continue) -> None:
    loop = context.frame.loops[-1]
    if context.in_role is not loop.in_role:
        word = "break" if isinstance(node, ast.Break) else "continue"
        raise context.error(f"'{word}' can't leave a role, since others don't", node)
    if isinstance(node, ast.Break):
        if loop.goes_on is None:
            raise context.error(
                f"'break' ends a loop over a range or a while, and this is {loop.what}",
                node,
                "put the rest into an if, or leave it out by continue",
            )
        _clear(context, loop.goes_on, node)
    for runs in loop.runs:
        _clear(context, runs, node)


JUMPS: dict[type, Callable[[Context, Any], None]] = {
    ast.Break: jump,
    ast.Continue: jump,
    Skippable: skippable,
}


# The ways that `tc.pipeline(transport=...)` may name: how block values travel.
_TRANSPORTS = ("registers", "cp.async", "tma")


def for_loop(context: Context, node: ast.For) -> None:
    if node.orelse:
        raise context.error("'else' after a loop is not a part of the language", node.orelse[0])
    what = context.evaluate(node.iter)
    if _is_static(context, node.iter):
        what = compute(context, node.iter, list, what)
    match what:
        case tuple() | list():
            _unrolled(context, node, what)
        case Mapping():
            _each(context, node, what, None)
        case MappingLoop():
            _each(context, node, what.mapping, what.worker)
        case TilesLoop():
            _grid(context, node, what)
        case PipelineLoop():
            _pipeline(context, node, what)
        case RangeLoop():
            _serial(context, node, what)
        case range():
            start, stop = (index(context, end, node.iter) for end in (what.start, what.stop))
            _serial(context, node, RangeLoop(start, stop, what.step))
        case _:
            hint = None
            if is_constant(what) and hasattr(what, "__iter__"):
                hint = "to unroll it while parsing: for ... in tc.static(...)"
            raise context.error(f"a loop can't run over {describe(what)}", node.iter, hint)


def _is_static(context: Context, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr != "static":
        return False
    return context.evaluate(node.func) is INTRINSICS["static"]


def _loop_variables(
    context: Context, target: ast.expr, count: int, what: str
) -> tuple[tuple[ir.Variable, ...], dict[str, Value]]:
    """Variables for the names in `for i, j in ...`; one name needs no tuple, and `*place` stands for the rest."""
    targets = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    has_rest = any(isinstance(part, ast.Starred) for part in targets)
    rest = count - len(targets) + 1
    if rest < 0 if has_rest else rest != 1:
        names = ", ".join("ijklmnop"[:count])
        raise context.error(
            f"{what} {counted(count, 'dimension')}, and the loop names {len(targets)}",
            target,
            f"for {names} in ...",
        )
    variables: list[ir.Variable] = []
    names_of: dict[str, Value] = {}
    for part in targets:
        named = part.value if isinstance(part, ast.Starred) else part
        if not isinstance(named, ast.Name):
            raise context.error("the variable of a loop is a name", part)
        _check_free(context, named)
        name, loc = named.id, context.locate(part)
        if named is part:
            names_of[name] = ir.Variable(name, loc=loc)
            variables.append(names_of[name])
        else:
            names_of[name] = tuple([ir.Variable(f"{name}_{n}", loc=loc) for n in range(rest)])
            variables += names_of[name]
    context.fixed.update(dict.fromkeys(variables, "a loop variable"))
    return tuple(variables), names_of


def _check_free(context: Context, target: ast.Name) -> None:
    if target.id != "_" and context.binding(target.id)[0] is not UNBOUND:
        raise context.error(f"'{target.id}' already has a value here", target, "use another name")


def _each(context: Context, node: ast.For, mapping: Mapping, worker: ir.Expression | None) -> None:
    if worker is None and mapping.workers != context.group:
        raise wrong_workers(context, mapping, node.iter)
    if (
        worker is not None
        and not context.each
        and not any(part is context.worker for part in walk(worker))
    ):
        raise context.error(
            "this is the same worker for all: every worker would do the same tasks",
            node.iter,
            "loop over the mapping itself, or name a worker by tc.worker()",
        )
    variables, names = _loop_variables(context, node.target, mapping.rank, "the mapping has")
    context.nonnegative.update(variables)
    context.each.append(mapping)
    with leaving(context, node, "one over a mapping, whose tasks others have"):
        body = context.body(node.body, names)
    context.each.pop()
    context.emit(ir.Each(variables, mapping, worker, body, loc=context.locate(node)))


def _grid(context: Context, node: ast.For, loop: TilesLoop) -> None:
    if context.block is not context.top:
        raise context.error("the loop over tiles is not inside another statement", node)
    for statement in context.top:
        if isinstance(statement, ir.Grid):
            raise context.error(
                "a kernel has one loop over tiles", node, note=("the first one", statement.loc)
            )
        if not isinstance(statement, ir.Let):
            raise context.error(
                "before the loop over tiles only names can be given to values",
                statement.loc,
                "move this into the loop: it runs once for each tile",
            )
    variables, names = _loop_variables(context, node.target, len(loop.shape), "the grid has")
    context.nonnegative.update(variables)
    context.tiles, context.cluster, context.origin = loop, prod(loop.cluster), variables
    with leaving(context, node, "the one over the blocks"):
        body = context.body(node.body, names)
    context.tiles, context.cluster = None, 1
    check_grid_barriers(context, body)
    if any(size == 0 for size in loop.shape):
        return
    loc = context.locate(node)
    context.emit(
        ir.Grid(
            variables, loop.shape, loop.by, body, loop.order, loop.persistent, loop.cluster, loc=loc
        )
    )


def _pipeline(context: Context, node: ast.For, loop: PipelineLoop) -> None:
    variables, names = _loop_variables(context, node.target, 1, "a pipeline has")
    context.nonnegative.update(variables)
    with leaving(context, node, "a pipeline, whose later steps have begun"):
        body = context.body(node.body, names)
    if isinstance(loop.extent, ir.Constant) and loop.extent.value <= 0:
        return
    context.emit(
        ir.Pipeline(
            *(variables[0], loop.extent, loop.by, loop.stages, body),
            *(loop.transport, loop.specialize, loop.turns),
            loc=context.locate(node),
        )
    )


def _serial(context: Context, node: ast.For, loop: RangeLoop) -> None:
    variables, names = _loop_variables(context, node.target, 1, "a range has")
    lowest = loop.start if loop.step > 0 else loop.stop
    if is_nonnegative(context, lowest):
        context.nonnegative.update(variables)
    if loop.unroll and not isinstance(loop.stop, (ir.Constant, ir.Variable)):
        loop = replace(loop, stop=context.let("stop", loop.stop))  # which is asked in each turn
    with leaving(context, node) as ends:
        body = while_it_goes_on(context, ends, context.body(node.body, names))
    loc = context.locate(node)
    start, stop, step, unroll = loop.start, loop.stop, loop.step, loop.unroll
    if unroll is None or unroll is True:
        kind = "serial" if unroll is None else "unroll"
        context.emit(ir.For(variables[0], start, stop, step, body, kind, loc=loc))
        return
    first = ir.Variable(f"{variables[0].name}_first", loc=loc)
    body = while_it_goes_on(context, ends, _several_turns(first, variables[0], loop, body))
    context.emit(ir.For(first, start, stop, step * unroll, body, loc=loc))


def _several_turns(
    first: ir.Variable, variable: ir.Variable, loop: RangeLoop, body: ir.Statement
) -> ir.Statement:
    """The unrolled iterations from `first` on, each guarded by a check that it is in the range.

    for q in tc.range(n, unroll=4):           for q_first in range(0, n, 4):
        body                           ->         for q_turn in unroll(4):
                                                      if n - q_first > q_turn:
                                                          let q = q_first + q_turn
                                                          body
    """
    assert loop.unroll is not None
    turn, loc = ir.Variable(f"{variable.name}_turn"), body.loc
    distance = ir.Binary("*", turn, ir.constant(loop.step), loc=loc)
    left = ir.Binary("-", loop.stop, first, loc=loc)
    is_there = ir.Binary(">" if loop.step > 0 else "<", left, distance, loc=loc)
    let = ir.Let(variable, ir.Binary("+", first, distance, loc=loc), loc=loc)
    turns = ir.If(is_there, ir.Sequence((let, body)), loc=loc)
    return ir.For(turn, ir.constant(0), ir.constant(loop.unroll), 1, turns, "unroll", loc=loc)


def _unrolled(context: Context, node: ast.For, items: Sequence[Value]) -> None:
    """Parses the body once for each item of a tuple or `tc.static(...)`, each time as a body of its own."""
    for item in [settled(context, item, node.target, node.iter) for item in items]:
        names: dict[str, Value] = {}
        _bind_item(context, node.target, item, names)
        with leaving(context, node, "one that is unrolled while it is parsed"):
            body = context.body(node.body, names)
        parts = body.statements if isinstance(body, ir.Sequence) else (body,)
        if any(isinstance(part, (ir.Let, ir.Allocate)) for part in parts):
            context.emit(body)
        else:
            context.block.extend(parts)


def _bind_item(context: Context, target: ast.expr, item: Value, names: dict[str, Value]) -> None:
    if isinstance(target, ast.Name):
        _check_free(context, target)
        names[target.id] = context.symbolic(item)
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        raise context.error("the variable of a loop is a name", target)
    if not isinstance(item, (tuple, list)) or len(item) != len(target.elts):
        raise context.error(f"{len(target.elts)} names can't take {describe(item)}", target)
    for part, value in zip(target.elts, item, strict=True):
        _bind_item(context, part, value, names)


def comprehension(context: Context, node: ast.ListComp | ast.GeneratorExp) -> list[Value]:
    """`[place[axis] for axis in order]`: the parts of a tuple whose length is known while parsing.

    Without brackets, as in `tuple(... for ...)`, it is the same: nothing here runs later.
    """
    (loop, *further) = node.generators
    if further or loop.ifs:
        raise context.error("a list is made by one 'for', without 'if'", node)
    items = context.evaluate(loop.iter)
    if not isinstance(items, (tuple, list, range)):
        raise context.error(
            f"a list is made from a constant sequence or a tuple, and this is {describe(items)}",
            loop.iter,
            "a sum over what is known only at run time is a loop of a kernel, or in a program a reduction"
            if isinstance(node, ast.GeneratorExp)
            else None,
        )
    parts = []
    for item in items:
        names: dict[str, Value] = {}
        _bind_item(context, loop.target, item, names)
        context.frame.scopes.append(Scope(names))
        parts.append(context.evaluate(node.elt))
        context.frame.scopes.pop()
    return parts


# --- what the loops run over -----------------------------------------------------------------


def _parts(value: Value) -> tuple[Value, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


@handles("tiles", as_phase=True)
def _tiles(
    context: Context,
    node: ast.Call,
    shape: ast.expr,
    by: ast.expr,
    order: ast.expr | None = None,
    persistent: ast.expr | None = None,
    cluster: ast.expr | None = None,
) -> TilesLoop:
    """`tc.tiles((m, n), by=(64, 64), order=("grouped", 8), persistent=False, cluster=(2, 1))`"""
    if context.in_role:
        raise context.error("tc.tiles can't be used in a role", node)
    values = _parts(context.evaluate(shape))
    places = [shape] * len(values)
    if isinstance(shape, (ast.Tuple, ast.List)) and len(shape.elts) == len(values):
        places = shape.elts
    extents = tuple([extent(context, value, at) for value, at in zip(values, places, strict=True)])
    steps = _sizes(context, by, "the size of a tile")
    if len(steps) != len(extents):
        dimensions = counted(len(extents), "dimension")
        raise context.error(f"the grid has {dimensions}, and 'by' {len(steps)}", by)
    numbered = _order(context, order, len(extents))
    blocks = () if cluster is None else _sizes(context, cluster, "the size of a cluster")
    if cluster is not None and blocks:
        _check_cluster(context, extents, steps, blocks, cluster)
    is_persistent = flag(context, persistent, "persistent")
    return TilesLoop(extents, steps, numbered, is_persistent, blocks)


def _check_cluster(
    context: Context,
    shape: tuple[int | ir.Expression, ...],
    by: tuple[int, ...],
    cluster: tuple[int, ...],
    node: ast.expr,
) -> None:
    """Check the sizes known now; a symbolic shape is proved to be a multiple where the grid is lowered."""
    if len(cluster) != len(shape):
        raise context.error(
            f"the grid has {len(shape)} dimensions, and 'cluster' {len(cluster)}", node
        )
    target = TARGETS[context.target_name]
    blocks = prod(cluster)
    if target.cluster == 1 and blocks > 1:
        raise context.error(f"{target.name} has no clusters", node, "they begin with sm_90a")
    if blocks > target.cluster:
        raise context.error(
            f"a cluster has at most {target.cluster} blocks, and this {blocks}", node
        )
    for dimension, (size, step, count) in enumerate(zip(shape, by, cluster, strict=True)):
        tiles = -(-size // step) if isinstance(size, int) else 0
        if tiles % count:
            raise context.error(
                f"dimension {dimension} has {tiles} tiles, which is no multiple of {count}",
                node,
                "a cluster is scheduled whole, so its extents divide the numbers of tiles",
            )


def _sizes(context: Context, node: ast.expr, what: str) -> tuple[int, ...]:
    sizes = tuple(
        [constant_integer(context, part, node, what) for part in _parts(context.evaluate(node))]
    )
    if any(size < 1 for size in sizes):
        raise context.error(f"{what} is at least 1: {sizes}", node)
    return sizes


def _order(context: Context, node: ast.expr | None, rank: int) -> tuple[str | int, ...]:
    value = None if node is None else context.evaluate(node)
    if node is None or value is None:
        return ()
    parts = _parts(value)
    if len(parts) == 2 and parts[0] in ir.GROUPED:
        rows = constant_integer(context, parts[1], node, "the size of a group")
        if rows < 1 or rank != 2:
            raise context.error(
                f"the {parts[0]} order is for two dimensions, and groups of 1 or more", node
            )
        return (parts[0], rows)
    if not is_constant(parts) or sorted(parts, key=str) != list(range(rank)):
        raise context.error(
            f"the order is the dimensions {tuple(range(rank))} from slowest to fastest",
            node,
            'or groups of n tile rows: ("grouped", n), or ("backwards", n)',
        )
    return parts


@handles("pipeline")
def _pipeline_call(
    context: Context,
    node: ast.Call,
    extent: ast.expr,
    by: ast.expr | None = None,
    stages: ast.expr | None = None,
    transport: ast.expr | None = None,
    specialize: ast.expr | None = None,
    turns: ast.expr | None = None,
) -> PipelineLoop:
    """`tc.pipeline(k, by=8, stages=3, transport="cp.async", specialize=False, turns=None)`"""
    if context.is_cuda_kernel:
        raise context.error(
            "a tc.cuda kernel pipelines by hand: tc.pipeline is for kernels without barriers", node
        )
    context.require_phase("tc.pipeline", node)
    end = index(context, context.evaluate(extent), extent)
    step = _at_least_one(context, by, "the step of a pipeline")
    count = _at_least_one(context, stages, "the number of stages")
    way = _word(context, transport, "the transports are", _TRANSPORTS)
    is_specialized = flag(context, specialize, "specialize")
    taken = _word(context, turns, "there are turns of", ir.TURNS)
    if turns is not None and taken is not None and not is_specialized:
        raise context.error(
            "only beside a producer is there anything to take in turn",
            turns,
            "say specialize=True, too",
        )
    return PipelineLoop(end, step, count, way, is_specialized, taken)


def _word(context: Context, node: ast.expr | None, what: str, known: tuple[str, ...]) -> str | None:
    if node is None:
        return None
    word: str | None = context.evaluate(node)
    if word is not None and word not in known:
        raise context.error(f"{what} {', '.join(map(json.dumps, known))}", node)
    return word


def _at_least_one(context: Context, node: ast.expr | None, what: str) -> int:
    if node is None:
        return 1
    value = constant_integer(context, context.evaluate(node), node, what)
    if value < 1:
        raise context.error(f"{what} is at least 1: {value}", node)
    return value


MOST_UNROLLED = 1024
_FAR = 1 << 31  # a step of several turns might be no number of its type


def plain_range(context: Context, node: ast.Call) -> Value:
    if not 1 <= len(node.args) <= 3 or node.keywords:
        hint = None
        if any(item.arg == "unroll" for item in node.keywords):
            hint = "tc.range takes it: for q in tc.range(n, unroll=4): ..."
        raise context.error("range takes a stop, or a start and a stop, and a step", node, hint)
    return _turns(context, node)


def unrolled_range(context: Context, node: ast.Call) -> Value:
    """`tc.range(start, stop, step, unroll=4)`"""
    if not 1 <= len(node.args) <= 3 or [item.arg for item in node.keywords] not in ([], ["unroll"]):
        raise context.error("tc.range takes what range does, and unroll", node)
    turns = _turns(context, node)
    if isinstance(turns, range):
        start, stop = (index(context, end, node) for end in (turns.start, turns.stop))
        turns = RangeLoop(start, stop, turns.step)
    if not node.keywords:
        return turns
    (written,) = node.keywords
    unroll = context.evaluate(written.value)
    if unroll is None:
        return turns
    if not isinstance(unroll, int) or (unroll is not True and not 2 <= unroll <= MOST_UNROLLED):
        raise context.error(
            f"'unroll' is True, or how many turns at a time, 2 to {MOST_UNROLLED};"
            f" this is {describe(unroll)}",
            written.value,
        )
    if unroll is True:
        _check_unrolled(context, turns, node)
    elif abs(turns.step) * unroll >= _FAR:
        return turns
    return replace(turns, unroll=unroll)


HANDLERS["range"] = unrolled_range


def _check_unrolled(context: Context, turns: RangeLoop, node: ast.Call) -> None:
    ends = turns.start, turns.stop
    if not all(isinstance(end, ir.Constant) for end in ends):
        raise context.error(
            "all turns of a range are unrolled where its ends are known at compile time",
            node,
            "say how many at a time: unroll=4",
        )
    count = trip_count(ir.For(context.worker, *ends, turns.step, ir.Sequence(())))
    if count is not None and count > MOST_UNROLLED:
        raise context.error(
            f"at most {MOST_UNROLLED} turns are unrolled, and this range has {count}",
            node,
            "say how many at a time: unroll=4",
        )


def _turns(context: Context, node: ast.Call) -> Value:
    values = [context.evaluate(argument) for argument in node.args]
    if all(map(is_constant, values)):
        return compute(context, node, range, *values)
    step = 1
    if len(values) == 3:
        step = constant_integer(context, values[2], node.args[2], "the step of a range")
        if step == 0:
            raise context.error("the step of a range is not 0", node.args[2])
    bounds = [
        index(context, value, part) for value, part in zip(values[:2], node.args, strict=False)
    ]
    if len(bounds) == 1:
        bounds.insert(0, ir.Constant(0, loc=context.locate(node)))
    return RangeLoop(bounds[0], bounds[1], step)
