"""Where kernels come from: files, notebooks, `python -c`; and where their parts stand."""

from __future__ import annotations

import linecache
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import taskc as tc
from taskc import CompileError, repeat
from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from tests.lang import annotated
from tests.lang.notebook import cell

ROOT = Path(__file__).parents[2]
FILE = Path(annotated.__file__)


def covered(loc: tc.Location) -> str:
    """The characters of the file that a location spans, on its first line."""
    line = Path(loc.file).read_text(encoding="utf-8").splitlines()[loc.line - 1]
    assert line == loc.text
    return line[loc.column - 1 : loc.end_column - 1 if loc.end_line == loc.line else None]


def test_annotations_that_are_texts_see_the_function_around() -> None:
    made = annotated.scaled(4, repeat(4, 8)).ir
    x, alpha, y = made.parameters
    assert (x.shape, x.layout, alpha.dtype, y.role) == ((4, 8), repeat(4, 8), tc.f32, "out")
    with pytest.raises(CompileError) as caught:
        annotated.unknown()
    assert covered(caught.value.location) == "f32[no_such_extent]"
    assert caught.value.message == (
        "'no_such_extent' is not defined, in an annotation that is a text"
    )


def test_places_in_a_nested_function_with_a_decorator_of_several_lines() -> None:
    made = annotated.scaled(4, repeat(4, 8)).ir
    assert covered(made.loc) == "def kernel"
    assert [covered(item.loc) for item in made.parameters] == [
        "x: f32[m, 8].laid(layout)",
        "alpha: f32",
        "y: tc.out[f32[m, 8]]",
    ]
    assert isinstance(made.body, ir.Each)
    assert covered(made.body.loc) == "for i, j in spatial(2, 2).repeat(m // 2, 4)"
    assert Path(made.loc.file) == FILE
    store = made.body.body
    assert covered(store.loc) == "y[i, j] = x[i, j] * alpha"
    assert covered(store.value.loc) == "x[i, j] * alpha"
    assert covered(store.value.left.indices[1].loc or store.loc) == "j"


def test_places_behind_characters_of_several_bytes() -> None:
    made = annotated.Space.make().ir
    let = next(part for part in walk(made.body) if isinstance(part, ir.Let))
    assert covered(let.value.loc) == "f32(2)"


def test_one_source_makes_many_kernels() -> None:
    first, second = annotated.scaled(4, repeat(4, 8)), annotated.scaled(8, repeat(8, 8))
    assert first.ir.parameters[0].shape == (4, 8)
    assert second.ir.parameters[0].shape == (8, 8)
    assert first.ir.parameters[0] is not second.ir.parameters[0]


def test_kernels_made_by_threads_at_once() -> None:
    made: list[tuple[int, tc.KernelDefinition]] = []

    def make(m: int) -> None:
        made.append((m, annotated.scaled(m, repeat(m, 8))))

    threads = [threading.Thread(target=make, args=(2 * n,)) for n in range(1, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 19
    assert all(kernel.ir.parameters[0].shape == (m, 8) for m, kernel in made)


def test_a_notebook_cell() -> None:
    text = "import math\n@tc.kernel(workers=1)\ndef k(y: f32[4]):\n    v = y[0] + w\n"
    with pytest.raises(CompileError) as caught:
        cell(text, "<ipython-input-3-0123456789ab>")
    assert str(caught.value).splitlines()[0] == (
        "<ipython-input-3-0123456789ab>:4:16: error: 'w' is not defined"
    )


def test_a_nested_function_with_a_comment_further_left() -> None:
    text = """\
def make():
    if True:
        @tc.kernel(workers=1)
        def k(y: tc.out[f32[1]]):
            v = f32(1)
  # a comment further left, and a line that goes on
            for i in \\
                spatial(1):
                y[i] = (v +
  w)
    return k
make()
"""
    with pytest.raises(CompileError) as caught:
        cell(text, "left.py")
    assert str(caught.value) == ("left.py:10:3: error: 'w' is not defined\n      w)\n      ^")


def test_a_text_that_linecache_does_not_have() -> None:
    text = "@tc.kernel(workers=1)\ndef k(y: f32[4]):\n    pass\n"
    with pytest.raises(CompileError) as caught:
        exec(compile(text, "<generated>", "exec"), {"tc": tc, "f32": tc.f32})
    assert str(caught.value) == (
        "<generated>:1: error: the source of kernel 'k' can't be read: Python gives no text for"
        " '<generated>'\n"
        "  hint: define it in a file or a notebook cell; 'python -c' works from Python 3.13 on"
    )


def test_a_file_that_changed() -> None:
    text = "@tc.kernel(workers=1)\ndef k(y: f32[4]):\n    pass\n"
    file = "changed_cell.py"
    linecache.cache[file] = (1, None, ["# a new line\n", *text.splitlines(keepends=True)], file)
    with pytest.raises(CompileError, match=r"it isn't at line 1 of 'changed_cell.py'") as caught:
        exec(compile(text, file, "exec"), {"tc": tc, "f32": tc.f32})
    assert caught.value.hint == "the file has changed since it was imported; run it again"


def test_exec_in_python_c() -> None:
    text = "@tc.kernel(workers=1)\ndef k(y: f32[4]):\n    pass\n"
    linecache.cache["<string of -c>"] = (9, None, ["import taskc\n"], "<string of -c>")
    with pytest.raises(CompileError) as caught:
        exec(compile(text, "<string of -c>", "exec"), {"tc": tc, "f32": tc.f32})
    assert caught.value.hint == (
        "what 'exec' runs has no text of its own: define it in a file or a notebook cell"
    )


def test_python_c() -> None:
    program = """
import taskc as tc
from taskc import f32, spatial

@tc.kernel(workers=4)
def k(y: tc.out[f32[4]]):
    for i in spatial(4):
        y[i] = 1

print(k)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if sys.version_info >= (3, 13):
        assert result.stdout == "<tc.kernel k(y: out f32[4]), 4 workers>\n"
    else:
        assert result.returncode == 1
        assert result.stderr.splitlines()[-2:] == [
            "taskc.errors.CompileError: <string>:5: error: the source of kernel 'k' can't be read:"
            " Python gives no text for '<string>'",
            "  hint: define it in a file or a notebook cell; 'python -c' works from Python 3.13 on",
        ]


def test_lambdas_and_coroutines() -> None:
    with pytest.raises(CompileError, match="kernel '<lambda>' is a lambda; write it with 'def'"):
        tc.kernel(workers=1)(lambda x: x)

    async def k() -> None:
        pass

    with pytest.raises(CompileError, match="kernel 'k' is asynchronous; write it with 'def'"):
        tc.kernel(workers=1)(k)
    with pytest.raises(CompileError, match="a kernel is made from a function, and this is 3"):
        tc.kernel(workers=1)(3)  # type: ignore[arg-type]
