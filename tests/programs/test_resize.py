"""Plans that are made from plans for larger sizes: they are as those that would be planned, except for the arena."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64
from taskc.backend.cpu.program import LoadedProgram
from taskc.ir.nodes import Variable
from taskc.programs.plan import Plan, PlannedCall
from taskc.programs.resize import is_resizable, roomy, size_words
from taskc.runtime import driver
from tests.backend.cpu.test_program import threads

m, n, q = tc.dim("m"), tc.dim("n"), tc.dim("q")


@tc.kernel(workers=4)
def shifted(x: f32[q], by: i64, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[start + i] + by.to(f32)


@tc.kernel(workers=4)
def turned(x: f32[q], y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[q - 1 - start - i]


def joining() -> tc.ProgramDefinition:
    """Temporaries, parts that begin at sizes, sizes as scalars, and a constant."""

    @tc.program(fuse=False)
    def joined(x: f32[n], z: f32[m], y: tc.out[f32[m + n + 3]]):
        both = tc.empty(f32[m + n + 3])
        turned(x, out=both[:n])
        shifted(z, m * n, out=both[n : m + n])
        turned(np.arange(3, dtype=np.float32), out=both[m + n :])
        shifted(turned(turned(both)), n, out=y)

    return joined


def expected(x: Any, z: Any) -> Any:
    return np.concatenate([x[::-1], z + len(x) * len(z), [2, 1, 0]]) + len(x)


def code_of(program: tc.ProgramDefinition) -> LoadedProgram:
    runner = driver.whole_program(program, "cpu")
    assert isinstance(runner.code, LoadedProgram)
    return runner.code


def test_a_resized_plan_is_the_planned_one_but_for_the_arena() -> None:
    program, choose = joining(), random.Random(0)
    sizes = [
        (5, 7),
        (1, 1),
        (40, 1),
        *[(choose.randint(1, 70), choose.randint(1, 70)) for _ in range(20)],
    ]
    for first, second in sizes:
        x, z = np.arange(first, dtype=np.float32), np.arange(second, dtype=np.float32)
        assert program(x, z).tolist() == expected(x, z).tolist()
    code = code_of(program)
    items = [item for _, item in code._deciding]
    for key, resized in code._plans.items():
        known = dict(zip(items, key, strict=True))
        planned = code.plan(known)
        words = np.zeros(max(place for place, _ in code._deciding) + 1, np.uint64)
        for (place, _), size in zip(code._deciding, key, strict=True):
            words[place] = size
        exact = code.in_memory(planned, words)
        assert (resized.key == exact.key).all()
        assert (resized.words == exact.words).all()
        assert (resized.given == exact.given).all()
        assert (resized.moved[:, 0] == exact.moved[:, 0]).all()
        # Parts lie in their temporary as they should.
        assert resized.arena >= exact.arena


def test_few_plans_serve_sizes_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    program, planned = joining(), []
    z = np.zeros(3, np.float32)
    program(np.zeros(1, np.float32), z)
    code, plan = code_of(program), LoadedProgram.plan
    monkeypatch.setattr(
        LoadedProgram, "plan", lambda self, sizes: planned.append(sizes) or plan(self, sizes)
    )
    for size in range(64, 256):
        x = np.arange(size, dtype=np.float32)
        assert program(x, z).tolist() == expected(x, z).tolist()
    assert len(code._plans) == 193
    assert len(planned) == 9


@pytest.mark.parametrize("has_parts", [False, True])
def test_a_size_that_grows_is_planned_for_the_most(
    has_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One plan serves all sizes up to that; where parts begin at sizes, one is resized."""
    k = tc.dim("k", most=200)

    @tc.program(fuse=False)
    def grown(x: f32[k], y: tc.out[f32[k + 3]]):
        both = tc.empty(f32[k + 3])
        if has_parts:
            turned(np.arange(3, dtype=np.float32), out=both[k:])
            turned(x, out=both[:k])
        else:
            tc.compute(k + 3, lambda i: x[k - 1 - i] if i < k else (2 - i + k).to(f32), out=both)
        shifted(both, 2 * k, out=y)

    planned, plan = list[Any](), LoadedProgram.plan

    def noted(self: LoadedProgram, sizes: Any, threads: int | None = None) -> Plan:
        planned.append([*sizes.values()])
        return plan(self, sizes, threads)

    monkeypatch.setattr(LoadedProgram, "plan", noted)
    for size in (5, 1, 199, 200, 64, 6):
        x = np.arange(size, dtype=np.float32)
        wanted = np.concatenate([x[::-1], [2, 1, 0]]) + 2 * size
        assert grown(x).tolist() == wanted.tolist()
    assert planned == [[200]] * (1 + has_parts)
    assert len(code_of(grown)._plans) == (6 if has_parts else 1)
    assert grown(np.zeros(300, np.float32))[0] == 600

    def run(size: int) -> bool:
        x = np.arange(size, dtype=np.float32)
        wanted = np.concatenate([x[::-1], [2, 1, 0]]) + 2 * size
        return bool((grown(x) == wanted).all())

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(run, [*range(1, 200)] * 3))


