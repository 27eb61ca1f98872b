"""What a Constant node makes."""

from __future__ import annotations

import numpy as np

from taskc.onnx.written import Attribute
from taskc.operators.graph import Array, Node

_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def constant_of(node: Node, attributes: dict[str, Attribute]) -> Array:
    """The array of a Constant node, which has one of several attributes for it."""
    if not node.outputs[0]:
        raise node.error("its output has no name")
    if len(attributes) != 1:
        has = ", ".join(attributes) or "none"
        raise node.error(f"it needs one attribute that says its value, and has {has}")
    ((name, attribute),) = attributes.items()
    if isinstance(attribute.value, np.ndarray):
        return attribute.value
    if name not in _TYPES:
        raise node.error("it makes strings, which taskc doesn't compute with")
    array = np.array(attribute.value, _TYPES[name])
    array.flags.writeable = False
    return array
