"""The list of the operators' inputs and attributes is what ONNX's own tables say."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import defs

from taskc.onnx.schemas import NEWEST, schema_of
from taskc.onnx.serialized import AttributeProto, type_name
from taskc.operators import op as signature
from taskc.operators.call import builder_of, names_of

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def lines(version: int) -> Iterator[str]:
    """A line for each operator of ONNX that has a builder, and no graph among its attributes."""
    for name in sorted(names_of("")):
        schema = schema_of(name, version, "") if defs.has(name) else None
        if schema is None or builder_of(name, version) is None:
            continue
        formals = schema.attributes
        if any(formal.type in _GRAPHS for formal in formals.values()):
            continue
        attributes = {
            own: [type_name(formal.type), formal.required, _json(formal.default)]
            for own, formal in formals.items()
        }
        inputs = [*zip(schema.inputs, schema.types, schema.required, strict=True)]
        fields = {"name": name, "version": version, "inputs": inputs}
        fields["most_inputs"] = min(schema.counts[1], signature.MOST)
        fields["outputs"] = [
            max(schema.output_counts[0], 1), min(schema.output_counts[1], signature.MOST),
        ]  # fmt: skip
        yield json.dumps({**fields, "attributes": attributes})


def _json(default: object) -> object:
    value = getattr(default, "value", None)
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_the_list_is_what_onnx_says(request: pytest.FixtureRequest) -> None:
    path = Path(signature.__file__).with_name("signatures.jsonl")
    if request.config.getoption("--update-golden"):
        path.write_text("".join(f"{line}\n" for line in lines(NEWEST)), encoding="utf-8")
    (version,) = {one.version for one in signature.signatures().values()}
    if version > NEWEST:
        pytest.skip(f"onnx is too old: it has operator sets up to {NEWEST}")
    text = "".join(f"{line}\n" for line in lines(version))
    assert path.read_text(encoding="utf-8") == text


def test_a_signature_is_pythons() -> None:
    found = signature.signatures()
    assert str(found["Softmax"].python) == "(input, *, axis=-1, outputs=None, out=None)"
    assert str(found["Concat"].python) == "(*inputs, axis, outputs=None, out=None)"
    assert [*found["Conv"].python.parameters][:3] == ["X", "W", "B"]
    assert found["Conv"].python.parameters["B"].default is None
    assert found["Conv"].python.parameters["X"].default is inspect.Parameter.empty
