"""What lies around arrays in tests: whether it is noticed when somebody touches it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import taskc as tc
from taskc import i8, i32, spatial
from taskc.backend.cpu.compile import LoadedKernel, compile_kernel
from taskc.backend.cpu.processor import host
from taskc.ir import nodes as ir
from taskc.ir.rewrite import map_children
from taskc.passes.pipeline import lower
from tests import guards


@tc.kernel(workers=8)
def copy(x: i8[13], y: tc.out[i8[13]]):
    for start in tc.tiles(13, by=8):
        for i in spatial(8):
            if start + i < 13:
                y[start + i] = x[start + i]


def moved(kernel: ir.Kernel, kind: type, by: int) -> LoadedKernel:
    """With all stores, or all reads, that many elements further."""

    def visit(node: object) -> object:
        node = map_children(node, visit)  # type: ignore[type-var]
        if isinstance(node, kind):
            (index,) = node.indices  # type: ignore[attr-defined]
            further = ir.Binary("+", index, ir.Constant(by, index.dtype))
            return replace(node, indices=(further,))  # type: ignore[type-var]
        return node

    lean = lower(replace(kernel, target=host().target))
    body = visit(lean.body)
    broken = replace(lean, body=body)  # type: ignore[arg-type]
    return LoadedKernel(kernel, compile_kernel(broken, host()))


def arrays() -> list[np.ndarray]:
    return [np.arange(13, dtype=np.int8), np.zeros(13, np.int8)]


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many calls there were: which arrays end where a page begins follows from it."""
    return lambda calls: monkeypatch.setattr(guards, "_calls", calls)


def test_nothing_is_said_about_a_correct_kernel() -> None:
    for _ in range(2):
        x, y = arrays()
        moved(copy.ir, ir.Store, 0).run([x, y], {})
        np.testing.assert_array_equal(x, y)
    assert guards.found() == []


@pytest.mark.parametrize(
    ("calls", "by", "said"),
    [
        (1, 2, "2 bytes were written behind it, the first at 0"),
        (0, -3, "3 bytes were written before it, the first at -3"),
    ],
)
def test_stores_outside_an_output_are_noticed(
    starting: Callable[[int], None], calls: int, by: int, said: str
) -> None:
    loaded = moved(copy.ir, ir.Store, by)
    starting(calls)
    loaded.run(arrays(), {})
    assert guards.found() == [f"'copy', y of 13 bytes: {said}"]


def test_stores_into_inputs_are_noticed(starting: Callable[[int], None]) -> None:
    @tc.kernel(workers=8)
    def clear(x: tc.inout[i32[8]]):
        for i in spatial(8):
            x[i] = 0

    loaded = moved(clear.ir, ir.Store, 0)
    loaded.guarded.tensors = [(0, replace(clear.ir.parameters[0], role="in"), 32)]  # type: ignore[attr-defined, type-var]
    x = np.arange(8, dtype=np.int32)
    loaded.run([x], {})
    assert guards.found() == ["'clear', x of 32 bytes: an input was written"]
    assert x.tolist() == list(range(8))


def test_what_an_output_leaves_out_is_no_number_that_was_there() -> None:
    lean = lower(replace(copy.ir, target=host().target))
    empty = replace(lean, body=ir.Sequence(()))
    x, y = arrays()
    LoadedKernel(copy.ir, compile_kernel(empty, host())).run([x, y], {})
    assert (y.view(np.uint8) == 0xA7).all()


_READ_BEHIND = """
from tests import guards, test_guards
guards.install()
loaded = test_guards.moved(test_guards.copy.ir, test_guards.ir.Read, 1)
guards._calls = 1
loaded.run(test_guards.arrays(), {})
"""


def test_a_page_without_access_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", _READ_BEHIND], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr.decode()


def test_arrays_lie_at_any_address() -> None:
    """Of the two that a call has one ends where a page begins."""
    room = guards.Room(4096)
    assert room.end - room.start == 4096
    ends = guards.Guarded(copy.ir.parameters[1], 13, 0, room, True)  # type: ignore[arg-type]
    assert ends.address + 13 == room.end
    assert ends.address % 4 == 3
    begins = guards.Guarded(copy.ir.parameters[1], 13, 0, room, False)  # type: ignore[arg-type]
    assert begins.address == room.start
    assert begins.wrong() is None


def test_calls_from_python_in_compiled_code_are_guarded(starting: Callable[[int], None]) -> None:
    """Kernels that users call go through the same place."""
    x, y = arrays()
    copy(x, out=y)
    assert copy.direct is not None
    before = guards._calls
    copy(x, out=y)
    assert guards._calls == before + 1
    np.testing.assert_array_equal(x, y)
