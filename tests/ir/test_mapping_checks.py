"""What is no mapping is refused, and said."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from taskc.ir.mapping import auto_map, mapping, repeat, replicate, spatial
from taskc.ir.mapping_forms import MappingError


# Rejections
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: spatial(4, 0), "spatial(4, 0) needs integers of at least 1; got 0"),
        (lambda: repeat(-2), "repeat(-2) needs integers of at least 1; got -2"),
        (lambda: spatial(2.0), "spatial(2.0) needs integers of at least 1; got 2.0"),
        (lambda: spatial(True), "spatial(True) needs integers of at least 1; got True"),
        (lambda: replicate(0), "replicate(0) needs integers of at least 1; got 0"),
        (lambda: replicate(2, rank=-1), "replicate(2, rank=-1) needs a rank of 0 to 32"),
        (
            lambda: spatial(2, 3, order=(0, 0)),
            "spatial(2, 3) needs each dimension of 0..1 once in its order; got (0, 0)",
        ),
        (
            lambda: repeat(2, 3, order=(1,)),
            "repeat(2, 3) needs each dimension of 0..1 once in its order; got (1,)",
        ),
        (lambda: spatial(4, 16)(64), "worker 64 is outside 0..63 of spatial(4, 16)"),
        (lambda: spatial(4, 16)(-1), "worker -1 is outside 0..63 of spatial(4, 16)"),
        (lambda: spatial(4)(1.5), "a worker must be an integer; got 1.5"),
        (lambda: spatial(4, 16).owner((4, 0)), "task (4, 0) is outside the shape (4, 16)"),
        (lambda: spatial(4, 16).owner((4,)), "task (4,) is outside the shape (4, 16)"),
        (
            lambda: spatial(4, 16).within(3, 16).owner((3, 0)),
            "no worker has task (3, 0) in spatial(4, 16).within(3, 16)",
        ),
        (
            lambda: mapping((2, 2), 1, lambda w: [(0, 0)]).owner((1, 0)),
            "no worker has task (1, 0) in mapping((2, 2), 1, …)",
        ),
        (
            lambda: mapping((2, 2), 2, lambda w: [(w, w + 1)]),
            "worker 1's task (1, 2) is outside the shape (2, 2)",
        ),
        (
            lambda: spatial(4).find([0], [[0, 1]]),
            "tasks of spatial(4) have 1 coordinates; got an array of shape (1, 2)",
        ),
        (
            lambda: spatial(2, 3) * repeat(4),
            "spatial(2, 3) has rank 2 and repeat(4) has rank 1; they must be equal",
        ),
        (
            lambda: spatial(4, 4) / spatial(3, 4),
            "spatial(4, 4) is not a multiple of spatial(3, 4): "
            "the shape (4, 4) is not a multiple of (3, 4)",
        ),
        (
            lambda: spatial(4) / replicate(3),
            "spatial(4) is not a multiple of replicate(3): 4 workers are not a multiple of 3",
        ),
        (
            lambda: spatial(4, 4) / spatial(4, 2),
            "spatial(4, 4) is not a multiple of spatial(4, 2): "
            "its fastest workers and slots are not those",
        ),
        (
            lambda: repeat(4, 4).within(5, 4),
            "within(5, 4) exceeds the shape (4, 4) of repeat(4, 4)",
        ),
        (lambda: repeat(4, 4).within(3), "within(3) has rank 1, but repeat(4, 4) has 2"),
        (lambda: repeat(4, 4).covers((3,)), "covers(3) has rank 1, but repeat(4, 4) has 2"),
        (
            lambda: repeat(4, 4).project((0, 0)),
            "project((0, 0)) needs distinct dimensions in 0..1 of repeat(4, 4)",
        ),
        (lambda: auto_map((4, 4), workers=0), "auto_map(0, 1) needs integers of at least 1; got 0"),
        (lambda: auto_map((), workers=4), "auto_map needs a shape of rank at least 1; got ()"),
    ],
)
def test_rejections(act: Callable[[], object], message: str) -> None:
    with pytest.raises(MappingError, match=f"^{re.escape(message)}$"):
        act()


def test_a_mapping_composes_with_mappings_only() -> None:
    with pytest.raises(TypeError):
        spatial(4) * 2  # type: ignore[operator]
    with pytest.raises(TypeError):
        spatial(4) / 2  # type: ignore[operator]
    with pytest.raises(AttributeError):
        spatial(4).limit = (2,)  # type: ignore[misc]
