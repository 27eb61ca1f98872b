"""ONNX Runtime's Python interface, for code that was written for it: `import taskc.onnx as onnxruntime`.

Names, arguments and results are those of the package onnxruntime. Two things differ:

- An option that would change nothing here (memory arenas, log levels, the order of nodes) is accepted and ignored; one
  whose effect taskc doesn't have is an error.
- A model is compiled by the first run for its shapes, not by the constructor. `InferenceSession.model` is the compiled
  model, for `prepare` and everything else that `tc.compile` returns.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from taskc.arrays.arguments import ArgumentError
from taskc.backend.cuda.api import DeviceError, api
from taskc.dataclass import dataclass
from taskc.errors import CompileError
from taskc.ir.types import from_numpy
from taskc.lang.values import did_you_mean
from taskc.onnx.model import Model
from taskc.onnx.session import compile
from taskc.operators.graph import Value
from taskc.output_file import write_whole

if TYPE_CHECKING:
    from onnx import ModelProto

Provider: TypeAlias = "str | tuple[str, Mapping[str, Any]]"

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_TARGETS = {_CPU: "cpu", _CUDA: "cuda"}

# The element types that ONNX Runtime names in another way.
_ELEMENTS = {
    "f64": "double",
    "f32": "float",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8e4m3fn",
    "f8e5m2": "float8e5m2",
}


class GraphOptimizationLevel(IntEnum):
    """The level of optimizations; taskc always makes all."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """The order of nodes; a taskc program has its own."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class EntryError(ArgumentError, RuntimeError):
    """An entry of the options isn't set; code for ONNX Runtime expects a RuntimeError."""


@dataclass(slots=True)
class SessionOptions:
    """Options of a session. `intra_op_num_threads` limits the threads of a call, and profiling times its runs.

    Free dimensions are fixed by `add_free_dimension_override_by_name`. The other options have no effect.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    enable_profiling: bool = False
    profile_file_prefix: str = "onnxruntime_profile_"
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = 0
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    _entries: dict[str, str] = field(default_factory=dict)
    _extents: dict[str, int] = field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise EntryError(f"the session's options have no entry '{key}'")
        return self._entries[key]

    def has_session_config_entry(self, key: str) -> bool:
        return key in self._entries

    def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
        self._extents[name] = extent

    def register_custom_ops_library(self, path: str) -> None:
        raise CompileError(
            f"taskc doesn't load libraries of operators for ONNX Runtime ({path})",
            hint="tc.onnx.operator registers an operator",
        )


@dataclass(slots=True)
class RunOptions:
    """Options of a run; none has an effect."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    training_mode: bool = False
    _entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        return self._entries.get(key, "")


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a model: an extent is a number, a name, or None."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The properties that a model's file gives beside its graph."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class OrtValue:
    """A tensor outside of a session. It shares the memory of the array that it is made of."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        _check_device(device_type)
        return OrtValue(np.ascontiguousarray(array).reshape(np.shape(array)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        _check_device(device_type)
        return OrtValue(np.empty(tuple(shape), _numpy_type(element_type)))

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return _type_text(from_numpy(self._array.dtype).name)

    def element_type(self) -> int:
        from onnx import helper

        return int(helper.np_dtype_to_tensor_dtype(self._array.dtype))

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False

    def update_inplace(self, array: Any) -> None:
        _write_into(self._array, np.asarray(array), "the value")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._array, dtype, copy=copy)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class IOBinding:
    """Inputs and outputs of runs, bound to memory once. Outputs bound to no memory are new at each run."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray[Any, Any] | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self._inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value.numpy()

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        _check_device(device_type)
        self._inputs[name] = _array_at(buffer_ptr, shape, element_type)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        _check_device(device_type)
        if buffer_ptr is None:
            self._outputs[name] = None
        elif element_type is None or shape is None:
            raise ArgumentError(f"the memory of the output '{name}' needs a type and a shape")
        else:
            self._outputs[name] = _array_at(buffer_ptr, shape, element_type)

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._outputs[name] = value.numpy()

    def synchronize_inputs(self) -> None:
        pass

    def synchronize_outputs(self) -> None:
        pass

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results.clear()

    def get_outputs(self) -> list[OrtValue]:
        return self._results

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        return [value.numpy().copy() for value in self._results]

    def run(self) -> None:
        returned = self._session.run([*self._outputs], self._inputs) if self._outputs else []
        results = []
        for (name, memory), result in zip(self._outputs.items(), returned, strict=True):
            if memory is not None:
                _write_into(memory, result, f"the output '{name}'")
            results.append(OrtValue(result if memory is None else memory))
        self._results = results


