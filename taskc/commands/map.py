"""taskc map: draw a mapping, with its properties."""

from __future__ import annotations

import argparse
import re

from taskc.commands.terminal import UsageError, columns, write, write_text
from taskc.errors import CompileError, Location
from taskc.format import many
from taskc.ir.mapping import Mapping
from taskc.ir.mapping_forms import MappingError
from taskc.output_file import write_whole

SUMMARY = "draw a mapping"
DESCRIPTION = """\
Draws a mapping as a table of who does which task: worker:slot, + where several do.
"""


_MOST_LISTED = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: taskc map 'spatial(4, 8).repeat(2, 2)'"
    parser.add_argument("mapping", metavar="MAPPING", help="such as 'spatial(4, 8).repeat(2, 2)'")
    parser.add_argument("--svg", metavar="FILE", help="write the picture to a file, too")
    parser.add_argument("--worker", metavar="W", type=int, help="list this worker's tasks, too")


def run(options: argparse.Namespace) -> int:
    mapping = _parse(options.mapping)
    if options.worker is not None and not 0 <= options.worker < mapping.workers:
        raise UsageError(
            f"there is no worker {options.worker}: they are 0 to {mapping.workers - 1}"
        )
    if options.worker is not None and mapping.slots > _MOST_LISTED:
        raise UsageError(
            f"a worker has {mapping.slots} tasks, and {_MOST_LISTED} are the most that are listed"
        )
    write_text(mapping.table())
    write()
    write_text(columns(_facts(mapping)))
    if options.worker is not None:
        write()
        tasks = ", ".join(map(str, mapping(options.worker)))
        write((f"worker {options.worker}", "bold"), f": {tasks or 'no tasks'}")
    if options.svg is not None:
        write_whole(options.svg, f"{mapping.svg()}\n")
    return 0


def _parse(text: str) -> Mapping:
    """The mapping, or an error with a caret at the position."""
    try:
        return Mapping.parse(text)
    except MappingError as error:
        said = re.fullmatch(r"column (\d+): (.*)", str(error), re.DOTALL)
        column, message = (int(said[1]), said[2]) if said else (0, str(error))
        place = Location("mapping", 1, column, 1, column + 1, text) if column else None
        raise (CompileError(message, place) if place else CompileError(message)) from None


def _facts(mapping: Mapping) -> list[tuple[str, str]]:
    iterated = " × ".join(map(str, mapping.iterated))
    if not mapping.covers(mapping.iterated):
        copies = mapping.multiplicity()
        covered = f"{int((copies > 0).sum())} of the {copies.size} tasks"
    else:
        covered = "every task, by several workers" if mapping.is_replicated else "every task once"
    return [
        ("mapping", str(mapping)),
        ("workers", str(mapping.workers)),
        ("shape", iterated),
        ("slots", f"{many(mapping.slots, 'task')} a worker"),
        ("covers", covered),
        ("replicated", "yes" if mapping.is_replicated else "no"),
    ]
