"""Definitions as text, which crosses to other processes: they need no code of the user's to compile and call one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from taskc.errors import CompileError
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.lang.definition import Definition, KernelDefinition

Pack: TypeAlias = "tuple[int, ...] | Parcel"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A definition as data.

    ir     its text at the stage at which its author wrote it, without locations
    packs  what parameters are packed from, by name: a shape, or the kernel that packs

    Parcels are equal where what they run is. Documentation, examples and the names of a tuple's parts stay behind.
    """

    ir: str
    packs: Mapping[str, Pack] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All of it in one line, which `Parcel.parse` reads back; the same for equal parcels."""
        return json.dumps(_data(self), sort_keys=True)

    @staticmethod
    def parse(text: str) -> Parcel:
        return _parcel(json.loads(text))

    def definition(self) -> KernelDefinition:
        """It runs as the one did that this was made of."""
        packs = {
            name: pack.definition() if isinstance(pack, Parcel) else pack
            for name, pack in self.packs.items()
        }
        return KernelDefinition.of(parse(self.ir), packs)

    def __hash__(self) -> int:
        return hash(self.text)


def parcel_of(definition: Definition) -> Parcel:
    if not isinstance(definition, KernelDefinition):
        raise CompileError(f"{definition.described} has no text yet that can be read back")
    packs = {
        name: parcel_of(pack) if isinstance(pack, KernelDefinition) else tuple(map(int, pack))
        for name, pack in definition.packs.items()
    }
    return Parcel(to_text(definition.ir), packs)


def _data(parcel: Parcel) -> dict[str, Any]:
    packs = {
        name: _data(pack) if isinstance(pack, Parcel) else list(pack)
        for name, pack in parcel.packs.items()
    }
    return {"ir": parcel.ir, "packs": packs}


def _parcel(data: dict[str, Any]) -> Parcel:
    packs = {
        name: tuple(pack) if isinstance(pack, list) else _parcel(pack)
        for name, pack in data["packs"].items()
    }
    return Parcel(data["ir"], packs)
