"""Bugs to plant in passes: each is a function of a pass's module exchanged for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from taskc.ir import build, nodes as ir
from taskc.ir.mapping import spatial
from taskc.ir.rewrite import map_statements, replace_tensors
from taskc.passes import (
    enumeration,
    flatten,
    hoist,
    layout,
    lower_grid,
    lower_mappings,
    lower_rings,
    overlap,
    overlay,
    prove_bounds,
    select,
    select_matrix,
    select_reductions,
    simplify_expressions,
    simplify_rules,
    specialize,
    synchronize,
    tasks,
    unroll,
    value_numbers,
    vectorize,
)

Wrong = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutation:
    """`wrong` makes the function that replaces `owner.name` from the right one."""

    stage: str
    title: str
    owner: Any
    name: str
    wrong: Wrong

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.owner, self.name, self.wrong(getattr(self.owner, self.name)))

    def __str__(self) -> str:
        return f"{self.stage}: {self.title}"


def _always(value: Any) -> Wrong:
    return lambda right: lambda *arguments, **keywords: value


def _floor_instead(right: Any) -> Any:
    return build.floor_divide


# --- simplify --------------------------------------------------------------------------------


def _truncating_fold(right: Any) -> Any:
    def fold(node: ir.Expression) -> ir.Expression | None:
        match node:
            case ir.Binary(
                operator="//",
                left=ir.Constant(value=int() as left),
                right=ir.Constant(value=int() as divisor),
            ) if divisor:
                return ir.Constant(int(left / divisor), node.dtype)
        return right(node)  # type: ignore[no-any-return]

    return fold


def _with_rule(line: str) -> Wrong:
    rule = simplify_rules._parse(line)

    def wrong(right: Any) -> Any:
        def candidates(root: type, operator: str, operands: tuple[type, ...]) -> Any:
            fits = rule.root == (root, operator) and all(
                wanted is None or wanted is given
                for wanted, given in zip(rule.operands, operands, strict=True)
            )
            return ((rule,) if fits else ()) + right(root, operator, operands)

        return candidates

    return wrong


# --- select ----------------------------------------------------------------------------------


def _too_small_cover(right: Any) -> Any:
    def auto_map(shape: tuple[int, ...], **options: int) -> Any:
        full = right(shape, **options)
        return full.within(*(max(1, n - 1) for n in shape))

    return auto_map


def _zero_identity(right: Any) -> Any:
    def identity(operator: str, dtype: Any) -> ir.Constant:
        return right("+", dtype) if operator in ("min", "max", "*") else right(operator, dtype)

    return identity


def _not_transposed(right: Any) -> Any:
    return lambda operand, *place: right(replace(operand, transposed=False), *place)


# --- pipelines -------------------------------------------------------------------------------


def _next_step(right: Any) -> Any:
    def fetch_step(pipeline: Any, loads: Any, slots: Any, k: Any, *rest: Any) -> Any:
        return right(pipeline, loads, slots, build.add(k, 1), *rest)

    return fetch_step


def _next_slot(right: Any) -> Any:
    return lambda k, stages: right(build.add(k, 1), stages)


def _work_in_next_slot(right: Any) -> Any:
    def index_leading(node: Any, rings: Any, slot: Any) -> Any:
        if isinstance(node, ir.Sequence) and rings:
            (stages, *_) = next(iter(rings.values())).shape
            slot = build.modulo(build.add(slot, 1), stages)
        return right(node, rings, slot)

    return index_leading


# --- memory ----------------------------------------------------------------------------------


def _rings_forgotten(right: Any) -> Any:
    return lambda kernel, tensors: replace(kernel, body=replace_tensors(kernel.body, tensors))


def _shortened(right: Any) -> Any:
    return lambda *sizes: right(*sizes[:-1], max(1, sizes[-1] // 2))


def _short_lives(right: Any) -> Any:
    return lambda body: [replace(life, last=life.first) for life in right(body)]


def _half_sizes(right: Any) -> Any:
    return lambda tensor: right(tensor) // 2


# --- barriers --------------------------------------------------------------------------------


def _at_most_warp(right: Any) -> Any:
    return lambda *arguments: right(*arguments) and "warp"


def _own_tensor_only(right: Any) -> Any:
    return lambda a, b, warp: right(a, b, warp) if a.tensor is b.tensor else None


# --- lower_rings -----------------------------------------------------------------------------


def _changed_do(operation: str, change: Callable[[ir.Do], ir.Statement]) -> Wrong:
    """The method that makes statements, with one operation made wrong."""

    def visit(node: ir.Statement) -> ir.Statement:
        if isinstance(node, ir.Do) and node.operation == operation:
            return change(node)
        return map_statements(node, visit)

    return lambda right: lambda self, *arguments: visit(right(self, *arguments))


def _one_more(do: ir.Do) -> ir.Statement:
    (count,) = do.operands
    return replace(do, operands=(build.add(count, 1),))


def _other_parity(do: ir.Do) -> ir.Statement:
    place, parity = do.operands
    return replace(do, operands=(place, build.subtract(1, parity)))


# --- lowering --------------------------------------------------------------------------------


def _reversed_order(right: Any) -> Any:
    def row_major(counts: Any, number: Any, order: Any) -> Any:
        return right(counts[::-1], number, ())

    return row_major


def _reversed_digits(right: Any) -> Any:
    return lambda number, sizes: right(number, sizes[::-1])[::-1]


def _slots_reversed(right: Any) -> Any:
    return lambda trips: right(trips[::-1])


def _shifted_extents(right: Any) -> Any:
    return lambda shape, indices: right((*shape[1:], shape[0]), indices)


def _outermost_dropped(right: Any) -> Any:
    return lambda shape, indices: right(
        shape, (build.index(0), *indices[1:]) if len(indices) > 1 else indices
    )


def _last_doubled(right: Any) -> Any:
    return lambda shape, indices: build.add(right(shape, indices), indices[-1])


# --- loops -----------------------------------------------------------------------------------


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
    Mutation("prove", "every owner of a task stores",
             enumeration, "first_owners", _always(True)),
    Mutation("prove", "guards say nothing about indices",
             prove_bounds._State, "assume", lambda right: lambda self, condition, holds=True: self),
    Mutation("prove", "loops say nothing about their variables",
             prove_bounds._State, "enter", lambda right: lambda self, statement: self),
    Mutation("simplify", "// is folded towards zero", simplify_expressions, "fold", _truncating_fold),
    Mutation("simplify", "abs(-x) is abs(x) for unsigned numbers too",
             simplify_expressions, "candidates", _with_rule("number: abs(-x) -> abs(x)")),
    Mutation("simplify", "x * 0 is 0 for floats",
             simplify_expressions, "candidates", _with_rule("float: x * 0 -> 0")),
    Mutation("simplify", "x - -y is x - y",
             simplify_expressions, "candidates", _with_rule("int: x - -y -> x - y")),
    Mutation("select", "a move's mapping misses the last row", select, "auto_map", _too_small_cover),
    Mutation("select", "minimum and product start from 0", select_reductions, "identity", _zero_identity),
    Mutation("select", "a transposed operand is read as it lies",
             select_matrix, "operand_element", _not_transposed),
    Mutation("specialize", "the producer loads the next step", specialize, "fetch_step", _next_step),
    Mutation("specialize", "the consumer reads the next slot", specialize, "modulo", _next_slot),
    Mutation("specialize", "the last step of a ragged loop is lost",
             specialize, "ceiling_divide", _floor_instead),
    Mutation("overlap", "the work reads the next slot", overlap, "index_leading", _work_in_next_slot),
    Mutation("overlap", "the last step of a ragged loop is lost",
             overlap, "ceiling_divide", _floor_instead),
    Mutation("overlap", "steps count as elements", overlap, "multiply", lambda right: lambda k, by: k),
    Mutation("layout", "rings keep the tensors without layouts", layout, "place", _rings_forgotten),
    Mutation("layout", "rows are shortened, not padded", layout, "repeat", _shortened),
    Mutation("layout", "a layout has many workers", layout, "repeat", lambda right: spatial),
    Mutation("overlay", "every tensor is at 0", overlay, "_lowest_free", _always(0)),
    Mutation("overlay", "a tensor is dead after its allocation", overlay, "_lives", _short_lives),
    Mutation("overlay", "elements are half as big", overlay, "size_in_bytes", _half_sizes),
    Mutation("synchronize", "a warp barrier is always enough", synchronize, "conflict_scope", _at_most_warp),
    Mutation("synchronize", "bytes that tensors share are forgotten",
             synchronize, "conflict_scope", _own_tensor_only),
    Mutation("synchronize", "earlier iterations are forgotten",
             synchronize._Placer, "carried", _always(())),
    Mutation("lower_rings", "one group of copies too many may be in flight",
             lower_rings._Lowering, "step", _changed_do("cp.async.wait", _one_more)),
    Mutation("lower_rings", "the wrong parity is waited for",
             lower_rings._Lowering, "step", _changed_do("mbarrier.wait", _other_parity)),
    Mutation("lower_rings", "half of the bytes are expected", lower_rings, "_slot_bytes", _half_sizes),
    Mutation("lower_grid", "dimensions are swapped", lower_grid, "_row_major", _reversed_order),
    Mutation("lower_grid", "the last group is as high as the others",
             lower_grid, "_minimum", lambda right: lambda left, bound: build.index(bound)),
    Mutation("lower_grid", "the ragged last tile is lost", lower_grid, "ceiling_divide", _floor_instead),
    Mutation("lower_mappings", "every owner stores", lower_mappings, "first_owner", _always(None)),
    Mutation("lower_mappings", "the digits of a worker are reversed",
             tasks, "digits_of", _reversed_digits),
    Mutation("lower_mappings", "tasks outside the limit are done", lower_mappings, "within_limit", _always(None)),
    Mutation("flatten", "strides are those of the next dimension", flatten, "_row_major", _shifted_extents),
    Mutation("flatten", "the outermost index is dropped", flatten, "_row_major", _outermost_dropped),
    Mutation("flatten", "the last index counts twice", flatten, "_row_major", _last_doubled),
    Mutation("unroll", "an unrolled loop lacks its first iteration", unroll, "replace", _changed_loop("start", 1)),
    Mutation("unroll", "an unrolled loop lacks its last iteration", unroll, "replace", _changed_loop("stop", -1)),
    Mutation("unroll", "an unrolled loop has one iteration too many",
             unroll, "replace", _changed_loop("stop", 1)),
    Mutation("vectorize", "guards are forgotten", vectorize, "_guards_and_stores", _unguarded),
    Mutation("vectorize", "an odd last iteration is lost", vectorize, "trip_count", _even),
    Mutation("vectorize", "conditions are those of the first lane",
             vectorize._Check, "_is_uniform_comparison", _always(True)),
    Mutation("hoist", "all memory is as it was", hoist, "is_stable", _always(True)),
    Mutation("hoist", "a remainder is as good as a quotient", value_numbers.Numbers, "of", _confused),
    Mutation("hoist", "everything belongs one loop further out", hoist._Hoister, "level", _shallow),
)  # fmt: skip
