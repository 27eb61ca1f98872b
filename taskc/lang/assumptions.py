"""The assumptions that a trace of a program makes about its sizes.

    positions[:n] if n < 512 else positions        traced where n is 128: it is positions[:n], and n < 512 is assumed

Python branches on the answer to a question, so a trace is valid for calls whose sizes give the same answers. A
trace with assumptions answers from example sizes, and records each question; whoever calls the program asks
`serve` first. A trace without them refuses a question whose answer isn't the same for all sizes.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from taskc.ir.extents import extent_value
from taskc.lang.sizes import Dimension, Size

_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "==": python.eq, "!=": python.ne, "<": python.lt, "<=": python.le, ">": python.gt, ">=": python.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assumption:
    """Whether `difference operator 0` holds."""

    difference: Size
    operator: str
    holds: bool

    def __str__(self) -> str:
        text = f"{self.difference} {self.operator} 0"
        return text if self.holds else f"not {text}"


class Assumptions:
    """The answers at these sizes of a program's dimensions, as far as they were asked for."""

    def __init__(self, sizes: Mapping[Dimension, int]) -> None:
        self.sizes = sizes
        self._made: dict[str, Assumption] = {}

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self._made.values())

    def answer(self, operator: str, difference: Size) -> bool | None:
        """Whether `difference operator 0`; None where it depends on more than dimensions, as on a loop's step."""
        if any(dimension not in self.sizes for dimension in difference.dimensions.values()):
            return None
        holds = _is_so(operator, difference, self.sizes)
        made = Assumption(difference, operator, holds)
        self._made.setdefault(str(made), made)
        return holds

    def serve(self, sizes: Mapping[Dimension, int]) -> bool:
        """Whether all that was asked has the same answers at these sizes."""
        return all(_is_so(it.operator, it.difference, sizes) is it.holds for it in self)


def _is_so(operator: str, difference: Size, sizes: Mapping[Dimension, int]) -> bool:
    known = {variable: sizes[own] for variable, own in difference.dimensions.items()}
    return _HOLDS[operator](extent_value(difference.expression, known), 0)
