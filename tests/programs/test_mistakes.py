"""Mistakes planted in fusion are shown: what must stay two calls doesn't, or other bits come out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.programs import (
    test_fuse_computations as computations,
    test_fuse_in_loops as in_loops,
    test_fuse_into_loads as loads,
    test_fuse_into_stores as stores,
)
from tests.programs.lookalikes import LOOKALIKES
from tests.programs.mistakes import MISTAKES
from tests.programs.random_programs import program
from tests.programs.running import check
from tests.random_programs.mutations.mutation import Mutation

# A lookalike, the number of a random program, or a test.
SHOWN_BY: dict[str, str | int | Callable[[], None]] = {
    "calls: any call may move": "an_input_changes_before_the_kernel_reads",
    "calls: what is written between is read later": "an_input_changes_before_the_kernel_reads",
    "calls: no call disturbs another": "the_kernel_itself_changes_the_input",
    "calls: several calls may write": "a_temporary_that_is_written_twice",
    "calls: a view is memory of its own": "a_part_of_what_is_stored",
    "calls: what is the same is seen by the shape": 1,
    "fuse_computations: what stays apart is fused": "what_stays_apart",
    "fuse_computations: an output need not be stored": 2,
    "fuse_computations: parts start at the first element": (
        computations.test_parts_and_shapes_are_seen_through
    ),
    "fuse_computations: an element is as good as another": 2,
    "fuse_computations: products and sums become one operation": (
        computations.test_a_product_that_was_stored_is_not_fused_with_a_sum
    ),
    "fuse_computations: all is cheap": "a_row_that_is_repeated",
    "indices: a part starts at the whole": computations.test_parts_and_shapes_are_seen_through,
    "indices: all is at the first element": stores.test_axes_before_the_last_may_change_places,
    "fuse_into_stores: all is in order": "reversed_rows_of_a_kernel",
    "fuse_into_stores: only the first read counts": "neighbours_are_read_too",
    "fuse_into_stores: neighbours may go apart": "last_axis_becomes_the_first",
    "fuse_into_stores: what others read isn't stored": 35,
    "fuse_into_stores: another input is read at other indices": "sizes_that_need_not_agree",
    "fuse_into_loads: others that read are forgotten": "two_readers_of_which_one_is_a_kernel",
    "fuse_into_loads: parts start at the first element": loads.test_a_part_is_read_where_it_starts,
    "fuse_into_loads: all is cheap": "an_operand_that_all_blocks_read",
    "pairs: pairs are alike by their callees": (
        stores.test_what_coincides_in_one_call_need_not_in_another
    ),
    "bodies: what lasts longer is the body's own": in_loops.test_what_lasts_from_step_to_step_stays,
    "calls: rows are apart if they start apart": (
        in_loops.test_rows_that_overlap_are_the_same_memory
    ),
    "drop_dead: what a call reads is dead": "reversed_rows_of_a_kernel",
}


def shows(witness: str | int | Callable[[], None]) -> bool:
    """Whether something is wrong with a program now."""
    try:
        if isinstance(witness, int):
            check(program(witness))
        elif isinstance(witness, str):
            definition = LOOKALIKES[witness]()
            return len(check(definition).calls) != len(definition.ir.calls)
        else:
            witness()
    except Exception:  # of any kind: the mistake was no success
        return True
    return False


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_shown(mistake: Mutation) -> None:
    witness = SHOWN_BY[str(mistake)]
    assert not shows(witness)
    with mistake.planted():
        assert shows(witness)
