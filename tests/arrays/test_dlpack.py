"""Arrays of other libraries, by DLPack: read and written in place, or refused."""

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.runtime import driver
from tests.runtime.test_driver import add, arrays, compiled, refused

__all__ = ["compiled"]  # a fixture


class Foreign:
    """Memory of another library. The older form of the protocol knows no versions."""

    def __init__(self, array: Any, *, device: int = 1, is_old: bool = True) -> None:
        self.array = array
        self.device = device
        self.is_old = is_old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.is_old and options:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("is_old", [True, False])
def test_foreign_arrays_are_read_and_written_in_place(is_old: bool) -> None:
    a, b = arrays(8, 8)
    c = np.zeros(8, np.float32)
    output = Foreign(c, is_old=is_old)
    assert add(Foreign(a, is_old=is_old), b, out=output) is output
    np.testing.assert_array_equal(c, a + b)


def test_a_foreign_array_may_be_strided_and_outlives_its_owner() -> None:
    from taskc.arrays.dlpack import as_array

    whole = np.arange(48, dtype=np.float32).reshape(6, 8)
    view = as_array(Foreign(whole.copy()[::-2, 1::3]))
    np.testing.assert_array_equal(view, whole[::-2, 1::3])
    assert as_array(Foreign(np.empty((0, 3), np.int8))).shape == (0, 3)
    assert as_array(Foreign(np.array(5.0))).item() == 5.0


def test_a_read_only_foreign_array_is_no_output() -> None:
    a, b = arrays(8, 8)
    c = np.zeros(8, np.float32)
    c.flags.writeable = False
    text = refused(a, b, out=Foreign(c, is_old=False))
    assert text == "add(): output 'c' is written in place, and this array is read-only"


@pytest.mark.parametrize("is_cupy", [True, False])
def test_memory_of_a_gpu_is_refused_by_other_targets(is_cupy: bool) -> None:
    a, b = arrays(8, 8)
    on_gpu = Foreign(b, device=2)
    if is_cupy:
        on_gpu.__cuda_array_interface__ = {}  # type: ignore[attr-defined]
    for target in ("cpu", "sim"):
        with pytest.raises(tc.ArgumentError) as caught:
            driver.call(add, (a, on_gpu), {}, target)
        assert str(caught.value) == (
            "add(): argument 'b' lies in a GPU's memory, and the call is to run elsewhere;"
            " pass it as a CPU array"
        )


def test_what_another_library_refuses_to_export_is_said() -> None:
    class Stubborn(Foreign):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it requires a gradient")

    a, b = arrays(8, 8)
    expected = "add(): argument 'b' can't be read through DLPack: it requires a gradient"
    assert refused(a, Stubborn(b)) == expected
