"""A compiled model as its users see it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

import taskc as tc
from taskc import CompileError
from taskc.arrays.arguments import ArgumentError
from taskc.backend.cpu.program import LoadedProgram
from taskc.ir.reentry import may_wait
from taskc.onnx.backend import TaskcBackend

from .models import model, node, tensor


def _sum() -> Any:
    return tc.compile(
        model(
            [node("Add", ["x", "y:0"], ["z/0"]), node("Neg", ["z/0"], ["z.0"])],
            [tensor("x", "n", 3), tensor("y:0", "n", 3)],
            ["z/0", "z.0"],
        )
    )


def test_a_model_is_called_by_position_by_name_and_as_a_session() -> None:
    found = _sum()
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    assert [str(value) for value in found.inputs] == ["x: f32[n, 3]", "y:0: f32[n, 3]"]
    assert [value.name for value in found.outputs] == ["z/0", "z.0"]
    for made in (found(x, y), found(x, **{"y:0": y}), found({"x": x, "y:0": y})):
        assert [part.tolist() for part in made] == [[[3.0] * 3] * 2, [[-3.0] * 3] * 2]
    (negated,) = found.run(["z.0"], {"x": x, "y:0": y})
    assert negated.tolist() == [[-3.0] * 3] * 2
    assert found(x[:1], y[:1])[0].shape == (1, 3)


_X = np.ones((2, 3), np.float32)


def test_a_models_own_calls_interrupt_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does has no threads, and plans its program anew at each call."""
    found, waited, run = _sum(), list[bool](), LoadedProgram.run

    def noted(program: LoadedProgram, *args: Any) -> int:
        waited.append(may_wait())
        return run(program, *args)

    monkeypatch.setattr(LoadedProgram, "run", noted)
    found(_X, _X)
    assert waited == [True]


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": _X}, "the model's input 'y:0' is missing"),
        ({"x": _X, "y:0": _X, "y0": _X}, "no input 'y0'; did you mean 'y:0'?"),
        ({"x": _X, "y:0": _X, "other": _X}, "no input 'other'; it has 'x', 'y:0'"),
        ({"x": _X, "y:0": _X.astype(np.float64)}, "'y:0' is of f32, not f64"),
        ({"x": _X, "y:0": _X.astype(object)}, "'y:0': NumPy type dtype('O') is not supported"),
        ({"x": _X, "y:0": _X[0]}, "y:0: f32[n, 3] has 2 dimensions, and the array 1"),
        ({"x": _X, "y:0": _X[:, :2]}, "y:0: f32[n, 3] has 3 along axis 1, and the array 2"),
        ({"x": _X, "y:0": _X[:1]}, "'n' is 2 by 'x', and 1 by 'y:0'"),
        ({"x": _X, "y:0": [[1.0]]}, "the input 'y:0' is an array, not list"),
    ],
)
def test_feeds_are_checked(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        _sum().run(None, feeds)
    assert message in str(caught.value)


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the model has no output 'z/1'; did you"):
        _sum().run(["z/1"], {"x": _X, "y:0": _X})


def test_outputs_may_be_inputs_constants_and_shapes() -> None:
    found = tc.compile(
        model(
            [node("Identity", ["x"], ["same"]), node("Shape", ["x"], ["shape"])],
            [tensor("x", "n", 2)],
            ["same", "shape", "c", "x"],
            initializer=[numpy_helper.from_array(np.float32([1, 2]), "c")],
        )
    )
    x = np.float32([[1, 2], [3, 4]])
    same, shape, constant, again = found(x)
    assert same.tolist() == again.tolist() == x.tolist()
    assert (shape.tolist(), shape.dtype) == ([2, 2], np.int64)
    constant[:] = 0
    assert found(x)[2].tolist() == [1, 2]


def test_what_is_compiled_may_depend_on_small_inputs() -> None:
    found = tc.compile(
        model(
            [node("Add", ["shape", "one"], ["s"]), node("Reshape", ["x", "s"], ["y"])],
            [tensor("x", None), tensor("shape", None, type=TensorProto.INT64)],
            ["y"],
            initializer=[numpy_helper.from_array(np.array([1]), "one")],
        )
    )
    x = np.arange(6, dtype=np.float32)
    for shape in ([1, 2], [2, 1], [1, 2]):
        wanted = [extent + 1 for extent in shape]
        assert found(x, np.array(shape)).tolist() == x.reshape(wanted).tolist()


def test_a_large_input_cannot_say_what_is_compiled() -> None:
    proto = model(
        [node("Expand", ["one", "x"], ["y"])],
        [tensor("x", None, type=TensorProto.INT64)],
        ["y"],
        initializer=[numpy_helper.from_array(np.float32(1), "one")],
    )
    found = tc.compile(proto)
    assert found(np.array([2, 1])).tolist() == [[1], [1]]
    with pytest.raises(tc.CompileError, match="Expand node that makes 'y': its input 1, 'x'"):
        found(np.ones(1000, np.int64))


def test_threads_call_a_model_at_once() -> None:
    found = _sum()

    def call(rows: int) -> bool:
        x = np.full((rows, 3), rows, np.float32)
        return bool((found(x, x)[0] == 2 * rows).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, [1, 2, 1, 2, 3, 3, 1, 2]))


