"""The package onnx's cases of single operators: those in node_cases.txt pass, and that list only grows."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from .node_cases import cases, in_sample, listed, problem


def failures(names: Iterable[str], *, sampled: bool = False) -> dict[str, str]:
    known = cases(sampled=sampled)
    return {name: found for name in names if (found := problem(known[name]))}


# One test for all of them: whoever runs a case loads the others, too.
def test_a_twentieth_of_the_listed_cases_passes() -> None:
    assert failures((name for name in listed() if in_sample(name)), sampled=True) == {}


@pytest.mark.sweep
def test_all_listed_cases_pass_and_no_others() -> None:
    assert failures(listed()) == {}
    others = {*cases()} - {*listed()}
    more = sorted(others - failures(others).keys())
    assert not more, f"pass and aren't listed: {more}"
