"""What a notebook shows of kernels and programs, and that it is HTML whatever they are called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taskc as tc
from taskc import f32, repeat, spatial
from taskc.ir import nodes as ir
from taskc.notebooks import mappings_of
from taskc.programs.ir import Program
from tests.pages import Page

OWN = spatial(2, 4) * repeat(2, 3)
PANELS = repeat(1, 2) * repeat(7, 5)


def pipelined(k: int | tc.Size = 7) -> tc.KernelDefinition:
    by = repeat(2, 2).spatial(8, 1)

    @tc.kernel(workers=8)
    def kernel(a: f32[13, k], b: f32[7, 10].laid(PANELS), s: f32, c: tc.out[f32[13, 10]]) -> None:
        for row in tc.tiles(13, by=4):
            acc = tc.tile(f32, OWN, 0)
            sa = tc.shared(f32[4, 2])
            tc.copy(sa[0:4, 0:2], a[row : row + 4, 0:2], by=by)
            for i, j in OWN:
                acc[i, j] = s + sa[i, 0] + b[0, 0]
            for i, j in OWN:
                if row + i < 13 and j < 10:
                    c[row + i, j] = acc[i, j]

    return kernel


@tc.program
def chain(x: f32[48], y: tc.out[f32[48]]) -> None:
    doubled = tc.compute((48,), lambda i: x[i] * 2)
    tc.compute((48,), lambda i: doubled[i] + x[47 - i], out=y)


def page_of(shown: object) -> Page:
    text = shown._repr_html_()  # type: ignore[attr-defined]
    page = Page(text)
    assert [name for name, _, _ in page.elements if name in ("script", "link", "img")] == []
    (_, outer, _) = page.elements[-1]
    assert outer == {"class": "taskc"}
    return page


def rows(page: Page) -> list[str]:
    return page.texts("tr")


def test_a_kernel_shows_its_parameters_and_texts() -> None:
    page = page_of(pipelined(tc.dim("k")))
    assert "kernel kernel, 8 workers" in page.texts("div")
    assert rows(page)[1:] == [
        "af32[13, k]input",
        "bf32[7, 10]input",
        "sf32number",
        "cf32[13, 10]output",
    ]
    source, text = page.texts("pre")
    assert source.startswith("@tc.kernel(workers=8)\ndef kernel(")
    assert text.startswith("kernel kernel[k](")
    assert page.texts("summary") == ["source", "as the compiler has it"]


def test_a_kernel_shows_each_mapping_once_with_all_that_goes_by_it() -> None:
    kernel = pipelined()
    assert [(str(mapping), places) for mapping, places in mappings_of(kernel.ir).items()] == [
        ("repeat(1, 2).repeat(7, 5)", ["layout of b"]),
        ("spatial(2, 4).repeat(2, 3)", ["acc", "for i, j"]),
        ("repeat(2, 2).spatial(8, 1)", ["copy to sa"]),
    ]
    page = page_of(kernel)
    assert page.texts("figcaption")[1] == "spatial(2, 4).repeat(2, 3): acc, for i, j"
    assert len(page.found("svg")) == 3


def test_of_many_mappings_the_first_are_drawn() -> None:
    owns = [spatial(8, n).repeat(n, 1) for n in range(1, 9)]

    @tc.kernel(workers=1)
    def kernel(y: tc.out[f32[9]]) -> None:
        for i in repeat(9):
            y[i] = 0.0

    loops = [
        ir.Each((ir.Variable("i"), ir.Variable("j")), own, None, kernel.ir.body) for own in owns
    ]
    many = tc.KernelDefinition.of(replace(kernel.ir, body=ir.Sequence(tuple(loops))))
    page = page_of(many)
    assert len(page.found("figure")) == 6
    assert "and 3 more mappings" in page.texts("div")


def test_a_kernel_without_source_or_mappings_shows_what_there_is() -> None:
    @tc.cuda.kernel(workers=32)
    def below(y: tc.out[f32[32]]) -> None:
        y[tc.worker()] = 1.0

    page = page_of(tc.KernelDefinition.of(below.ir))
    assert "kernel below, 32 workers, for sm_90a" in page.texts("div")
    assert not page.found("figure")
    assert page.texts("summary") == ["as the compiler has it"]


def test_a_program_shows_what_runs_and_what_that_was_made_of() -> None:
    page = page_of(chain)
    assert "program chain, 2 calls" in page.texts("div")
    (call,) = [row for row in rows(page) if "tc.compute" in row]
    assert "doubled = tc.compute((48,), lambda i: x[i] * 2)tc.compute((48,)" in call
    assert page.texts("summary") == ["as it runs", "source", "as it was traced"]
    runs, _, traced = page.texts("pre")
    assert (runs.count("out="), traced.count("out=")) == (1, 2)


def test_a_program_shows_the_mappings_of_its_kernels() -> None:
    @tc.kernel(workers=8)
    def one(x: f32[48], y: tc.out[f32[48]]) -> None:
        for i in spatial(8).repeat(6):
            y[i] = x[i] + 1

    @tc.kernel(workers=8)
    def two(x: f32[48], y: tc.out[f32[48]]) -> None:
        for i in spatial(8).repeat(6):
            y[i] = x[i] * x[i]

    @tc.program
    def both(x: f32[48], y: tc.out[f32[48]]) -> None:
        two(one(x), out=y)

    assert page_of(both).texts("figcaption") == ["spatial(8).repeat(6): one: for i, two: for i"]


def test_of_many_calls_the_first_are_listed() -> None:
    @tc.program(fuse=False)
    def long(y: tc.out[f32[110]]) -> None:
        for i in range(110):
            tc.compute((1,), lambda j: f32(i), out=y[i : i + 1])

    page = page_of(long)
    assert "program long, 110 calls" in page.texts("div")
    assert len([row for row in rows(page) if "tc.compute" in row]) == 100
    assert "and 10 more calls" in page.texts("div")


def test_a_program_that_cannot_be_scheduled_says_why() -> None:
    def forgetful(program: Program) -> Program:
        return replace(program, calls=())

    with tc.register_pass(forgetful, at="traced"):
        page = page_of(chain)
    (error,) = page.texts("pre", class_="error")
    assert "the pass 'forgetful' made a program that is wrong" in error
    assert page.texts("summary") == ["source", "as it was traced"]


HOSTILE = "</pre><script>alert(1)</script>&lt;"


def test_names_and_texts_are_no_markup() -> None:
    @tc.kernel(workers=2)
    def kernel(x: f32[4], y: tc.out[f32[4]]) -> None:
        for i in spatial(2) * repeat(2):
            assert x[i] < 9, "</pre><script>alert(1)</script>&lt;"
            y[i] = x[i]

    named = replace(kernel.ir, name=HOSTILE)
    for made in (kernel, tc.KernelDefinition.of(named)):
        page = page_of(made)
        assert any(HOSTILE in text for text in page.texts("pre"))
    assert HOSTILE in page.texts("strong")


def test_the_findings_of_a_check_are_shown_as_a_terminal_does() -> None:
    @tc.kernel(workers=4)
    def twice(x: f32[16], y: tc.out[f32[16]]) -> None:
        for i in spatial(4).repeat(4):
            y[i // 2] = x[i]  # </pre><script>

    found = tc.check(twice)
    page = page_of(found)
    assert page.texts("pre", class_="error") == [str(*found)]
    assert "^^^^" in str(*found)
    assert page_of(found[0]).texts("pre") == [str(*found)]
    assert page_of(tc.check(chain)).texts("div")[0] == "no findings"


def test_what_is_shown_leaves_a_call_as_it_is() -> None:
    page_of(chain)
    x = np.arange(48, dtype=np.float32)
    np.testing.assert_array_equal(chain(x), 2 * x + x[::-1])


@pytest.mark.parametrize("size", [1, 4096, 1 << 20])
def test_what_is_shown_is_small(size: int) -> None:
    @tc.kernel(workers=64)
    def kernel(x: f32[size], y: tc.out[f32[size]]) -> None:
        for start in tc.tiles(size, by=256):
            for i in spatial(64).repeat(4):
                if start + i < size:
                    y[start + i] = x[start + i]

    assert len(kernel._repr_html_()) < 12_000
