"""The package onnx's cases of single operators: those in node_cases.txt pass, and that list only grows."""

from __future__ import annotations

import pytest

from .node_cases import cases, in_sample, listed, problem


@pytest.mark.parametrize("name", [name for name in listed() if in_sample(name)])
def test_a_listed_case_passes(name: str) -> None:
    assert problem(cases()[name]) is None


@pytest.mark.sweep
def test_all_listed_cases_pass_and_no_others() -> None:
    failures = {name: found for name in listed() if (found := problem(cases()[name]))}
    assert not failures, f"no longer pass: {failures}"
    more = [name for name in {*cases()} - {*listed()} if problem(cases()[name]) is None]
    assert not more, f"pass and aren't listed: {sorted(more)}"
