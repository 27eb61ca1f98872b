"""Running programs: sizes and temporaries of a call, kernels compiled once, checks, mutations."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc.arrays.arguments import Bound
from taskc.errors import InternalError
from taskc.ir import nodes as ir
from taskc.ir.signature import bind_dimensions
from taskc.mutation import inputs_of, mutate
from taskc.programs.specialize import launches
from taskc.runtime import checking, targets
from taskc.runtime.targets import Backend, register_target

m, n = tc.dim("m"), tc.dim("n", example=6)
q = tc.dim("q")


@tc.kernel(workers=4)
def shifted(x: tc.f32[q], by: tc.f32, y: tc.out[tc.f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = x[start + i] + by


@tc.kernel(workers=4)
def doubled(x: tc.inout[tc.f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                x[start + i] = x[start + i] * 2


@tc.kernel(workers=4)
def numbers(first: tc.i64, step: tc.i8, y: tc.out[tc.i64[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = first + (start + i) * step.to(tc.i64)


@tc.program
def chain(a: tc.f32[n], by: tc.f32, c: tc.out[tc.f32[n]], rest: tc.inout[tc.f32[m]]):
    t = shifted(a, by)
    doubled(t)
    shifted(t, -1, out=c)
    shifted(t, by=by, out=tc.empty(tc.f32[n]))
    doubled(rest)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def test_it_is_called_as_a_kernel() -> None:
    rest = f32(1, 2, 3)
    assert chain(f32(1, 2), 0.5, rest).tolist() == [2, 4]
    assert rest.tolist() == [2, 4, 6]
    out = np.zeros(2, np.float32)
    assert chain(f32(3, 4), rest=rest, by=np.float32(0), out=out) is out
    assert out.tolist() == [5, 7]
    assert chain(np.float32([]), 0, f32()).shape == (0,)


def test_its_arguments_are_checked_as_those_of_a_kernel() -> None:
    for args, keywords, expected in [
        ((f32(1),), {}, "chain() misses the arguments 'by', 'rest'"),
        (
            (f32(1), "x", f32()),
            {},
            "chain(): argument 'by' must be a number of type f32, not a str",
        ),
        ((np.ones(2), 1, f32()), {}, "chain(): argument 'a' must be f32[n], not f64[2]"),
        (
            (f32(1, 2), 1, f32()),
            {"out": f32(1)},
            "chain(): output 'c' must be f32[n] with n = 2 (from 'a'), not f32[1]",
        ),
    ]:
        with pytest.raises(tc.ArgumentError) as caught:
            chain(*args, **keywords)
        assert str(caught.value) == expected
    both = f32(1, 2)
    with pytest.raises(tc.ArgumentError, match="output 'c' is written, and it overlaps 'a'"):
        chain(both, 1, f32(), out=both)
    with pytest.warns(tc.CopyWarning, match=r"chain\(\): input 'a' isn't contiguous"):
        assert chain(f32(1, 9, 2)[::2], 0, f32()).tolist() == [1, 3]


# --- sizes of a call -------------------------------------------------------------------------


@tc.program(fuse=False)
def windows(x: tc.f32[n], y: tc.out[tc.i64[n]]):
    rest = tc.empty(tc.i64[n - 3])
    numbers(n * 2, n - 5, out=y)
    numbers(0, 0, out=rest)
    assert rest.shape[0] + 3 == n


def test_sizes_are_computed_at_the_call() -> None:
    assert windows(np.zeros(7, np.float32)).tolist() == [14, 16, 18, 20, 22, 24, 26]
    launch, _ = launches(windows.ir, [np.zeros(3, np.float32), np.zeros(3, np.int64)])
    assert launch.bound.values[:2] == (6, -2)
    assert launch.bound.dimensions == {launch.kernel.dimensions[0]: 3}


def test_a_size_that_is_out_of_range_is_an_error_before_anything_runs() -> None:
    with pytest.raises(tc.ArgumentError) as caught:
        windows(np.zeros(2, np.float32))
    expected = "windows(): temporary 'rest' has the extent n - 3 = -1, and an extent is 0 or more"
    assert str(caught.value) == expected
    with pytest.raises(tc.ArgumentError) as caught:
        windows(np.zeros(200, np.float32))
    assert str(caught.value) == (
        "windows(): argument 'step' of numbers(), (n - 5).to(i8), is 195, and i8 holds -128 to 127"
    )


def test_other_shapes_are_the_same_memory() -> None:
    """Of a parameter, of a temporary, of an output; and where a program is called by another."""

    @tc.program
    def flat(x: tc.f32[n, 3], y: tc.out[tc.f32[3, n]]):
        t = tc.empty(tc.f32[n * 3])
        shifted(x.reshape(3 * n), 1, out=t)
        doubled(t.reshape(n, 3).reshape(n * 3))
        shifted(t, 0, out=y.reshape(n * 3))

    @tc.program
    def outer(x: tc.f32[6], y: tc.out[tc.f32[6]]):
        flat(x.reshape(2, 3), out=y.reshape(3, 2))

    assert flat(f32(1, 2, 3, 4, 5, 6).reshape(2, 3)).tolist() == [[4, 6], [8, 10], [12, 14]]
    assert flat(f32().reshape(0, 3)).shape == (3, 0)
    assert outer(f32(1, 2, 3, 4, 5, 6)).tolist() == [4, 6, 8, 10, 12, 14]


def test_temporaries_without_elements() -> None:
    zero = np.zeros(0, np.float32)

    @tc.program
    def program(x: tc.f32[0], y: tc.out[tc.f32[4]]):
        t = shifted(x, 1)
        doubled(t)
        shifted(t, 1, out=tc.empty(tc.f32[0]))
        numbers(1, 1, out=tc.empty(tc.i64[0]))
        four = tc.empty(tc.f32[4])
        ones(out=four)
        shifted(four, 0, out=y)

    assert program(zero).tolist() == [1] * 4
    assert tc.check(program) == ()


@tc.kernel(workers=4)
def ones(y: tc.out[tc.f32[q]]):
    for start in tc.tiles(q, by=4):
        for i in tc.spatial(4):
            if start + i < q:
                y[start + i] = 1.0


def test_a_kernel_twice_with_other_sizes() -> None:
    @tc.program
    def program(x: tc.f32[m], y: tc.f32[n], u: tc.out[tc.f32[m]], v: tc.out[tc.f32[n]]):
        shifted(x, 1, out=u)
        shifted(y, 2, out=v)

    u, v = program(f32(1, 2, 3, 4, 5), f32(1))
    assert (u.tolist(), v.tolist()) == ([2, 3, 4, 5, 6], [3])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (tc.boolean, True),
        (tc.u8, 255),
        (tc.i64, -(2**63)),
        (tc.u64, 2**64 - 1),
        (tc.f16, 0.1),
        (tc.bf16, -2.5),
        (tc.f8e4m3, 448.0),
        (tc.f32, float("inf")),
        (tc.f64, 0.1),
        (tc.f32, np.float64(0.1)),
        (tc.i32, np.int8(-3)),
    ],
)
def test_constants_are_passed_as_numbers_of_python_are(dtype: Any, value: Any) -> None:
    @tc.kernel(workers=4)
    def filled(s: dtype, y: tc.out[dtype[4]]):
        for i in tc.spatial(4):
            y[i] = s

    @tc.program
    def program(s: dtype, y: tc.out[dtype[4]], z: tc.out[dtype[4]]):
        filled(s, out=y)
        filled(value, out=z)

    passed, noted = program(value)
    assert passed.tobytes() == noted.tobytes() == filled(value).tobytes()


# --- compiling -------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Hashable]]:
    """A target that says what it was asked to compile, and what it ran."""
    said: list[tuple[str, Hashable]] = []
    started = threading.Event()

    def compile(kernel: ir.Kernel, facts: Hashable) -> targets.Runner:
        started.wait(0.05)  # time for other threads to ask, too
        said.append((kernel.name, facts))
        return targets.Runner(lambda bound: said.append((f"ran {kernel.name}", None)))

    def facts(bound: Bound) -> Hashable:
        return all(size % 2 == 0 for size in bound.dimensions.values())

    monkeypatch.setattr(targets, "_targets", dict(targets._targets))
    monkeypatch.setattr(targets, "_backends", {})
    register_target("saying", lambda: Backend(compile, facts))
    monkeypatch.setenv("TASKC_TARGET", "saying")
    return said


def fresh() -> tuple[tc.KernelDefinition, tc.ProgramDefinition]:
    @tc.kernel(workers=4)
    def kernel(x: tc.f32[q], y: tc.out[tc.f32[q]]):
        pass

    @tc.program(fuse=False)
    def program(a: tc.f32[n], b: tc.f32[m], c: tc.out[tc.f32[n]]):
        kernel(kernel(a), out=c)
        kernel(b)

    return kernel, program


def test_kernels_are_compiled_once_and_all_before_any_runs(compiled: list[Any]) -> None:
    kernel, program = fresh()
    program(np.zeros(4, np.float32), np.zeros(3, np.float32))
    ran = ("ran kernel", None)
    assert compiled == [("kernel", True), ("kernel", False), ran, ran, ran]
    compiled.clear()
    kernel(np.zeros(8, np.float32))
    program(np.zeros(3, np.float32), np.zeros(5, np.float32))
    assert compiled == [ran] * 4


def test_concurrent_first_calls_compile_once(compiled: list[Any]) -> None:
    _, program = fresh()
    ready = threading.Barrier(8)

    def call() -> None:
        ready.wait()
        program(np.zeros(4, np.float32), np.zeros(3, np.float32))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item for item in compiled if item[0] == "kernel") == [
        ("kernel", False),
        ("kernel", True),
    ]
    assert compiled.count(("ran kernel", None)) == 24


def test_concurrent_calls_have_their_own_temporaries() -> None:
    results: dict[int, list[float]] = {}

    def call(number: int) -> None:
        results[number] = chain(f32(*[number] * 9), 1, f32()).tolist()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [2 * number + 1] * 9 for number in range(6)}


def test_definitions_are_not_kept_alive() -> None:
    _, program = fresh()
    tc.check(program)
    reference = weakref.ref(program)
    del program
    gc.collect()
    assert reference() is None


def test_what_a_kernel_does_wrong_is_raised() -> None:
    @tc.kernel(workers=4)
    def racy(x: tc.inout[tc.f32[4]]):
        for i in tc.spatial(4):
            x[i] = x[(i + 1) % 4]

    @tc.program
    def program(x: tc.f32[4], y: tc.out[tc.f32[4]]):
        t = shifted(x, 1)
        racy(t)
        shifted(t, 1, out=y)

    y = np.zeros(4, np.float32)
    with pytest.raises(tc.CompileError, match="race"):
        program(np.ones(4, np.float32), out=y)
    assert not y.any()
    (finding,) = tc.check(program)
    assert finding.message.startswith("race")
    examined = checking.examine(program)
    assert [call.ok for call in examined.calls] == [True, False]
    assert not examined.ok


# --- checking and breaking -------------------------------------------------------------------


@tc.kernel(workers=4)
def picked(x: tc.f32[4], places: tc.i64[4], y: tc.out[tc.f32[4]]):
    for i in tc.spatial(4):
        k = places[i]
        assert 0 <= k < 4, "a place in x"
        y[i] = x[k]


def by_places(first: int) -> tc.ProgramDefinition:
    """`picked` at first, first + 1, ...: which a call before it computes."""

    @tc.program(example=lambda random: np.arange(4, dtype=np.float32))
    def program(x: tc.f32[4], y: tc.out[tc.f32[4]]):
        places = tc.empty(tc.i64[4])
        numbers(first, 1, out=places)
        picked(x, places, out=y)

    return program


def test_a_call_is_checked_on_what_it_gets_from_those_before() -> None:
    assert tc.check(by_places(0), seeds=(0, 1)) == ()
    assert by_places(0)(*by_places(0).example()).tolist() == [0, 1, 2, 3]
    findings = tc.check(by_places(2))
    assert {finding.kind for finding in findings} == {"assertion", "out-of-bounds"}
    told: list[Any] = []
    examined = checking.examine(by_places(0), progress=told.append, target="sm_80")
    assert [call.bound.values[-1].tolist() for call in examined.calls] == [[0, 1, 2, 3]] * 2
    assert examined.results[1].tolist() == [0, 1, 2, 3]
    assert told[0].text == "call 1, numbers: proving"
    assert told[-1].text.startswith("call 2, picked: running it after ")


def test_given_arguments_are_used_and_left_alone() -> None:
    rest, given = f32(1, 2), f32(5)
    assert tc.check(chain, (given, 2, rest)) == ()
    assert (rest.tolist(), given.tolist()) == ([1, 2], [5])
    with pytest.raises(tc.ArgumentError, match="argument 'a' must be"):
        tc.check(chain, (np.ones(2), 2, rest))
    with pytest.raises(tc.CompileError, match="there is no target 'sm_1'"):
        tc.check(chain, target="sm_1")
    with pytest.raises(ValueError, match="there is no stage 'late'"):
        tc.check(chain, stages="late")


def test_a_finding_that_two_calls_show_is_one() -> None:
    @tc.program
    def program(x: tc.f32[4]):
        places = tc.empty(tc.i64[4])
        numbers(7, 1, out=places)
        picked(x, places)

    @tc.kernel(workers=32)
    def columns(x: tc.f32[32, 32], y: tc.out[tc.f32[32, 32]]):
        for i, j in tc.spatial(32, 1) * tc.repeat(1, 32):
            y[i, j] = x[i, j]

    @tc.program(fuse=False)
    def slow(x: tc.f32[32, 32]):
        columns(columns(x))

    assert len(tc.check(program)) == 2
    alone = tc.check(columns)
    assert {finding.kind for finding in alone} == {"uncoalesced"}
    assert len(tc.check(slow)) == len(alone)


def test_a_program_is_broken_by_its_kernels() -> None:
    @tc.kernel(workers=4)
    def reversed(x: tc.f32[8], y: tc.out[tc.f32[8]]):
        s = tc.shared(tc.f32[8])
        for i in tc.spatial(4) * tc.repeat(2):
            s[i] = x[i]
        for i in tc.spatial(4) * tc.repeat(2):
            y[i] = s[7 - i]

    @tc.program
    def program(x: tc.f32[8], y: tc.out[tc.f32[8]]):
        shifted(reversed(reversed(x)), 0, out=y)

    mutants = list(mutate(program.ir, inputs_of(program)))
    assert any("barrier" in mutant.description and mutant.reported for mutant in mutants)
    assert [m.description for m in mutants if not (m.reported or m.reason)] == []
    assert {m.location.text.strip() for m in mutants if m.kind == "mapping"} >= {
        "for i in tc.spatial(4) * tc.repeat(2):",
        "for i in tc.spatial(4):",
    }


def test_a_size_that_only_a_computed_extent_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    @tc.program
    def in_place(x: tc.inout[tc.f32[2 * n + 1]]):
        tc.compute((n,), lambda i: x[i] * 2, out=x[0:n])

    for target in ("cpu", "sim"):
        monkeypatch.setenv("TASKC_TARGET", target)
        x = f32(1, 2, 3, 4, 5)
        in_place(x)
        assert x.tolist() == [2, 4, 3, 4, 5]
        with pytest.raises(tc.ArgumentError, match="with n a whole number, 0 or more, not f32"):
            in_place(f32(1, 2))


def test_arguments_that_passes_have_made_unfit_are_a_bug() -> None:
    with pytest.raises(
        InternalError, match=r"bind_dimensions\(\): argument 'x' doesn't fit with q = 3"
    ):
        bind_dimensions([*doubled.ir.parameters, *doubled.ir.parameters], [(3,), (4,)])
