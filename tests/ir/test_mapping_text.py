"""Mappings as text: what is written is read back, and a mistake is pointed at."""

from __future__ import annotations

import re

import pytest

from taskc.ir.mapping import Mapping, auto_map, repeat, spatial
from taskc.ir.mapping_forms import MappingError, Mode
from tests.ir.test_mapping import MATMUL


# Text
@pytest.mark.parametrize(
    "text",
    [
        "spatial(4, 2).repeat(2, 2).spatial(4, 8)",
        "spatial(2, 3, order=(1, 0))",
        "replicate(4).spatial(2, 3)",
        "spatial(2, 3).replicate(4)",
        "replicate(4)",
        "replicate(4, rank=2)",
        "replicate(4, rank=2).replicate(3)",
        "repeat(8, 8).within(5, 7)",
        "repeat()",
        "mapping((4, 4), 2, [[(0, 0)], [(1, 0), None, (1, 1)]])",
        "mapping((4, 4), 2, [[None, None], [(1, 0)]])",
        "mapping((3,), 1, [[(0,), (2,)]]).within(2)",
    ],
)
def test_text_is_read_back_as_it_was(text: str) -> None:
    m = Mapping.parse(text)
    assert str(m) == repr(m) == text
    assert Mapping.parse(str(m)) == m


def test_both_ways_to_write_a_composition() -> None:
    m = spatial(4, 2) * repeat(2, 2) * spatial(4, 8, order=(1, 0))
    assert Mapping.parse("spatial(4,2)*repeat( 2 ,2 )\n .spatial(4, 8, order=(1,0,))") == m
    assert Mapping.parse("(spatial(4, 2)) * (repeat(2, 2) * spatial(4, 8, order=(1, 0)))") == m
    # As in Python, a method call binds closer than a product.
    assert Mapping.parse("repeat(3) * repeat(4).within(3)") == repeat(3) * repeat(4).within(3)


def test_a_cover_is_read_as_what_it_is() -> None:
    cover = auto_map((7, 33), workers=32, vector=4)
    assert Mapping.parse("auto_map((7, 33), workers=32, vector=4)") == cover
    assert Mapping.parse(str(cover)) == cover
    assert Mapping.parse("repeat(2) * auto_map((8,), workers=4)") == (
        repeat(2) * auto_map((8,), workers=4)
    )
    with pytest.raises(MappingError, match=r"column 1: auto_map\(0, 1\) needs integers"):
        Mapping.parse("auto_map((8,), workers=0)")


def test_a_derived_mapping_prints_as_an_equal_one() -> None:
    assert str(MATMUL / repeat(4, 4)) == "spatial(4, 2).repeat(2, 2).spatial(4, 8)"
    assert str(MATMUL / MATMUL) == "spatial(1, 1)"
    assert str(spatial(2, 3, 4).project((2, 0))) == "spatial(1, 2).replicate(3).spatial(4, 1)"


def test_a_derived_mapping_that_is_no_chain_prints_as_a_table() -> None:
    """The slower digit of its only dimension adds less than the faster one."""
    swapped = Mapping.from_modes((4,), [Mode(0, 2, 1), Mode(0, 2, 2)], [])
    assert str(swapped) == "mapping((4,), 4, [[(0,)], [(2,)], [(1,)], [(3,)]])"
    assert (Mapping.parse(str(swapped)).tasks == swapped.tasks).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "spatail(4)",
            "column 1: expected '(' or 'auto_map' or 'mapping' or 'repeat' or 'replicate' or"
            " 'spatial', not 'spatail'",
        ),
        ("spatial(4", "column 10: expected ')' or ',', not the end of the text"),
        ("spatial(4 16)", "column 11: expected ')' or ',', not '16'"),
        ("spatial(-1)", "column 9: expected ')' or an integer, not '-'"),
        ("spatial(2) x", "column 12: expected '*' or '.' or the end of the text, not 'x'"),
        ("replicate(2, order=1)", "column 14: expected 'rank', not 'order'"),
        (
            "spatial(4).",
            "column 12: expected 'auto_map' or 'mapping' or 'repeat' or 'replicate' or 'spatial' or"
            " 'within', not the end of the text",
        ),
        (
            "repeat(2) * spatial(4, 0)",
            "column 13: spatial(4, 0) needs integers of at least 1; got 0",
        ),
        (
            "spatial(2, 3) * repeat(4)",
            "column 17: spatial(2, 3) has rank 2 and repeat(4) has rank 1; they must be equal",
        ),
        (
            "mapping((2,), 2, [[(0,)]])",
            "column 1: mapping(…) has 2 workers, but lists of tasks for 1",
        ),
    ],
)
def test_a_mistake_in_the_text_is_found(text: str, message: str) -> None:
    with pytest.raises(MappingError, match=f"^{re.escape(message)}$"):
        Mapping.parse(text)
