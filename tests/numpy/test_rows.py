"""Rows: each function of elements, for each type that NumPy has it for."""

from __future__ import annotations

import numpy as np
import pytest

import taskc as tc
from taskc.numpy.noting import elements
from taskc.numpy.rows import ELEMENTS, KINDS, SUPPORTED, ufunc_row
from tests.each_value import few

NAMES = sorted({*ELEMENTS, *[name for kind in KINDS.values() for name in kind]})
VALUES = {
    "f": np.array([-2.5, -0.5, 0.0, 0.25, 0.75, 1.0, 3.0]), "i": np.array([-7, -2, 0, 1, 2, 5, 7]),
    "u": np.array([0, 1, 2, 3, 5, 7, 9]), "b": np.array([0, 1, 1, 0, 0, 1, 0]),
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("noted")
CLOSE = {"float16": 4e-3, "float32": 3e-6, "float64": 1e-13}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", few(sorted(SUPPORTED, key=str), 3), ids=str)
def test_a_function_is_numpys(name: str, dtype: np.dtype[np.generic]) -> None:
    ufunc = getattr(np, name)
    x = VALUES[dtype.kind].astype(dtype)
    given = [x, np.roll(x, 2)][: ufunc.nin]
    try:
        row = ufunc_row(ufunc, (dtype,) * ufunc.nin)
    except TypeError:
        with pytest.raises(TypeError):
            ufunc(*given)
        return
    if "shift" in name:
        given[1] = np.abs(given[1])
    with np.errstate(all="ignore"):
        if row is None:
            return  # NumPy's
        expected = ufunc(*given)
    result = np.asarray(elements(ufunc, *map(tc.array, given)))
    assert result.dtype == expected.dtype
    close = CLOSE.get(expected.dtype.name, 0)
    assert np.allclose(result, expected, close, close, equal_nan=True), (result, expected)


def test_only_integer_powers_and_pairs_of_types_are_left_to_numpy() -> None:
    kinds = [np.dtype(code) for code in "?bBe"]
    left = set()
    for name in NAMES:
        for dtype in kinds:
            try:
                if ufunc_row(getattr(np, name), (dtype,) * getattr(np, name).nin) is None:
                    left.add(name)
            except TypeError:
                pass
    assert left == {"power"}
