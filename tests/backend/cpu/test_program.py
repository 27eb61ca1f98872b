"""Whole programs in compiled code: plans, arenas and frames of calls, threads, forks, assertions."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64
from taskc.backend.cpu import program as programs
from taskc.backend.cpu.pool import pool, thread_count
from taskc.backend.cpu.program import LoadedProgram
from taskc.backend.cpu.target import load
from taskc.programs.arena import blocks_of
from taskc.programs.ir import kernels_of
from taskc.programs.planning import plan
from taskc.runtime import driver, targets
from tests import guards
from tests.backend.cpu.test_pool import succeeds
from tests.counting import instructions
from tests.programs import random_calls

m, n, q = tc.dim("m"), tc.dim("n"), tc.dim("q")


@tc.kernel(workers=4)
def shifted(x: f32[q], by: f32, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                assert x[start + i] < 1e30, "too large"
                y[start + i] = x[start + i] + by


@tc.kernel(workers=4)
def turned(x: f32[q], y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[q - 1 - start - i]


def fresh() -> tc.ProgramDefinition:
    @tc.program
    def program(x: f32[n], by: f32, y: tc.out[f32[n]]):
        first = shifted(turned(shifted(x, by)), 1)
        shifted(turned(first), by, out=y)

    return program


def loaded(program: tc.ProgramDefinition) -> LoadedProgram:
    runner = driver.whole_program(program)
    assert runner is not None
    assert isinstance(runner.code, LoadedProgram)
    return runner.code


def f(*values: float) -> Any:
    return np.array(values, np.float32)


def test_later_calls_are_compiled_code_s() -> None:
    program = fresh()
    assert program(f(1, 2, 3), 2.0).tolist() == [6, 7, 8]
    assert program.direct is not None
    with guards.absent():
        quick = tc.ProgramDefinition.of(program.ir)
        x, y = f(1, 2, 3), f(0, 0, 0)
        quick(x, 2.0, out=y)
    assert quick(x, 1.0, out=y) is y
    assert y.tolist() == [4, 5, 6]
    assert instructions(lambda: quick(x, 2.0, out=y)) < 100
    assert instructions(lambda: quick.call(x, 2.0, out=y)) > 1000


@pytest.mark.skipif(tc.machine().threads < 2, reason="two processors are needed")
def test_kernels_are_compiled_at_one_time_and_equal_ones_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(2)
    names = []

    def waiting(kernel: Any, *rest: Any) -> Any:
        names.append(kernel.name)
        together.wait(60)
        return load(kernel, *rest)

    monkeypatch.setattr("taskc.backend.cpu.target.load", waiting)

    def adding(by: float) -> tc.KernelDefinition:
        @tc.kernel(workers=4)
        def adds(x: f32[4], y: tc.out[f32[4]]):
            for i in tc.spatial(4):
                y[i] = x[i] + by

        return adds

    @tc.program
    def program(x: f32[4], y: tc.out[f32[4]]):
        adding(1.5)(adding(2.5)(adding(1.5)(x)), out=y)

    assert program(f(1, 2, 3, 4)).tolist() == [6.5, 7.5, 8.5, 9.5]
    assert names == ["adds", "adds"]


def test_each_set_of_sizes_has_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_MOST_PLANS", 3)
    program = fresh()
    code = loaded(program)
    for _ in range(2):
        for size in (5, 1, 7, 7, 0, 300, 5):
            x = np.arange(size, dtype=np.float32)
            assert program(x, 0.5).tolist() == (x + 2).tolist()
            assert len(code._plans) <= 3
    assert len(code.arenas) == 1
    assert code.arenas[0].node.bytes >= 300 * 4


def test_arenas_are_kept() -> None:
    program = fresh()
    x = np.ones(1000, np.float32)
    program(x, 1.0)
    (arena,) = loaded(program).arenas
    for size in (1000, 10, 1000):
        program(x[:size], 1.0)
    assert loaded(program).arenas == [arena]
    program(np.ones(5000, np.float32), 1.0)
    assert len(loaded(program).arenas) == 1


def test_arenas_grow_twofold() -> None:
    program = fresh()
    amounts: dict[int, int] = {}
    for size in range(1024, 5121, 64):
        program(np.ones(size, np.float32), 1.0)
        (arena,) = loaded(program).arenas
        amounts.setdefault(arena.node.bytes, size)
    assert amounts == {8192: 1024, 16384: 1088, 32768: 2112, 65536: 4160}


def test_a_plan_is_looked_up_by_its_sizes() -> None:
    @tc.kernel(workers=4)
    def numbers(first: i64, step: tc.i8, y: tc.out[i64[4]]):
        for i in tc.spatial(4):
            y[i] = first + i * step.to(i64)

    @tc.program
    def program(x: f32[m, n], first: i64, y: tc.out[i64[4]], z: tc.out[i64[4]]):
        numbers(first, n - 5, out=y)
        numbers(m * n, 1, out=z)

    for _ in range(2):
        for shape in ((2, 3), (3, 2), (6, 1), (1, 6)):
            for first in (-1, 7):
                y, z = program(np.zeros(shape, np.float32), first)
                assert y.tolist() == [first + k * (shape[1] - 5) for k in range(4)]
                assert z.tolist() == [6 + k for k in range(4)]
        with pytest.raises(tc.ArgumentError, match=r"argument 'step' of numbers\(\)"):
            program(np.zeros((2, 200), np.float32), 0)
    assert len(loaded(program)._plans) == 4


def test_assertions_say_where_they_stand() -> None:
    program = fresh()
    x = f(1, 2, 3)
    program(x, 0.0)
    for wrong in (f(1, 2e30, 3), f(1, 2, 3)):
        by = 0.0 if wrong.max() > 1e30 else 2e30
        for call in (program, program.call):
            with pytest.raises(tc.CheckError, match="too large") as caught:
                call(wrong, by)
            assert "assert" in caught.value.findings[0].location.text
    assert program(x, 1.0).tolist() == [4, 5, 6]


def test_concurrent_calls_have_their_own_memory() -> None:
    program = fresh()
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for k in range(200):
            size = 100 + 10 * ((number + k) % 3)
            x = np.full(size, number, np.float32)
            assert (program(x, float(k)) == np.float32(number + 1 + 2 * k)).all()

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(work, range(8)))
    code = loaded(program)
    assert len(code.arenas) <= 8
    assert all(len(plan.frames) <= 8 for plan in code._plans.values())
    assert not any(arena.node.busy for arena in code.arenas)


def test_a_call_within_a_call() -> None:
    """While one thread is at it another one calls the program: that has memory of its own, and enough."""
    program = fresh()
    code = loaded(program)
    ((_, size),) = code._deciding
    x = np.arange(8192, dtype=np.float32)
    y = np.zeros(5000, np.float32)

    def begun() -> int:
        return code._ready(programs.words_of(program.ir, [x, 5.0, y], {size: 5000}))[0]

    def called(count: int) -> list[int]:
        """What calls it now, and how large arenas are then."""
        assert (program(x[:count], 1.0) == x[:count] + 3).all()
        return sorted(arena.node.bytes // 1000 for arena in code.arenas)

    frame = begun()
    assert called(5000) == [40, 40]
    assert code._run_frame(frame) == 0
    assert called(8192) == [80]
    frame = begun()
    assert called(10) == [0, 80]
    assert called(5000) == [40, 80]
    assert code._run_frame(frame) == 0
    assert (y == x[:5000] + 11).all()
    assert not any(arena.node.busy for arena in code.arenas)


def test_memory_goes_with_the_program() -> None:
    program = fresh()
    program(f(1, 2), 1.0)
    references = [weakref.ref(loaded(program)), weakref.ref(loaded(program).arenas[0])]
    del program
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_constants_and_parameters_in_layouts() -> None:
    laid = f32[4, 8].laid(tc.repeat(1, 2) * tc.repeat(4, 4))

    @tc.kernel(workers=4)
    def product(x: f32[4], w: laid, y: tc.out[f32[8]]):
        for j in tc.spatial(4).repeat(2):
            y[j] = x[0] * w[0, j] + x[1] * w[1, j] + x[2] * w[2, j] + x[3] * w[3, j]

    random = np.random.default_rng(1)
    own = random.integers(-9, 9, (4, 8)).astype(np.float32)
    w = random.integers(-9, 9, (4, 8)).astype(np.float32)

    @tc.program
    def program(x: f32[4], w: laid, y: tc.out[f32[8]], z: tc.out[f32[8]]):
        product(x, own, out=y)
        product(x, w, out=z)

    x = f(1, -2, 3, 4)
    for given in (w, w, tc.pack(w, laid), tc.pack(w, laid)):
        y, z = program(x, given)
        assert (y == x @ own).all()
        assert (z == x @ w).all()


def test_a_fork_has_programs_of_its_own() -> None:
    succeeds("""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
