"""Definitions as text, which crosses to other processes: they need no code of the user's to compile and call one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from taskc.ir import parse, parse_program
from taskc.ir.printer import to_text
from taskc.lang.definition import Definition, KernelDefinition, Packs
from taskc.lang.program import ProgramDefinition

Pack: TypeAlias = "tuple[int, ...] | Parcel"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A definition as data.

    ir     the text of a kernel at the stage at which its author wrote it, or of a program with its kernels
    packs  what parameters are packed from, by name: a shape, or the kernel that packs

    Parcels are equal where what they run is: locations, documentation, examples and the names of a tuple's parts stay
    behind.
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

    def definition(self) -> KernelDefinition | ProgramDefinition:
        """It runs as the one did that this was made of."""
        if self.ir.startswith("program "):
            return ProgramDefinition.of(parse_program(self.ir), _packs(self))
        return _kernel(self)

    def __hash__(self) -> int:
        return hash(self.text)


def parcel_of(definition: Definition) -> Parcel:
    packs = {
        name: parcel_of(pack) if isinstance(pack, KernelDefinition) else tuple(map(int, pack))
        for name, pack in definition.packs.items()
    }
    return Parcel(to_text(definition.ir), packs)


def _kernel(parcel: Parcel) -> KernelDefinition:
    return KernelDefinition.of(parse(parcel.ir), _packs(parcel))


def _packs(parcel: Parcel) -> Packs:
    return {
        name: _kernel(pack) if isinstance(pack, Parcel) else pack
        for name, pack in parcel.packs.items()
    }


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
