"""Bugs in `layout`, `overlay` and `synchronize`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskc.analysis import accesses, phases
from taskc.ir import nodes as ir
from taskc.ir.mapping import spatial
from taskc.ir.rewrite import replace_tensors
from taskc.passes import layout, overlay, synchronize
from tests.random_programs.mutations.mutation import Mutation, always, edited, half_of, instead


def _rings_forgotten(right: Any) -> Any:
    return lambda kernel, tensors: replace(kernel, body=replace_tensors(kernel.body, tensors))


def _shortened(right: Any) -> Any:
    return lambda *sizes: right(*sizes[:-1], max(1, sizes[-1] // 2))


def _short_lives(right: Any) -> Any:
    return lambda body: [replace(life, last=life.first) for life in right(body)]


def _at_most_warp(right: Any) -> Any:
    return lambda *arguments: right(*arguments) and "warp"


def _own_tensor_only(right: Any) -> Any:
    return lambda a, b, warp: right(a, b, warp) if a.tensor is b.tensor else None


def _without_values_of_atomics(right: Any) -> Any:
    def mutated(statement: Any, known: Any, visit: Any) -> Any:
        def visit_others(touch: Any) -> None:
            if touch.node is touch.statement or not isinstance(touch.statement, ir.Atomic):
                visit(touch)

        return right(statement, known, visit_others)

    return mutated


MUTATIONS = (
    Mutation("layout", "rings keep the tensors without layouts",
             layout, "place", _rings_forgotten),
    Mutation("layout", "rows are shortened, not padded", layout, "repeat", _shortened),
    Mutation("layout", "a layout has many workers", layout, "repeat", instead(spatial)),
    Mutation("overlay", "every tensor is at 0", overlay, "_lowest_free", always(0)),
    Mutation("overlay", "a tensor is dead after its allocation", overlay, "_lives", _short_lives),
    Mutation("overlay", "elements are half as big", overlay, "size_in_bytes", half_of),
    Mutation("synchronize", "a warp barrier is always enough",
             synchronize, "conflict_scope", _at_most_warp),
    Mutation("synchronize", "bytes that tensors share are forgotten",
             synchronize, "conflict_scope", _own_tensor_only),
    Mutation("synchronize", "earlier iterations are forgotten",
             synchronize._Placer, "carried", always(())),
    Mutation("overlay", "a tensor is dead after its first use",
             overlay, "_lives", edited("ends[tensor] = counter", "ends.setdefault(tensor, counter)")),
    Mutation("overlay", "places are not aligned", overlay, "ALIGNMENT", instead(1)),
    Mutation("overlay", "rings keep the tensors without places", overlay, "place", _rings_forgotten),
    Mutation("synchronize", "a warp's barrier orders everything",
             synchronize, "ordered", edited('if WIDTH[scope] >= WIDTH["role"]:', "if True:")),
    Mutation("synchronize", "barriers of warps are never needed",
             synchronize._Placer, "place",
             edited("if id(barrier) in needed:",
                    'if barrier.scope == "warp":\n                placed = _without(placed, barrier)\n'
                    "            elif id(barrier) in needed:")),
    Mutation("synchronize", "a mapping's worker is the block's",
             accesses.Crew, "enter",
             edited("number = evaluate(loop.worker, {**self.values, worker: self.workers})",
                    "pass")),
    Mutation("synchronize", "what an atomic's value reads is not read",
             phases, "visit_touches", _without_values_of_atomics),
    Mutation("synchronize", "atomics don't write",
             phases.Phases, "_access",
             edited("writes=stores or isinstance(node, ir.Address)",
                    "writes=stores and not isinstance(node, ir.Atomic)")),
    Mutation("synchronize", "of a warp only its first worker counts",
             accesses, "extremes", edited("highest[keys] = numbers", "highest[keys] = numbers // 32 * 32")),
)  # fmt: skip
