"""ONNX's operators: what each becomes in a program that is being traced.

An operator is a Python function that runs while a program is traced:

    @operator("Relu", since=6)
    def relu(call: Call) -> Tensor:
        (x,) = call.inputs
        return compute(x.shape, lambda *at: tc.max(x[at], 0))

What it is given is None where an input is absent; known, an array, where the model or shape arithmetic says its
elements; or else a handle, whose elements are known at run time. What it returns is a tensor for each output, or the
one. The function of the newest version that isn't newer than the node's is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from taskc.lang.tracing import TensorHandle
from taskc.onnx.graph import Node

# Elements that are known are integers of Python or sizes (`tc.dim` and what is computed from them) where an array is of
# objects; such are made by shape arithmetic alone.
Tensor: TypeAlias = "TensorHandle | np.ndarray[Any, Any]"
Made: TypeAlias = "Tensor | tuple[Tensor | None, ...]"
Builder: TypeAlias = "Callable[[Call], Made]"


@dataclass(frozen=True, slots=True)
class Call:
    """A node with its inputs."""

    node: Node
    inputs: tuple[Tensor | None, ...]

    def attribute(self, name: str, default: Any = None) -> Any:
        """What the model says, or ONNX's default, or this one."""
        return self.node.attributes.get(name, default)


_builders: dict[tuple[str, str], dict[int, Builder]] = {}


def operator(name: str, since: int = 1, domain: str = "") -> Callable[[Builder], Builder]:
    """Registers what builds an operator, from this version of its operator set on."""

    def register(builder: Builder) -> Builder:
        _builders.setdefault((domain, name), {})[since] = builder
        return builder

    return register


def builder_of(name: str, version: int, domain: str = "") -> Builder | None:
    """What builds an operator as it was in a version of its operator set; None where nothing does."""
    found = [since for since in _builders.get((domain, name), ()) if since <= version]
    return _builders[domain, name][max(found)] if found else None
