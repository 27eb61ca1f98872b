"""ONNX Runtime's Python interface, as code that was written for that package uses it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import taskc as tc
import taskc.onnx as onnxruntime
from taskc.arrays.arguments import ArgumentError
from taskc.onnx import inference_session

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def layer():
    """y = relu(x @ w), and its sums."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
            helper.make_node("ReduceSum", ["y"], ["sums"], keepdims=0),
        ],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3]),
            helper.make_tensor_value_info("sums", TensorProto.FLOAT, []),
        ],
        [numpy_helper.from_array(WEIGHTS, "w")],
        doc_string="of a graph",
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], producer_name="a test", model_version=7
    )
    helper.set_model_props(model, {"characters": "a\nb"})
    return model


@pytest.fixture(params=["file", "bytes"])
def source(request, tmp_path):
    content = layer().SerializeToString()
    if request.param == "bytes":
        return content
    path = tmp_path / "layer.onnx"
    path.write_bytes(content)
    return str(path)


X = np.array([[1, -2, 3, 0.5], [-1, 0, 0, 0]], np.float32)
Y = np.maximum(X @ WEIGHTS, 0)


def test_a_session_as_packages_make_it(source):
    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]
    session = onnxruntime.InferenceSession(source, sess_options=options, providers=providers)
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("x", "tensor(float)", ["rows", 4])
    assert [(one.name, one.shape) for one in session.get_outputs()] == [
        ("y", ["rows", 3]),
        ("sums", []),
    ]
    y, sums = session.run(None, {given.name: X})
    assert np.array_equal(y, Y)
    assert sums == Y.sum()
    (sums,) = session.run(["sums"], {"x": X[:1]})
    assert sums == Y[:1].sum()
    assert len(session.run([], {"x": X})) == 2  # an empty list is all, as None is


def test_lists_are_of_their_inputs_type(source):
    session = onnxruntime.InferenceSession(source)
    assert np.array_equal(session.run(["y"], {"x": X.tolist()})[0], Y)
    with pytest.raises(ArgumentError, match="input 'x' can't be made an array"):
        session.run(["y"], {"x": [["a", "b", "c", "d"]]})
    with pytest.raises(ArgumentError, match="input 'x' is of f32, not f64"):
        session.run(["y"], {"x": X.astype(np.float64)})
    with pytest.raises(ArgumentError, match="no input 'z'"):
        session.run(["y"], {"z": [1.0]})


def test_properties_of_the_file(source):
    properties = onnxruntime.InferenceSession(source).get_modelmeta()
    assert properties.custom_metadata_map == {"characters": "a\nb"}
    assert (properties.producer_name, properties.graph_name, properties.version) == (
        "a test",
        "layer",
        7,
    )
    assert properties.graph_description == "of a graph"


def test_bound_memory(source):
    session = onnxruntime.InferenceSession(source)
    binding = session.io_binding()
    x, y = X.copy(), np.zeros((2, 3), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, TensorProto.FLOAT, y.shape, y.ctypes.data)
    binding.bind_output("sums")
    session.run_with_iobinding(binding)
    assert np.array_equal(y, Y)
    assert binding.copy_outputs_to_cpu()[1] == Y.sum()
    x *= 2
    session.run_with_iobinding(binding)
    assert np.array_equal(y, 2 * Y)
    assert binding.get_outputs()[0].data_ptr() == y.ctypes.data

    value = onnxruntime.OrtValue.ortvalue_from_numpy(X.copy())
    result = onnxruntime.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", result)
    session.run_with_iobinding(binding)
    assert np.array_equal(result.numpy(), Y)
    value.update_inplace(2 * X)
    session.run_with_iobinding(binding)
    assert np.array_equal(result.numpy(), 2 * Y)

    binding.bind_ortvalue_output(
        "y", onnxruntime.OrtValue.ortvalue_from_shape_and_type([3, 3], np.float32)
    )
    with pytest.raises(ArgumentError, match=r"output 'y' is of float32\[2, 3\], and its memory of"):
        session.run_with_iobinding(binding)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (np.float32, "tensor(float)"),
        (np.float64, "tensor(double)"),
        (np.float16, "tensor(float16)"),
        (np.int64, "tensor(int64)"),
        (np.uint8, "tensor(uint8)"),
        (np.bool_, "tensor(bool)"),
    ],
)
def test_values(dtype, text):
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((2, 0), dtype))
    assert value.data_type() == text
    assert value.shape() == [2, 0]
    assert value.element_type() == helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert np.from_dlpack(value).shape == (2, 0)
    assert value.device_name() == "cpu"
    assert value.is_tensor()


