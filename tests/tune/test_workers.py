"""Processes that compile, check and time candidates, and outlive what these do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from taskc.kernels.matmul import matmul
from taskc.tune.operands import write_operands
from taskc.tune.parcel import Parcel, parcel_of
from taskc.tune.workers import Checked, Compiled, Failed, Timed, Workers
from tests.tune.kernels import doubled, endless, operands


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    command = (sys.executable, "-m", "tests.tune.planted")
    folder = tmp_path_factory.mktemp("cache")
    with Workers(threads=1, processes=1, folder=folder, command=command) as made:
        yield made


def test_a_candidate_is_compiled_checked_and_timed(workers: Workers, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((96, 96), np.float32) for _ in range(2))
    write_operands(tmp_path, [a, b], [a.astype(np.float64) @ b])
    parcels = [parcel_of(matmul(96, 96, 96, packed=packed)) for packed in (False, True)]
    heard: list[Parcel] = []
    made = workers.compile_all([*parcels, parcels[0]], lambda parcel, found: heard.append(parcel))
    assert sorted(heard, key=parcels.index) == parcels == list(made)
    codes = set()
    for found in made.values():
        assert isinstance(found, Compiled)
        assert set(found.seconds) == {"parse", "prove", "lower", "compile"}
        codes.add(found.code)
    assert len(codes) == 2
    for parcel in parcels:
        checked = workers.check(parcel, tmp_path)
        assert isinstance(checked, Checked)
        assert 0 < checked.error < 1e-5
        timed = workers.time(parcel, tmp_path, samples=3)
        assert isinstance(timed, Timed)
        assert 1 <= len(timed.seconds) <= 3
        assert 96**3 / 1e12 < min(timed.seconds) < 1
        # Between two uses of a copy, 96 x 96 arrays of three operands, more is touched than 4 MiB.
        assert timed.copies > 4 << 20 // (3 * 4 * 96 * 96)
        assert timed.disturbances.discarded < 1
    kept = workers.time(parcels[0], tmp_path, samples=1, rotates=False)
    assert isinstance(kept, Timed)
    assert kept.copies == 1
    race = workers.race(parcels, tmp_path, samples=4)
    assert isinstance(race, list)
    assert [len(own.seconds) for own in race] == [len(race[0].seconds)] * 2


def test_what_was_compiled_once_is_in_the_cache(workers: Workers) -> None:
    parcel = doubled("once")
    for stages in ({"parse", "prove", "lower", "compile"}, {"parse"}):
        found = workers.compile_all([parcel])[parcel]
        assert isinstance(found, Compiled)
        assert set(found.seconds) == stages
    # What is lowered to the same text is compiled once.
    other = Parcel(parcel.ir.replace("x[i]", "x[i + 0]"))
    found = workers.compile_all([other])[other]
    assert isinstance(found, Compiled)
    assert set(found.seconds) == {"parse", "prove", "lower"}


def test_faults_cost_one_candidate(workers: Workers, tmp_path: Path) -> None:
    folder = operands(tmp_path)
    assert workers.check(doubled(), folder) == Checked(0.0)
    crashed = workers.check(doubled("crashes"), folder)
    assert crashed == Failed("crashed", "its process was ended by SIGSEGV")
    late = workers.check(doubled("hangs"), folder, limit=0.3)
    assert late == Failed("timed out", "it took more than 0.3 seconds")
    late = workers.time(endless(), folder, limit=3)  # in compiled code, where Python sees no signal
    assert late == Failed("timed out", "it took more than 3 seconds")
    wrong = workers.check(doubled("wrong", 2.001), folder)
    assert isinstance(wrong, Failed)
    assert wrong.state == "wrong"
    assert "3.1e-05 is allowed" in wrong.note
    assert workers.check(doubled("wrong", 2.001), folder, tolerance=0.1) == Checked(
        pytest.approx(1e-3, rel=2)
    )
    broken = Parcel(doubled().ir.replace("y[i]", "y[i + 1]"))
    refused = workers.compile_all([broken])[broken]
    assert isinstance(refused, Failed)
    assert refused.state == "refused"
    assert "y" in refused.note
    assert workers.check(doubled("prints"), folder) == Checked(0.0)
    assert workers.check(doubled(), tmp_path / "absent").state == "refused"
