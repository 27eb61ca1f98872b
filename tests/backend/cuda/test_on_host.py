"""Emitted kernels, executed on this machine's processor, give what the simulator gives, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import bf16, f8e4m3, f16, f32, i8, i32, spatial, tf32
from taskc.backend import sim
from taskc.ir import nodes as ir
from taskc.ir.arithmetic import MATH_FUNCTIONS
from taskc.ir.rewrite import walk
from taskc.passes.pipeline import lower
from taskc.runtime.driver import signature
from tests.backend.cuda import examples, host
from tests.lang.test_warpgroups import matmul, product
from tests.random_programs.generator import program as generate
from tests.random_programs.oracle import Oracle
from tests.random_programs.runner import differences, parsed, small_machine

pytestmark = pytest.mark.skipif(
    host.COMPILER is None, reason="there is no g++ to compile for the host"
)

SEED = 7
NUMBERS = (0, 1, 2, 3)  # of runs: what is asynchronous takes effect late, at once, by chance


def agree(kernel: ir.Kernel, runnable: host.Runnable, given: list[Any]) -> None:
    def copies() -> list[Any]:
        return [value.copy() if isinstance(value, np.ndarray) else value for value in given]

    expected = copies()
    report = sim.run(kernel, expected)
    assert not [f for f in report.findings if f.severity == "error"]
    has_functions = any(
        isinstance(node, (ir.Unary, ir.Binary)) and node.operator in MATH_FUNCTIONS
        for node in walk(kernel.body)
    )
    for number in NUMBERS:
        results = copies()
        assert runnable.run(results, number) == 0
        for parameter, result, wanted in zip(kernel.parameters, results, expected, strict=True):
            if not isinstance(parameter, ir.Tensor):
                continue
            if has_functions:  # each machine has its own
                np.testing.assert_allclose(
                    result.astype(np.float64), wanted.astype(np.float64), rtol=2e-6, atol=1e-7
                )
            else:
                assert differences(parameter.name, result, wanted) is None


# What differs between targets is how block values travel.
@pytest.mark.parametrize(
    ("target", "names"), [("sm_80", examples.NAMES[:-1]), ("sm_90a", ("03_matmul.py:specialized",))]
)
def test_examples(target: str, names: tuple[str, ...]) -> None:
    kernels = [kernel for name in names for kernel in examples.lean(name, target)]
    for name, kernel, runnable in zip(names, kernels, host.build(kernels), strict=True):
        definition: Any = examples.definition(name)
        agree(kernel, runnable, list(signature(definition).bind(definition.example(), {}).values))


def test_asynchronous_products() -> None:
    """Descriptors are read as the PTX manual describes them; boxes are brought by their tensor maps."""
    definitions = [
        product(bf16, f32, 8, 64, 128),
        product(f16, f32, 24, 32, 64),
        product(tf32, f32, 16, 32, 128),
        product(i8, i32, 48, 128, 128),
        product(f8e4m3, f32, 8, 64, 64),
        matmul(129, 36, 200),
        matmul(256, 40, 64, tall=2, bn=40, stages=4),
    ]
    random = np.random.default_rng(3)
    kernels = [lower(definition.ir) for definition in definitions]
    for kernel, runnable in zip(kernels, host.build(kernels), strict=True):
        arrays = []
        for parameter in kernel.parameters:
            assert isinstance(parameter, ir.Tensor)
            shape = tuple(map(int, parameter.shape))  # type: ignore[arg-type]
            arrays.append(random.integers(-4, 5, shape).astype(parameter.dtype.numpy))
        agree(kernel, runnable, arrays)


def test_lanes_exchange_values() -> None:
    @tc.cuda.kernel(workers=64)
    def kernel(x: f16[64], n: i32, y: tc.out[f16[4, 64]], z: tc.out[i32[3, 64]]):
        w = tc.worker()
        a = tc.cuda.shuffle_xor(x[w], 5)
        b = tc.cuda.shuffle_up(x[w], n)
        c = tc.cuda.shuffle_down(x[w], 7)
        d = tc.cuda.shuffle_index(x[w], w + 3)
        y[0, w] = a
        y[1, w] = b
        y[2, w] = c
        y[3, w] = d
        some = tc.cuda.vote_any(x[w] > f16(60.0))
        every = tc.cuda.vote_all(x[w] < f16(32.0))
        bits = tc.cuda.vote_ballot(w % 3 == 0)
        z[0, w] = some.to(i32)
        z[1, w] = every.to(i32)
        z[2, w] = bits.to(i32)

    lean = lower(kernel.ir)
    (runnable,) = host.build([lean])
    values = np.arange(64).astype(np.float16)
    agree(
        lean,
        runnable,
        [values, np.int32(3), np.zeros((4, 64), np.float16), np.zeros((3, 64), np.int32)],
    )


def test_an_assertion_leaves_its_number() -> None:
    @tc.kernel(workers=32)
    def kernel(x: f32[64], y: tc.out[f32[64]]):
        s = tc.shared(f32[64])
        for i in tc.repeat(2).spatial(32):
            assert x[i] >= 0.0, "positive"
            assert x[i] < 60.0, "small"
            s[i] = x[i]
        for i in tc.repeat(2).spatial(32):
            y[i] = s[63 - i]

    (runnable,) = host.build([lower(replace(kernel.ir, target="sm_80"))])
    values = np.arange(64, dtype=np.float32)
    result = np.zeros(64, np.float32)
    number = runnable.run([values, result])
    said, loc = runnable.source.asserts[number - 1]
    assert said == "small"
    assert 'x[i] < 60.0, "small"' in loc.text
    assert runnable.run([np.minimum(values, 59), result]) == 0


def test_atomics_of_every_width() -> None:
    def updates(dtype: tc.DType) -> ir.Kernel:
        @tc.kernel(workers=64)
        def kernel(x: dtype[64], y: tc.inout[dtype[5]]):  # type: ignore[valid-type]
            for i in spatial(64):
                tc.atomic_add(y[i % 3], x[i])
                tc.atomic_max(y[3], x[i])
                tc.atomic_min(y[4], x[i])

        return lower(replace(kernel.ir, target="sm_80"))

    types = (tc.i8, tc.u16, tc.i64, f16, bf16, f32, tc.f64)
    kernels = [updates(dtype) for dtype in types]
    for dtype, kernel, runnable in zip(types, kernels, host.build(kernels), strict=True):
        values = np.random.default_rng(1).integers(0, 4, 64).astype(dtype.numpy)
        agree(kernel, runnable, [values, np.ones(5, dtype.numpy)])


def check_programs(numbers: range) -> None:
    programs = [(number, generate(SEED, number)) for number in numbers]
    kernels = []
    for number, program in programs:
        kernel = parsed(program, f"<program {number}>")
        if not kernel.target.startswith("sm_"):
            kernel = replace(kernel, target="sm_80")
        with small_machine():
            kernels.append(lower(kernel))
    for (number, program), runnable in zip(programs, host.build(kernels), strict=True):
        expected = Oracle(program).results()
        for run in NUMBERS:
            given = {
                p.name: p.data if p.shape is None or p.role == "in" else p.data.copy()
                for p in program.parameters
            }
            runnable.run(list(given.values()), run)
            for name, wanted in expected.items():
                difference = differences(name, given[name], wanted)
                assert difference is None, (
                    f"python -m tests.random_programs --program {number}: {difference}"
                )


@pytest.mark.parametrize("first", [0, 12])
def test_random_programs(first: int) -> None:
    check_programs(range(first, first + 12))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(24, 1024, 50))
def test_more_random_programs(first: int) -> None:
    check_programs(range(first, first + 50))


def test_mbarriers_are_invalidated_before_they_are_set_up_again() -> None:
    """Those of a ring that a loop around it allocates again, turn after turn."""
    own = spatial(4, 8).repeat(2, 2)

    @tc.kernel(workers=32)
    def summed(a: f32[3, 8, 24], b: f32[3, 24, 16], c: tc.out[f32[8, 16]]):
        for row, col in tc.tiles((8, 16), by=(8, 16)):
            acc = tc.tile(f32, own, 0)
            for part in range(3):
                for p in tc.pipeline(24, by=8, stages=2, transport="tma"):
                    sa = tc.load(a[part, row : row + 8, p : p + 8])
                    sb = tc.load(b[part, p : p + 8, col : col + 16])
                    for q in range(8):
                        for i, j in own:
                            acc[i, j] += sa[i, q] * sb[q, j]
            tc.store(c[row : row + 8, col : col + 16], acc)

    (runnable,) = host.build([lower(replace(summed.ir, target="sm_90a"))])
    text = runnable.source.text()
    assert "tc::mbarrier_forget(" in text
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (3, 8, 24)).astype(np.float32)
    b = random.integers(-4, 5, (3, 24, 16)).astype(np.float32)
    for number in range(3):
        c = np.zeros((8, 16), np.float32)
        assert runnable.run([a, b, c], number) == 0
        np.testing.assert_array_equal(c, np.einsum("pik,pkj->ij", a, b))


def test_mbarriers_are_invalidated_before_another_statement_sets_them_up() -> None:
    @tc.cuda.kernel(workers=32)
    def mirrored(x: f32[32], y: tc.out[f32[32]]):
        s = tc.shared(f32[32])
        full = tc.cuda.barriers(2)
        w = tc.worker()
        if w == 0:
            tc.cuda.mbarrier_init(full[0], 32)
            tc.cuda.mbarrier_init(full[1], 32)
        tc.sync()
        s[w] = x[w]
        tc.cuda.mbarrier_arrive(full[0])
        tc.cuda.mbarrier_wait(full[0], 0)
        y[w] = s[31 - w]
        tc.sync()
        if w == 0:
            tc.cuda.mbarrier_init(full[0], 1)

    (runnable,) = host.build([lower(replace(mirrored.ir, target="sm_90a"))])
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    assert runnable.run([x, y], 0) == 0
    np.testing.assert_array_equal(y, x[::-1])
