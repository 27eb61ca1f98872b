"""Problems and plans as text: one line of JSON, which is the same in all runs and is parsed, never evaluated.

    {"is": "Panels", "lanes": 16, "rows": 8, "tall": 16, "vectors": 3}

A field that has its default is left out: one that is added later leaves the texts of before as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping as Names
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from taskc.ir.mapping import Mapping
from taskc.ir.types import DTYPES, DType
from taskc.lang.sizes import Dimension

FUNCTION = "function "  # before the name of one, among the parts of a text

_KIND = "is"


def text_of(value: Any) -> str:
    """Of frozen data: numbers, strings, types, mappings, tuples of these, and functions, whose names stand for them."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_plain(item) for item in value]
        case DType():
            return {_KIND: "type", "name": str(value)}
        case Mapping():
            return {_KIND: "mapping", "text": str(value)}
        case Dimension():
            return {_KIND: "dim", "multiple": value.multiple}
    if is_dataclass(value) and not isinstance(value, type):
        given = {
            item.name: _plain(getattr(value, item.name))
            for item in fields(value)
            if item.compare and getattr(value, item.name) != _default(item)
        }
        return {_KIND: type(value).__name__, **given}
    if callable(value):
        return {_KIND: "function", "name": _name_of(value)}
    return {_KIND: type(value).__name__, "text": str(value)}


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _name_of(value: Callable[..., Any]) -> str:
    named = getattr(value, "function", value)
    module = getattr(named, "__module__", "")
    name = getattr(named, "__qualname__", None) or getattr(named, "__name__", type(named).__name__)
    return f"{module}.{name}"


class TextError(ValueError):
    """A text is no plan's."""


def plan_of(text: str, types: Names[str, type]) -> Any:
    """The plan that a text says, of one of these types."""
    try:
        said = json.loads(text)
        made = _made(said, types)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise TextError(f"this is no plan: {text[:200]}") from error
    if type(made) not in types.values():
        raise TextError(f"this is no plan: {text[:200]}")
    return made


def _made(said: Any, types: Names[str, type]) -> Any:
    match said:
        case None | bool() | int() | float() | str():
            return said
        case list():
            return tuple([_made(item, types) for item in said])
        case {"is": "type", "name": str(name)}:
            return DTYPES[name]
        case {"is": "mapping", "text": str(text)}:
            return Mapping.parse(text)
        case {"is": str(kind)}:
            given = {name: _made(value, types) for name, value in said.items() if name != _KIND}
            return types[kind](**given)
    raise TextError(f"{said!r} is no part of a plan")


@cache
def parts(text: str) -> dict[str, Any]:
    """The choices of a text by name, those within others as `few.depth`."""
    found: dict[str, Any] = {}

    def collect(value: Any, prefix: str) -> None:
        kind = value.get(_KIND) if isinstance(value, dict) else None
        if kind == "function":
            found[prefix] = f"{FUNCTION}{value['name']}"
        elif kind in ("type", "mapping"):
            found[prefix] = value.get("name") or value.get("text")
        elif isinstance(value, dict):
            for name, item in value.items():
                collect(item, f"{prefix}.{name}" if prefix else name)
        elif isinstance(value, list):
            for name, item in _named(value):
                collect(item, f"{prefix}.{name}")
        else:
            found[prefix] = value

    collect(json.loads(text), "")
    return found


def _named(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Of pairs that begin with a name, by these, and of others by their numbers."""
    for number, item in enumerate(items):
        match item:
            case [str(name), value]:
                yield name, value
            case _:
                yield number, item
