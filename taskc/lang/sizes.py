"""Extents that are known only when a kernel is called: symbolic dimensions, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from taskc.ir.extents import compute


class _Computed:
    """Arithmetic, as on the integers that they stand for."""

    __slots__ = ()

    def __add__(self, other: object) -> Extent:
        return _extent("+", self, other)

    def __radd__(self, other: object) -> Extent:
        return _extent("+", other, self)

    def __sub__(self, other: object) -> Extent:
        return _extent("-", self, other)

    def __rsub__(self, other: object) -> Extent:
        return _extent("-", other, self)

    def __mul__(self, other: object) -> Extent:
        return _extent("*", self, other)

    def __rmul__(self, other: object) -> Extent:
        return _extent("*", other, self)

    def __floordiv__(self, other: object) -> Extent:
        return _extent("//", self, other)

    def __neg__(self) -> Extent:
        return _extent("-", 0, self)


@dataclass(frozen=True, slots=True, eq=False)
class Dimension(_Computed):
    """An extent that is known only when the kernel is called, and is then a multiple of `multiple`.

    `example` is the extent that example arguments have.
    """

    name: str
    multiple: int
    example: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Extent(_Computed):
    """`m * n`, `n + 2`: computed from dimensions at each call."""

    operator: str
    left: Size
    right: Size

    @property
    def example(self) -> int:
        left, right = (n if isinstance(n, int) else n.example for n in (self.left, self.right))
        return compute(self.operator, left, right)

    def __str__(self) -> str:
        left, right = (
            f"({n})" if isinstance(n, Extent) else str(n) for n in (self.left, self.right)
        )
        return f"{left} {self.operator} {right}"


Size: TypeAlias = "int | Dimension | Extent"


def _extent(operator: str, left: object, right: object) -> Extent:
    sides: list[Size] = []
    for side in (left, right):
        if isinstance(side, (Dimension, Extent)):
            sides.append(side)
        elif isinstance(side, (int, np.integer)) and not isinstance(side, bool):
            sides.append(int(side))
        else:
            return NotImplemented  # type: ignore[no-any-return]
    return Extent(operator, *sides)


def dim(name: str, *, multiple: int = 1, example: int | None = None) -> Dimension:
    """A symbolic dimension: one compiled kernel serves all its sizes."""
    if not name.isidentifier():
        raise ValueError(f"a dimension's name is an identifier, not {name!r}")
    if multiple < 1:
        raise ValueError(f"a dimension is a multiple of 1 or more, not of {multiple}")
    if example is None:
        example = multiple * max(1, 37 // multiple)
    if example < 0 or example % multiple:
        raise ValueError(f"the example {example} of {name!r} isn't a multiple of {multiple}")
    return Dimension(name, multiple, example)
