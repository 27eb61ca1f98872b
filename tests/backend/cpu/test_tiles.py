"""AMX, emitted and emulated: no processor that has it has run this yet.

Layouts, distances and what is left over are checked on the same LLVM IR, in which functions stand for the
instructions on tile registers (tests/backend/cpu/tile_emulator.py).
"""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f32, i8, i32, repeat, spatial, u8
from taskc.backend import sim
from taskc.backend.cpu import operations, processor as processors
from taskc.backend.cpu.compile import CompiledObject, LoadedKernel, assembly_of, llvm_text
from taskc.backend.cpu.module import optimized
from taskc.backend.cpu.pool import pool, thread_count
from taskc.backend.cpu.processor import host, may_use_tiles, processor, typical
from taskc.kernels import matmul
from taskc.passes.pipeline import lower
from tests.backend.cpu.test_products import from_packs, integers, product
from tests.backend.cpu.tile_emulator import emulated

TILE = repeat(16, 1) * spatial(1, 16)
FOUR = repeat(2, 2) * TILE
needs_vectors = pytest.mark.skipif(host().lanes != 16, reason="needs AVX-512")


def run_emulated(kernel: Any, *given: Any) -> tuple[Any, Any]:
    """The output of compiled code, and of the simulator for the lowered program."""
    lean = lower(replace(kernel.ir, target="avx512_amx"))
    text, emitter = llvm_text(lean, replace(host(), target="avx512_amx"))
    assert "llvm.x86.tileloadd64" in text
    code = host().machine.emit_object(optimized(emulated(text), host()))
    output = kernel.ir.parameters[-1]
    results = [np.full(output.shape, 77, output.dtype.numpy) for _ in range(2)]
    loaded = LoadedKernel(
        kernel.ir, CompiledObject(code, emitter.privates.scratch, emitter.spilled, False)
    )
    try:
        pool().limit(1)  # there is one set of registers
        loaded.run([*given, results[0]], {})
    finally:
        pool().limit(thread_count())
    plain = [array.unpack() if isinstance(array, tc.Packed) else array for array in given]
    report = sim.run(lean, [*plain, results[1]])
    assert report.ok, report
    return results[0], results[1]


def small_floats(shape: tuple[int, int]) -> Any:
    """Whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(shape).integers(-8, 9, shape).astype(bf16.numpy)


@needs_vectors
@pytest.mark.parametrize(
    ("own", "types", "shape"),
    [
        (TILE, (i8, i8, i32), (16, 16, 64)),
        (FOUR, (i8, i8, i32), (40, 50, 140)),  # 12 of k are left for vectors
        (FOUR, (u8, i8, i32), (33, 31, 128)),
        (FOUR, (bf16, bf16, f32), (40, 50, 70)),
        (repeat(1, 3) * TILE, (i8, i8, i32), (17, 49, 64)),
        (repeat(3, 1) * TILE, (bf16, bf16, f32), (48, 16, 32)),
        (
            spatial(2, 1) * repeat(1, 2) * TILE,
            (i8, i8, i32),
            (40, 33, 64),
        ),  # two vectors of workers
    ],
    ids=str,
)
def test_products(own: tc.Mapping, types: tuple[Any, Any, Any], shape: tuple[int, ...]) -> None:
    left, right, total = types
    m, n, k = shape
    if left is bf16:
        a, b = small_floats((m, k)), small_floats((k, n))
    else:
        a, b = integers(left, (m, k)), integers(right, (k, n))
    compiled, simulated = run_emulated(product(own, m, n, k, left, right, total, 3), a, b)
    wide = np.float64 if left is bf16 else np.int64
    np.testing.assert_array_equal(compiled, a.astype(wide) @ b.astype(wide) + 3)
    np.testing.assert_array_equal(simulated, compiled)


@needs_vectors
def test_constant_operands() -> None:
    """From where they are: lines of parameters are as far from each other as their rows and packs."""
    a, b = integers(i8, (32, 192)), integers(i8, (192, 32))
    kernel = from_packs(FOUR, 192, i8, i8, i32)
    compiled, simulated = run_emulated(kernel, a, b)
    np.testing.assert_array_equal(compiled, a.astype(np.int64) @ b.astype(np.int64))
    np.testing.assert_array_equal(simulated, compiled)


@needs_vectors
@pytest.mark.parametrize("packed", [False, True])
def test_a_product_of_the_library(packed: bool) -> None:
    """With edges: of 40 rows, 33 columns and 100 of k, tiles of 32 by 32 by 64."""
    a, b = integers(i8, (40, 100)), integers(i8, (100, 33))
    kernel = matmul.product(
        40, 33, 100, dtype=i8, packed=packed, plan=matmul.Packs(FOUR, 64, 4, 64)
    )
    given = b
    if packed:
        given = np.zeros((128, 64), np.int8)
        given[:100, :33] = b
    compiled, simulated = run_emulated(kernel, a, given)
    np.testing.assert_array_equal(compiled, a.astype(np.int64) @ b.astype(np.int64))
    np.testing.assert_array_equal(simulated, compiled)


@needs_vectors
def test_the_emulator_wants_registers_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would not show a block that doesn't."""
    monkeypatch.setattr(operations, "_LINES", 8)
    a, b = integers(i8, (16, 64)), integers(i8, (64, 16))
    compiled, simulated = run_emulated(product(TILE, 16, 16, 64, i8, i8, i32), a, b)
    assert not compiled.any()
    assert simulated.any()


