"""The environment variables."""

from __future__ import annotations

import re
from pathlib import Path

import taskc as tc
from taskc.runtime.settings import VARIABLES


def test_every_environment_variable_that_is_read_is_in_the_table() -> None:
    sources = (path.read_text(encoding="utf-8") for path in Path(tc.__file__).parent.rglob("*.py"))
    read = {name for source in sources for name in re.findall(r"TASKC_[A-Z]+", source)}
    assert read == {name for name, _ in VARIABLES}
    assert len(VARIABLES) <= 5
