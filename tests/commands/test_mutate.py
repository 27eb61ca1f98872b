"""taskc mutate: what is broken, what is reported, and the exit code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from taskc.commands import mutate as mutate_command
from taskc.errors import Finding, Location
from taskc.mutation import Mutant


def mutants(reported: int, silent: int, reason: str) -> list[Mutant]:
    place = Location("k.py", 3, 5, 3, 9, "    s[i]")
    race = Finding("race", "error", "a race", place)
    return [
        *(
            Mutant("delete", "synchronized", "barrier deleted", place, race)
            for _ in range(reported)
        ),
        *(Mutant("move", "lean", "barrier moved", place, None, reason) for _ in range(silent)),
    ]


@pytest.mark.parametrize(
    ("reported", "silent", "reason", "code"),
    [(19, 1, "", 0), (18, 1, "", 1), (18, 1, "proved", 0), (0, 0, "", 0)],
)
def test_mutate_counts_what_is_reported(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    reported: int,
    silent: int,
    reason: str,
    code: int,
) -> None:
    made = mutants(reported, silent, reason)
    monkeypatch.setattr(mutate_command, "mutate", lambda *args, **keywords: iter(made))
    ended = run("mutate", "03_kernels.py:add")
    assert ended.code == code
    if made:
        assert re.search(
            rf"^delete +synchronized +{reported} +{reported}$", ended.out, re.MULTILINE
        )
        assert re.search(rf"^move +lean +0 +{silent}$", ended.out, re.MULTILINE)
        expected = reason or "not reported, and not known to be equivalent"
        assert f"k.py:3:5: barrier moved, at lean: {expected}\n" in ended.out
        assert f"{reported} of {reported + silent} mutants reported, " in ended.out
    answer = json.loads(run("mutate", "03_kernels.py:add", "--json").out)
    assert (answer["total"], answer["reported"]) == (reported + silent, reported)


def test_mutate_breaks_a_real_kernel(run: Any) -> None:
    ended = run("mutate", "03_kernels.py:doubled(8)", "--seeds", "1", "--json")
    answer = json.loads(ended.out)
    assert {mutant["kind"] for mutant in answer["mutants"]} >= {"delete", "mapping", "buffer"}
    barriers = [mutant for mutant in answer["mutants"] if mutant["kind"] == "delete"]
    assert all(mutant["reported"] for mutant in barriers)


def test_mutate_a_program(run: Any) -> None:
    ended = run("mutate", "programs.py:twice", "--seeds", "1", "--json", "--target", "sm_80")
    answer = json.loads(ended.out)
    assert ended.code == 0
    assert answer["total"] == answer["reported"] + answer["equivalent"]
    deleted = [mutant for mutant in answer["mutants"] if mutant["kind"] == "delete"]
    assert deleted
    assert all(mutant["reported"] for mutant in deleted)
