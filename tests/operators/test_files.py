"""The table of operators' files is what the files register."""

from __future__ import annotations

import importlib
import subprocess
import sys
from inspect import unwrap
from pathlib import Path

import taskc.operators
from taskc.operators import call
from taskc.operators.files import FILES


def test_the_table_has_all_that_files_register() -> None:
    package = Path(taskc.operators.__file__).parent
    for path in package.glob("*.py"):
        importlib.import_module(f"taskc.operators.{path.stem}")
    registered = {
        (key, unwrap(builder).__module__)
        for key, versions in call._builders.items()
        for builder in versions.values()
        if call._is_ours(builder)
    }
    assert registered == {(key, f"taskc.operators.{file}") for key, file in FILES.items()}


def test_an_operator_loads_its_own_file() -> None:
    program = """
import sys
from taskc.operators.call import builder_of

def loaded(family):
    return f"taskc.operators.{family}" in sys.modules

assert builder_of("Relu", 20) is not None
assert loaded("elementwise")
assert not any(map(loaded, ("convolutions", "recurrent", "control", "resizing", "pooling")))
assert builder_of("Nothing", 20) is None
assert builder_of("Conv", 20) is not None
assert loaded("convolutions")
assert not any(map(loaded, ("recurrent", "control", "resizing", "pooling")))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
