"""What an expression may mention where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.random_programs.description import Apply, Element, Number, Shape, Value


@dataclass(frozen=True)
class Readable:
    """Memory that may be read anywhere."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Scope:
    """What an expression may mention.

    indices  integers that are known to lie in [0, extent)
    own      elements that may be read here and only so: of tiles, and of what this phase writes
    """

    indices: tuple[tuple[str, int], ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()
    memory: tuple[Readable, ...] = ()
    own: tuple[Element, ...] = field(default=())

    def with_indices(self, *pairs: tuple[str, int]) -> Scope:
        return replace(self, indices=(*self.indices, *pairs))

    def with_scalar(self, name: str, dtype: str) -> Scope:
        return replace(self, scalars=(*self.scalars, (name, dtype)))

    def with_memory(self, *memory: Readable) -> Scope:
        return replace(self, memory=(*self.memory, *memory))

    def without(self, *names: str) -> Scope:
        return replace(self, memory=tuple(m for m in self.memory if m.name not in names))


def i64(value: int) -> Number:
    return Number(value, "i64")


def add(left: Value, right: Value) -> Value:
    return Apply("+", (left, right), "i64")
