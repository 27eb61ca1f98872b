"""`x.T`: the same elements from the last dimension to the first, wherever a tensor or a slice may stand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import repeat, spatial
from taskc.ir.compare import program_difference
from taskc.ir.printer import to_text
from taskc.passes.pipeline import lower
from tests.lang.notebook import body_text, cell, checked


def test_an_element() -> None:
    body = """
    for i, j in spatial(4, 8):
        c.T[j, i] = a.T[j, i] + a.T.T[i, j]
        c.T[(j, i)] += s
    """
    header = """\
@tc.kernel(workers=32)
def k(a: f32[64, 32], c: tc.inout[f32[64, 32]], s: f32):
"""
    assert body_text(body, header).splitlines() == [
        "each (i, j) in spatial(4, 8):",
        "    c[i, j] = a[i, j] + a[i, j]",
        "    c[i, j] = c[i, j] + s",
    ]


def test_all_dimensions_are_reversed() -> None:
    header = "@tc.kernel(workers=8)\ndef k(x: f32[2, 3, 4], v: f32[9], y: tc.inout[f32[4]]):\n"
    body = """
    turned, same = x.T, v.T
    assert turned.shape == (4, 3, 2) and len(turned) == 4 and turned.dtype is f32
    assert turned[0:2, :, 1].shape == (2, 3) and turned[0:2, :, 1].T.shape == (3, 2)
    for i in spatial(8):
        tc.atomic_add(y[0], turned[3, 2, i] + same[i])
    """
    assert body_text(body, header).splitlines()[-1] == "    atomic y[0] += x[i, 2, 3] + v[i]"


def test_an_atomic() -> None:
    header = "@tc.kernel(workers=8)\ndef k(x: tc.inout[f32[2, 8]]):\n"
    body = "for i in spatial(8):\n    tc.atomic_add(x.T[i, 1], 2)"
    assert body_text(body, header).splitlines()[-1] == "    atomic x[1, i] += 2.0"


def test_a_load_is_seen_transposed_and_lies_as_memory_does() -> None:
    body = """
    t = tc.load(a.T[0:8, 4:20], fill=1)
    u = tc.load(a[4:20, 0:8], fill=1)
    assert t.shape == (8, 16) and t.T.shape == (16, 8)
    for i, j in spatial(4, 8):
        c[i, j] = t[i, j] + u[j, i] + t.T[j, i]
    """
    assert body_text(body).splitlines() == [
        "constant shared t: f32[16, 8]",
        "move t[i, j] = a[4 + i, j] for (i, j) in (16, 8)",
        "constant shared u: f32[16, 8]",
        "move u[i_1, j_1] = a[4 + i_1, j_1] for (i_1, j_1) in (16, 8)",
        "each (i_2, j_2) in spatial(4, 8):",
        "    c[i_2, j_2] = t[j_2, i_2] + u[j_2, i_2] + t[j_2, i_2]",
    ]


def same(*bodies: str, header: str) -> None:
    """All of the bodies are one program, but for names."""
    kernels = [checked(cell(header + body)["k"].ir) for body in bodies]
    for other in kernels[1:]:
        assert program_difference(kernels[0], other) is None, to_text(other)


STORES = "@tc.kernel(workers=32)\ndef k(x: f32[32, 64], c: tc.out[f32[64, 32]]):\n"


def test_a_store_to_a_transpose_is_the_store_of_one() -> None:
    start = "    t = tc.load(x[0:32, 0:64])\n"
    same(
        start + "    tc.store(c.T[0:32, 0:64], t)\n",
        start + "    tc.store(c[0:64, 0:32], t.T)\n",
        start + "    tc.store(c[0:64, 0:32], lambda i, j: t[j, i])\n",
        start + "    tc.store(c.T[0:32, 0:64], lambda i, j: t[i, j])\n",
        start + "    tc.copy(c.T[0:32, 0:64], t)\n",
        header=STORES,
    )


TILES = """
def make(own, dtype):
    rows, columns = own.shape

    @tc.kernel(workers=own.workers)
    def k(x: dtype[rows, columns], c: tc.out[dtype[columns, rows]]):
        t = tc.tile(dtype, own)
        tc.copy(t, x[0:rows, 0:columns])
        STORE

    return k
