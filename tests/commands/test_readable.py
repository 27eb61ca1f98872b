"""Problems and plans as words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskc.commands.terminal import printable, words
from taskc.format import time_text

F32, F16 = ({"is": "type", "name": name} for name in ("f32", "f16"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"is": "Problem", "dtype": F32, "k": 3, "m": 1, "n": 2, "right": F32, "total": F32},
            "m=1 n=2 k=3 f32",
        ),
        (
            {"is": "Problem", "bias": True, "dtype": F16, "k": 3, "m": 1, "total": F32},
            "m=1 k=3 f16 total=f32 bias",
        ),
        (
            {"is": "Problem", "exact": False, "extents": [56, 56], "order": "NHWC", "dtype": F32},
            "extents=56x56 f32 exact=no order=NHWC",
        ),
        (
            {"is": "Problem", "activation": {"is": "function", "name": "a.b.relu"}, "scale": None},
            "activation=relu scale=no",
        ),
        (
            {"m": {"is": "dim", "multiple": 16}, "k": {"is": "dim", "multiple": 1}},
            "m=dim(16) k=dim",
        ),
        (
            {"is": "Packs", "own": {"is": "mapping", "text": "spatial(4, 2).repeat(2, 2)"}},
            "Packs own=spatial(4,2).repeat(2,2)",
        ),
        ({"is": "Panels", "few": {"is": "FewRows", "lanes": 16}}, "Panels few=(FewRows lanes=16)"),
        ({"a": [1, [2, "x"], True], "b": [], "c": 0.5}, "a=[1,[2,x],True] b=[] c=0.5"),
        ({"is": 5, "name\x1b": "\x1b[2J\n"}, r"5 name\x1b=\x1b[2J\n"),
        ([1, 2], "[1, 2]"),
        ("a\u202e", r'"a\u202e"'),
    ],
)
def test_words(said: Any, expected: str) -> None:
    assert " ".join(words(json.dumps(said))) == expected


def test_what_is_no_json_is_shown_as_it_is() -> None:
    assert words("{") == ["{"]
    deep = '{"a":' * 100_000
    assert words(deep) == [deep]
    assert words('{"a":' * 900 + "1" + "}" * 900)


def test_printable() -> None:
    assert printable("plain ü 名") == "plain ü 名"
    assert printable("\x1b[31m\r\n\u2028\U000e0001") == r"\x1b[31m\r\n\u2028\U000e0001"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (4.2e-9, "4.2 ns"),
        (999.6e-9, "1 µs"),
        (1.25e-3, "1.25 ms"),
        (12.3456, "12.3 s"),
        (123456.0, "123456 s"),
    ],
)
def test_durations(seconds: float | None, expected: str) -> None:
    assert time_text(seconds) == expected