@pytest.mark.parametrize(
    ("types", "name"),
    [((i8, i8, i32), "tdpbssd"), ((u8, i8, i32), "tdpbusd"), ((bf16, bf16, f32), "tdpbf16ps")],
)
def test_accumulators_stay_in_tiles(types: tuple[Any, ...], name: str) -> None:
    """Four loads for four products in a step of k, and no other; the accumulators are moved around it."""
    k = 64 * 64 // types[0].nbytes
    lean = lower(replace(from_packs(FOUR, k, *types).ir, target="avx512_amx"))
    text = assembly_of(lean, typical("avx512_amx"))
    found = re.findall(r"\t(ldtilecfg|tileloadd|tilestored|tilerelease|tdp\w+)", text)
    found.remove("tilerelease")  # the block's end stands somewhere
    loads, products, stores = (["tileloadd"] * 4, [name] * 4, ["tilestored"] * 4)
    assert found == ["ldtilecfg", *loads, *loads, *products, *stores]


def features(**more: bool) -> dict[str, bool]:
    names = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c", "avx512vnni")
    amx = dict.fromkeys(("amx-tile", "amx-int8", "amx-bf16"), True)
    return dict.fromkeys(names, True) | amx | {k.replace("_", "-"): v for k, v in more.items()}


def test_a_processor_with_tiles() -> None:
    typical("avx512_amx")  # so that LLVM knows all of its targets
    triple = "x86_64-unknown-linux-gnu"
    assert processor(triple, "sapphirerapids", features()).target == "avx512_amx"
    lesser = processor(triple, "sapphirerapids", features(amx_bf16=False))
    assert lesser.target == "avx512_vnni"


@pytest.mark.parametrize("granted", [True, False])
def test_without_permission_the_next_best(granted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    typical("avx512_amx")
    monkeypatch.setattr(processors, "may_use_tiles", lambda: granted)
    monkeypatch.setattr(processors.llvm, "get_host_cpu_features", features)
    monkeypatch.setattr(processors.llvm, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(processors.llvm, "get_host_cpu_name", lambda: "sapphirerapids")
    found = host.__wrapped__()
    assert found.target == ("avx512_amx" if granted else "avx512_vnni")
    assert ("+amx-tile" in found.features) == granted


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_permission_is_asked_for_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    class Library:
        def __init__(self, status: int) -> None:
            self.status = status

        def syscall(self, *numbers: int) -> int:
            asked.append(numbers)
            return self.status

    for status in (0, -1):
        monkeypatch.setattr(ctypes, "CDLL", lambda _, status=status: Library(status))
        assert may_use_tiles() == (status == 0)
    assert asked == [(158, 0x1023, 18)] * 2
