"""External data: only from below the model's folder, and never more than is there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from taskc import CompileError
from taskc.onnx.reader import read

from .models import model

DATA = np.arange(6, dtype=np.float32)


def external(name: str, **entries: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with weights below it and beside it."""
    (tmp_path / "model" / "sub").mkdir(parents=True)
    for path in ("outside", "model/weights", "model/sub/weights"):
        (tmp_path / path).write_bytes(DATA.tobytes())
    return tmp_path / "model"


def saved(folder: Path, *tensors: TensorProto) -> Path:
    path = folder / "model.onnx"
    names = [tensor.name for tensor in tensors]
    path.write_bytes(model([], [], names, initializer=tensors).SerializeToString())
    return path


def test_external_data_is_read(folder: Path) -> None:
    path = saved(
        folder,
        external("a", location="weights", offset=8, length=16),
        external("b", location="sub/weights"),
        external("c", location="sub/../weights", offset=8),
    )
    constants = read(path).constants
    assert constants["a"].tolist() == [2, 3, 4, 5]
    assert constants["b"].tolist() == [0, 1, 2, 3]
    assert constants["c"].tolist() == [2, 3, 4, 5]


def test_a_model_is_named_in_what_is_said_of_it(folder: Path) -> None:
    path = saved(folder, external("a", location="nowhere"))
    with pytest.raises(CompileError) as error:
        read(str(path))
    assert str(error.value).startswith(f"{path}: error: the initializer 'a' is in ")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../outside"}, "is in '../outside', which isn't below the model's folder"),
        (
            {"location": "sub/../../outside"},
            "is in 'sub/../../outside', which isn't below the model's folder",
        ),
        ({"location": "/etc/passwd"}, "is in '/etc/passwd', which isn't below the model's folder"),
        ({"location": "link"}, "is in 'link', which isn't below the model's folder"),
        (
            {"location": "linked/outside"},
            "is in 'linked/outside', which isn't below the model's folder",
        ),
        ({"location": "circle"}, "is in 'FOLDER/circle': Too many levels of symbolic links"),
        ({"location": ""}, "is in '', which isn't below the model's folder"),
        ({"location": "a\0b"}, "is in 'a\0b', which isn't below the model's folder"),
        ({"location": "nowhere"}, "is in 'FOLDER/nowhere': No such file or directory"),
        ({"location": "x" * 300}, f"is in 'FOLDER/{'x' * 300}': File name too long"),
        ({"location": "sub"}, "is in 'FOLDER/sub', which is no regular file"),
        ({"location": "pipe"}, "is in 'FOLDER/pipe', which is no regular file"),
        (
            {"location": "weights", "offset": 12},
            "ends at byte 28 of 'FOLDER/weights', which has 24",
        ),
        (
            {"location": "weights", "offset": 2**62},
            f"ends at byte {2**62 + 16} of 'FOLDER/weights', which has 24",
        ),
        ({"location": "weights", "offset": -4}, "has the offset '-4' in its external data"),
        ({"location": "weights", "length": 24}, "has 24 bytes, but its shape asks for 16"),
    ],
)
def test_refused(folder: Path, entries: dict[str, object], message: str) -> None:
    (folder / "link").symlink_to(folder.parent / "outside")
    (folder / "linked").symlink_to(folder.parent)
    (folder / "circle").symlink_to(folder / "circle")
    os.mkfifo(folder / "pipe")
    with pytest.raises(CompileError) as error:
        read(saved(folder, external("w", **entries)))
    expected = message.replace("FOLDER", str(folder.resolve()))
    assert error.value.message == f"the initializer 'w' {expected}"


def test_tensors_share_bytes_or_do_not_overlap(folder: Path) -> None:
    whole = external("a", location="weights")
    same = external("b", location="weights")
    constants = read(saved(folder, whole, same)).constants
    assert constants["a"].base is not None
    assert np.shares_memory(constants["a"], constants["b"])
    over = external("b", location="weights", offset=4)
    with pytest.raises(CompileError, match="'b' lies over a part of another tensor in "):
        read(saved(folder, whole, over))


def test_a_model_given_as_bytes_has_no_folder(folder: Path) -> None:
    data = saved(folder, external("w", location="weights")).read_bytes()
    with pytest.raises(CompileError) as error:
        read(data)
    assert (
        error.value.message
        == "the initializer 'w' is in the file 'weights', and a model given as bytes has no folder"
    )
    assert error.value.hint == "give the model by its path"
