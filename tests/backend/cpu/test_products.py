"""`tc.mma` by the processor's instructions: the exact numbers of integers, and the bound of floats."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8, i16, i32, repeat, spatial, u8
from taskc.backend import sim
from taskc.backend.cpu.compile import LoadedKernel, assembly_of, compile_kernel, llvm_text
from taskc.backend.cpu.processor import Processor, host, typical
from taskc.passes.pipeline import lower

VNNI, BF16 = ("avx512_vnni", "avx512_bf16", "avx512_amx"), ("avx512_bf16",)
needs_vnni = pytest.mark.skipif(host().target not in VNNI, reason="needs AVX-512 VNNI")
needs_bf16 = pytest.mark.skipif(
    host().target not in BF16, reason="vdpbf16ps is for processors with BF16 and without AMX"
)

WIDE = repeat(8, 3) * spatial(1, 16)
OWNS = [
    WIDE,
    repeat(4, 2) * spatial(2, 8),
    repeat(2, 2) * spatial(3, 11),  # the last vector has one worker
    repeat(3, 2) * spatial(1, 2),
    repeat(2, 5),  # one worker
    repeat(2, 2) * spatial(2, 3) * repeat(2, 2),  # packs that no load has
]


def product(
    own: tc.Mapping, m: int, n: int, k: int, left: Any, right: Any, total: Any, start: float = 0
) -> Any:
    bm, bn = own.shape

    @tc.kernel(workers=own.workers)
    def kernel(a: left[m, k], b: right[k, n], c: tc.out[total[m, n]]):
        for row, col in tc.tiles((m, n), by=(bm, bn)):
            acc = tc.tile(total, own, start)
            sa = tc.load(a[row : row + bm, 0:k])
            sb = tc.load(b[0:k, col : col + bn])
            tc.mma(acc, sa, sb)
            tc.store(c[row : row + bm, col : col + bn], acc)

    return kernel


def from_packs(own: tc.Mapping, k: int, left: Any, right: Any, total: Any) -> Any:
    """Of a constant operand that was packed before."""
    bm, bn = own.shape
    pack = 4 // left.nbytes

    @tc.kernel(workers=own.workers)
    def kernel(
        a: left[bm, k],
        b: right[k, bn].laid(repeat(k // pack, bn) * repeat(pack, 1)),
        c: tc.out[total[bm, bn]],
    ):
        acc = tc.tile(total, own, 0)
        tc.mma(acc, a[0:bm, 0:k], b[0:k, 0:bn])
        tc.store(c[0:bm, 0:bn], acc)

    return kernel


def narrower() -> Processor:
    """This processor, as if its vectors had 8 lanes."""
    return replace(host(), target="avx2_vnni")


def run(kernel: Any, *given: Any, on: Processor | None = None) -> tuple[Any, Any]:
    """The output of compiled code, and of the simulator for the lowered program."""
    processor = on or host()
    lean = lower(replace(kernel.ir, target=processor.target))
    output = kernel.ir.parameters[-1]
    results = [np.full(output.shape, 77, output.dtype.numpy) for _ in range(2)]
    LoadedKernel(kernel.ir, compile_kernel(lean, processor)).run([*given, results[0]], {})
    arguments = [*given, results[1]]
    report = sim.run(lean, arguments)
    assert report.ok, report
    return results[0], arguments[-1]


def integers(dtype: Any, shape: tuple[int, int]) -> Any:
    """Of the whole range, the ends among them."""
    ends = np.iinfo(dtype.numpy)
    made = np.random.default_rng(shape).integers(ends.min, ends.max + 1, shape)
    made.flat[:2] = ends.min, ends.max
    return made.astype(dtype.numpy)


def exactly(a: Any, b: Any, start: int = 0) -> Any:
    return (a.astype(np.int64) @ b.astype(np.int64) + start).astype(np.int32)


@needs_vnni
@pytest.mark.parametrize(
    ("own", "left", "shape"),
    [(own, i8, (5, 17, 13)) for own in OWNS]
    + [(WIDE, u8, (9, 50, 17)), (OWNS[1], u8, (3, 1, 3)), (OWNS[2], u8, (1, 67, 16))],
    ids=str,
)
def test_integers(own: tc.Mapping, left: Any, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = integers(left, (m, k)), integers(i8, (k, n))
    kernel = product(own, m, n, k, left, i8, i32, 5)
    for processor in (host(), narrower()):
        compiled, simulated = run(kernel, a, b, on=processor)
        np.testing.assert_array_equal(compiled, exactly(a, b, 5))
        np.testing.assert_array_equal(simulated, compiled)


@needs_vnni
def test_sums_wrap() -> None:
    k = 16 * 1024
    a, b = np.full((8, k), -128, np.int8), np.full((k, 48), -128, np.int8)
    b[:, 1] = 127
    kernel = product(WIDE, 8, 48, k, i8, i8, i32, 2**31 - 1)
    np.testing.assert_array_equal(run_compiled(kernel, a, b), exactly(a, b, 2**31 - 1))


def run_compiled(kernel: Any, *given: Any) -> Any:
    output = kernel.ir.parameters[-1]
    result = np.empty(output.shape, output.dtype.numpy)
    lean = lower(replace(kernel.ir, target=host().target))
    LoadedKernel(kernel.ir, compile_kernel(lean, host())).run([*given, result], {})
    return result


def floats(shape: tuple[int, int]) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(bf16.numpy)


@needs_bf16
@pytest.mark.parametrize(
    ("own", "shape"),
    [(own, (5, 17, 13)) for own in OWNS] + [(WIDE, (9, 50, 18)), (OWNS[1], (1, 3, 127))],
    ids=str,
)
def test_bf16(own: tc.Mapping, shape: tuple[int, int, int]) -> None:
    """The simulator's bits, and as far from the exact sum as k roundings."""
    m, n, k = shape
    a, b = floats((m, k)), floats((k, n))
    compiled, simulated = run(product(own, m, n, k, bf16, bf16, f32), a, b)
    np.testing.assert_array_equal(compiled, simulated)
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = k * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]))
    assert (np.abs(compiled - wide[0] @ wide[1]) <= bound).all()