class InferenceSession:
    """A model behind the interface of ONNX Runtime's sessions.

    model  the compiled model, as `tc.compile` returns it
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | ModelProto,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **keywords: Any,
    ) -> None:
        options = SessionOptions() if sess_options is None else sess_options
        if options.optimized_model_filepath:
            raise CompileError(
                "taskc writes no optimized model",
                hint="`taskc compile model.onnx -o model.taskc` writes compiled programs",
            )
        self._started = time.perf_counter_ns()
        self._options = options
        self._provider = _provider_of(providers)
        self._source = path_or_bytes
        # Threads are the processor's, though code for a device sets them, too.
        threads = options.intra_op_num_threads if self._provider == _CPU else 0
        self.model: Model = compile(
            path_or_bytes, _TARGETS[self._provider], threads=threads if threads > 0 else None
        )
        self._types = {
            value.name: None if value.dtype is None else value.dtype.numpy
            for value in self.model.inputs
        }
        self._runs = [("model_loading", self._started, time.perf_counter_ns())]

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(value, self._options._extents) for value in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(value, self._options._extents) for value in self.model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def get_modelmeta(self) -> ModelMetadata:
        return _metadata(self._source, self.model.name)

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return [self._provider] if self._provider == _CPU else [self._provider, _CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in self.get_providers()}

    def disable_fallback(self) -> None:
        pass

    def enable_fallback(self) -> None:
        pass

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs of these names, or all. Lists and numbers are converted to the type of their input."""
        feeds = input_feed
        if any(type(given) is not np.ndarray for given in feeds.values()):
            feeds = {name: self._array(name, given) for name, given in feeds.items()}
        if self._options._extents:
            self._check_overrides(feeds)
        if not self._options.enable_profiling:
            return self.model.run(output_names or None, feeds)
        start = time.perf_counter_ns()
        outputs = self.model.run(output_names or None, feeds)
        self._runs.append(("model_run", start, time.perf_counter_ns()))
        return outputs

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in a thread, and call `callback(outputs, user_data, error)`, where the error is "" if there is none."""

        def run() -> None:
            try:
                outputs = self.run(output_names, input_feed, run_options)
            except Exception as error:
                callback([], user_data, str(error))
            else:
                callback(outputs, user_data, "")

        threading.Thread(target=run, name="taskc run_async").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        feeds = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [*map(OrtValue, self.run(output_names, feeds, run_options))]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        iobinding.run()

    def get_profiling_start_time_ns(self) -> int:
        return self._started

    def end_profiling(self) -> str:
        """Write the times of the runs as a Chrome trace, and return its path, or "" without `enable_profiling`.

        `taskc profile` measures each kernel.
        """
        if not self._options.enable_profiling:
            return ""
        path = f"{self._options.profile_file_prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        process, thread = os.getpid(), threading.get_ident()
        events = [
            {
                "cat": "Session",
                "pid": process,
                "tid": thread,
                "dur": (end - start) // 1000,
                "ts": (start - self._started) // 1000,
                "ph": "X",
                "name": name,
                "args": {},
            }
            for name, start, end in self._runs
        ]
        write_whole(path, json.dumps(events))
        return path

    def _array(self, name: str, given: Any) -> Any:
        if isinstance(given, OrtValue):
            return given.numpy()
        if isinstance(given, (list, tuple, int, float)) and name in self._types:
            try:
                return np.asarray(given, self._types[name])
            except (TypeError, ValueError, OverflowError) as error:
                raise ArgumentError(f"the input '{name}' can't be made an array: {error}") from None
        return given

    def _check_overrides(self, feeds: Mapping[str, Any]) -> None:
        for value in self.model.inputs:
            shape = np.shape(feeds.get(value.name, ()))
            for axis, (extent, size) in enumerate(zip(value.shape or (), shape, strict=False)):
                fixed = (
                    self._options._extents.get(extent, size) if isinstance(extent, str) else size
                )
                if fixed != size:
                    raise ArgumentError(
                        f"the session's options fix '{extent}' at {fixed}, and '{value.name}' has {size} along"
                        f" axis {axis}"
                    )


# --- Functions of the package --------------------------------------------------------------------


def get_available_providers() -> list[str]:
    """The execution providers of this machine, the preferred one first."""
    try:
        api()  # and no context, which takes memory of the device
    except DeviceError:
        return [_CPU]
    return [_CUDA, _CPU]


def get_all_providers() -> list[str]:
    return [_CUDA, _CPU]


def get_device() -> str:
    return "GPU" if _CUDA in get_available_providers() else "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: taskc logs through `logging`, under the name "taskc"."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing, like `set_default_logger_severity`."""


