"""Tuples while parsing: `*` in indices, calls, loops and parameters, so that a kernel serves every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import Mapping, repeat, spatial
from taskc.ir.compare import program_difference
from taskc.ir.printer import to_text
from tests.lang.notebook import body_text, cell


def test_the_parts_of_a_tuple_are_indices() -> None:
    body = """
    for i, j in spatial(4, 8):
        place = i, j
        c[(*place,)] = a[(*[place[axis] for axis in (0, 1)],)] + a[(i, *place[1:])]
    """
    assert body_text(body) == "each (i, j) in spatial(4, 8):\n    c[i, j] = a[i, j] + a[i, j]"


def test_what_a_tuple_makes_is_called_as_its_targets() -> None:
    body = "here, (there, _) = tc.shared(f32[2]), (tc.shared(f32[3]), 1)"
    assert body_text(body) == "shared here: f32[2]\nshared there: f32[3]"


def test_any_tuple_is_a_place() -> None:
    body = """
    for i, j in spatial(4, 8):
        places = (i, j), (i, 0)
        c[places[0]] = a[places[1] if len(places) > 1 else places[0]]
    """
    assert body_text(body) == "each (i, j) in spatial(4, 8):\n    c[i, j] = a[i, 0]"


def test_a_starred_index_stands_beside_a_slice() -> None:
    body = "rest = (3,)\nt = tc.load(a[0:8, (*rest,)[0]])"
    assert body_text(body).splitlines() == [
        "constant shared t: f32[8]",
        "move t[i] = a[i, 3] for i in 8",
    ]


def test_the_parts_of_a_tuple_are_arguments() -> None:
    @tc.function
    def least(first: Any, *others: Any) -> Any:
        return first if not others else min(first, *others)

    body = """
    pair = s, x[0]
    t = least(*pair, x[1])
    u = least(*pair[:1])
    v = tc.fma(*pair, 2)
    """
    assert body_text(body, least=least).splitlines() == [
        "let pair = x[0]",
        "let others = x[1]",
        "let t = min(min(s, pair), others)",
        "let u = s",
        "let v = fma(s, pair, 2.0)",
    ]
    assert least(3, 2, 1) == 1


def test_a_starred_call_is_still_the_whole_statement() -> None:
    body = """
    for i in spatial(32):
        old = tc.atomic_add(y[i], *(s,))
    """
    assert body_text(body) == "each i in spatial(32):\n    let old = atomic y[i] += s"


def test_a_loop_over_a_tuple_is_unrolled() -> None:
    body = """
    for part in (s, x[0] + 1):
        y[0] += part * part
    for name in ():
        y[0] = name.missing
    """
    header = "@tc.cuda.kernel(workers=32)\ndef k(x: f32[64], y: tc.inout[f32[64]], s: f32):\n"
    assert body_text(body, header).splitlines() == [
        "let part = x[0] + 1.0",
        "y[0] = fma(s, s, y[0])",
        "y[0] = fma(part, part, y[0])",
    ]


def test_items_are_numbered_paired_and_reversed() -> None:
    body = """
    for number, (part, factor) in enumerate(zip((s, x[0]), (2, 3), strict=True), start=4):
        y[number] = part * factor
    for part in reversed((s, x[1])):
        y[0] = part
    for number, part in enumerate(()):
        y[number] = part
    t = [place + 1 for number, place in enumerate((1, 2))][1] * s
    """
    header = "@tc.cuda.kernel(workers=32)\ndef k(x: f32[64], y: tc.inout[f32[64]], s: f32):\n"
    assert body_text(body, header).splitlines() == [
        "let value = x[0]",
        "y[4] = s * 2.0",
        "y[5] = value * 3.0",
        "let part = x[1]",
        "y[0] = part",
        "y[0] = s",
        "let t = 3.0 * s",
    ]


def test_a_generator_is_a_list() -> None:
    body = """
    for i, j in spatial(4, 8):
        place = tuple(part + 1 for part in (i, j))
        c[place] = max(a[tuple(part for part in reversed(place))], *(s for _ in range(2)))
    p = max(q for q in range(3)) + min([4, 5])
    v = s * p
    """
    assert body_text(body).splitlines() == [
        "each (i, j) in spatial(4, 8):",
        "    let place = i + 1",
        "    let place_1 = j + 1",
        "    c[place, place_1] = max(max(a[place_1, place], s), s)",
        "let v = s * 6.0",
    ]


def test_a_list_has_the_values_of_when_it_was_made() -> None:
    body = "kept = [y[0], [y[1]]]\ny[0] = s\ny[2] = kept[0] + kept[1][0]"
    header = "@tc.cuda.kernel(workers=32)\ndef k(y: tc.inout[f32[64]], s: f32):\n"
    assert body_text(body, header).splitlines() == [
        "let kept = y[0]",
        "let kept_1 = y[1]",
        "y[0] = s",
        "y[2] = kept + kept_1",
    ]


def test_a_loop_names_the_rest() -> None:
    body = """
    for i, *rest in spatial(4, 8):
        c[(i, *rest)] = s
    for (*place,) in spatial(4, 8):
        c[place] = s
    for i, j, *none in spatial(4, 8):
        c[(i, j, *none)] = s
    """
    assert body_text(body).splitlines() == [
        "each (i, rest_0) in spatial(4, 8):",
        "    c[i, rest_0] = s",
        "each (place_0, place_1) in spatial(4, 8):",
        "    c[place_0, place_1] = s",
        "each (i_1, j) in spatial(4, 8):",
        "    c[i_1, j] = s",
    ]


def test_a_grid_of_extents_that_were_taken_apart() -> None:
    """Of no batches, too: then there are fewer extents than places written."""

    def filled(batches: tuple[int, ...]) -> tc.KernelDefinition:
        @tc.kernel(workers=4)
        def kernel(y: tc.out[tc.f32[(*batches, 6)]]):
            for *batch, col in tc.tiles((*batches, 6), by=(*[1 for _ in batches], 4)):
                for i in spatial(4):
                    if col + i < 6:
                        y[(*batch, col + i)] = 1.0

        return kernel

    for batches in ((), (2,), (2, 3)):
        assert (filled(batches)() == np.ones((*batches, 6))).all()


def test_loads_and_stores_take_any_rank() -> None:
    body = """
    t = tc.load((4, 8), lambda *place: a[place])
    tc.store(c[0:4, 0:8], lambda i, *rest: t[(i, *rest)])
    """
    assert body_text(body).splitlines() == [
        "constant shared t: f32[4, 8]",
        "move t[place_0, place_1] = a[place_0, place_1] for (place_0, place_1) in (4, 8)",
        "move c[i, rest_0] = t[i, rest_0] for (i, rest_0) in (4, 8)",
    ]


def test_a_function_of_any_rank_makes_a_block_value() -> None:
    @tc.function
    def doubled(i: Any, *rest: Any) -> Any:
        return i + sum_of(rest)

    @tc.function
    def sum_of(parts: Any) -> Any:
        return parts[0] + sum_of_pair(*parts[1:])

    @tc.function
    def sum_of_pair(*parts: Any) -> Any:
        return parts[0] if parts else 0

    made = body_text(
        "t = tc.load((2, 4, 8), doubled)", doubled=doubled, sum_of=sum_of, sum_of_pair=sum_of_pair
    )
    assert made.splitlines()[1].endswith(
        "= i + (rest_0 + rest_1) for (i, rest_0, rest_1) in (2, 4, 8)"
    )


MAKE_SHIFTED = """
def make_shifted(shape, own):
    @tc.kernel(workers=own.workers)
    def shifted(x: f32[shape], y: tc.out[f32[shape]]):
        axes = range(len(shape))
        for (*first,) in tc.tiles(shape, by=own.shape):
            part = tc.load(own.shape, lambda *at: x[(*[first[d] + at[d] for d in axes],)], fill=0)
            for (*at,) in own:
                there = [first[d] + at[d] for d in axes]
                if all([there[d] < shape[d] for d in axes]):
                    y[(*there,)] = part[at] + 1
    return shifted
