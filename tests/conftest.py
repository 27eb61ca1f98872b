"""Fixtures and options that every test shares."""

from __future__ import annotations

import difflib
import gc
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

GOLDEN = Path(__file__).parent / "golden"

# Compilers make many small objects that live long: looking through them again and again takes a fifth of
# the time.
gc.set_threshold(200_000, 10, 10)

# Times vary too much between machines for a deadline. The same examples every time, so that a
# failure is a fact about the change and not about the day.
hypothesis.settings.register_profile("taskc", deadline=None, derandomize=True)
hypothesis.settings.load_profile("taskc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts that golden tests produce into tests/golden",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` holds text to what tests/golden/<name>.txt says."""
    update = request.config.getoption("--update-golden")
    remedy = f'pytest --update-golden "{request.node.nodeid}"'

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        elif not path.exists():
            message = f"golden {name!r} is missing; to create it, run and review:\n  {remedy}"
            pytest.fail(message, pytrace=False)
        elif (expected := path.read_text(encoding="utf-8")) != text:
            lines = expected.splitlines(), text.splitlines()
            diff = "\n".join(difflib.unified_diff(*lines, f"golden/{name}.txt", "now", lineterm=""))
            message = f"golden {name!r} differs; to accept it, run and review:\n  {remedy}\n{diff}"
            pytest.fail(message, pytrace=False)

    return check
