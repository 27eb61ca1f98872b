"""The kinds of phases that random programs are made of, and the control flow around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.random_programs.around import Around, Made
from tests.random_programs.phases.control import (
    assertion,
    bounded_sum,
    branch,
    cells,
    divergent,
    pause,
    printed,
    private_array,
    repetition,
    scalars,
    serial_loop,
)
from tests.random_programs.phases.memory import (
    copied,
    exchange,
    histogram,
    load_function,
    rotation,
    update_in_place,
)
from tests.random_programs.phases.pipelines import product
from tests.random_programs.phases.tiles import (
    algebra,
    convert_tile,
    new_tile,
    reduction,
    rows,
    scan,
    tile_to_shared,
    update_tile,
)

if TYPE_CHECKING:
    from tests.random_programs.generator import Generator

Phase = Callable[["Generator", Around], Made]


def menu(g: Generator, around: Around) -> list[Callable[[Around], Made]]:
    """The phases that can stand here, as often as they should be chosen."""
    kinds: list[Phase] = [
        *[new_tile] * 3, *[exchange] * 5, *[load_function] * 3, *[scalars] * 2, cells,
        *[histogram] * 2, *[copied] * 2, update_in_place, *[assertion] * 2, *[divergent] * 3,
        private_array, pause, bounded_sum, rows,
        *[reduction] * 5, *[scan] * 4, printed, *[algebra] * 10,
    ]  # fmt: skip
    if around.depth < 2:
        kinds += [*[serial_loop] * 4, *[branch] * 3, *[repetition] * 3, *[rotation] * 5]
    if around.tiles:
        kinds += [*[update_tile] * 3, *[convert_tile] * 2, tile_to_shared, *[reduction] * 2]
    kinds += [*[product] * 4]
    return [lambda around, kind=kind: kind(g, around) for kind in kinds]  # type: ignore[misc]