"""


@pytest.mark.parametrize(
    ("shape", "own"),
    [
        ((37,), repeat(2) * spatial(8)),
        ((5, 9), spatial(2, 4)),
        ((3, 4, 5), repeat(1, 2, 1) * spatial(2, 1, 4)),
        ((2, 1, 3, 7), spatial(1, 1, 2, 4)),
    ],
)
def test_one_kernel_serves_every_rank(shape: tuple[int, ...], own: Mapping) -> None:
    made = cell(MAKE_SHIFTED)["make_shifted"](shape, own)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert (made(x) == x + 1).all()
    assert [finding for finding in tc.check(made) if finding.severity == "error"] == []


def test_the_names_in_between_are_all_that_differs() -> None:
    made = cell(MAKE_SHIFTED)["make_shifted"]((5, 9), spatial(2, 4))
    written = cell("""
@tc.kernel(workers=8)
def shifted(x: f32[5, 9], y: tc.out[f32[5, 9]]):
    for first, second in tc.tiles((5, 9), by=(2, 4)):
        part = tc.load((2, 4), lambda i, j: x[first + i, second + j], fill=0)
        for i, j in spatial(2, 4):
            row, column = first + i, second + j
            if row < 5 and column < 9:
                y[row, column] = part[i, j] + 1
""")["shifted"]
    assert program_difference(made.ir, written.ir) is None, to_text(made.ir)
