"""What `check` says of kernels for a processor: each fault is found, and not in the form that the hint asks for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import KernelDefinition, Mapping, f32, f64, i32, repeat, spatial
from taskc.backend.cpu.advice import advice, spilled_bytes
from taskc.backend.cpu.processor import host, typical
from taskc.errors import Finding
from taskc.passes.pipeline import lower, lower_steps
from taskc.runtime.checking import check
from tests.example_files import FILES, definitions_of, example
from tests.kernels.test_extents import TEMPLATES


def found(kernel: KernelDefinition, target: str = "avx512", threads: int = 2) -> list[Finding]:
    given = replace(kernel.ir, target=target)
    stages = {step.kernel.stage: step.kernel for step in lower_steps(given)}
    sizes = {
        own: size.example for size, own in kernel.dimensions.items()
    }  # fmt: skip
    return list(advice(given, stages["scalar"], stages["lean"], typical(target), threads, sizes))


def kinds(kernel: KernelDefinition, **how: Any) -> list[str]:
    return [finding.kind for finding in found(kernel, **how)]


def hinted(finding: Finding) -> Mapping:
    """The mapping that a hint names."""
    hint = dict(finding.details)["hint"]
    return Mapping.parse(re.search(r"(repeat|spatial)\(.*\)", str(hint))[0])  # type: ignore[index]


# --- registers -------------------------------------------------------------------------------


def make_product(m: Any, n: Any, k: Any, own: Mapping, dtype: Any = f32) -> KernelDefinition:
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def product(a: dtype[m, k], b: dtype[k, n], c: tc.out[dtype[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            total = tc.tile(dtype, own, 0)
            for q in range(k):
                for i, j in own:
                    if row + i < m and col + j < n:
                        total[i, j] += a[row + i, q] * b[q, col + j]
            tc.store(c[row : row + bm, col : col + bn], total)

    return product


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_a_tile_that_does_not_fit(target: str, dtype: Any) -> None:
    lanes = tc.machine(target).lanes
    kernel = make_product(64, 128, 64, repeat(16, 4) * spatial(1, lanes), dtype)
    (finding,) = found(kernel, target)
    registers = tc.machine(target).registers
    assert finding.kind == "spilled"
    assert re.fullmatch(
        rf"total takes {64 * dtype.nbytes // 4} vector registers of {registers}: [\d,]+ bytes are spilled to memory",
        finding.message,
    )
    assert finding.location.text.strip() == "total = tc.tile(dtype, own, 0)"
    own = hinted(finding)
    mended = make_product(64, 128, 64, own, dtype)
    assert kinds(mended, target=target) == []
    assert own.workers == lanes
    for one in (kernel, mended):
        spilled = spilled_bytes(lower(replace(one.ir, target=target)), typical(target))
        assert (spilled > 0) == (one is kernel)


def test_what_lives_through_no_loop_may_be_larger() -> None:
    own = repeat(64, 1) * spatial(1, 16)

    @tc.kernel(workers=16)
    def moved(x: f32[64, 16], y: tc.out[f32[64, 16]]):
        held = tc.tile(f32, own)
        tc.copy(held, x[:, :])
        tc.store(y[:, :], held)

    assert kinds(moved) == []


# --- uneven loops ----------------------------------------------------------------------------


@tc.kernel(workers=16)
def a_row_a_lane(ends: i32[101], x: f32[1000], y: tc.out[f32[100]]):
    for r in tc.tiles(100, by=16):
        for i in spatial(16):
            if r + i < 100:
                total = f32(0)
                for q in range(max(ends[r + i], 0), min(ends[r + i + 1], 1000)):
                    total += x[q]
                y[r + i] = total


@tc.kernel(workers=16)
def lanes_share_a_row(ends: i32[101], x: f32[1000], y: tc.out[f32[100]]):
    for r in tc.tiles(100, by=1):
        first, last = max(ends[r], 0), min(ends[r + 1], 1000)
        sums = tc.tile(f32, spatial(16), 0)
        for q in range(first, last, 16):
            for i in spatial(16):
                if q + i < last:
                    sums[i] += x[q + i]
        tc.store(y[r : r + 1], tc.reduce(sums, 0, "+"))


@tc.kernel(workers=16)
def a_triangle(x: f32[16, 16], y: tc.out[f32[16]]):
    for i in spatial(16):
        total = f32(0)
        for q in range(i + 1):
            total += x[q, i]
        y[i] = total


def test_loops_of_as_many_turns_as_data_says() -> None:
    ends = np.sort(np.random.default_rng(0).integers(0, 1001, 101)).astype(np.int32)
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(a_row_a_lane(ends, x), lanes_share_a_row(ends, x))
    (finding,) = found(a_row_a_lane)
    assert finding.kind == "uneven"
    assert (
        finding.message
        == "each lane has turns of its own: a vector goes on until its last lane is done"
    )
    assert finding.location.text.strip().startswith("for q in range(max(ends[r + i], 0)")
    assert dict(finding.details)["hint"] == (
        "let the lanes share the turns of one: a uniform range by 16 around a loop over spatial(16), and tc.reduce"
    )
    assert kinds(lanes_share_a_row) == kinds(a_triangle) == []


# --- lanes -----------------------------------------------------------------------------------


def make_look_up(rows: Any, width: Any, own: Mapping) -> KernelDefinition:
    tall, wide = own.shape

    @tc.kernel(workers=own.workers)
    def look_up(table: f32[100, width], ids: tc.i64[rows], y: tc.out[f32[rows, width]]):
        for row, col in tc.tiles((rows, width), by=(tall, wide)):
            for i, j in own:
                if row + i < rows and col + j < width:
                    k = ids[row + i]
                    y[row + i, col + j] = table[k, col + j] if 0 <= k < 100 else 0

    return look_up


@pytest.mark.parametrize(
    ("rows", "width"),
    [(200, 64), (tc.dim("rows", example=200), 64), (201, tc.dim("width", example=70)), (37, 5)],
)
def test_workers_that_differ_in_rows(rows: Any, width: Any) -> None:
    findings = found(make_look_up(rows, width, spatial(16, 1) * repeat(1, 64)))
    assert [str(finding).splitlines()[0].partition(": ")[2] for finding in findings] == [
        "strided: neighbouring workers differ in dimension 0 of y: each lane is accessed alone",
        "strided: neighbouring workers differ in dimension 0 of table: each lane is accessed alone",
    ]
    assert {hinted(finding) for finding in findings} == {spatial(1, 16)}
    assert kinds(make_look_up(rows, width, repeat(16, 4) * hinted(findings[0]))) == []


def test_an_index_that_is_data_is_no_fault_of_the_mapping() -> None:
    @tc.kernel(workers=16)
    def gather(x: f32[64], ids: tc.i64[64], y: tc.out[f32[64]]):
        for start in tc.tiles(64, by=16):
            for i in spatial(16):
                k = ids[start + i]
                y[start + i] = x[k] if 0 <= k < 64 else 0

    assert kinds(gather) == []


def make_scaled(n: Any, own: Mapping) -> KernelDefinition:
    (size,) = own.shape

    @tc.kernel(workers=own.workers)
    def scaled(x: f32[n], y: tc.out[f32[n]]):
        for start in tc.tiles(n, by=size):
            for i in own:
                if start + i < n:
                    y[start + i] = 2 * x[start + i]

    return scaled


def test_workers_that_have_runs() -> None:
    slow = found(make_scaled(1000, spatial(16) * repeat(8)))
    assert [finding.message for finding in slow] == [
        f"neighbouring workers are 8 elements apart in {name}: each lane is accessed alone"
        for name in ("y", "x")
    ]
    assert kinds(make_scaled(1000, repeat(8) * hinted(slow[0]))) == []
    assert kinds(make_scaled(1000, spatial(16) * repeat(2))) == []  # two vectors, and shuffles


def make_turned(m: int, n: int, through: bool) -> KernelDefinition:
    own = repeat(16, 1) * spatial(1, 16)

    @tc.kernel(workers=16)
    def turned(x: f32[m, n], y: tc.out[f32[n, m]]):
        for row, col in tc.tiles((m, n), by=(16, 16)):
            if through:
                part = tc.load(x[row : row + 16, col : col + 16])
                for j, i in own:
                    if row + i < m and col + j < n:
                        y[col + j, row + i] = part[i, j]
            else:
                for i, j in own:
                    if row + i < m and col + j < n:
                        y[col + j, row + i] = x[row + i, col + j]

    return turned


def test_where_either_side_is_apart_memory_of_the_block_helps() -> None:
    (finding,) = found(make_turned(200, 100, False))
    assert finding.message.startswith("neighbouring workers differ in dimension 0 of y")
    assert dict(finding.details)["hint"] == (
        "go through tc.shared, whose loops are along the rows of y and of what is beside it"
    )
    assert kinds(make_turned(200, 100, True)) == []


# --- workers and blocks ----------------------------------------------------------------------


def make_sums(n: int, own: Mapping, m: int = 1000) -> KernelDefinition:
    @tc.kernel(workers=own.workers)
    def sums(x: f32[m, n], y: tc.out[f32[n]]):
        for col in tc.tiles(n, by=own.shape):
            total = tc.tile(f32, own, 0)
            for q in range(m):
                for j in own:
                    if col + j < n:
                        total[j] += x[q, col + j]
            tc.store(y[col : col + own.shape[0]], total)

    return sums


def test_lanes_without_workers() -> None:
    for workers, idle, lanes in ((1, 15, 16), (4, 12, 16), (20, 12, 32)):
        (finding,) = found(make_sums(400, spatial(workers)))
        assert finding.kind == "lanes"
        said = f"a block has {workers} workers, and {idle} of {lanes} lanes have none"
        assert finding.message == said.replace(" 1 workers", " 1 worker")
        assert hinted(finding) == spatial(16)
        assert finding.location.text.strip() == "def sums(x: f32[m, n], y: tc.out[f32[n]]):"
    assert kinds(make_sums(400, spatial(16))) == []
    assert kinds(make_scaled(40, spatial(4))) == []  # there is nothing to do


def test_fewer_blocks_than_threads() -> None:
    one, two = (make_sums(256, repeat(count) * spatial(16), 20_000) for count in (16, 8))
    (finding,) = found(one)
    assert (finding.kind, finding.message) == ("blocks", "there is 1 block for 2 threads")
    assert kinds(two) == []
    (finding,) = found(two, threads=8)
    assert finding.message == "there are 2 blocks for 8 threads"
    assert kinds(one, threads=1) == []
    assert kinds(make_sums(256, repeat(16) * spatial(16), 100)) == []  # too little for two threads


# --- the command, and what is good already ---------------------------------------------------


def test_check_says_it_for_processors_alone() -> None:
    kernel = make_look_up(40, 64, spatial(16, 1) * repeat(1, 64))
    assert [finding.kind for finding in check(kernel, target="cpu")] == ["strided", "strided"]
    assert check(kernel, target="avx2") != ()
    assert check(kernel, target="generic", stages="parsed") == ()


# What is true of kernels of the examples, and why it is so.
OF_EXAMPLES = {
    ("stage", "strided"): "a worker has whole pairs, whose parts are neighbours, as NumPy has them",
    ("lu", "strided"): "a step divides a column, once, between products along the rows",
    ("lu", "blocks"): "each step needs the one before, so one block has all of them",
}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_examples_are_good(path: Any) -> None:
    for definition in definitions_of(example(path.stem.partition("_")[2])).values():
        for kernel in definition.kernels:
            if kernel.ir.target == "generic" and not kernel.ir.name.startswith("_"):
                name = kernel.ir.name
                expected = {kind for one, kind in OF_EXAMPLES if one == name}
                # Mappings are written for AVX-512, or chosen for this machine.
                targets = "avx512", {4: "sse2", 8: "avx2", 16: "avx512"}[tc.machine().lanes]
                assert any(set(kinds(kernel, target=target)) == expected for target in targets)


# What is true of the library's kernels, and why it is so.
KNOWN = {
    ("batch_matmul", "strided"): "a panel of a transposed operand is turned once, in the cache",
    ("matmul", "strided"): "the same",
    ("convolution", "strided"): "filters are packed once, where nothing waits for it",
    ("argmax", "spilled"): "a tile of numbers, and one of their places in i64",
    ("argmin", "spilled"): "the same",
}


@pytest.mark.skipif(host().lanes != 16, reason="other processors have other plans")
@pytest.mark.parametrize(("name", "make", "extents"), TEMPLATES, ids=[it[0] for it in TEMPLATES])
def test_the_library_is_good_but_for_what_is_known(name: str, make: Any, extents: Any) -> None:
    operator = re.split(" along|, |_[13]d", name)[0]
    made = make(**extents)
    assert {(operator, kind) for it in made.kernels for kind in kinds(it)} <= KNOWN.keys()


def test_mended_forms_compute_the_same() -> None:
    x, ids = np.random.default_rng(0).standard_normal((100, 64), np.float32), np.arange(40) % 100
    for own in (spatial(16, 1) * repeat(1, 64), repeat(16, 4) * spatial(1, 16)):
        np.testing.assert_array_equal(make_look_up(40, 64, own)(x, ids), x[ids])
