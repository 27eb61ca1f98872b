"""The time of one call of a compiled kernel that adds 16 numbers, for the arrays of several libraries, and of the same
call of others. The result is printed as JSON, by name.

Round after round, so that each meets the machine as the others do; of each the best round counts.
"""

from __future__ import annotations

import importlib
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import taskc as tc
from taskc import f32, repeat, spatial

Calls = dict[str, Callable[[], Any]]

ROUNDS = 60
SECONDS = 0.002  # of a round
PACKED = f32[4, 4].laid(repeat(4, 4, order=(1, 0)))


@tc.kernel(workers=16)
def add(a: f32[16], b: f32[16], c: tc.out[f32[16]]):
    for i in spatial(16):
        c[i] = a[i] + b[i]


@tc.kernel(workers=16)
def add_packed(a: f32[4, 4], b: PACKED, c: tc.out[f32[4, 4]]):
    for i, j in spatial(4, 4):
        c[i, j] = a[i, j] + b[i, j]


class Exporting:
    """An array of a library that has nothing but `__dlpack__`."""

    def __init__(self) -> None:
        self.array = np.ones(16, np.float32)
        self.__dlpack__, self.__dlpack_device__ = (
            self.array.__dlpack__,
            self.array.__dlpack_device__,
        )


def numpy_calls() -> Calls:
    a, b, c = (np.ones(16, np.float32) for _ in range(3))
    table, result = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    packed = tc.pack(table, PACKED)
    x, y, z = (Exporting() for _ in range(3))
    return {
        "NumPy, out=": lambda: add(a, b, out=c),
        "np.add, out=": lambda: np.add(a, b, out=c),
        "NumPy": lambda: add(a, b),
        "np.add": lambda: np.add(a, b),
        "one packed, out=": lambda: add_packed(table, packed, out=result),
        "one packed": lambda: add_packed(table, packed),
        "__dlpack__ alone, out=": lambda: add(x, y, out=z),
        "__dlpack__ alone": lambda: add(x, y),
    }


def torch_calls(torch: Any) -> Calls:
    p, q, r = (torch.ones(16) for _ in range(3))
    weight = torch.nn.Parameter(torch.ones(16))
    operator = tc.torch.operator(add, "benchmark::add")
    torch.set_grad_enabled(False)
    return {
        "PyTorch, out=": lambda: add(p, q, out=r),
        "torch.add, out=": lambda: torch.add(p, q, out=r),
        "PyTorch": lambda: add(p, q),
        "torch.add": lambda: torch.add(p, q),
        "PyTorch, a Parameter": lambda: add(weight, q),
        "tc.torch.operator": lambda: operator(p, q),
    }


def jax_calls(jax: Any) -> Calls:
    x, y = jax.numpy.ones(16), jax.numpy.ones(16)
    c = np.ones(16, np.float32)
    operator, own = jax.jit(tc.jax.operator(add)), jax.jit(lambda x, y: x + y)
    return {
        "JAX, out= NumPy's": lambda: add(x, y, out=c),
        "JAX": lambda: add(x, y),
        "tc.jax.operator, in jax.jit": lambda: operator(x, y).block_until_ready(),
        "x + y in jax.jit": lambda: own(x, y).block_until_ready(),
    }


def _model(node: str, inputs: dict[str, list[Any]], output: tuple[str, list[Any]]) -> bytes:
    """A model of one node, on floats."""
    onnx = importlib.import_module("onnx")
    helper = onnx.helper
    *ends, end = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (*inputs.items(), output)
    )
    attributes = {"axis": 0} if node == "Concat" else {}
    nodes = [helper.make_node(node, [*inputs], [output[0]], **attributes)]
    if node == "Concat":  # with an output that isn't a state
        nodes.append(helper.make_node("Identity", ["x"], ["y"]))
        end = [end, helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, inputs["x"])]
    graph = helper.make_graph(nodes, "model", ends, end if isinstance(end, list) else [end])
    imports = [helper.make_opsetid("", 17)]
    data: bytes = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    return data


def _adding_model(extent: int | str = 16) -> bytes:
    return _model("Add", {"a": [extent], "b": [extent]}, ("c", [extent]))


def _sizes() -> Any:
    """Feeds of a hundred sizes, one after the other."""
    arrays = [np.ones(size, np.float32) for size in range(16, 116)]
    return itertools.cycle([{"a": array, "b": array} for array in arrays])


def onnx_calls(onnx: Any) -> Calls:
    model, session = tc.compile(_adding_model()), tc.onnx.InferenceSession(_adding_model())
    a, b = np.ones(16, np.float32), np.ones(16, np.float32)
    feeds, binding = {"a": a, "b": b}, session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("c", tc.onnx.OrtValue.ortvalue_from_numpy(np.ones(16, np.float32)))
    open_model, sizes = tc.compile(_adding_model("n")), _sizes()
    states = tc.compile(
        _model("Concat", {"past": ["n", 16], "x": ["m", 16]}, ("present", ["all", 16])),
        states={"present": "past"},
        capacity=10_000,
    )
    x = np.ones((1, 16), np.float32)

    def next_place() -> Any:
        if states.length == states.capacity:
            states.length = 1
        return states(x)

    return {
        "a model": lambda: model(a, b),
        "a model, run()": lambda: model.run(None, feeds),
        "a model, run() by names of outputs": lambda: model.run(["c"], feeds),
        "a model by names of inputs": lambda: model(a=a, b=b),
        "InferenceSession, run()": lambda: session.run(None, feeds),
        "InferenceSession, bound": lambda: session.run_with_iobinding(binding),
        "a model, another size at each call": lambda: open_model.run(None, next(sizes)),
        "a model with states, one place more at each call": next_place,
    }


def onnxruntime_calls(onnxruntime: Any) -> Calls:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session, of_sizes = (
        onnxruntime.InferenceSession(
            _adding_model(extent), options, providers=["CPUExecutionProvider"]
        )
        for extent in (16, "n")
    )
    binding, arrays = session.io_binding(), [np.ones(16, np.float32) for _ in range(3)]
    binding.bind_cpu_input("a", arrays[0])
    binding.bind_cpu_input("b", arrays[1])
    binding.bind_output("c", "cpu", 0, np.float32, (16,), arrays[2].ctypes.data)
    feeds, sizes = {"a": arrays[0], "b": arrays[1]}, _sizes()
    return {
        "ONNX Runtime, bound": lambda: (session.run_with_iobinding(binding), arrays),
        "ONNX Runtime": lambda: session.run(None, feeds),
        "ONNX Runtime by names of outputs": lambda: session.run(["c"], feeds),
        "ONNX Runtime, another size at each call": lambda: of_sizes.run(None, next(sizes)),
    }


LIBRARIES = {
    "torch": torch_calls,
    "jax": jax_calls,
    "onnx": onnx_calls,
    "onnxruntime": onnxruntime_calls,
}


def main() -> None:
    calls = numpy_calls()
    for name, make in LIBRARIES.items():
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue  # whoever reads this says which are missing
        calls |= make(library)
    counts = {}
    for name, call in calls.items():
        for _ in range(250):
            call()
        counts[name] = max(1, int(SECONDS / measured(call, 10)))
    best = dict.fromkeys(calls, 1.0)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            best[name] = min(best[name], measured(call, counts[name]))
    print(json.dumps(best))


def measured(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main()
