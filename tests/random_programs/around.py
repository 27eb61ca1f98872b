"""What a body of phases knows while it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tests.random_programs import description as d
from tests.random_programs.scope import Scope


@dataclass(frozen=True)
class TileValue:
    name: str
    dtype: str
    mapping: d.MappingOf


@dataclass(frozen=True)
class Around:
    """What a body of phases knows: memory and scalars, tiles, and how deep it is."""

    scope: Scope = field(default_factory=Scope)
    tiles: tuple[TileValue, ...] = ()
    depth: int = 0

    def with_tile(self, tile: TileValue) -> Around:
        return replace(self, tiles=(*self.tiles, tile))

    def with_scope(self, scope: Scope) -> Around:
        return replace(self, scope=scope)


Made: TypeAlias = "tuple[list[d.Statement], Around]"