"""


STORES_OF_TILES = (
    "tc.store(c.T[0:rows, 0:columns], t)",
    "tc.store(c[0:columns, 0:rows], t.T)",
    "tc.store(c[0:columns, 0:rows], lambda i, j: t[j, i])",
    "tc.copy(c[0:columns, 0:rows], t.T)",
)


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["generic", "sm_80", "sm_90a"])
@pytest.mark.parametrize("store", STORES_OF_TILES)
def test_a_tiles_owners_store_its_transpose(store: str, target: str) -> None:
    """In registers nothing is exchanged, whichever way the store is written."""
    fragment = spatial(4, 1) * repeat(1, 8) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    for own in (repeat(2, 1) * spatial(4, 8), fragment):
        first, k = (
            cell(TILES.replace("STORE", one))["make"](own, tc.f16)
            for one in (STORES_OF_TILES[0], store)
        )
        assert program_difference(first.ir, k.ir) is None
        (x,) = k.example()
        assert (k(x) == x.T).all()
        findings = tc.check(k, target=target)
        assert [finding for finding in findings if finding.severity == "error"] == []


def test_a_tile_takes_a_transpose() -> None:
    made = cell("""
@tc.kernel(workers=32)
def k(x: f32[8, 4], y: tc.out[f32[4, 8]]):
    t = tc.tile(f32, spatial(4, 8))
    tc.copy(t, x.T[0:4, 0:8])
    u = tc.tile(f32, spatial(4, 8))
    tc.copy(u.T, x[0:8, 0:4])
    for i, j in spatial(4, 8):
        y[i, j] = t[i, j] + u[i, j]
""")["k"]
    (x,) = made.example()
    assert (made(x) == 2 * x.T).all()
    assert [finding for finding in tc.check(made) if finding.severity == "error"] == []


def test_who_copies_what_is_said_as_it_is_written() -> None:
    same(
        "    tc.copy(c.T[0:32, 0:64], x[0:32, 0:64], by=repeat(4, 16) * spatial(8, 4))\n",
        "    tc.copy(c[0:64, 0:32], x.T[0:64, 0:32], by=repeat(4, 16).project((1, 0)) *"
        " spatial(8, 4).project((1, 0)))\n",
        header=STORES,
    )


def test_edges_are_masked_and_filled_where_memory_ends() -> None:
    same(
        "    for p, q in tc.tiles((33, 20), by=(16, 8)):\n"
        "        t = tc.load(x.T[p : p + 16, q : q + 8])\n"
        "        tc.store(y.T[p : p + 16, q : q + 8], t)\n",
        "    for p, q in tc.tiles((33, 20), by=(16, 8)):\n"
        "        t = tc.load(x[q : q + 8, p : p + 16])\n"
        "        tc.store(y[q : q + 8, p : p + 16], t)\n",
        header="@tc.kernel(workers=32)\ndef k(x: f32[20, 33], y: tc.out[f32[20, 33]]):\n",
    )


def test_a_helper_takes_either() -> None:
    @tc.function
    def first(x: Any, i: Any) -> Any:
        return x[i, 0]

    body = "for i, j in spatial(4, 8):\n    c[i, j] = first(a, i) + first(a.T, j)"
    assert body_text(body, first=first).splitlines()[1] == "    c[i, j] = a[i, 0] + a[0, j]"


def test_below_phases() -> None:
    header = "@tc.cuda.kernel(workers=32)\ndef k(x: f32[4, 32], y: tc.inout[f32[4, 32]]):\n"
    body = """
    s = tc.shared(f32[4, 32])
    w = tc.worker()
    tc.cuda.cp_async(s.T[w, 1], x.T[w, 2], 1, True)
    """
    assert body_text(body, header).endswith("do cp.async(&s[1, w], &x[2, w], 1, True)")


SUM = """
def make_sum(shape, box):
    @tc.kernel(workers=8)
    def k(x: f32[shape], y: tc.inout[f32[shape[::-1]]], z: tc.out[f32[shape]]):
        for (*first,) in tc.tiles(x.T.shape, by=(*box[::-1],)):
            for (*at,) in auto_map((*box[::-1],), workers=8):
                there = [first[d] + at[d] for d in range(len(box))]
                if all([there[d] < x.T.shape[d] for d in range(len(box))]):
                    y[(*there,)] += x.T[(*there,)]
                    z.T[(*there,)] = y[(*there,)]
    return k
