"""Weights that are read apart from their model's protobuf."""

from __future__ import annotations

import random
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from taskc import CompileError
from taskc.ir.reentry import door
from taskc.onnx.reader import read
from taskc.onnx.weights import UnknownFormError, parts_of, read_ahead, without_weights

from .models import model, node, tensor

_LARGE = np.arange(2048, dtype=np.float32).reshape(32, 64)
_SMALL = np.float32([1, 2, 3])
_TYPED = helper.make_tensor("typed", TensorProto.FLOAT, [2048], _LARGE.reshape(-1))


def _model() -> ModelProto:
    """Large and small weights, one in a typed field, one of a branch and one of an attribute."""
    inner = helper.make_graph(
        [node("Neg", ["other"], ["n"])],
        "branch",
        [],
        [tensor("n", 32, 64)],
        [numpy_helper.from_array(-_LARGE, "other")],
    )
    return model(
        [
            node("Constant", [], ["c"], value=numpy_helper.from_array(_LARGE + 1, "large")),
            node("Add", ["large", "c"], ["s"]),
            node("If", ["condition"], ["b"], then_branch=inner, else_branch=inner),
            node("Add", ["s", "b"], ["y"]),
        ],
        [tensor("condition", type=TensorProto.BOOL)],
        ["y", "small", "typed", "last"],
        initializer=[
            numpy_helper.from_array(_SMALL, "small"),
            numpy_helper.from_array(_LARGE, "large"),
            _TYPED,
            numpy_helper.from_array(_LARGE.astype(np.int64), "last"),
        ],
    )


def test_only_large_weights_of_the_main_graph_are_taken_out() -> None:
    proto = _model()
    data = proto.SerializeToString()
    rest, weights = without_weights(BytesIO(data))
    assert {number: len(raw) for number, raw in weights.items()} == {1: 8192, 3: 16384}
    assert len(rest) < len(data) - 24_000
    again = ModelProto.FromString(rest)
    for number, raw in weights.items():
        assert not again.graph.initializer[number].raw_data
        again.graph.initializer[number].raw_data = raw
    assert again == proto


def test_a_file_bytes_and_a_message_are_the_same_graph(tmp_path: Path) -> None:
    proto = _model()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    whole = read(proto)
    for source in (path, str(path), proto.SerializeToString()):
        graph = read(source)
        assert str(graph) == str(whole)
        for name, array in whole.constants.items():
            assert graph.constants[name].dtype == array.dtype
            assert np.array_equal(graph.constants[name], array)
            assert not graph.constants[name].flags.writeable


def test_a_thread_reads_a_file_ahead(tmp_path: Path) -> None:
    """A call that interrupts another one has no threads; bytes needn't be read."""
    path = tmp_path / "model.onnx"
    path.write_bytes(_model().SerializeToString())
    with read_ahead(path) as parts:
        assert parts is not None
        assert parts() == parts_of(path)
        assert str(read(path, parts=parts)) == str(read(path))
    with read_ahead(path.read_bytes()) as parts:
        assert parts is None
    with door(), door(), read_ahead(path) as parts:
        assert parts is None
    with (
        pytest.raises(CompileError, match="the model can't be read: No such file"),
        read_ahead(tmp_path / "nothing") as parts,
    ):
        read(tmp_path / "nothing", parts=parts)


def test_a_graph_in_two_pieces_is_one() -> None:
    """Protobuf merges them: weights are counted through both."""
    first, second = _model(), _model()
    for number, one in enumerate(second.graph.initializer):
        one.name = f"again{number}"
    del second.graph.node[:], second.graph.input[:], second.graph.output[:]
    data = first.SerializeToString() + ModelProto(graph=second.graph).SerializeToString()
    _, weights = without_weights(BytesIO(data))
    assert [*weights] == [1, 3, 5, 7]
    assert np.array_equal(read(data).constants["again3"], _LARGE)


def _tensor(*fields: bytes) -> bytes:
    """A model of one initializer, w: f32[1024], with these fields."""
    proto = TensorProto(name="w", dims=[1024], data_type=TensorProto.FLOAT)
    content = proto.SerializeToString() + b"".join(fields)
    graph = b"\x2a" + _varint(len(content)) + content
    whole = model([node("Neg", ["w"], ["y"])], [], ["y"])
    return whole.SerializeToString() + b"\x3a" + _varint(len(graph)) + graph


def _varint(value: int, longer: int = 0) -> bytes:
    groups = [value >> shift & 127 for shift in range(0, 64, 7) if value >> shift or not shift]
    groups += [0] * longer
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])


_DATA = np.arange(1024, dtype=np.float32).tobytes()
_RAW = b"\x4a" + _varint(4096) + _DATA


@pytest.mark.parametrize(
    "fields",
    [
        [_RAW, b"\x4a" + _varint(4096) + bytes(4096)],  # the last one holds
        [b"\x4b\x4c", _RAW],  # an unknown group
    ],
)
def test_an_unusual_form_is_left_to_protobuf(fields: list[bytes]) -> None:
    data = _tensor(*fields)
    with pytest.raises(UnknownFormError):
        without_weights(BytesIO(data))
    wanted = ModelProto.FromString(data).graph.initializer[0].raw_data
    assert read(data).constants["w"].tobytes() == wanted


def test_numbers_may_be_longer_than_needed() -> None:
    data = _tensor(b"\xca\x80\x00" + _varint(4096, 3) + _DATA)
    assert [*without_weights(BytesIO(data))[1].values()] == [_DATA]
    assert read(data).constants["w"].tobytes() == _DATA


@pytest.mark.parametrize(
    "data",
    [
        b"\x3a\x05\x2a",  # a graph that ends in the middle
        b"\x3a\x02\x2a\x05",  # an initializer that is longer than its graph
        b"\x08" + b"\xff" * 10,  # a number without an end
        b"\x39\x00",  # eight bytes, of which there is one
        _tensor(_RAW)[:-1],
    ],
)
def test_a_damaged_file_is_no_model(data: bytes) -> None:
    with pytest.raises(UnknownFormError):
        without_weights(BytesIO(data))
    with pytest.raises(CompileError, match="its bytes are no ModelProto"):
        read(data)


def test_changed_bytes_are_read_as_protobuf_does() -> None:
    data, choose = _model().SerializeToString(), random.Random(0)
    same, errors = 0, 0
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(choose.randint(1, 3)):
            changed[choose.choice((choose.randrange(300), choose.randrange(len(data))))] = (
                choose.randrange(256)
            )
        outcomes = []
        for source in (bytes(changed), _parsed(bytes(changed))):
            try:
                graph = read(source)
                constants = [(name, one.tobytes()) for name, one in graph.constants.items()]
                outcomes.append((str(graph), constants))
            except (CompileError, ValueError) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        same += not isinstance(outcomes[0], str)
        errors += isinstance(outcomes[0], str)
    assert min(same, errors) > 25


def _parsed(data: bytes) -> bytes | ModelProto:
    try:
        return ModelProto.FromString(data)
    except Exception:  # what it says of these is another test's
        return data
