"""Workers of a Ray cluster: a real one, of this machine alone, where Ray is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import taskc as tc
from taskc import CompileError, f32
from taskc.kernels.matmul import MATMUL
from taskc.tune.bench import tuned
from taskc.tune.database import Database
from taskc.tune.space import Space
from taskc.tune.workers import ray_workers
from tests.kernels.problems import gemm


def test_without_ray_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CompileError, match="needs Ray, which isn't installed"):
        ray_workers("ray://somewhere:10001")


@pytest.fixture
def cluster() -> Iterator[None]:
    """Two workers; what Ray itself leaves open isn't this test's."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
def test_a_cluster_of_two_workers_tunes(tmp_path: Path, cluster: None) -> None:
    database = Database(tmp_path / "rows")
    space = Space(MATMUL, gemm(65, 96, 40, (f32, f32, f32)), tc.machine())
    found = tuned(space, database=database, workers=ray_workers("ray://"), most=5)
    assert len(found.trials) == 5
    assert {trial.result.outcome for trial in found.trials} == {"measured"}
    assert len(found.finals) >= 2
    assert len(database.rows(operator="matmul")) == 5
