"""Programs as plain data: what JSON holds, and reads back in milliseconds, without a grammar.

    recorded(node, ...) -> json       from_record(json) -> [node, ...]

A record is a list of nodes, each after those that it names, and then which of them were asked for:

    record ::= {"nodes": [node, ...], "found": [field, ...]}
    node   ::= [class, field, ...]     but for where in a source it comes from
    field  ::= number | text | true | false | null | [field, ...] | {"at": place among the nodes}

What two nodes share they share in the record: variables, tensors and kernels are the same only where they are one
object. Any class of nodes.py, program.py and mapping.py is one of a node, so that a new one needs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from taskc.errors import InternalError
from taskc.ir import mapping, mapping_forms, nodes, program
from taskc.ir.types import DTYPES, DType

Json: TypeAlias = Any

_MODULES = (nodes, program, mapping, mapping_forms)


def recorded(*roots: object, also: Sequence[type] = ()) -> Json:
    """These and all below them.

    also  other classes of nodes that there may be
    """
    writer = _Writer({*_classes().values(), *also})
    return {"nodes": writer.nodes, "found": [*map(writer.field, roots)]}


def from_record(record: Json, also: Sequence[type] = ()) -> list[Any]:
    """What was recorded; errors are Python's own, of whatever kind."""
    classes: dict[str, type] = {**_classes(), **{one.__name__: one for one in also}}
    made: list[Any] = []

    def field(value: Json) -> Any:
        match value:
            case list():
                return tuple(map(field, value))
            case {"at": int(place)}:
                return made[place]
        return value

    for name, *values in record["nodes"]:
        found = map(field, values)
        if name == DType.__name__:
            made.append(DTYPES[values[0]])
        elif name == np.ndarray.__name__:
            dtype, shape, elements = found
            made.append(np.array(elements, dtype).reshape(shape))
        else:
            kind: Any = classes[name]
            names = _names(kind)
            if names is None:
                made.append(kind(*found))
            else:
                made.append(kind(**dict(zip(names, found, strict=True))))
    return [*map(field, record["found"])]


class _Writer:
    def __init__(self, classes: set[type]) -> None:
        self.nodes: list[Json] = []
        self.places: dict[int, int] = {}
        self.kept: list[object] = []  # so that no identity is given twice
        self.classes = classes

    def field(self, value: Any) -> Json:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case np.generic():
                return value.item()
        if type(value) in (tuple, list):
            return [*map(self.field, value)]
        place = self.places.get(id(value))
        if place is None:
            node = self.node(value)
            place = self.places[id(value)] = len(self.nodes)
            self.nodes.append(node)
            self.kept.append(value)
        return {"at": place}

    def node(self, value: Any) -> Json:
        if isinstance(value, DType):
            return [DType.__name__, value.name]
        if type(value) is np.ndarray:
            parts = value.dtype.str, value.shape, value.reshape(-1).tolist()
            return [np.ndarray.__name__, *map(self.field, parts)]
        kind: Any = type(value)
        if kind not in self.classes:
            raise InternalError(f"there is no record of {kind.__name__}")
        names = _names(kind)
        values = value if names is None else [getattr(value, name) for name in names]
        return [kind.__name__, *map(self.field, values)]


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a class that make it; None of a named tuple, which is made of all."""
    if not is_dataclass(kind):
        return None
    return tuple([field.name for field in fields(kind) if field.init and field.name != "loc"])


@cache
def _classes() -> dict[str, type]:
    return {
        name: kind
        for module in _MODULES
        for name, kind in vars(module).items()
        if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))
    }
