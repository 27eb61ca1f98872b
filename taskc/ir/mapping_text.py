"""Mappings as text: printed like the DSL, and parsed with its constructors.

A table of a mapping shows the owner of each task; `taskc/pictures.py` draws it. A cell shows
the worker, and `:slot` where workers have several slots; `+` marks tasks with more owners,
`·` tasks without any. Of a long dimension only both ends are computed and shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping as Dictionary, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from taskc.ir.mapping_forms import Composed, Enumerated, Factor, MappingError, Mode, Shape, joined

if TYPE_CHECKING:
    from lark import Lark, Token, Tree


GRAMMAR = r"""
    ?start: product
    ?product: chain | product "*" chain
    ?chain: primary
          | chain "." factor                                   -> product
          | chain "." "within" "(" INTEGER ("," INTEGER)* ")"  -> within
    ?primary: factor | "(" product ")"
    ?factor: "spatial" "(" sizes ")"                                    -> spatial
           | "repeat" "(" sizes ")"                                     -> repeat
           | "replicate" "(" INTEGER ("," "rank" "=" INTEGER)? ")"      -> replicate
           | "auto_map" "(" tuple "," "workers" "=" INTEGER vector? ")"  -> auto_map
           | "mapping" "(" tuple "," INTEGER "," "[" list ("," list)* "]" ")"  -> mapping
    vector: "," "vector" "=" INTEGER
    sizes: (INTEGER ("," INTEGER)* ("," "order" "=" tuple)?)?
    list: "[" (entry ("," entry)*)? "]"
    ?entry: tuple | "None" -> hole
    tuple: "(" (INTEGER ("," INTEGER)* ","?)? ")"
    INTEGER: /\d+/
    %ignore /\s+/
"""

MOST_DIGITS = 1000  # Python converts at most 4,300, and no type holds as many
LONG_NUMBER = re.compile(rf"\d{{{MOST_DIGITS + 1}}}")


# Constructors of mappings by their names in the text; `*` composes two of them.
Makers: TypeAlias = Dictionary[str, Callable[..., Any]]


def mapping_text(
    form: Composed | Enumerated, limit: Shape | None, factors: tuple[Factor, ...]
) -> str:
    """The chain as written, or an equal one for a derived mapping."""
    within = "" if limit is None else f".within({joined(limit)})"
    if isinstance(form, Enumerated):
        return _table(form, _lists(form)) + within
    chain = factors or _factors(form)
    if chain is None:
        rows = form.tasks(np.arange(form.workers)).tolist()
        return _table(form, [[tuple(task) for task in row] for row in rows]) + within
    rank = len(form.shape)
    if rank != 1 and all(factor.kind == "replicate" for factor in chain):
        # The rank has to be given if there is no partner to take it from.
        first, *rest = map(_factor, chain)
        return ".".join([f"{first[:-1]}, rank={rank})", *rest])
    return ".".join(map(_factor, chain)) + within


def _table(form: Composed | Enumerated, rows: Iterable[object]) -> str:
    return f"mapping({form.shape}, {form.workers}, [{', '.join(map(str, rows))}])"


def _factor(factor: Factor) -> str:
    order = "" if factor.order is None else f", order={factor.order}"
    return f"{factor.kind}({joined(factor.sizes)}{order})"


def _lists(form: Enumerated) -> list[list[Shape | None]]:
    rows: list[list[Shape | None]] = []
    for tasks, valid in zip(form.table.tolist(), form.mask.tolist(), strict=True):
        row = [tuple(task) if held else None for task, held in zip(tasks, valid, strict=True)]
        while row and row[-1] is None:
            row.pop()
        rows.append(row)
    # The longest list determines the number of slots.
    if max(map(len, rows)) < form.slots:
        rows[0] += [None] * (form.slots - len(rows[0]))
    return rows


def _factors(form: Composed) -> tuple[Factor, ...] | None:
    """A chain with these modes, built from the outside in; None if there is none.

    A mode may come next if it spans all that is left of its dimension.
    """
    pending = {"spatial": list(form.worker_modes), "repeat": list(form.slot_modes)}
    extents = list(form.shape)
    groups: list[tuple[str, dict[int, int]]] = []

    def is_next(mode: Mode) -> bool:
        return mode.dimension is None or mode.size * mode.stride == extents[mode.dimension]

    kind = "spatial"
    while any(pending.values()):
        if not (pending[kind] and is_next(pending[kind][0])):
            kind = "repeat" if kind == "spatial" else "spatial"
        if not (pending[kind] and is_next(pending[kind][0])):
            return None
        mode = pending[kind].pop(0)
        if mode.dimension is None:
            groups.append(("replicate", {0: mode.size}))
            continue
        extents[mode.dimension] = mode.stride
        if not groups or groups[-1][0] != kind or mode.dimension in groups[-1][1]:
            groups.append((kind, {}))
        groups[-1][1][mode.dimension] = mode.size
    if not groups:
        groups.append(("spatial", {}))
    return tuple(_grouped(kind, sizes, len(form.shape)) for kind, sizes in groups)


def _grouped(kind: str, sizes: dict[int, int], rank: int) -> Factor:
    if kind == "replicate":
        return Factor(kind, (sizes[0],))
    order = tuple(i for i in range(rank) if i not in sizes) + tuple(sizes)
    unordered = list(sizes) == sorted(sizes)
    return Factor(kind, tuple(sizes.get(i, 1) for i in range(rank)), None if unordered else order)


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", propagate_positions=True)


def read_mapping(text: str, makers: Makers) -> Any:
    """The mapping of a chain of constructors; errors report a column, counted from 1."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if long := LONG_NUMBER.search(text):
        column = long.start() + 1
        raise MappingError(f"column {column}: a number has {MOST_DIGITS} digits at most")
    try:
        tree = _parser().parse(text)
    except UnexpectedCharacters as error:
        position: Any = error.pos_in_stream  # lark declares it as None
        raise _mistake(text, position) from None
    except UnexpectedToken as error:
        at_end = error.token.type == "$END"
        raise _mistake(text, len(text.rstrip()) if at_end else error.token.start_pos or 0) from None
    try:
        return _build(tree, makers)
    except RecursionError:
        raise MappingError("this chain is too long to be read") from None


