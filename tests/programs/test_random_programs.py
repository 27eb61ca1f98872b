"""Random programs: after every pass the result is the oracle's, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs.coverage import Coverage
from tests.programs.runner import run_many

SEED = 7
COUNT = 600  # the first of those 2,000 that CI runs as a step of its own
CHUNK = 50


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One folder for all processes of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "random_programs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_every_pass_keeps_the_result(
    first: int, shared_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """The chunk that ends last also says what all of them together did not reach."""
    failures, coverage = run_many(SEED, range(first, first + CHUNK))
    record_property("random programs", coverage)
    part = shared_folder / f"{first}.part"
    part.write_text(json.dumps(coverage))
    part.replace(part.with_suffix(".json"))
    remedy = f"python -m tests.programs --seed {SEED} --program"
    assert not failures, "\n".join(
        f"{failure}\n  {remedy} {number}" for number, failure in failures
    )
    finished = sorted(shared_folder.glob("*.json"))
    if len(finished) * CHUNK == COUNT:
        total = Coverage()
        for path in finished:
            total.merge(Coverage.from_json(json.loads(path.read_text())))
        assert total.missing() == [], "the generator does not reach these often enough"
