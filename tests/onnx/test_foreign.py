"""Arguments of types that programs don't have."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from taskc.onnx.foreign import foreign_value, is_rare, is_tensor


def test_values_by_the_names_of_types() -> None:
    assert foreign_value("optional(seq(tensor))", None) is None
    (one,) = foreign_value("optional(seq(tensor(string)))", [b"a"])
    assert one == "a"
    assert one.dtype == object
    assert foreign_value("tensor(string)", np.array([b"\xc3\xa4", b""])).tolist() == ["ä", ""]
    assert foreign_value("map", {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("foreign", "given"),
    [("seq(tensor)", None), ("map", []), ("tensor(uint2)", np.ones(1)), ("tensor(string)", [1])],
)
def test_others_are_type_errors(foreign: str, given: object) -> None:
    with pytest.raises(TypeError, match=r"^it is"):
        foreign_value(foreign, given)


def test_rare_types() -> None:
    rare = np.ones(2).astype(ml_dtypes.int4)
    assert is_rare(rare)
    assert not is_tensor(rare)
    assert is_tensor(np.ones(2).astype(ml_dtypes.bfloat16))
    assert not is_tensor(np.array(["a"]))
    assert not is_tensor([rare])
    assert not is_tensor(None)
