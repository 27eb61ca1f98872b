"""Problems and plans as text: one line of JSON, the same in all runs, which is parsed and never evaluated.

    {"is": "Panels", "lanes": 16, "rows": 8, "tall": 16, "vectors": 3}

Fields with default values are left out, so that adding a field doesn't change existing texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping as Names
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from taskc.ir.mapping import Mapping
from taskc.ir.types import DTYPES, DType
from taskc.lang.sizes import Dimension

FUNCTION = "function "  # the prefix of a function's name in the parts of a text

_KIND = "is"
_FORM: Any = {"sort_keys": True, "separators": (",", ":")}


def text_of(value: Any, *, whole: bool = False) -> str:
    """The text of frozen data: numbers, strings, types, mappings, tuples of these, and functions by name.

    whole  include fields with default values: for people, not as a key
    """
    return json.dumps(_plain(value, whole), **_FORM)


def _plain(value: Any, whole: bool) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_plain(item, whole) for item in value]
        case DType():
            return {_KIND: "type", "name": str(value)}
        case Mapping():
            return {_KIND: "mapping", "text": str(value)}
        case Dimension():
            return {_KIND: "dim", "multiple": value.multiple}
    if is_dataclass(value) and not isinstance(value, type):
        given = {
            item.name: _plain(getattr(value, item.name), whole)
            for item in fields(value)
            if item.compare and (whole or getattr(value, item.name) != _default(item))
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
    """A text isn't that of a plan."""


_DEEPEST = 16
_GREATEST = 1 << 63
# The field of each kind of tagged object, with its type.
_TAGGED: dict[str, tuple[str, type]] = {
    "type": ("name", str), "mapping": ("text", str), "dim": ("multiple", int), "function": ("name", str),
}  # fmt: skip


def is_written(text: str) -> bool:
    """Whether a text from a file could have been written by `text_of`, so that `parts` accepts it."""
    try:
        said = json.loads(text)
        return _is_plain(said, 0) and json.dumps(said, allow_nan=False, **_FORM) == text
    except (ValueError, RecursionError):
        return False


def _is_plain(said: Any, depth: int) -> bool:
    match said:
        case int():  # a bool, too
            return -_GREATEST <= said < _GREATEST
        case list():
            return depth < _DEEPEST and all(_is_plain(item, depth + 1) for item in said)
        case dict():
            kind = said.get(_KIND)
            if isinstance(kind, str) and kind in _TAGGED:
                name, expected = _TAGGED[kind]
                return said.keys() == {_KIND, name} and type(said[name]) is expected
            return depth < _DEEPEST and all(_is_plain(item, depth + 1) for item in said.values())
    return True  # a string, a float or null


def plan_of(text: str, types: Names[str, type]) -> Any:
    """The plan of a text, of one of these types."""
    try:
        said = json.loads(text)
        made = _made(said, types)
    except Exception as error:  # a plan's constructor may raise anything
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
    """The choices of a text by name: nested ones as `few.depth`, and a template's as `values.bk`."""
    choices: dict[str, Any] = {}

    def collect(value: Any, prefix: str) -> None:
        kind = value.get(_KIND) if isinstance(value, dict) else None
        if kind == "function":
            choices[prefix] = f"{FUNCTION}{value['name']}"
        elif kind in ("type", "mapping"):
            choices[prefix] = value.get("name") or value.get("text")
        elif isinstance(value, dict):
            for name, item in value.items():
                collect(item, f"{prefix}.{name}" if prefix else name)
        elif isinstance(value, list):
            for name, item in value if _are_named(value) else enumerate(value):
                collect(item, f"{prefix}.{name}")
        else:
            choices[prefix] = value

    collect(json.loads(text), "")
    return choices


def _are_named(items: list[Any]) -> bool:
    """Whether the items are pairs of a name and a value."""
    return all(
        isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in items
    )


def said(text: str) -> str:
    """A plan or a problem for people: `Panels lanes=16 rows=8`."""
    named = dict(parts(text))
    kind = named.pop(_KIND, "")
    return " ".join([kind, *(f"{short(name)}={value}" for name, value in named.items())])


def short(name: str) -> str:
    """A choice's name for people, without the prefix of a template's choices and arguments."""
    return name.removeprefix("values.").removeprefix("given.")