from tests.backend.cpu.test_program import fresh
program = fresh()
x = np.arange(1000, dtype=np.float32)
assert (program(x, 1.0) == x + 3).all()
done = False
def work():
    while not done:
        program(x, 1.0)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if not child:
        signal.alarm(30)
        for size in (1000, 10, 1000):
            if not (program(x[:size], 2.0) == x[:size] + 5).all():
                os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        break
done = True
for thread in threads:
    thread.join()
sys.exit(status)
""")


def halved(t: Any) -> Any:
    return tc.compute(t.shape, lambda i: tc.exp(t[i] * 0.5) + t[65535 - i])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_same_bits_on_any_number_of_threads(count: int) -> None:
    @tc.program
    def program(x: f32[1 << 16], y: tc.out[f32[1 << 16]]):
        t = x
        for _ in range(4):
            t = halved(t)
        tc.compute(x.shape, lambda i: t[i] - x[i], out=y)

    x = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32) / 4
    expected = program(x)
    pool().limit(count)
    try:
        for _ in range(20):
            np.testing.assert_array_equal(program(x), expected)
    finally:
        pool().limit(thread_count())


@tc.kernel(workers=4)
def rounded(x: f32[4], rounds: i64, limit: f32, y: tc.out[f32[4]]):
    """One block, and more work than a few microseconds as far as anyone knows."""
    for i in tc.spatial(4):
        s = x[i]
        for _ in range(rounds):
            for _ in range(rounds):
                for _ in range(rounds):
                    s = s * 0.5 + 1
        assert s < limit, "too large"
        y[i] = s


def chains() -> tc.ProgramDefinition:
    """Two of them, one behind the other."""

    @tc.program
    def program(x: f32[2, 4], limit: f32, y: tc.out[f32[2, 4]]):
        for part in range(2):
            t = rounded(x[part], 1, 1e30)
            for _ in range(3):
                t = rounded(t, 1, limit)
            rounded(t, 1, limit, out=y[part])

    return program


@contextmanager
def threads(count: int) -> Iterator[None]:
    pool().limit(count)
    try:
        yield
    finally:
        pool().limit(thread_count())


def forks() -> int:
    """How often work was shared in this process."""
    return int(pool()._memory.state) >> 32


@pytest.mark.parametrize(("count", "shared"), [(1, 0), (2, 5), (3, 5)])
def test_two_chains_run_beside_each_other(count: int, shared: int) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with threads(count):
        program = chains()
        program(x, 99.0)
        for fewer in (count, 1):  # a plan for several threads does for one
            pool().limit(fewer)
            before = forks()
            np.testing.assert_array_equal(program(x, 99.0), x / 32 + 31 / np.float32(16))
            assert forks() - before == (shared if fewer == count else 0)


def test_assertions_of_calls_beside_each_other() -> None:
    """The first call that is wrong tells, and the next call of the program has nothing of it."""
    x = f(1, 2, 3, 4, 5, 6, 7, 8).reshape(2, 4)
    with threads(2):
        program = chains()
        for _ in range(3):
            with pytest.raises(tc.CheckError, match="too large"):
                program(x, 2.5)
            for wrong in (0, 1):
                x[1 - wrong] = 1
                with pytest.raises(tc.CheckError, match="too large"):
                    program(x, 2.5)
                x[:] = f(5, 6, 7, 8)
            assert program(x, 9.0).shape == (2, 4)


def test_as_many_blocks_as_only_the_call_tells() -> None:
    """A plan is made for one block of each, and scalars that are handed on make it none, or many that threads share."""

    @tc.kernel(workers=4)
    def rows(x: f32[64], more: i64, rounds: i64, y: tc.inout[f32[64]]):
        for row in tc.tiles(more + 1, by=1):
            for i in tc.spatial(4):
                if i == 0 and row < 64:
                    s = x[row]
                    for _ in range(rounds):
                        for _ in range(rounds):
                            for _ in range(rounds):
                                s = s * 0.5 + 1
                    y[row] = s

    @tc.program
    def program(x: f32[64], one: i64, other: i64, y: tc.inout[f32[64]], z: tc.inout[f32[64]]):
        rows(x, one, 1, y)
        rows(x, other, 1, z)

    x = np.arange(64, dtype=np.float32)
    with threads(2):
        for counts in ((1, 1), (0, 1), (1, 0), (0, 0), (64, 41), (1, 64), (37, 5), (0, 64), (3, 0)):
            made = [np.zeros(64, np.float32) for _ in counts]
            before = forks()
            program(x, counts[0] - 1, counts[1] - 1, *made)
            assert forks() - before == (sum(counts) > 1)
            for count, array in zip(counts, made, strict=True):
                assert (array == np.where(x < count, x / 2 + 1, 0)).all(), counts


def test_random_calls_on_two_threads_and_on_one() -> None:
    """The same bits as one call after another, by another way; what no thread is left for is done by the caller."""
    shared = 0
    codes = {
        kernel.ir: targets.find_target("cpu").compile(kernel.ir, ()).code
        for kernel in (
            random_calls.little,
            random_calls.large,
            random_calls.wide,
            random_calls.added,
        )
    }
    for seed in range(60):
        program = random_calls.random_program(random.Random(seed))
        kernels = [codes[kernel] for kernel in kernels_of(program).values()]
        values = random_calls.values_of(program, seed)
        expected = random_calls.in_order(program, values)
        for count in (2, 1):
            with threads(count):
                code = LoadedProgram(program, kernels, partial(plan, program, blocks_of(program)))
                before, given = forks(), [value.copy() for value in values]
                assert code.run(given, {}) == 0
                for ours, theirs in zip(given, expected, strict=True):
                    np.testing.assert_array_equal(ours, theirs, f"{seed}, {count} threads")
                shared += forks() - before
                assert count > 1 or forks() == before
    assert shared > 60
