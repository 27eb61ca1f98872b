"""Problems and plans for people: their JSON, as words.

{"dtype":{"is":"type","name":"f32"},"is":"Problem","k":64,"m":16,"n":32}   m=16 n=32 k=64 f32
"""

from __future__ import annotations

import json
from typing import Any

_FIRST = ("m", "n", "k")
_TYPE = "dtype"  # which other types are told of where they differ from it


def words(text: str) -> list[str]:
    """Extents, then types, then all else; a text that says no fields is its own word."""
    try:
        said = json.loads(text)
        return _fields(said) if isinstance(said, dict) else [printable(text)]
    except (ValueError, RecursionError):
        return [printable(text)]


def _fields(said: dict[str, Any]) -> list[str]:
    said = dict(said)
    kind = said.pop("is", "Problem")
    said = {name: _value(value) for name, value in sorted(said.items(), key=_place)}
    own = said.get(_TYPE)
    found = [] if kind == "Problem" else [str(kind)]
    for name, value in said.items():
        if name == _TYPE:
            found.append(str(value))
        elif value is True:
            found.append(name)
        elif value != own:
            found.append(f"{name}={value}")
    return [printable(word) for word in found]


def _place(item: tuple[str, Any]) -> tuple[int, int]:
    """Where a field comes; those of one place keep their order."""
    name, value = item
    kind = value.get("is") if isinstance(value, dict) else None
    is_number = isinstance(value, int | list) and not isinstance(value, bool)
    among = _FIRST.index(name) if name in _FIRST else len(_FIRST)
    if is_number or kind == "dim":
        return 0, among
    return (1 if kind == "type" else 2), (0 if name == _TYPE else 1)


def _value(value: Any) -> Any:
    """A word, or True."""
    match value:
        case True:
            return True
        case False | None:
            return "no"
        case {"is": "function", "name": str(name)}:
            return name.rpartition(".")[2]
        case {"is": "dim", "multiple": multiple}:
            return "dim" if multiple == 1 else f"dim({multiple})"
        case {"is": "type", "name": str(name)}:
            return name
        case {"is": "mapping", "text": str(said)}:
            return said.replace(" ", "")
        case {}:
            return f"({' '.join(_fields(value))})"
        case [int(), *_] if all(type(item) is int for item in value):
            return "x".join(map(str, value))
        case [*items]:
            return f"[{','.join(str(_value(item)) for item in items)}]"
    return value if isinstance(value, str) else json.dumps(value)


def printable(text: str) -> str:
    """A text that moves no cursor: what can't be printed is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def duration(seconds: float | None) -> str:
    """Such as `1.25 ms`; `-` for none."""
    if seconds is None:
        return "-"
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