def _mistake(text: str, position: int) -> MappingError:
    # lark's errors list too much: all lookaheads of states that LALR has merged.
    state = _parser().parse_interactive(text[:position])
    state.exhaust_lexer()
    names: set[str] = state.accepts()  # type: ignore[no-untyped-call]
    expected = sorted(map(_terminal, names))
    token = re.match(r"\w+|.", text[position:])
    return MappingError(
        f"column {position + 1}: expected {' or '.join(expected)}, "
        f"not {repr(token[0]) if token else 'the end of the text'}"
    )


def _terminal(name: str) -> str:
    if name == "$END":
        return "the end of the text"
    if name == "INTEGER":
        return "an integer"
    pattern = next(terminal.pattern for terminal in _parser().terminals if terminal.name == name)
    return repr(pattern.value)


def _build(tree: Any, makers: Makers) -> Any:
    parts: list[Any] = tree.children
    match tree.data:
        case "product":
            f, g = (_build(part, makers) for part in parts)
            return _at(parts[1], lambda: f * g)
        case "within":
            m = _build(parts[0], makers)
            return _at(tree, lambda: m.within(_integers(parts[1:])))
        case "replicate":
            return _at(tree, lambda: makers["replicate"](*_integers(parts)))
        case "auto_map":
            extents, workers = _integers(parts[0].children), int(parts[1])
            vector = int(parts[2].children[0]) if len(parts) > 2 else 1
            return _at(tree, lambda: makers["auto_map"](extents, workers=workers, vector=vector))
        case "mapping":
            lists = [[_task(entry) for entry in row.children] for row in parts[2:]]
            shape, workers = _integers(parts[0].children), int(parts[1])
            if len(lists) != workers:
                count = f"{workers} workers, but lists of tasks for {len(lists)}"
                raise _error_at(tree, f"mapping(…) has {count}")
            return _at(tree, lambda: makers["mapping"](shape, workers, lists.__getitem__))
        case kind:
            sizes = parts[0].children
            order = None
            if sizes and hasattr(sizes[-1], "children"):
                *sizes, last = sizes
                order = _integers(last.children)
            return _at(tree, lambda: makers[kind](*_integers(sizes), order=order))


def _integers(tokens: Iterable[Any]) -> list[int]:
    return [int(token) for token in tokens]


def _task(entry: Tree[Token]) -> list[int] | None:
    return None if entry.data == "hole" else _integers(entry.children)


def _at(tree: Tree[Token], make: Callable[[], Any]) -> Any:
    try:
        return make()
    except MappingError as error:
        raise _error_at(tree, error) from None


def _error_at(tree: Tree[Token], message: object) -> MappingError:
    return MappingError(f"column {tree.meta.column}: {message}")


Cell = tuple[int, str]  # the worker, -1 for none, and the text

NOBODY = (-1, "·")
FEW = 16  # most rows and columns in a text table


class Owners(NamedTuple):
    """The owners of tasks.

    shape  of the tasks
    of     from tasks, an array of numbers for each dimension: the worker and the slot that own each first, -1 for
           nobody, and how many do
    """

    shape: Shape
    of: Callable[[Sequence[Any]], tuple[Any, Any, Any]]
    are_slots_shown: bool


def table(owners: Owners) -> str:
    """A grid of at most 16 × 16 cells: the last two dimensions, with the others at 0."""
    rows, _ = grid(owners, FEW)
    texts = [["…" if cell is None else cell[1] for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in texts
    ]
    return "\n".join([*heading(len(owners.shape)), *lines])


def heading(rank: int) -> list[str]:
    return [f"[{'0, ' * (rank - 2)}:, :]"] if rank > 2 else []


def grid(owners: Owners, most: int) -> tuple[list[list[Cell | None]], bool]:
    """The cells of the last two dimensions, None where elided, and whether these are all."""
    rows, columns = (_shown(extent, most) for extent in (1, 1, *owners.shape)[-2:])
    asked = [[place for place in places if place is not None] for places in (rows, columns)]
    plane = np.ix_(*asked)
    leading = [np.int64(0)] * (len(owners.shape) - 2)
    coordinates = [*leading, *plane][-len(owners.shape) :]
    workers, slots, copies = (
        iter(np.broadcast_to(values, (len(asked[0]), len(asked[1]))).ravel().tolist())
        for values in owners.of(coordinates)
    )

    def cell(worker: int, slot: int, count: int) -> Cell:
        if worker < 0:
            return NOBODY
        own = f":{slot}" if owners.are_slots_shown else ""
        return worker, f"{worker}{own}{'+' if count > 1 else ''}"

    cells = [
        [
            None if None in (i, j) else cell(next(workers), next(slots), next(copies))
            for j in columns
        ]
        for i in rows
    ]
    return cells, None not in rows and None not in columns


def _shown(extent: int, most: int) -> list[int | None]:
    """The indices, with a None for those left out in the middle."""
    if extent <= most:
        return list(range(extent))
    head = most // 2
    return [*range(head), None, *range(extent - (most - head - 1), extent)]
