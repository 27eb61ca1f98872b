"""The worker for GPUs on a fake one, whose kernels run in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.tune.gpu_worker import DeviceWorker, SimulatedWorker
from taskc.tune.operands import Operands
from tests.backend.cuda.conftest import compiled, fake, start
from tests.backend.cuda.fake_driver import FakeDriver
from tests.tune.kernels import SIZE, doubled, operands

__all__ = ["compiled", "fake", "start"]  # fixtures


def request(folder: Path, **more: Any) -> dict[str, Any]:
    return {"parcel": doubled().text, "folder": str(operands(folder)), **more}


def test_results_are_checked_on_the_device(fake: FakeDriver, compiled: Any, tmp_path: Path) -> None:
    worker = DeviceWorker("sm_80")
    assert worker.check(request(tmp_path)) == {"error": 0.0}
    assert [launch["name"] for launch in fake.launches] == ["doubled"]
    tripled = doubled("tripled", 3.0)
    found = worker.check(request(tmp_path, parcel=tripled.text))
    assert found["state"] == "wrong"


def test_a_program_is_simulated_call_by_call() -> None:
    kernel = doubled().definition()

    @tc.program
    def quadrupled(x: f32[SIZE], y: tc.out[f32[SIZE]]):
        kernel(kernel(x), out=y)

    x, y = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
    SimulatedWorker("sm_80").call(quadrupled, Operands((x,), (y,)))
    np.testing.assert_array_equal(y, 4 * x)


def test_times_are_those_of_events(fake: FakeDriver, compiled: Any, tmp_path: Path) -> None:
    names = {"first", "second"}
    both = [doubled(name).text for name in names]
    asked = request(tmp_path, parcels=both, samples=3)
    found = DeviceWorker("sm_80").time(asked)
    assert found["copies"] == 64
    # Events of the fake driver are 1.5 ms apart.
    expected = (pytest.approx(1.5e-3 / found["copies"]),) * 3
    assert found["seconds"] == [expected, expected]
    assert {launch["name"] for launch in fake.launches} == names
