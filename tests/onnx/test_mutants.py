"""Whatever is in a file: it is read, or refused with a sentence; in time, and with the memory that it needs."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from google.protobuf.message import DecodeError
from onnx import ModelProto

from taskc.onnx import schemas
from taskc.onnx.reader import read

from .models import samples
from .mutants import mutant, outcomes


def read_both_ways(data: bytes) -> None:
    """Read a model with ONNX's operators as they are, and with all expanded that are defined by others."""
    errors = []
    for is_known in (None, _has_no_body):
        try:
            read(data, is_known) if is_known else read(data)
        except Exception as error:
            errors.append(error)
    for error in errors:
        raise error


def _has_no_body(operator: str, domain: str, version: int) -> bool:
    if schemas.schema_of(operator, version, domain) is None:
        return False
    if operator == "CastLike":  # its body depends on types, which aren't known within other bodies
        return True
    found = schemas.defs.get_schema(operator, version, domain)
    return not (found.has_function or found.has_context_dependent_function)


def _parses(data: bytes) -> bool:
    try:
        ModelProto.FromString(data)
    except DecodeError:
        return False
    return True


def check(count: int, first: int = 0) -> Counter[str]:
    """Read mutants, and count what became of them."""
    models = samples()
    cases = [mutant(models, seed) for seed in range(first, first + count)]
    kinds: Counter[str] = Counter()
    for at, outcome in enumerate(outcomes(read_both_ways, cases)):
        assert outcome.kind in ("done", "refused"), (
            f"mutant {first + at} {outcome.kind}: {outcome.text}"
        )
        kinds[outcome.kind] += 1
    kinds["parses"] = sum(map(_parses, cases))
    return kinds


def test_the_models_themselves_are_read() -> None:
    assert len(samples()) == 6
    for data in samples():
        read_both_ways(data.SerializeToString())


def test_a_sample_of_mutants() -> None:
    kinds = check(150)
    assert kinds["done"] >= 20
    assert kinds["refused"] >= 50


@pytest.mark.sweep
def test_mutants() -> None:
    kinds = check(2000)
    assert kinds["parses"] >= 1000
    assert kinds["done"] >= 300


def ends(data: bytes) -> None:
    match data:
        case b"crash":
            os.abort()
        case b"hang":
            while True:
                pass
        case b"memory":
            bytearray(3 << 30)


def test_crashes_and_hangs_are_seen() -> None:
    cases = [b"fine", b"crash", b"fine", b"hang", b"memory", b"fine"]
    found = [*outcomes(ends, cases, seconds=0.5)]
    assert [outcome.kind for outcome in found] == [
        "done",
        "crashed",
        "done",
        "hangs",
        "failed",
        "done",
    ]
    assert "MemoryError" in found[4].text