@needs_bf16
def test_subnormal_floats_count_as_zeros() -> None:
    a, b = np.zeros((8, 2), np.float32), np.ones((2, 48), np.float32)
    a[0], a[1, 0], a[2, 0] = 1e-39, 2.0**-126, 1.5 * 2.0**-126
    b[:, 0], b[:, 1], b[0, 2], b[1, 2] = 2.0**100, 0.5, 1.0, 0.0
    given = a.astype(bf16.numpy), b.astype(bf16.numpy)
    found = run_compiled(product(WIDE, 8, 48, 2, bf16, bf16, f32), *given)
    assert not found[0].any(), "subnormal operands"
    assert found[1, 1] == 0.0, "a subnormal result"
    assert (found[1, 0], found[2, 2]) == (2.0**-26, np.float32(1.5 * 2.0**-126))


def instructions(text: str, name: str) -> list[str]:
    return re.findall(rf"\t{name}\t(.*)", text)


@pytest.mark.parametrize(
    ("target", "types", "name", "register"),
    [
        ("avx512_vnni", (i8, i8, i32), "vpdpbusd", "zmm"),
        ("avx512_vnni", (u8, i8, i32), "vpdpbusd", "zmm"),
        ("avx2_vnni", (i8, i8, i32), r"\{vex\}\tvpdpbusd", "ymm"),
        ("avx512_bf16", (bf16, bf16, f32), "vdpbf16ps", "zmm"),
        ("avx512", (i16, i16, i32), "vpmaddwd", "zmm"),
        ("avx2", (i16, i16, i32), "vpmaddwd", "ymm"),
    ],
)
def test_a_step_of_k_is_one_instruction_for_each_vector(
    target: str, types: tuple[Any, ...], name: str, register: str
) -> None:
    """And, of signed numbers, one more row of them; nothing is spilled."""
    lanes = typical(target).lanes
    own = repeat(6, 2) * spatial(1, lanes) if lanes == 16 else repeat(3, 2) * spatial(1, lanes)
    lean = lower(replace(from_packs(own, 256, *types).ir, target=target))
    text = assembly_of(lean, typical(target))
    found = instructions(text, name)
    rows = own.shape[0] + (types[0] is i8)
    assert len(found) == 2 * rows
    assert all(register in operands for operands in found)
    inner = text[text.index(found[0]) : text.rindex(found[-1])]
    assert "(%rsp" not in inner


def test_lanes_without_a_worker_read_nothing() -> None:
    lean = lower(
        replace(from_packs(repeat(2, 2) * spatial(1, 11), 8, i8, i8, i32).ir, target="avx512_vnni")
    )
    text, _ = llvm_text(lean, typical("avx512_vnni"))
    assert "llvm.masked.gather.v16i32" in text
    assert not re.search(r"= load <16 x i32>, ptr %\d+, align 1$", text, flags=re.M)


@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2", "neon"])
def test_others_have_plain_code(target: str) -> None:
    lean = lower(replace(from_packs(WIDE, 8, i8, i8, i32).ir, target=target))
    text = assembly_of(lean, typical(target))
    assert not re.search("vpdpbusd|vdpbf16ps|sdot", text)
