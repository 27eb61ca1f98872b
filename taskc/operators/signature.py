"""Inputs, outputs and attributes of the operators, by the names that ONNX gives them."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MOST = 1 << 20  # inputs or outputs of an operator that takes any number


@dataclass(frozen=True, slots=True)
class Input:
    """An input's name; its type, or the name of a type that it has in common with others; whether it must be there."""

    name: str
    type: str
    required: bool


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute's type by ONNX's name ("int", "floats"), and its default if it has one."""

    type: str
    required: bool
    default: Any


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator as the newest operator set has it.

    most_inputs  the last input may be there so often that this many are given
    outputs      the least and the largest number of them
    """

    name: str
    version: int
    inputs: tuple[Input, ...]
    most_inputs: int
    outputs: tuple[int, int]
    attributes: dict[str, Attribute]

    @property
    def python(self) -> inspect.Signature:
        """The operator's signature as a function of Python."""
        kinds = inspect.Parameter
        made = [
            kinds(
                one.name, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if one.required else None
            )
            for one in self.inputs
        ]
        if self.most_inputs > len(self.inputs):
            made = [*made[:-1], kinds(self.inputs[-1].name, kinds.VAR_POSITIONAL)]
        made += [
            kinds(name, kinds.KEYWORD_ONLY, default=kinds.empty if one.required else one.default)
            for name, one in self.attributes.items()
        ]
        made += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in ("outputs", "out")]
        return inspect.Signature(made)


@cache
def signatures() -> dict[str, Signature]:
    """All operators that a user's program can call, by name."""
    path = Path(__file__).with_name("signatures.jsonl")
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        read = json.loads(line)
        found[read["name"]] = Signature(
            read["name"],
            read["version"],
            tuple([Input(*one) for one in read["inputs"]]),
            read["most_inputs"],
            tuple(read["outputs"]),
            {name: Attribute(*one) for name, one in read["attributes"].items()},
        )
    return found
