"""What depends on a target is data of ir/target.py: nobody else asks for one by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from taskc.ir.target import GPUS, TARGETS

ROOT = Path(__file__).parent.parent.parent
FILES = [p for p in sorted((ROOT / "taskc").rglob("*.py")) if p.name != "target.py"]


def compared(source: str) -> Iterator[str]:
    """Names of targets, or what they begin with, that something is compared with."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare():
                parts = [node.left, *node.comparators]
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
                parts = node.args
            case ast.MatchValue():
                parts = [node.value]
            case _:
                continue
        texts = [
            inner for part in parts for inner in ast.walk(part) if isinstance(inner, ast.Constant)
        ]
        for text in (one.value for one in texts if isinstance(one.value, str)):
            if len(text) > 2 and any(name.startswith(text) for name in TARGETS):
                yield f"line {node.lineno}: {text}"


def test_no_target_is_known_by_its_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {text}"
        for path in FILES
        for text in compared(path.read_text(encoding="utf-8"))
        if not text.endswith(": generic")  # no machine: what holds for all
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'a = arch == "sm_90a"',
        'a = target.name in ("sm_80", "sm_89")',
        'a = name.startswith("sm_")',
        'a = name.startswith("avx512")',
        'match a:\n    case "neon":\n        pass',
    ],
)
def test_a_planted_comparison_is_caught(source: str) -> None:
    assert [*compared(source)]


def test_a_gpu_runs_what_older_ones_do() -> None:
    """But for wgmma, bulk copies and clusters, which one generation has alone."""
    before_hopper = [gpu for gpu in GPUS if gpu.capabilities[0] < (9, 0)]
    for older, newer in pairwise([*before_hopper, TARGETS["sm_90a"]]):
        assert newer.runs(older)
        assert older.converts >= newer.converts
    for older in before_hopper:
        assert TARGETS["sm_120a"].runs(older)
    assert not TARGETS["sm_120a"].runs(TARGETS["sm_90a"])
    assert not TARGETS["sm_80"].runs(TARGETS["sm_89"])


def test_each_capability_has_what_nvidia_says_of_it() -> None:
    """Bytes of shared memory that a block may have, by the programming guide's table."""
    allowed = {gpu.capabilities[0]: gpu.shared_bytes >> 10 for gpu in GPUS}
    assert allowed == {
        (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (12, 0): 99,
    }  # fmt: skip


def test_no_two_targets_are_for_one_gpu() -> None:
    capabilities = [one for gpu in GPUS for one in gpu.capabilities]
    assert len(capabilities) == len({*capabilities})