def set_seed(seed: int) -> None:
    """Do nothing: random operators take their seeds from the model."""


def disable_telemetry_events() -> None:
    """Do nothing: there is no telemetry."""


def enable_telemetry_events() -> None:
    """Do nothing: there is no telemetry."""


# --- Details -------------------------------------------------------------------------------------


def _provider_of(providers: Sequence[Provider] | None) -> str:
    """The first provider asked for that is available; without any, the processor."""
    names = [one if isinstance(one, str) else one[0] for one in providers or (_CPU,)]
    available = get_available_providers() if _CUDA in names else [_CPU]
    for name in names:
        if name in available:
            return name
        hint = did_you_mean(name, [_CUDA, _CPU])
        warnings.warn(
            f"'{name}' isn't an available provider, and is skipped{f'; {hint}' if hint else ''}",
            stacklevel=3,
        )
    return _CPU


def _node_arg(value: Value, extents: Mapping[str, int]) -> NodeArg:
    shape = [
        extents.get(extent, extent) if isinstance(extent, str) else extent
        for extent in value.shape or ()
    ]
    kind = _type_text(None if value.dtype is None else value.dtype.name)
    return NodeArg(value.name, value.foreign or kind, shape)


def _type_text(name: str | None) -> str:
    """The name of a tensor's type in ONNX Runtime's words."""
    if name is None:
        return "tensor(undefined)"
    whole = name.replace("i", "int", 1) if name[0] == "i" else name.replace("u", "uint", 1)
    return f"tensor({_ELEMENTS.get(name, name if name == 'bool' else whole)})"


def _numpy_type(element_type: Any) -> np.dtype[Any]:
    """A NumPy type, given as such or as a number of ONNX's TensorProto.DataType."""
    if isinstance(element_type, int):
        from onnx import helper

        element_type = helper.tensor_dtype_to_np_dtype(element_type)
    dtype: np.dtype[Any] = np.dtype(element_type)
    return dtype


def _array_at(address: int, shape: Iterable[int], element_type: Any) -> np.ndarray[Any, Any]:
    """An array over memory that its owner keeps alive."""
    from ctypes import c_char

    extents, dtype = tuple(shape), _numpy_type(element_type)
    nbytes = int(np.prod(extents, dtype=np.int64)) * dtype.itemsize
    memory: Any = (c_char * nbytes).from_address(address) if nbytes else b""
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(extents)


def _write_into(memory: np.ndarray[Any, Any], array: np.ndarray[Any, Any], named: str) -> None:
    if memory.shape != array.shape or memory.dtype != array.dtype:
        raise ArgumentError(
            f"{named} is of {array.dtype}{list(array.shape)}, and its memory of {memory.dtype}"
            f"{list(memory.shape)}"
        )
    np.copyto(memory, array)


def _check_device(device_type: str) -> None:
    if device_type != "cpu":
        raise ArgumentError(
            f"values lie in the processor's memory, not on '{device_type}'; arrays on a device are passed to `run`"
        )


def _metadata(source: Any, name: str) -> ModelMetadata:
    """The properties in a model's file; a graph has none."""
    import onnx

    if isinstance(source, bytes):
        model = onnx.load_model_from_string(source)
    elif isinstance(source, (str, os.PathLike)):
        model = onnx.load(source, load_external_data=False)
    elif isinstance(source, onnx.ModelProto):
        model = source
    else:
        return ModelMetadata("", name, "", "", "", 0, {})
    return ModelMetadata(
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version,
        {one.key: one.value for one in model.metadata_props},
    )
