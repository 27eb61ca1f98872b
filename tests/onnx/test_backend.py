"""The module as a backend of the package onnx, by that package's own runner."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import onnx.backend.test.runner as runner
import pytest
from onnx import helper
from onnx.backend.test import BackendTest

import taskc.onnx.backend as backend

from .node_cases import cases, in_sample, listed


def ran(patch: pytest.MonkeyPatch, known: dict[str, Any]) -> unittest.TestResult:
    """The result of the runner with these node cases alone."""
    patch.setattr(
        runner, "load_model_tests", lambda kind: [*known.values()] if kind == "node" else []
    )
    result = unittest.TestResult()
    BackendTest(backend, __name__).test_suite.run(result)
    return result


def test_the_runner_of_the_package_takes_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cases(sampled=True)
    names = [name for name in listed() if in_sample(name)][:12]
    result = ran(monkeypatch, {name: known[name] for name in names})
    assert not result.failures + result.errors
    assert result.testsRun - len(result.skipped) == len(names)  # of the CPU; a device's are skipped


@pytest.mark.sweep
def test_the_runner_on_all_listed_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cases()
    result = ran(monkeypatch, {name: known[name] for name in listed()})
    assert not result.failures + result.errors


def test_a_node_alone() -> None:
    node = helper.make_node("Sub", ["a", "b"], ["c"])
    x = np.array([3, 4], np.float32)
    (c,) = backend.run_node(node, [x, x[:1]])
    assert c.tolist() == [0, 1]
    assert backend.supports_device("CPU")
    assert not backend.supports_device("TPU")
    graph = helper.make_graph([node], "g", [], [])
    assert backend.is_compatible(helper.make_model(graph))
