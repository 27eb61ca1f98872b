"""The package onnx's cases of single operators, run by taskc; as a script it writes down those that pass.

python -m tests.onnx.node_cases [--write] [words that names have]
"""

from __future__ import annotations

import signal
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test.loader as loader
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case import base
from onnx.backend.test.runner import Runner

from taskc.onnx.backend import TaskcBackend

CASES = "onnx.backend.test.case.node"
LISTED = Path(__file__).with_suffix(".txt")
_SECONDS = 60


@cache
def cases(*, sampled: bool = False) -> dict[str, Any]:
    """All cases by name, or only those that always run, in a quarter of the time.

    A case is computed by a function that names it; those of other cases are left out.
    """
    wanted = [name for name in listed() if in_sample(name)]

    def make_cases(cls: type, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> None:
        for key, member in members.items():
            if key.startswith("export") and not (sampled and _names_others(member, wanted)):
                np.random.seed(seed=0)
                member.__func__()

    for name in [name for name in sys.modules if name.startswith(f"{CASES}.")]:
        del sys.modules[name]  # which has made the cases that were asked for before
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # infinities are computed there
        patch.setattr(base._Exporter, "__init__", make_cases)
        patch.setattr(sys.modules[CASES], "_NodeTestCases", [])
        patch.setattr(sys.modules[CASES], "_existing_names", {})
        return {case.name: case for case in loader.load_model_tests(kind="node")}


def _names_others(function: Any, wanted: list[str]) -> bool:
    """Whether a function's names of cases, or the beginnings of those that it puts together, are of none wanted."""
    constants = [it for it in function.__func__.__code__.co_consts if isinstance(it, str)]
    names = [it for it in constants if it.startswith("test_")]
    return bool(names) and not any(one.startswith(name) for name in names for one in wanted)


def listed() -> list[str]:
    """The names of the cases that pass."""
    return LISTED.read_text(encoding="utf-8").split()


def in_sample(name: str) -> bool:
    """Whether the case is one of the twentieth that always run."""
    return zlib.crc32(name.encode()) % 20 == 0


def problem(case: Any, device: str = "CPU") -> str | None:
    """What is wrong with the results of a case; None if it passes."""
    try:
        with _time_limit():
            model = TaskcBackend.prepare(case.model, device)
            for inputs, expected in case.data_sets:
                made = model.run([_array(one) for one in inputs])
                wanted = [_array(one) for one in expected]
                Runner.assert_similar_outputs(wanted, made, case.rtol, case.atol)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _array(given: Any) -> Any:
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else given


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"it takes more than {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main(arguments: list[str]) -> None:
    words = [word for word in arguments if word != "--write"]
    passed = {*listed()}
    for name, case in cases().items():
        if words and not any(word in name for word in words):
            continue
        found = problem(case)
        passed.add(name) if found is None else passed.discard(name)
        sys.stdout.write(f"{name} {found or 'passes'}\n")
        sys.stdout.flush()
    if "--write" in arguments:
        LISTED.write_text("".join(f"{name}\n" for name in sorted(passed)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
