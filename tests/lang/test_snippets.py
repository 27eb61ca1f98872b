"""PTX in expressions: what it means, and that it comes through all passes as it was written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import taskc as tc
from taskc import f16, f32, i32, i64, repeat, spatial
from taskc.ir import nodes as ir
from taskc.ir.operations import fault_in_text
from taskc.ir.rewrite import substitute, walk
from tests.stages import same_after_every_pass

CLAMP = """{
    .reg .f32 low; // "0.0"
    max.f32 low, %1, 0f00000000;
    min.f32 %0, low, %2;
}"""


@tc.function
def clamp(x, top):
    return min(max(x, f32(0)), top)


@tc.kernel(workers=32)
def clamped(x: f32[101], top: f32, y: tc.out[f32[101]], n: tc.out[i64[101]]):
    for start in tc.tiles(101, by=64):
        for i in repeat(2) * spatial(32):
            if start + i < 101:
                y[start + i] = tc.cuda.ptx(f32, CLAMP, x[start + i], top, meaning=clamp) * 2
                n[start + i] = tc.cuda.ptx(
                    i64, "add.s64 %0, %1, 7;", start + i, meaning=lambda x: x + 7
                )


@pytest.mark.parametrize("target", ["generic", "sm_80", "sm_90a"])
def test_every_stage_computes_the_meaning_and_keeps_the_text(target: str) -> None:
    x = np.linspace(-2, 3, 101, dtype=np.float32)
    top, number = np.float32(1.5), np.arange(101)
    arguments = [x, top, np.zeros(101, np.float32), np.zeros(101, np.int64)]
    kernels = same_after_every_pass(
        replace(clamped.ir, target=target),
        arguments,
        expected=[x, top, 2 * np.clip(x, 0, top), number + 7],
    )
    assert kernels[-1].stage == "lean"
    for kernel in kernels:
        found = {node.snippet.text for node in walk(kernel.body) if isinstance(node, ir.Inline)}
        assert found == {CLAMP, "add.s64 %0, %1, 7;"}


def test_a_snippet_of_its_own_result() -> None:
    """The inner one's parameters are bound while the outer one's operands are evaluated."""

    @tc.function
    def less(a, b):
        return tc.cuda.ptx(i32, "sub.s32 %0, %1, %2;", a, b, meaning=lambda a, b: a - b)

    @tc.kernel(workers=4)
    def nested(x: i32[4], y: tc.out[i32[4]]):
        for i in spatial(4):
            y[i] = less(less(x[i], i32(1)), less(i32(2), x[i]))

    x = np.array([0, 1, 5, -3], np.int32)
    assert np.array_equal(nested(x), (x - 1) - (2 - x))


def test_only_the_operands_are_substituted() -> None:
    a, b = ir.Variable("a"), ir.Variable("b")
    snippet = ir.Snippet("ptx", "not.b64 %0, %1;", (a,), ir.Unary("~", a))
    node = substitute(ir.Inline(snippet, (a,)), {a: b})
    assert node == ir.Inline(snippet, (b,))


def test_no_operands_and_sixteen_bits() -> None:
    @tc.cuda.kernel(workers=32)
    def constants(y: tc.out[f16[32]]):
        one = tc.cuda.ptx(f16, "mov.b16 %0, 0x3C00U;", meaning=lambda: f16(1))
        y[tc.worker()] = one

    assert (constants() == 1).all()


def test_lazy_meanings_do_not_ask_what_is_not_taken() -> None:
    @tc.kernel(workers=8)
    def guarded(x: f32[4], y: tc.out[f32[8]]):
        for i in spatial(8):
            y[i] = (
                tc.cuda.ptx(f32, "neg.f32 %0, %1;", x[i], meaning=lambda a: -a) if i < 4 else f32(1)
            )

    assert guarded(np.ones(4, np.float32)).tolist() == [-1] * 4 + [1] * 4


@pytest.mark.parametrize(
    "text",
    [
        "mov.b64 %0, {%1, %2};",
        "@p add.s32 %0, %1, %2;",
        "/* ld.global */ add.s32 %0, %1, %2; // bra",
        "{ .reg .b32 ld_1; add.s32 ld_1, %1, %2; mov.b32 %0, ld_1; }",
    ],
)
def test_fine(text: str) -> None:
    assert fault_in_text(text, 2) is None


@pytest.mark.parametrize(
    "word", "ld st atom red bar bra cp mbarrier membar fence call ret shfl vote tex".split()
)
def test_not_a_value(word: str) -> None:
    for text in (
        f"{word}.x %0, %1;",
        f"add.u32 %0, %1, 1;\n @!p\t{word}.y %1;",
        f"{{ {word}; %0 %1; }}",
    ):
        fault = fault_in_text(text, 1)
        assert fault is not None
        assert fault.startswith(f"'{word}' ")
