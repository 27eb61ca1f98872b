"""The exact text of what taskc tells a person."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from textwrap import dedent

import pytest

import taskc as tc
from taskc.errors import NOWHERE, CompileError, Finding, InternalError, Location


def span(line: str, part: str, *, file: str = "matmul.py", number: int = 22) -> Location:
    """Where `part` first occurs in `line`."""
    column = line.index(part) + 1
    return Location(file, number, column, number, column + len(part), line)


def text(block: str) -> str:
    return dedent(block).strip("\n")


PRODUCT = span("        s = a; c = a @ b\n", "a @ b")


def test_compile_error_shows_place_source_carets_and_hint() -> None:
    error = CompileError(
        "'@' needs 2-D tensors", PRODUCT, hint="b is float32[64]; reshape it to float32[64, 1]"
    )
    assert str(error) == text("""
        matmul.py:22:20: error: '@' needs 2-D tensors
              s = a; c = a @ b
                         ^^^^^
          hint: b is float32[64]; reshape it to float32[64, 1]
    """)


def test_ipython_shows_the_place_in_place_of_a_traceback() -> None:
    error = CompileError("'@' needs 2-D tensors", PRODUCT, hint="reshape it")
    with pytest.raises(CompileError):
        raise error
    assert "\n".join(error._render_traceback_()) == str(error)


def test_ipython_shows_the_user_s_calls_and_none_of_ours() -> None:
    def template(location: Location) -> None:
        raise CompileError("no", location)

    with pytest.raises(CompileError) as far:
        template(PRODUCT)
    shown = far.value._render_traceback_()
    assert shown[: shown.index("called from:")] == str(far.value).splitlines()
    assert "template(PRODUCT)" in shown[-3].strip()
    assert shown[-2].endswith("in template")

    with pytest.raises(CompileError) as nowhere:
        tc.kernel(lambda: 0)  # type: ignore[call-overload]
    first, called, file, line = nowhere.value._render_traceback_()
    assert (first, called) == (f"error: {nowhere.value.message}", "called from:")
    assert __file__ in file
    assert line.strip().startswith("tc.kernel(lambda: 0)")


def test_notes_follow_the_hint_in_the_same_form() -> None:
    error = CompileError(
        "c is written twice",
        span("    c[i] = 1", "c[i]", number=9),
        hint="write it once",
        notes=(
            ("first written here", span("    c[j] = 0", "c[j]", number=7)),
            ("c is a parameter", Location("matmul.py", 3, 0, 3, 0)),
        ),
    )
    assert str(error) == text("""
        matmul.py:9:5: error: c is written twice
              c[i] = 1
              ^^^^
          hint: write it once
        matmul.py:7:5: note: first written here
              c[j] = 0
              ^^^^
        matmul.py:3: note: c is a parameter
    """)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (NOWHERE, "error: no"),
        (Location("a.py", 0, 0, 0, 0), "a.py: error: no"),
        (Location("a.py", 3, 0, 3, 0, "x = 1"), "a.py:3: error: no"),
        (Location("a.py", 3, 1, 3, 2), "a.py:3:1: error: no"),
        (Location("a.py", 3, 1, 3, 2, " \n"), "a.py:3:1: error: no"),
    ],
    ids=["nowhere", "file", "line", "column", "blank"],
)
def test_an_error_shows_as_much_of_its_place_as_is_known(location: Location, expected: str) -> None:
    assert str(CompileError("no", location)) == expected


@pytest.mark.parametrize(
    ("line", "part", "source", "carets"),
    [
        ("\tc = a @ b", "a @ b", "c = a @ b", "    ^^^^^"),
        ("c =\ta @ b", "a @ b", "c =     a @ b", "        ^^^^^"),
        ("c = a\t@ b", "a\t@ b", "c = a   @ b", "    ^^^^^^^"),
        ('s = "行列"; a @ b', "a @ b", 's = "行列"; a @ b', "            ^^^^^"),
        ("行 = 列 @ b", "列 @ b", "行 = 列 @ b", "     ^^^^^^"),
        ('s = "🚀"; a @ b', "a @ b", 's = "🚀"; a @ b', "          ^^^^^"),
        ('s = "e\u0301"; a @ b', "a @ b", 's = "e\u0301"; a @ b', "         ^^^^^"),
        ("e\u0301 @ b", "e\u0301 @ b", "e\u0301 @ b", "^^^^^"),
        ("naïve @ b", "b", "naïve @ b", "        ^"),
        ("s = '\x1b'; a", "a", "s = ' '; a", "         ^"),
    ],
    ids=[
        "tab before the line",
        "tab before the span",
        "tab in the span",
        "wide before",
        "wide inside",
        "emoji",
        "combining before",
        "combining inside",
        "precomposed",
        "control character",
    ],
)
def test_carets_line_up(line: str, part: str, source: str, carets: str) -> None:
    location = span(line, part)
    head = f"matmul.py:22:{line.index(part) + 1}: error: no"
    margin = " " * 6
    assert str(CompileError("no", location)) == f"{head}\n{margin}{source}\n{margin}{carets}"


@pytest.mark.parametrize(
    ("columns", "end_line", "carets"),
    [
        ((5, 7), 2, "    ^^^^^^^^^"),
        ((5, 99), 1, "    ^^^^^^^^^"),
        ((5, 5), 1, "    ^"),
        ((14, 14), 1, "             ^"),
    ],
    ids=["several lines", "past the end", "empty", "at the end"],
)
def test_carets_stay_on_the_first_line(
    columns: tuple[int, int], end_line: int, carets: str
) -> None:
    location = Location("a.py", 1, columns[0], end_line, columns[1], "c = load(a[0,  \n")
    assert str(CompileError("no", location)).split("\n")[2] == " " * 6 + carets


def test_a_span_may_start_in_the_indentation() -> None:
    location = Location("a.py", 1, 1, 1, 10, "    x = 1")
    assert str(CompileError("no", location)).split("\n")[1:] == ["      x = 1", "      ^^^^^"]


def test_a_file_below_the_working_directory_is_shown_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    below, beside = tmp_path / "here" / "sub" / "a.py", tmp_path / "a.py"
    assert str(Location(str(below), 1, 2, 1, 3)) == f"{Path('sub', 'a.py')}:1:2"
    assert str(Location(str(beside), 1, 2, 1, 3)) == f"{beside}:1:2"
    assert str(Location("<stdin>", 1, 2, 1, 3)) == "<stdin>:1:2"


def test_internal_error_carries_the_program() -> None:
    error = InternalError("a tile without a mapping", "kernel matmul:\n  tile acc")
    assert error.ir == "kernel matmul:\n  tile acc"
    assert str(error) == text("""
        internal error: a tile without a mapping (this is a bug in taskc; please report it with the text below)
        kernel matmul:
          tile acc
    """)


def test_internal_error_without_a_program() -> None:
    expected = "internal error: no target (this is a bug in taskc; please report it)"
    assert str(InternalError("no target")) == expected


FINDING = Finding(
    "race",
    "error",
    "workers 0 and 1 write acc[0, 0]",
    PRODUCT,
    details=(("block", "(0, 0)"), ("workers", 2)),
    notes=(("the other write", span("c[0] = 0", "c[0]", number=3)),),
)


def test_finding_has_the_form_of_an_error() -> None:
    assert str(FINDING) == text("""
        matmul.py:22:20: race: workers 0 and 1 write acc[0, 0]
              s = a; c = a @ b
                         ^^^^^
          block: (0, 0)
          workers: 2
        matmul.py:3:1: note: the other write
              c[0] = 0
              ^^^^
    """)
    assert str(Finding("deadlock", "error", "no one arrives")) == "deadlock: no one arrives"


def test_finding_as_json() -> None:
    expected = {
        "kind": "race",
        "severity": "error",
        "message": "workers 0 and 1 write acc[0, 0]",
        "location": {
            "file": "matmul.py",
            "line": 22,
            "column": 20,
            "end_line": 22,
            "end_column": 25,
        },
        "details": {"block": "(0, 0)", "workers": 2},
        "notes": [
            {
                "message": "the other write",
                "location": {
                    "file": "matmul.py",
                    "line": 3,
                    "column": 1,
                    "end_line": 3,
                    "end_column": 5,
                },
            }
        ],
    }
    assert json.loads(json.dumps(FINDING.to_json())) == expected


@pytest.mark.parametrize(
    "error",
    [CompileError("no", PRODUCT, "mend it", (("see", PRODUCT),)), InternalError("no", "kernel")],
    ids=["CompileError", "InternalError"],
)
def test_errors_cross_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