def test_other_targets_are_refused() -> None:
    proto = model([node("Neg", ["x"], ["y"])], [tensor("x", 2, type=TensorProto.FLOAT)], ["y"])
    with pytest.raises(tc.CompileError, match="models don't run on 'tpu'"):
        tc.compile(proto, target="tpu")


def test_a_node_runs_alone() -> None:
    """By the package onnx's backend interface; an input that is absent has no array."""
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    (made,) = TaskcBackend.run_node(node("Clip", ["x", "", "most"], ["y"]), [x, np.float32(1)])
    np.testing.assert_array_equal(made, np.minimum(x, 1))
    with pytest.raises(tc.CompileError, match="Nothing"):
        TaskcBackend.run_node(node("Nothing", ["x"], ["y"]), [x])


def test_sessions_have_limits(tmp_path: Path) -> None:
    """Out of a file, the cache and a bundle, and of one session alone."""
    weights = np.ones((64, 64), np.float32)
    proto = model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Softmax", ["a"], ["b"]),
            node("MatMul", ["b", "w"], ["y"]),
        ],
        [tensor("x", 64, 64)],
        ["y"],
        initializer=[numpy_helper.from_array(weights, "w")],
    )
    path, bundle = tmp_path / "model.onnx", tmp_path / "model.taskc"
    path.write_bytes(proto.SerializeToString())
    tc.save_bundle(tc.compile(path), bundle)
    enough = 1 << 20
    for make in (
        partial(tc.compile, proto),
        partial(tc.compile, path),
        partial(tc.load_bundle, bundle),
    ):
        assert make(memory=enough, threads=1)(weights)[0, 0] == 1
        with pytest.raises(CompileError, match=r"is limited to 0\.0 MiB"):
            make(memory=1000)(weights)
        assert make()(weights)[0, 0] == 1
    with pytest.raises(CompileError, match="threads is a number of at least 1, not 0"):
        tc.compile(proto, threads=0)


def test_what_cannot_be_read_is_an_argument_error() -> None:
    class Unreadable:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("it is elsewhere")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    compiled = tc.compile(model([node("Relu", ["x"], ["y"])], [tensor("x", 2)], ["y"]))
    with pytest.raises(
        ArgumentError, match="the input 'x': it can't be read through DLPack: it is elsewhere"
    ):
        compiled(Unreadable())
    with pytest.raises(ArgumentError, match="the input 'x' is an array, not MaskedArray"):
        compiled(np.ma.ones(2, np.float32))


def test_a_module_of_pytorch_is_told_to_be_exported() -> None:
    class Linear:
        def forward(self, x: object) -> object:
            return x

    message = "this is the module Linear\n.*torch.onnx.export"
    with pytest.raises(CompileError, match=message):
        tc.compile(Linear())
