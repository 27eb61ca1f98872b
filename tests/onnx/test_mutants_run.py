"""Damaged models that are compiled and called: a result, which ONNX Runtime agrees with, or a sentence; in time."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import ModelProto, helper

import taskc as tc
from taskc import CompileError
from taskc.onnx.partitions import RuntimeSession

from .models import samples
from .mutants import Outcome, mutant, outcomes

Array = np.ndarray[Any, Any]

_MOST_FED = 1 << 20  # elements of an input


def feeds_of(model: ModelProto) -> dict[str, Array] | None:
    """Arrays for a model's inputs, of extent 2 where that is open; None where they would be large or strange."""
    random = np.random.default_rng(0)
    known = {tensor.name for tensor in model.graph.initializer}
    made: dict[str, Array] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in kind.shape.dim]
        if any(extent < 0 for extent in shape) or prod(shape) > _MOST_FED or len(shape) > 20:
            return None
        try:
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        except KeyError:
            return None
        if value.name not in known:
            made[value.name] = (2 * random.standard_normal(shape)).astype(dtype)
    return made


def run_here(data: bytes) -> list[Array]:
    feeds = feeds_of(ModelProto.FromString(data)) if _parsed(data) else {}
    if feeds is None:
        tc.compile(data)
        raise CompileError("it isn't called: its inputs would be large")
    outputs: list[Array] = tc.compile(data).run(None, feeds)
    return outputs


def run_there(data: bytes) -> list[Array]:
    feeds = feeds_of(ModelProto.FromString(data)) if _parsed(data) else None
    if feeds is None:
        raise CompileError("it isn't called")
    return RuntimeSession(data, 1).run(feeds)


def _parsed(data: bytes) -> ModelProto | None:
    try:
        return ModelProto.FromString(data)
    except DecodeError:
        return None


def _is_valid(data: bytes) -> bool:
    try:
        onnx.checker.check_model(data)
    except Exception:  # its exceptions have no class in common
        return False
    return True


def departure(ours: list[Array], theirs: list[Array]) -> str:
    """How results depart; "" where they agree."""
    for at, (made, expected) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(expected, np.ndarray):
            return f"output {at} is {type(expected).__name__} there"
        if made.shape != expected.shape or made.dtype != expected.dtype:
            return f"output {at} is {made.dtype}{made.shape}, and {expected.dtype}{expected.shape} there"
        if expected.dtype.kind != "f":
            if not np.array_equal(made, expected):
                return f"output {at} is {made.tolist()}, and {expected.tolist()} there"
            continue
        a, b = made.astype(np.float64), expected.astype(np.float64)
        scale = np.abs(b[np.isfinite(b)]).max(initial=1e-6)
        with np.errstate(all="ignore"):
            agrees = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= 1e-4 * scale)
        if not agrees.all():
            return f"output {at} is {made.tolist()}, and {expected.tolist()} there"
    return ""


def check(count: int, first: int = 0) -> Counter[str]:
    """Run mutants, and count what became of them."""
    models = samples()
    cases = [mutant(models, seed) for seed in range(first, first + count)]
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    both = zip(outcomes(run_here, cases), outcomes(run_there, cases), strict=True)
    for at, (here, there) in enumerate(both):
        kinds[here.kind] += 1
        if here.kind not in ("done", "refused"):
            wrong.append(f"mutant {first + at} {here.kind}: {here.text}")
        elif here.kind == "done" == there.kind:
            kinds["both"] += 1
            wrong += _departing(first + at, here, there)
    kinds["parses"] = sum(_parsed(case) is not None for case in cases)
    kinds["valid"] = sum(map(_is_valid, cases))
    assert not wrong, "\n".join(wrong)
    return kinds


def _departing(seed: int, here: Outcome, there: Outcome) -> list[str]:
    how = departure(here.made, there.made)
    return [f"mutant {seed} departs: {how}"] if how else []


def test_a_sample_of_mutants_runs() -> None:
    kinds = check(60)
    assert kinds["done"] >= 8
    assert kinds["both"] >= 5


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_mutants_run(first: int) -> None:
    kinds = check(250, first)
    assert kinds["parses"] >= 125
    assert kinds["valid"] >= 38
    assert kinds["both"] >= 20
