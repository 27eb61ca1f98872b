"""Bugs in `unroll`, `vectorize` and `hoist`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskc.ir import nodes as ir
from taskc.passes import hoist, unroll, vectorize
from tests.random_programs.mutations.mutation import Mutation, Wrong, always, edited


def _changed_loop(bound: str, by: int) -> Wrong:
    def wrong(right: Any) -> Any:
        def replaced(node: Any, **changes: Any) -> Any:
            if changes.get("kind") == "unroll":
                old = getattr(node, bound)
                changes[bound] = replace(old, value=old.value + by * node.step)
            return right(node, **changes)

        return replaced

    return wrong


def _unguarded(right: Any) -> Any:
    return lambda body: ([], right(body)[1])


def _even(right: Any) -> Any:
    def trip_count(loop: ir.For) -> int | None:
        trips: int | None = right(loop)
        return trips if trips is None or trips < 3 else trips // 2 * 2

    return trip_count


def _confused(right: Any) -> Any:
    def of(self: Any, node: ir.Expression) -> Any:
        if isinstance(node, ir.Binary) and node.operator == "%":
            return right(self, ir.Binary("//", node.left, node.right))
        return right(self, node)

    return of


def _shallow(right: Any) -> Any:
    return lambda self, node: max(0, right(self, node) - 1)


MUTATIONS = (
    Mutation("unroll", "an unrolled loop lacks its first iteration",
             unroll, "replace", _changed_loop("start", 1)),
    Mutation("unroll", "an unrolled loop lacks its last iteration",
             unroll, "replace", _changed_loop("stop", -1)),
    Mutation("unroll", "an unrolled loop has one iteration too many",
             unroll, "replace", _changed_loop("stop", 1)),
    Mutation("vectorize", "guards are forgotten", vectorize, "_guards_and_stores", _unguarded),
    Mutation("vectorize", "an odd last iteration is lost", vectorize, "trip_count", _even),
    Mutation("vectorize", "conditions are those of the first lane",
             vectorize._Check, "_is_uniform_comparison", always(True)),
    Mutation("hoist", "all memory is as it was", hoist, "is_stable", always(True)),
    Mutation("hoist", "a remainder is as good as a quotient",
             hoist.Numbers, "of", _confused),
    Mutation("hoist", "everything belongs one loop further out", hoist.Levels, "level", _shallow),
    Mutation("vectorize", "every offset is aligned", vectorize._Check, "_is_aligned", always(True)),
    Mutation("vectorize", "offsets have no remainder",
             vectorize._Check, "_is_aligned",
             edited("modulus % width or remainder % width", "modulus % width")),
    Mutation("vectorize", "offsets may go up by anything",
             vectorize._Check, "_share", edited("step == 1 and", "")),
    Mutation("vectorize", "all lanes may store to one place",
             vectorize._Check, "statement",
             edited("self._share(part, self.stores) != 1", "not self._share(part, self.stores)")),
    Mutation("vectorize", "comparisons change sides at their edge's neighbour",
             vectorize._Check, "_is_uniform_comparison", edited('("<", ">=") else 1', '("<=", ">") else 1')),
    Mutation("vectorize", "a vector's conditions are those of the first vector",
             vectorize._Vectorizer, "_split", edited("if trips != width or start:", "if start:")),
    Mutation("hoist", "reads may leave a loop that never runs",
             hoist._Hoister, "_loop_body", edited("if not runs:", "if False:")),
    Mutation("hoist", "reads may leave an If",
             hoist._Hoister, "_branches",
             edited("self.levels.certain = self.depth\n        then", "pass\n        then")),
    Mutation("hoist", "a sum's constant is never taken away",
             hoist.Levels, "by_level", edited('"+" if constant > 0 else "-"', '"+"')),
    Mutation("hoist", "terms of one factor have one sign",
             hoist, "_scaled_sum", edited('"+" if (factor > 0) is positive else "-"', '"+"')),
    Mutation("hoist", "casts of one value are one value",
             hoist.Numbers, "of", edited("what, node.dtype, parts", "what, parts")),
)  # fmt: skip
