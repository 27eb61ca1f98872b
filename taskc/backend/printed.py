"""The line of a `tc.print`: each `{}` is a value's place, and any other brace is a brace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def printed(text: str, values: Iterable[Any]) -> str:
    first, *pieces = text.split("{}")
    return first + "".join([f"{v}{piece}" for v, piece in zip(values, pieces, strict=True)])
