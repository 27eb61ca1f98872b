"""Fixtures and options that every test shares."""

from __future__ import annotations

import atexit
import difflib
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from taskc.backend.cpu import processes
from taskc.programs import pipeline
from taskc.programs.ir import Program
from taskc.programs.pipeline import passes
from taskc.programs.verify import verify_program
from taskc.tune import database


class _Nothing(database.Database):
    """What comes with taskc for this machine isn't known either."""

    def tuned(self, operator: str, machine: str) -> dict[str, Any]:
        return {}

    def facts(self, machine: str) -> dict[str, float]:
        return {}


# Nothing that somebody has tuned or measured on this machine changes what tests build: this comes before any operator.
_NOTHING = _Nothing(Path(os.devnull) / "tuning.sqlite3")
database.database = lambda: _NOTHING  # type: ignore[assignment]

from tests import guards  # noqa: E402
from tests.each_value import mark_others  # noqa: E402

# Each kernel is compiled once, to full code; tests/backend/cpu/test_tiers.py has both tiers.
os.environ.setdefault("TASKC_TIER", "full")

# No processes compile beside those that run tests, which keep all processors busy, and whose patches only they have;
# tests/backend/cpu/test_processes.py starts some.
processes.LEAST = 1 << 30

GOLDEN = Path(__file__).parent / "golden"

# Compilers make many small objects that live long: looking through them again and again takes a fifth of
# the time.
gc.set_threshold(200_000, 10, 10)

# Times vary too much between machines for a deadline. The same examples every time, so that a
# failure is a fact about the change and not about the day.
try:
    import hypothesis
except ImportError:  # a machine that only has a GPU may lack it
    pass
else:
    hypothesis.settings.register_profile("taskc", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("taskc")

# Where Python may write no bytecode, the hundreds of processes that tests start would compile all sources each.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="taskc-tests-")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)

_ON_A_GPU = "pytest.mark.gpu"  # stands in a file with tests for `-m gpu`


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("xdist"):  # pyproject.toml names its options
        group = parser.getgroup("xdist", "what is ignored, since xdist isn't installed")
        group._addoption("-n", dest="numprocesses")
        group._addoption("--dist", dest="dist")
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts that golden tests produce into tests/golden",
    )


@pytest.hookimpl(tryfirst=True)  # before what is deselected by its marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_others(items)


@pytest.fixture(scope="session", autouse=True)
def _guards() -> None:
    """Arrays that compiled code sees have canaries around them: tests/guards.py."""
    guards.install()


@pytest.fixture(scope="session", autouse=True)
def _rules() -> Iterator[None]:
    """Programs keep their rules before each pass over them and after.

    One pass returns what the next one takes, and nodes are frozen: a program is verified once.
    """
    verified_last: list[Program] = []

    def verify_once(program: Program) -> None:
        if not (verified_last and verified_last[0] is program):
            verify_program(program)
            verified_last[:] = [program]

    def verified(make: Callable[..., Program]) -> Callable[..., Program]:
        @wraps(make)
        def run(program: Program, *more: Any, **named: Any) -> Program:
            verify_once(program)
            made = make(program, *more, **named)
            verify_once(made)
            return made

        return run

    names = {it.func.__name__ if isinstance(it, partial) else it.__name__ for it in passes(16)}
    with pytest.MonkeyPatch.context() as patch:
        for name in (*names, "share_computations", "schedule"):
            patch.setattr(pipeline, name, verified(getattr(pipeline, name)))
        yield


@pytest.fixture(autouse=True)
def _untouched(_guards: None) -> Iterator[None]:
    yield
    wrong = guards.found()
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def _is_for_a_gpu(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == "gpu")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without tests for a GPU, which may import what a machine with one lacks: lark, rich, hypothesis."""
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if _is_for_a_gpu(config) and is_test and _ON_A_GPU not in collection_path.read_text():
        return True
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process on the GPU."""
    return 0 if _is_for_a_gpu(config) else None


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
