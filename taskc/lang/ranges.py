"""`range` and `tc.range`: loops with a counted number of iterations."""

from __future__ import annotations

import ast
from dataclasses import replace

from taskc.ir import nodes as ir
from taskc.ir.code_size import trip_count
from taskc.lang.context import Context
from taskc.lang.conversions import constant_integer, index
from taskc.lang.operators import compute
from taskc.lang.values import RangeLoop, Value, describe, is_constant

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
