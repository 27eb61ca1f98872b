"""Bugs in `persist`, `join_blocks`, `lower_grid`, `lower_mappings` and `flatten`."""

from __future__ import annotations

from typing import Any

from taskc.ir import build
from taskc.passes import (
    flatten,
    join_blocks,
    lower_grid,
    lower_mappings,
    persist,
    register_slots,
)
from tests.random_programs.mutations.mutation import Mutation, always, edited, instead, rounded_down


def _reversed_order(right: Any) -> Any:
    def row_major(counts: Any, number: Any, order: Any) -> Any:
        return right(counts[::-1], number, ())

    return row_major


def _reversed_digits(right: Any) -> Any:
    return lambda number, sizes: right(number, sizes[::-1])[::-1]


def _shifted_extents(right: Any) -> Any:
    return lambda shape, indices: right((*shape[1:], shape[0]), indices)


def _outermost_dropped(right: Any) -> Any:
    return lambda shape, indices: right(
        shape, (build.index(0), *indices[1:]) if len(indices) > 1 else indices
    )


def _last_doubled(right: Any) -> Any:
    return lambda shape, indices: build.add(right(shape, indices), indices[-1])


MUTATIONS = (
    Mutation("join_blocks", "the last blocks are left out", join_blocks, "ceiling_divide", rounded_down),
    Mutation("join_blocks", "blocks take turns with each other's workers",
             join_blocks, "floor_divide", instead(build.modulo)),
    Mutation("join_blocks", "workers have the number of their block",
             join_blocks, "modulo", instead(build.floor_divide)),
    Mutation("lower_grid", "dimensions are swapped", lower_grid, "_row_major", _reversed_order),
    Mutation("lower_grid", "the last group is as high as the others",
             lower_grid, "_minimum", lambda right: lambda left, bound: build.index(bound)),
    Mutation("lower_grid", "the ragged last tile is lost",
             lower_grid, "ceiling_divide", rounded_down),
    Mutation("lower_mappings", "every owner stores", lower_mappings, "first_owner", always(None)),
    Mutation("lower_mappings", "the digits of a worker are reversed",
             register_slots, "digits_of", _reversed_digits),
    Mutation("lower_mappings", "tasks outside the limit are done",
             lower_mappings, "within_limit", always(None)),
    Mutation("flatten", "strides are those of the next dimension",
             flatten, "_row_major", _shifted_extents),
    Mutation("flatten", "the outermost index is dropped",
             flatten, "_row_major", _outermost_dropped),
    Mutation("flatten", "the last index counts twice", flatten, "_row_major", _last_doubled),
    Mutation("lower_grid", "groups begin at the first row",
             lower_grid, "_grouped",
             edited("add(first, modulo(within_group, group_rows))", "modulo(within_group, group_rows)")),
    Mutation("lower_grid", "groups go row by row",
             lower_grid, "_grouped",
             edited("[add(first, modulo(within_group, group_rows)), floor_divide(within_group, group_rows)]",
                    "[add(first, floor_divide(within_group, columns)), modulo(within_group, group_rows)]")),
    Mutation("persist", "a persistent grid's blocks all begin at the first tile",
             persist, "_blocks_of_tiles",
             edited("add(place, multiply(turn, apart))", "multiply(turn, apart)")),
    Mutation("persist", "a persistent grid's blocks go on to the next tile",
             persist, "_blocks_of_tiles",
             edited("add(place, multiply(turn, apart))", "add(place, turn)")),
    Mutation("persist", "a persistent grid has one tile a block",
             persist, "_blocks_of_tiles",
             edited("ir.For(turn, ZERO, turns,",
                    'ir.For(turn, ZERO, ir.Binary("min", turns, index(1)),')),
    Mutation("persist", "all tiles of a block are its first",
             persist, "_blocks_of_tiles", edited("at_tile(grid, tile, ", "at_tile(grid, first, ")),
    Mutation("lower_grid", "the order of dimensions is that of their places",
             lower_grid, "_row_major",
             edited("return [digits[d] for d in range(len(counts))]",
                    "return [digits[d] for d in dimensions]")),
    Mutation("lower_mappings", "empty slots of a table are done",
             lower_mappings, "enumerated_tasks", edited("if not mapping.valid.all():", "if False:")),
    Mutation("lower_mappings", "a tile's register is the number of the loop's trip",
             lower_mappings._Lowering, "slot",
             edited("loop.mapping == owners", "loop.mapping.slots == owners.slots")),
    Mutation("lower_mappings", "a loop that starts late takes the first registers",
             lower_mappings, "linear_form", edited("constant -= step * trip.start", "pass")),
    Mutation("lower_mappings", "registers are a linear function of the first two trips",
             lower_mappings, "linear_form", edited("((form != table) & (table >= 0)).any()", "False")),
    Mutation("lower_mappings", "a copy's condition is not asked",
             lower_mappings, "asynchronous_copy", edited("TRUE if condition is None else condition", "TRUE")),
    Mutation("lower_mappings", "a table's first owner is one by its slot",
             lower_mappings, "first_owner",
             edited("owner, _ = mapping.owner_table()", "_, owner = mapping.owner_table()")),
    Mutation("flatten", "a layout's inner digits are not cut off",
             flatten, "_within_layout",
             edited("mode.stride * mode.size < layout.shape[mode.dimension]", "False")),
    Mutation("flatten", "a layout's modes come fastest first",
             flatten, "_within_layout", edited("for mode in modes:", "for mode in modes[::-1]:")),
    Mutation("flatten", "all numbers fit 32 bits", flatten._Flattener, "_fits", always(True)),
    Mutation("flatten", "operands fit where the result does",
             flatten._Flattener, "_together", edited(" and all(map(self._fits, operands))", "")),
    Mutation("flatten", "casts of integers to 64 bits are to 32",
             flatten._Flattener, "_narrow",
             edited("node.operand.dtype.is_integer and self._fits(node)",
                    "node.operand.dtype.is_integer")),
)  # fmt: skip
