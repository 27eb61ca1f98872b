"""The words of Triton, CUDA, TileLang and NumPy: each has a hint, and the hint names what there is."""

from __future__ import annotations

import ast
import pkgutil
import re

import numpy as np
import pytest

import taskc as tc
from taskc import f32
from taskc.lang import names as table
from tests.lang.notebook import cell

HINTS = sorted(set(table._HINTS.values()))


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_names_what_there_is(hint: str) -> None:
    for name in re.findall(r"(?<![\w.])tc\.((?:cuda\.)?\w+)", hint):
        found: object = tc
        for part in name.split("."):
            found = getattr(found, part)
    assert not re.search(r"[.:]$", hint.removesuffix("..."))


@pytest.mark.parametrize("hint", HINTS)
def test_what_a_hint_calls_is_called_so(hint: str) -> None:
    """Its calls of tc have arguments that the function takes, as it is declared."""
    for text in re.findall(r"(?<![\w.@])tc\.\w+(?:\.\w+)?\((?:[^()]|\([^()]*\))*\)", hint):
        call = ast.parse(text.replace("...", "x"), mode="eval").body
        assert isinstance(call, ast.Call)
        name = ast.unparse(call.func).removeprefix("tc.")
        declared = table.INTRINSICS.get(name)
        if declared is not None:
            declared.__signature__.bind(*call.args, **{it.arg or "": it for it in call.keywords})


def test_no_row_says_two_things_of_a_name_and_none_hides_a_name_of_tc() -> None:
    rows = table._WORDS.strip().splitlines()
    names = [name for row in rows for name in row.partition("|")[0].split()]
    assert len(names) == len(set(names))
    both = {name for name in names if hasattr(tc, name)}
    # Those of tc are found, and those of others are not.
    assert both <= {"array", "jit", "load", "store"}


def test_names_are_looked_for_before_hints() -> None:
    """What is a name stays one, whatever others call so."""

    @tc.kernel(workers=1)
    def kernel(x: f32[1], y: tc.out[f32[1]]) -> None:
        for arange in tc.spatial(1):
            size = x[arange]
            y[arange] = size

    assert kernel(np.ones(1, np.float32)) == 1


def test_outside_of_kernels() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'arange'; an index is one number"):
        _ = tc.arange
    with pytest.raises(AttributeError, match=r"no attribute 'xyz'$"):
        _ = tc.xyz
    with pytest.raises(AttributeError) as caught:
        _ = tc.spatail
    assert (caught.value.name, caught.value.obj) == (
        "spatail",
        tc,
    )  # by which Python asks what was meant
    with pytest.raises(AttributeError, match=r"no tc.cuda.syncthreads; only a tc.cuda.kernel"):
        _ = tc.cuda.syncthreads


def test_imports_from_taskc() -> None:
    def error_of(text: str) -> str:
        with pytest.raises(ImportError) as caught:
            exec(text)
        return str(caught.value)

    said = "cannot import name 'arange' from 'taskc'; an index is one number: for i in mapping: ..."
    assert error_of("from taskc import f32, arange") == said
    assert (
        error_of("from taskc import float32")
        == "cannot import name 'float32' from 'taskc'; use f32"
    )
    assert error_of("from taskc import nothing").startswith(
        "cannot import name 'nothing' from 'taskc' ("
    )
    exec("from taskc import backend, tune")  # what there is, loaded or not


def test_no_module_of_taskc_has_a_hint() -> None:
    """`from taskc import name` looks for the module behind what isn't an attribute."""
    modules = {module.name for module in pkgutil.iter_modules(tc.__path__)}
    assert "backend" in modules
    assert not modules & table._HINTS.keys()


def test_a_kernel_takes_no_grid() -> None:
    @tc.kernel(workers=4)
    def kernel(x: f32[4], y: tc.out[f32[4]]) -> None:
        for i in tc.spatial(4):
            y[i] = x[i]

    with pytest.raises(TypeError) as caught:
        kernel[(1,)](np.ones(4, np.float32))
    assert str(caught.value) == (
        "'kernel' takes no grid in brackets: it is called as it is, and its blocks are those of tc.tiles"
    )
    with pytest.raises(TypeError, match="not iterable"):
        list(kernel)


@pytest.mark.parametrize("called", [np.maximum, np.sum, np.exp])
def test_a_function_of_a_peer_that_is_there(called: object) -> None:
    text = """import taskc as tc
from taskc import f32
@tc.kernel(workers=1)
def kernel(x: f32[1], y: tc.out[f32[1]]):
    for i in tc.spatial(1):
        y[i] = called(x[i], 1)
"""
    with pytest.raises(
        tc.CompileError, match=r"is Python's: it only takes constants[^§]*hint: .*tc\."
    ):
        cell(text, "k.py", called=called)
