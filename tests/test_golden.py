"""The `golden` fixture, run inside a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

NODE = "test_it.py::test_it"


@pytest.fixture
def inner(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with this one's conftest and one golden test."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_it="def test_it(golden): golden('part/é', 'one\\ntwo ∘')")
    return pytester


def golden_file(inner: pytest.Pytester) -> Path:
    return inner.path / "golden" / "part" / "é.txt"


def test_a_missing_golden_fails_and_says_how_to_create_it(inner: pytest.Pytester) -> None:
    result = inner.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "golden 'part/é' is missing; to create it, run and review:",
            f'  pytest --update-golden "{NODE}"',
        ]
    )
    assert not golden_file(inner).exists()


def test_update_creates_it_and_then_it_passes(inner: pytest.Pytester) -> None:
    inner.runpytest("--update-golden").assert_outcomes(passed=1)
    assert golden_file(inner).read_bytes() == "one\ntwo ∘\n".encode()
    inner.runpytest().assert_outcomes(passed=1)


def test_a_difference_fails_with_a_diff(inner: pytest.Pytester) -> None:
    golden_file(inner).parent.mkdir(parents=True)
    golden_file(inner).write_text("one\nthree\n", encoding="utf-8")
    result = inner.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "golden 'part/é' differs; to accept it, run and review:",
            f'  pytest --update-golden "{NODE}"',
            "--- golden/part/é.txt",
            "+++ now",
            "@@ -1,2 +1,2 @@",
            " one",
            "-three",
            "+two ∘",
        ]
    )
    inner.runpytest("--update-golden").assert_outcomes(passed=1)
    inner.runpytest().assert_outcomes(passed=1)