def test_sizes_are_rounded_up_to_multiples() -> None:
    assert [roomy(size, Variable("n")) for size in (0, 1, 7, 8, 9, 17, 64, 65, 1000)] == [
        0, 1, 7, 8, 10, 20, 64, 80, 1024,
    ]  # fmt: skip
    assert [roomy(size, Variable("n", multiple=12)) for size in (0, 12, 84, 108)] == [
        0,
        12,
        84,
        120,
    ]
    assert all(size <= roomy(size, Variable("n")) < 1.25 * size + 1 for size in range(5000))


@tc.kernel(workers=4)
def filled(by: tc.i8, y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = by.to(f32)


def test_programs_that_are_planned_anew() -> None:
    @tc.program(fuse=False)
    def shrinking(x: f32[n], y: tc.out[f32[n]]):
        filled(1, out=tc.empty(f32[200 - n]))
        turned(x, out=y)

    @tc.program(fuse=False)
    def checked(x: f32[n], y: tc.out[f32[n]]):
        filled(n, out=y)

    @tc.program(fuse=False)
    def looping(x: f32[n], y: tc.out[f32[n]]):
        z = turned(x)
        for _ in tc.steps(3):
            shifted(x, 1, out=z)
        turned(z, out=y)

    assert [size_words(one.ir) for one in (shrinking, checked, looping)] == [None] * 3
    for size in (3, 4, 5, 120):
        x = np.arange(size, dtype=np.float32)
        assert shrinking(x).tolist() == x[::-1].tolist()
        assert checked(x).tolist() == [size] * size
        assert looping(x).tolist() == (x[::-1] + 1).tolist()
    for program, message in ((shrinking, "temporary"), (checked, "argument 'by'")):
        with pytest.raises(tc.ArgumentError, match=message):
            program(np.zeros(201, np.float32))


@tc.kernel(workers=4)
def added(a: f32[q], b: f32[q], y: tc.out[f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = a[start + i] + b[start + i]


def test_calls_run_at_the_same_time_at_smaller_sizes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @tc.program(fuse=False)
    def forked(x: f32[n], y: tc.out[f32[n]]):
        added(turned(x), shifted(x, n), out=y)

    monkeypatch.setattr(LoadedProgram, "_busy", lambda self, kernel, words: 1)
    with threads(2):
        for size in (8, 100, 97, 99, 130, 1):
            x = np.arange(size, dtype=np.float32)
            assert forked(x).tolist() == (x[::-1] + x + size).tolist()
        code = code_of(forked)
        assert [plan.code[-1].tolist() for plan in code._plans.values()] == [[1, 0, 0]] * 6


def test_calls_at_the_same_time_whose_memory_begins_elsewhere_are_planned_anew() -> None:
    joined = joining().ir
    calls = tuple([PlannedCall(0, (), beside) for beside in (1, 0)])
    assert not is_resizable(joined, Plan(calls, 0, 0))
    assert is_resizable(joined, Plan(calls[1:], 0, 0))