"""


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 5), (2, 3, 1, 5)])
def test_it_means_what_numpys_does(shape: tuple[int, ...]) -> None:
    k = cell(SUM)["make_sum"](shape, (2,) * len(shape))
    x, y = k.example()
    before = y.copy()
    z = k(x, y)
    assert (y == before + x.T).all()
    assert (y == z.T).all()
    assert [finding for finding in tc.check(k) if finding.severity == "error"] == []


def test_of_a_size_that_a_call_tells() -> None:
    made = cell("""
m, n = tc.dim("m"), tc.dim("n")

@tc.kernel(workers=32)
def turned(x: f32[m, n], y: tc.out[f32[n, m]]):
    for i, j in tc.tiles(x.T.shape, by=(8, 8)):
        tc.store(y[i : i + 8, j : j + 8], tc.load(x.T[i : i + 8, j : j + 8]))
""")["turned"]
    x = np.arange(11 * 13, dtype=np.float32).reshape(11, 13)
    assert (made(x) == x.T).all()


# --- products: one text for all ways in which operands may lie --------------------------------

PRODUCT = """
def make(own, dtype, depth, ways):
    m, n, k = 256, 256, 128
    tall, wide = own.shape
    of_a = dtype[k, m] if ways[0] else dtype[m, k]
    of_b = dtype[n, k] if ways[1] else dtype[k, n]

    @tc.kernel(workers=own.workers)
    def by_views(a: of_a, b: of_b, c: tc.out[f32[m, n]]):
        left, right = a.T if ways[0] else a, b.T if ways[1] else b
        for row, col in tc.tiles((m, n), by=(tall, wide)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=depth, **PIPELINE):
                sa = tc.load(left[row : row + tall, p : p + depth])
                sb = tc.load(right[p : p + depth, col : col + wide])
                tc.mma(acc, sa, sb)
            tc.store(c[row : row + tall, col : col + wide], acc)

    @tc.kernel(workers=own.workers)
    def by_hand(a: of_a, b: of_b, c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(tall, wide)):
            acc = tc.tile(f32, own, 0)
            for p in tc.pipeline(k, by=depth, **PIPELINE):
                if ways[0]:
                    sa = tc.load(a[p : p + depth, row : row + tall])
                else:
                    sa = tc.load(a[row : row + tall, p : p + depth])
                if ways[1]:
                    sb = tc.load(b[col : col + wide, p : p + depth])
                    if ways[0]:
                        tc.mma(acc, sa.T, sb.T)
                    else:
                        tc.mma(acc, sa, sb.T)
                else:
                    sb = tc.load(b[p : p + depth, col : col + wide])
                    if ways[0]:
                        tc.mma(acc, sa.T, sb)
                    else:
                        tc.mma(acc, sa, sb)
            tc.store(c[row : row + tall, col : col + wide], acc)

    return by_views, by_hand
"""
WARPS = spatial(2, 2) * repeat(2, 4) * (repeat(2, 1) * spatial(8, 4) * repeat(1, 2))
GROUP = spatial(4, 1) * repeat(1, 16) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
SQUARES = repeat(2, 2) * spatial(4, 8) * repeat(2, 2)


@pytest.mark.each_value
@pytest.mark.parametrize("ways", [(x, y) for x in (False, True) for y in (False, True)])
@pytest.mark.parametrize(
    ("target", "own", "dtype", "depth", "pipeline"),
    [
        ("generic", SQUARES, tc.f32, 8, "stages=2"),
        ("sm_80", WARPS, tc.f16, 32, "stages=3"),
        ("sm_80", WARPS, tc.i8, 64, "stages=2"),
        ("sm_90a", GROUP, tc.bf16, 64, "stages=3, specialize=True"),
    ],
    ids=["fma", "mma", "mma of bytes", "wgmma"],
)
def test_a_product_by_views_is_that_by_hand(
    target: str, own: tc.Mapping, dtype: tc.DType, depth: int, pipeline: str, ways: Any
) -> None:
    text = PRODUCT.replace("**PIPELINE", pipeline)
    if dtype is tc.i8:
        text = text.replace("f32", "i32")
    by_views, by_hand = cell(text)["make"](own, dtype, depth, ways)
    assert program_difference(by_views.ir, replace(by_hand.ir, name="by_views")) is None
    texts = [to_text(lower(replace(made.ir, target=target))) for made in (by_views, by_hand)]
    views, hand = (re.sub(r"in line \d+|by_\w+", "", text) for text in texts)
    assert views == hand
    assert {"generic": "fma", "sm_80": "mma.", "sm_90a": "wgmma"}[target] in views
