"""Asynchronous matrix products from outside: SIMT kernels, at every stage."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import taskc as tc
from taskc import CompileError, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, repeat, spatial, tf32
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import convert
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.lang.definition import KernelDefinition
from taskc.passes.pipeline import lower
from taskc.runtime.checking import for_target
from tests.stages import results, same_after_every_pass


def fragment(n: int) -> tc.Mapping:
    return spatial(4, 1).repeat(1, n // 8).repeat(2, 1).spatial(8, 4).repeat(1, 2)


def run_everywhere(definition: KernelDefinition, *inputs: Any) -> Any:
    """What the kernel computes after every pass, under two schedules."""
    out = definition.ir.parameters[-1]
    assert isinstance(out, ir.Tensor)
    empty = np.zeros(tuple(map(int, out.shape)), out.dtype.numpy)  # type: ignore[arg-type]
    arguments = [*inputs, empty]
    lean = same_after_every_pass(definition.ir, arguments, seeds=(0, 1))[-1]
    return results(lean, arguments)[-1]


# --- numbers ---------------------------------------------------------------------------------


def product(dtype: tc.DType, into: tc.DType, n: int, k: int, width: int) -> KernelDefinition:
    """c = a @ b.T by ordinary copies, along k."""
    own = fragment(n)

    @tc.cuda.kernel(workers=128)
    def kernel(a: dtype[64, k], b: dtype[n, k], c: tc.out[into[64, n]]):  # type: ignore[valid-type]
        sa = tc.shared(dtype[64, k], swizzle=width)
        sb = tc.shared(dtype[n, k], swizzle=width)
        acc = tc.tile(into, own)
        for i, j in repeat(64, -(-k // 128)).spatial(1, 128).within(64, k):
            sa[i, j] = a[i, j]
        for i, j in repeat(n, -(-k // 128)).spatial(1, 128).within(n, k):
            sb[i, j] = b[i, j]
        tc.cuda.fence_proxy_async()
        tc.sync()
        tc.cuda.wgmma_fence()
        tc.cuda.wgmma(acc, sa, sb.T, accumulate=False)
        tc.cuda.wgmma_commit()
        tc.cuda.wgmma_wait(0)
        for i, j in own:
            c[i, j] = acc[i, j]

    return kernel


def phases(dtype: tc.DType, into: tc.DType, n: int, k: int) -> KernelDefinition:
    """The same as one phase: ascending k, one fused multiply-add a step."""

    @tc.kernel(workers=128)
    def kernel(a: dtype[64, k], b: dtype[n, k], c: tc.out[into[64, n]]):  # type: ignore[valid-type]
        acc = tc.tile(into, fragment(n), 0)
        sa = tc.load(a[:, :])
        sb = tc.load(b[:, :])
        tc.mma(acc, sa, sb.T)
        tc.store(c[:, :], acc)

    return kernel


@pytest.mark.parametrize(
    ("dtype", "into", "n", "k", "width"),
    [
        (bf16, f32, 8, 64, 128),
        (f16, f32, 24, 32, 64),
        (bf16, f32, 256, 16, 32),
        (tf32, f32, 16, 32, 128),
        (i8, i32, 48, 128, 128),
        (f8e4m3, f32, 8, 64, 64),
        (f8e5m2, f32, 40, 32, 32),
    ],
    ids=str,
)
def test_every_type(
    dtype: tc.DType, into: tc.DType, n: int, k: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(k)
    if dtype is i8:
        a, b = (random.integers(-128, 128, (m, k)).astype(np.int8) for m in (64, n))
    else:
        a, b = (random.normal(size=(m, k)).astype(dtype.numpy) for m in (64, n))
    result = run_everywhere(product(dtype, into, n, k, width), a, b)
    monkeypatch.setenv("TASKC_TARGET", "sim")  # a processor's own instructions round elsewhere
    assert np.array_equal(result, phases(dtype, into, n, k)(a, b))
    a, b = (convert(x, dtype, f64) for x in (a, b))  # of tf32, what counts
    exact = a @ b.T
    assert np.allclose(result, exact, rtol=1e-4, atol=1e-3)


def test_transposed_operands_of_16_bits() -> None:
    """Both operands lie with their rows and columns as neighbours; n takes two atoms."""
    own = fragment(32)

    @tc.cuda.kernel(workers=128)
    def kernel(a: bf16[32, 64], b: bf16[32, 32], c: tc.out[f32[64, 32]]):
        sa = tc.shared(bf16[32, 64], swizzle=128)
        sb = tc.shared(bf16[32, 32].laid(repeat(1, 2) * repeat(32, 16)), swizzle=32)
        acc = tc.tile(f32, own)
        for i, j in repeat(16, 1).spatial(2, 64):
            sa[i, j] = a[i, j]
        for i, j in repeat(8, 1).spatial(4, 32):
            sb[i, j] = b[i, j]
        tc.cuda.fence_proxy_async()
        tc.sync()
        tc.cuda.wgmma_fence()
        tc.cuda.wgmma(acc, sa.T, sb, accumulate=False)
        tc.cuda.wgmma_commit()
        tc.cuda.wgmma_wait(0)
        for i, j in own:
            c[i, j] = acc[i, j]

    random = np.random.default_rng(1)
    a, b = (random.integers(-4, 5, s).astype(ml_dtypes.bfloat16) for s in ((32, 64), (32, 32)))
    result = run_everywhere(kernel, a, b)
    assert np.array_equal(result, a.astype(np.float32).T @ b.astype(np.float32))


def test_a_result_that_stays_in_registers() -> None:
    """(a @ b.T) @ v: the first product's accumulator, rounded, is the second one's left operand."""
    own = fragment(32)

    @tc.cuda.kernel(workers=128)
    def kernel(a: bf16[64, 32], b: bf16[32, 32], v: bf16[16, 32], c: tc.out[f32[64, 16]]):
        sa = tc.shared(bf16[64, 32], swizzle=64)
        sb = tc.shared(bf16[32, 32], swizzle=64)
        sv = tc.shared(bf16[16, 32], swizzle=64)
        scores = tc.tile(f32, own)
        p = tc.tile(bf16, own)
        acc = tc.tile(f32, fragment(16))
        for i, j in repeat(16, 1).spatial(4, 32):
            sa[i, j] = a[i, j]
        for i, j in repeat(8, 1).spatial(4, 32):
            sb[i, j] = b[i, j]
        for i, j in repeat(4, 1).spatial(4, 32):
            sv[i, j] = v[i, j]
        tc.cuda.fence_proxy_async()
        tc.sync()
        tc.cuda.wgmma_fence()
        tc.cuda.wgmma(scores, sa, sb.T, accumulate=False)
        tc.cuda.wgmma_commit()
        tc.cuda.wgmma_wait(0)
        for i, j in own:
            p[i, j] = scores[i, j].to(bf16)
        tc.cuda.wgmma_fence()
        tc.cuda.wgmma(acc, p, sv.T, accumulate=False)
        tc.cuda.wgmma_commit()
        tc.cuda.wgmma_wait(0)
        for i, j in fragment(16):
            c[i, j] = acc[i, j]

    random = np.random.default_rng(2)
    a, b, v = (random.integers(-2, 3, (m, 32)).astype(ml_dtypes.bfloat16) for m in (64, 32, 16))
    result = run_everywhere(kernel, a, b, v)
    p = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)
    assert np.array_equal(result, p.astype(np.float32) @ v.astype(np.float32).T)


# --- a whole multiplication ------------------------------------------------------------------


def matmul(
    m: int, n: int, k: int, *, groups: int = 2, tall: int = 1, bn: int = 32, stages: int = 3
) -> KernelDefinition:
    """One warp loads by TMA, `groups` warpgroups multiply; one product is always under way."""
    bk = 64
    own = repeat(tall, 1) * spatial(groups, 1) * fragment(bn)
    bm, steps, consumers = own.shape[0], tc.cdiv(k, bk), 128 * groups

    @tc.cuda.kernel(workers=consumers + 32)
    def kernel(a: bf16[m, k], b: bf16[n, k], c: tc.out[f32[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            sa = tc.shared(bf16[stages, bm, bk], swizzle=128)
            sb = tc.shared(bf16[stages, bn, bk], swizzle=128)
            out = tc.shared(f32[bm, bn])
            full = tc.cuda.barriers(stages)
            empty = tc.cuda.barriers(stages)
            w = tc.worker()
            if w == 0:
                for s in range(stages):
                    tc.cuda.mbarrier_init(full[s], 1)
                    tc.cuda.mbarrier_init(empty[s], groups)
            tc.sync()
            with tc.cuda.roles():
                with tc.cuda.role("consumer", warps=4 * groups):
                    acc = tc.tile(f32, own)
                    tc.cuda.wgmma_fence()
                    for t in range(steps):
                        slot = t % stages
                        tc.cuda.mbarrier_wait(full[slot], t // stages % 2)
                        tc.cuda.wgmma(acc, sa[slot, :, :], sb[slot, :, :].T, accumulate=t > 0)
                        tc.cuda.wgmma_commit()
                        tc.cuda.wgmma_wait(1)
                        if t > 0 and w % 128 == 0:
                            tc.cuda.mbarrier_arrive(empty[(t - 1) % stages])
                    tc.cuda.wgmma_wait(0)
                    for i, j in own:
                        out[i, j] = acc[i, j]
                    tc.cuda.fence_proxy_async()
                    tc.cuda.syncrole()
                    if w == 0:
                        tc.cuda.tma_store(c[row, col], out[0, 0], bm, bn)
                        tc.cuda.tma_commit()
                        tc.cuda.tma_wait(0)
                with tc.cuda.role("producer", warps=1):
                    if w == consumers:
                        for t in range(steps):
                            slot = t % stages
                            tc.cuda.mbarrier_wait(empty[slot], (t // stages + 1) % 2)
                            tc.cuda.mbarrier_expect(full[slot], (bm + bn) * bk * 2)
                            tc.cuda.tma_load(sa[slot, 0, 0], a[row, t * bk], full[slot], bm, bk)
                            tc.cuda.tma_load(sb[slot, 0, 0], b[col, t * bk], full[slot], bn, bk)

    return kernel


@pytest.mark.parametrize(
    ("m", "n", "k", "options"),
    [
        (128, 64, 128, {}),
        (129, 36, 136, {}),  # the edges are zeros that TMA brings, and drops
        (1, 4, 8, {"groups": 1, "bn": 8, "stages": 2}),
        (256, 40, 64, {"tall": 2, "bn": 40, "stages": 4}),
    ],
)
def test_a_multiplication(m: int, n: int, k: int, options: dict[str, int]) -> None:
    random = np.random.default_rng(m)
    a, b = (random.integers(-4, 5, (x, k)).astype(ml_dtypes.bfloat16) for x in (m, n))
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(run_everywhere(matmul(m, n, k, **options), a, b), expected)
    assert np.array_equal(matmul(m, n, k, **options)(a, b), expected)


def test_accumulators_count_as_registers() -> None:
    kernel = product(bf16, f32, 256, 16, 32).ir
    arrays = [np.zeros((64, 16), ml_dtypes.bfloat16), np.zeros((256, 16), ml_dtypes.bfloat16)]
    report = sim.run(kernel, [*arrays, np.zeros((64, 256), np.float32)])
    assert report.register_bytes == 128 * 4


def test_lean_places() -> None:
    """An instruction names the first element of each fragment, in registers and in memory."""
    text = to_text(lower(matmul(512, 40, 128, tall=2, bn=40).ir))
    (line,) = (line.strip() for line in text.splitlines() if "do wgmma.m64" in line)
    assert re.fullmatch(
        r"do wgmma\.m64n40k16\.bf16\(&acc\[(\w+) \* 20\], &sa\[\w+ \+ \1 \* 8192\], &sb\[\w+\],"
        r" \w+, 0, 1\)",
        line,
    )


def test_swizzled_buffers_begin_where_their_swizzle_does() -> None:
    own = fragment(8)

    @tc.cuda.kernel(workers=128)
    def kernel(c: tc.out[f32[64, 8]]):
        first = tc.shared(f32[2, 150])
        s = tc.shared(bf16[8, 64], swizzle=128)
        first[0, tc.worker()] = 0.0
        s[0, 0] = 0.0
        for i, j in own:
            c[i, j] = first[0, 0]

    tensors = [node.tensor for node in walk(lower(kernel.ir).body) if isinstance(node, ir.Allocate)]
    assert {tensor.name: tensor.offset for tensor in tensors} == {"first": 0, "s": 2048}


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "generic"])
def test_other_targets_have_none(target: str) -> None:
    kernel = for_target(product(bf16, f32, 16, 64, 128).ir, target)
    with pytest.raises(CompileError, match=rf"{target} has no wgmma\.m64n16k16\.bf16") as caught:
        lower(kernel)
    assert caught.value.location.text.strip() == "tc.cuda.wgmma(acc, sa, sb.T, accumulate=False)"


def test_mma_becomes_asynchronous_where_it_can() -> None:
    """Its own tests are in tests/passes/test_select_products.py."""
    text = to_text(lower(for_target(phases(bf16, f32, 16, 64).ir, "sm_90a"), "selected"))
    assert "how=wgmma.m64n16k16.bf16" in text
