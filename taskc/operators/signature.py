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
    """An input's name, its type (or the name of a type variable), and whether it is required."""

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
    """An operator as of its newest version.

    most_inputs  the largest number of inputs; above that of `inputs`, the last one repeats
    outputs      their smallest and largest number
    """

    name: str
    version: int
    inputs: tuple[Input, ...]
    most_inputs: int
    outputs: tuple[int, int]
    attributes: dict[str, Attribute]

    @property
    def python(self) -> inspect.Signature:
        """The operator's signature as that of a Python function."""
        kinds = inspect.Parameter
        parameters = [
            kinds(
                formal.name,
                kinds.POSITIONAL_OR_KEYWORD,
                default=kinds.empty if formal.required else None,
            )
            for formal in self.inputs
        ]
        if self.most_inputs > len(self.inputs):
            parameters = [*parameters[:-1], kinds(self.inputs[-1].name, kinds.VAR_POSITIONAL)]
        parameters += [
            kinds(
                name, kinds.KEYWORD_ONLY, default=kinds.empty if formal.required else formal.default
            )
            for name, formal in self.attributes.items()
        ]
        parameters += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in ("outputs", "out")]
        return inspect.Signature(parameters)


@cache
def signatures() -> dict[str, Signature]:
    """All operators that a user's program can call, by name."""
    path = Path(__file__).with_name("signatures.jsonl")
    by_name = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        by_name[fields["name"]] = Signature(
            fields["name"],
            fields["version"],
            tuple([Input(*one) for one in fields["inputs"]]),
            fields["most_inputs"],
            tuple(fields["outputs"]),
            {name: Attribute(*one) for name, one in fields["attributes"].items()},
        )
    return by_name
