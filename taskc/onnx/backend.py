"""taskc as a backend of the package onnx, so that ONNX's own tests run on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep

from taskc.backend.cuda.api import DeviceError
from taskc.onnx.model import Model, place_of
from taskc.onnx.session import compile

_TARGETS = {"CPU": "cpu", "CUDA": "cuda"}


class TaskcModel(BackendRep):  # type: ignore[misc]
    """A compiled model behind the interface of the package onnx."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **keywords: Any) -> tuple[Any, ...]:
        """The outputs for inputs by position."""
        names = [value.name for value in self.model.inputs]
        feeds = dict(zip(names, inputs, strict=True))
        return tuple(self.model.run(None, feeds))


class TaskcBackend(Backend):  # type: ignore[misc]
    """ONNX's backend interface."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **keywords: Any) -> TaskcModel:
        return TaskcModel(compile(model, _TARGETS.get(device, device)))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **keywords: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **keywords: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node of the newest operator set, for an array for each of its present inputs."""
        arrays = dict(
            zip([name for name in node.input if name], map(np.asarray, inputs), strict=True)
        )
        described = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in arrays.items()
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", described, results)
        return cls.run_model(helper.make_model(graph), [*arrays.values()], device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        if device not in _TARGETS:
            return False
        try:
            place_of(_TARGETS[device])
        except DeviceError:
            return False
        return True
