"""The examples as modules, for tests of all kinds: nothing is imported here that a machine with a GPU may lack."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from taskc.lang.definition import Definition

FILES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@cache
def example(name: str) -> ModuleType:
    """The module of an example, by its file's name without the number."""
    (path,) = [path for path in FILES if path.stem.partition("_")[2] == name]
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # where its dataclasses look up their types
    specification.loader.exec_module(module)
    return module


def definitions_of(module: ModuleType) -> dict[str, Definition]:
    return {name: it for name, it in vars(module).items() if isinstance(it, Definition)}