def test_values_in_and_out(source):
    session = onnxruntime.InferenceSession(source)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(X.copy())
    y, _ = session.run_with_ort_values(None, {"x": value})
    assert np.array_equal(y.numpy(), Y)
    assert np.array_equal(session.run(["y"], {"x": value})[0], Y)


def test_a_run_in_a_thread(source):
    session = onnxruntime.InferenceSession(source)
    done, results = threading.Event(), []

    def finished(outputs, user_data, error):
        results.append((outputs, user_data, error))
        done.set()

    session.run_async(["y"], {"x": X}, finished, "mine")
    assert done.wait(60)
    ((outputs, user_data, error),) = results
    assert np.array_equal(outputs[0], Y)
    assert (user_data, error) == ("mine", "")

    done.clear()
    session.run_async(["y"], {"x": X.astype(np.int32)}, finished, None)
    assert done.wait(60)
    assert results[1][0] == []
    assert "input 'x' is of f32, not i32" in results[1][2]


def test_times_of_runs(source, tmp_path):
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "times_")
    session = onnxruntime.InferenceSession(source, options)
    session.run(None, {"x": X})
    session.run(None, {"x": X})
    events = json.loads(Path(session.end_profiling()).read_text())
    assert [event["name"] for event in events] == ["model_loading", "model_run", "model_run"]
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert events[1]["ts"] + events[1]["dur"] <= events[2]["ts"] + 1
    assert onnxruntime.InferenceSession(source).end_profiling() == ""


def test_fixed_dimensions(source):
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("rows", 2)
    session = onnxruntime.InferenceSession(source, options)
    assert session.get_inputs()[0].shape == [2, 4]
    assert np.array_equal(session.run(["y"], {"x": X})[0], Y)
    with pytest.raises(ArgumentError, match="fix 'rows' at 2, and 'x' has 1 along axis 0"):
        session.run(["y"], {"x": X[:1]})


def test_providers():
    content = layer().SerializeToString()
    with pytest.warns(UserWarning, match="'CPUExecutionProvidor' isn't an available provider"):
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvidor"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "CPUExecutionProvider" in onnxruntime.get_available_providers()
    assert onnxruntime.get_device() in ("CPU", "GPU")


def test_a_device_takes_no_limit_of_threads(monkeypatch):
    """Code for both sets threads whatever it runs on; they are the processor's."""
    made = []
    module = inference_session
    monkeypatch.setattr(module, "api", object)
    monkeypatch.setattr(
        module, "compile", lambda model, target, threads: made.append((target, threads)) or own
    )
    own = tc.compile(layer())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    assert onnxruntime.get_available_providers()[0] == "CUDAExecutionProvider"
    for providers in (["CUDAExecutionProvider", "CPUExecutionProvider"], None):
        onnxruntime.InferenceSession(layer(), options, providers)
    assert made == [("cuda", None), ("cpu", 2)]


def test_refused():
    content = layer().SerializeToString()
    options = onnxruntime.SessionOptions()
    with pytest.raises(tc.CompileError, match="libraries of operators for ONNX Runtime"):
        options.register_custom_ops_library("mine.so")
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1  # a wrong name
    with pytest.raises(RuntimeError, match="no entry 'unset'"):
        options.get_session_config_entry("unset")
    options.optimized_model_filepath = "faster.onnx"
    with pytest.raises(tc.CompileError, match="writes no optimized model"):
        onnxruntime.InferenceSession(content, options)
    with pytest.raises(ArgumentError, match="not on 'cuda'"):
        onnxruntime.OrtValue.ortvalue_from_numpy(X, "cuda", 0)


def test_functions_that_do_nothing():
    onnxruntime.set_default_logger_severity(3)
    onnxruntime.set_default_logger_verbosity(0)
    onnxruntime.set_seed(1)
    onnxruntime.disable_telemetry_events()
    onnxruntime.enable_telemetry_events()
    assert onnxruntime.RunOptions().get_run_config_entry("absent") == ""
