"""`breakpoint()`: who stops, what is seen there, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskc as tc
from taskc import f32, i64, repeat, spatial
from taskc.backend.sim import Stop, run
from taskc.backend.sim.breakpoints import After
from taskc.ir import nodes as ir
from taskc.ir.parser import parse
from taskc.ir.printer import to_text
from taskc.ir.rewrite import walk
from taskc.passes.pipeline import lower
from tests.stages import changes

OWN = spatial(4).repeat(2)


@tc.kernel(workers=4)
def kernel(x: f32[2, 8], n: i64, y: tc.out[f32[2, 8]]):
    for row, _ in tc.tiles((2, 8), by=(1, 8)):
        sx = tc.load(x[row : row + 1, 0:8])
        acc = tc.tile(f32, OWN, 0)
        total = f32(0)
        for q in range(2):  # noqa: B007 (it is looked at)
            for i in OWN:
                if i > 2:
                    a = sx[0, i] + f32(1)
                    acc[i] += a
                    breakpoint()  # inner
            total += 1.0
        breakpoint()  # outer
        for i in OWN:
            y[row, i] = acc[i] * total + n.to(f32)


X = np.arange(16, dtype=np.float32).reshape(2, 8)
LINES = Path(__file__).read_text().splitlines()
INNER, OUTER = (
    1 + next(i for i, line in enumerate(LINES) if line.endswith(end))
    for end in ("# inner", "# outer")
)


def stops_of(program: ir.Kernel, **options: Any) -> tuple[list[Stop], np.ndarray]:
    stops: list[Stop] = []
    y = np.zeros_like(X)
    report = run(program, [X, np.int64(5), y], on_stop=stops.append, **options)
    assert not report.findings, report
    return stops, y


def seen(program: ir.Kernel, look: Any, **options: Any) -> list[Any]:
    """What `look` sees at each stop, while the run stands there."""
    found: list[Any] = []
    run(
        program,
        [X, np.int64(5), np.zeros_like(X)],
        on_stop=lambda stop: found.append(look(stop)),
        **options,
    )
    return found


# --- who stops -------------------------------------------------------------------------------


def test_by_default_the_first_who_comes_stops_at_each_breakpoint() -> None:
    stops, _ = stops_of(kernel.ir)
    assert [(s.location.line, s.block, s.worker, s.task) for s in stops] == [
        *[(INNER, 0, 2, (task,)) for task in (4, 5, 4, 5)],
        (OUTER, 0, 0, None),
    ]


def test_a_block_and_a_worker_can_be_named() -> None:
    stops, _ = stops_of(kernel.ir, stop=(1, 1))
    assert {(s.block, s.worker) for s in stops} == {(1, 1)}
    assert [s.task for s in stops] == [(3,), (3,), None]  # tasks 2 and 3; the first is masked


def test_all_stop() -> None:
    stops, _ = stops_of(kernel.ir, stop="all")
    inner = [(s.block, s.task) for s in stops if s.location.line == INNER]
    assert sorted(inner) == sorted((b, (i,)) for b in range(2) for i in range(3, 8) for _ in "ab")
    outer = [(s.block, s.worker) for s in stops if s.location.line == OUTER]
    assert sorted(outer) == [(b, w) for b in range(2) for w in range(4)]


# --- what is seen ----------------------------------------------------------------------------


def test_scalars_in_scope() -> None:
    stops, _ = stops_of(kernel.ir, stop=(1, 3))
    inner = [s.scalars for s in stops if s.location.line == INNER]
    assert [(s["row"], s["q"], s["i"], s["a"], s["total"], s["n"]) for s in inner] == [
        (1, 0, 6, 15.0, 0.0, 5), (1, 0, 7, 16.0, 0.0, 5),
        (1, 1, 6, 15.0, 1.0, 5), (1, 1, 7, 16.0, 1.0, 5),
    ]  # fmt: skip
    outer = stops[-1].scalars
    assert outer["total"] == 2.0
    assert not {"q", "i", "a"} & outer.keys()
    assert all(type(value) in (bool, int, float) for value in outer.values())


def test_memory_is_the_workers_own_view() -> None:
    tiles = seen(kernel.ir, lambda s: (s.tensor("acc"), s.element("acc", 0)), stop=(1, 3))
    acc, other = tiles[0]
    assert acc.mask.tolist() == [True] * 6 + [False] * 2
    assert acc.compressed().tolist() == [15.0, 0.0]
    assert other is None
    assert tiles[3][0].compressed().tolist() == [30.0, 32.0]
    shared = seen(kernel.ir, lambda s: s.tensor("sx").tolist(), stop=(1, 3))
    assert shared[0] == [X[1].tolist()]
    assert seen(kernel.ir, lambda s: s.element("x", 0, 3))[0] == 3.0
    assert seen(kernel.ir, lambda s: s.element("y", 0, 3))[0] is None  # not written yet


def test_what_is_not_there() -> None:
    def look(stop: Stop) -> None:
        with pytest.raises(KeyError, match="no tensor 'z' is in scope; there is x, y, sx, acc"):
            stop.tensor("z")
        with pytest.raises(IndexError, match=r"2 is outside 0\.\.1 in x"):
            stop.element("x", 2, 0)
        with pytest.raises(IndexError, match="x takes 2 indices, not 1"):
            stop.element("x", 0)

    assert seen(kernel.ir, look)


def test_packed_memory_is_looked_at_by_logical_index() -> None:
    panels = repeat(1, 2) * repeat(4, 2)

    @tc.kernel(workers=4)
    def packed(x: f32[4, 4].laid(panels), y: tc.out[f32[4, 4]]):
        sx = tc.load(x[0:4, 0:4])
        breakpoint()
        for i, j in spatial(4, 1) * repeat(1, 4):
            y[i, j] = sx[i, j]

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    for program in (packed.ir, lower(packed.ir)):
        found: list[Any] = []
        run(
            program,
            [x, np.zeros_like(x)],
            on_stop=lambda s, found=found: found.extend([s.tensor("x"), s.element("x", 1, 2)]),  # type: ignore[misc]
        )
        np.testing.assert_array_equal(found[0], x)
        assert found[1] == 6.0


# --- nothing else changes --------------------------------------------------------------------


@pytest.mark.parametrize("target", ["generic", "sm_80", "sm_90a"])
def test_a_breakpoint_goes_through_all_passes(target: str) -> None:
    stops, expected = stops_of(kernel.ir, stop="all")
    text = to_text(kernel.ir)
    assert text.count(" breakpoint\n") == 2
    quiet = run(kernel.ir, [X, np.int64(5), y := np.zeros_like(X)], on_stop=None)
    assert not quiet.findings
    assert y.tobytes() == expected.tobytes()
    for step in changes(replace(kernel.ir, target=target)):
        found, y = stops_of(step.kernel, stop="all")
        assert y.tobytes() == expected.tobytes(), step.name
        assert len(found) == len(stops), step.name
        counts = [
            sorted((s.location.line, s.block, s.worker, s.scalars["total"]) for s in these)
            for these in (stops, found)
        ]
        assert counts[0] == counts[1], step.name
    lean, _ = stops_of(step.kernel)
    assert {s.task for s in lean} == {None}
    assert {s.block for s in lean} == {0}


def test_a_breakpoint_costs_no_instruction() -> None:
    @tc.kernel(workers=4)
    def plain(x: f32[8], y: tc.out[f32[8]]):
        for i in OWN:
            y[i] = x[i] * 2

    @tc.kernel(workers=4)
    def stopped(x: f32[8], y: tc.out[f32[8]]):
        for i in OWN:
            unused = x[i] + 1  # noqa: F841 (so it is)
            y[i] = x[i] * 2
        breakpoint()

    texts = [to_text(lower(k.ir)) for k in (plain, stopped)]
    lines = [line.strip() for line in texts[1].splitlines()[1:] if line.strip() != "breakpoint"]
    assert lines == [line.strip() for line in texts[0].splitlines()[1:]]


def test_warps_that_run_by_themselves_stop_too() -> None:
    @tc.cuda.kernel(workers=64)
    def room(x: f32[64], y: tc.out[f32[64]]):
        s = tc.shared(f32[64])
        w = tc.worker()
        s[w] = x[w]
        tc.sync()
        if w > 40:
            breakpoint()
        y[w] = s[63 - w]

    x = np.arange(64, dtype=np.float32)
    for seed in (None, 1, 2):
        stops: list[tuple[int, float | None]] = []
        report = run(
            room.ir,
            [x, np.zeros_like(x)],
            seed=seed,
            on_stop=lambda s, stops=stops: stops.append((s.worker, s.element("s", 63))),  # type: ignore[misc]
        )
        assert not report.findings
        assert stops == [(41, 63.0)]


# --- from line to line -----------------------------------------------------------------------


def walked(program: ir.Kernel, answers: list[After]) -> list[tuple[int, tuple[int, ...] | None]]:
    """Where the worker stands, whose debugger gives these answers."""
    stops: list[Stop] = []

    def on_stop(stop: Stop) -> After:
        stops.append(stop)
        return answers[len(stops) - 1] if len(stops) <= len(answers) else None

    assert not run(program, [X, np.int64(5), np.zeros_like(X)], on_stop=on_stop).findings
    assert len({(stop.block, stop.worker) for stop in stops[: len(answers) + 1]}) == 1
    return [(stop.location.line, stop.task) for stop in stops]


def test_the_next_line_is_that_of_the_same_worker() -> None:
    found = walked(kernel.ir, ["next"] * 7)
    assert found[:8] == [
        (INNER, (4,)),
        (INNER - 3, (5,)),
        (INNER - 2, (5,)),
        (INNER - 1, (5,)),
        (INNER, (5,)),
        (INNER + 1, None),
        (INNER - 4, None),
        (INNER - 3, (4,)),
    ]
    assert found[8:] == [(INNER, (4,)), (INNER, (5,)), (OUTER, None)]


def test_a_worker_goes_on_to_a_line() -> None:
    file = str(Path(__file__))
    lines: After = frozenset({(file, OUTER + 2), (file, 1)})
    stops: list[tuple[int, int, tuple[int, ...] | None]] = []

    def on_stop(stop: Stop) -> After:
        stops.append((stop.location.line, stop.worker, stop.task))
        return lines

    assert not run(kernel.ir, [X, np.int64(5), np.zeros_like(X)], on_stop=on_stop).findings
    assert stops[:4] == [(INNER, 2, (task,)) for task in (4, 5, 4, 5)]
    assert stops[4:] == [(OUTER, 0, None), (OUTER + 2, 0, (0,)), (OUTER + 2, 0, (1,))]


def test_warps_that_run_by_themselves_are_walked_through() -> None:
    @tc.cuda.kernel(workers=64)
    def room(x: f32[64], y: tc.out[f32[64]]):
        s = tc.shared(f32[64])
        w = tc.worker()
        breakpoint(worker=40)
        s[w] = x[w]
        tc.sync()
        y[w] = s[63 - w]

    stops: list[Stop] = []

    def on_stop(stop: Stop) -> After:
        stops.append(stop)
        return "next"

    x = np.arange(64, dtype=np.float32)
    assert not run(room.ir, [x, np.zeros_like(x)], on_stop=on_stop, seed=1).findings
    assert [stop.location.text.strip() for stop in stops] == [
        "breakpoint(worker=40)",
        "s[w] = x[w]",
        "tc.sync()",
        "y[w] = s[63 - w]",
    ]
    assert {stop.worker for stop in stops} == {40}


# --- which block, which worker ---------------------------------------------------------------


@tc.kernel(workers=4)
def tiled(x: f32[6, 16], y: tc.out[f32[6, 16]]):
    for row, col in tc.tiles((6, 16), by=(2, 8), order=(1, 0)):
        breakpoint(block=(2, 1))
        for i, j in spatial(1, 4) * repeat(2, 2):
            breakpoint(block=1)
            breakpoint(block=2, worker=3)
            breakpoint(worker=2)
            if x[row + i, col + j] == 13:
                breakpoint()
            y[row + i, col + j] = x[row + i, col + j]


@pytest.mark.parametrize("target", [None, "avx2", "sm_90a"])
def test_a_breakpoint_names_its_block_and_its_worker(target: str | None) -> None:
    x = np.arange(96, dtype=np.float32).reshape(6, 16)
    program = tiled.ir if target is None else lower(replace(tiled.ir, target=target))
    stops: list[Stop] = []
    run(program, [x, np.zeros_like(x)], on_stop=stops.append)
    lines = sorted({stop.location.line for stop in stops})
    names = [{(s.block, s.worker) for s in stops if s.location.line == line} for line in lines]
    # The tiles go column by column: that of the rows 4 and 5 and the second 8 columns is the sixth.
    assert names == [{(5, 0)}, {(1, 0)}, {(2, 3)}, {(0, 2)}, {(3, 2)}]
    of_all: list[Stop] = []
    run(program, [x, np.zeros_like(x)], on_stop=of_all.append, stop="all")
    assert {stop.block for stop in of_all if stop.location.line == lines[0]} == {5}
    assert {stop.block for stop in of_all if stop.location.line == lines[1]} == set(range(6))


def test_what_a_breakpoint_names_has_a_text() -> None:
    text = to_text(tiled.ir)
    assert "breakpoint block=2 worker=3\n" in text
    assert "breakpoint block=1\n" in text
    assert to_text(parse(text)) == text


# --- the language ----------------------------------------------------------------------------


def test_it_is_a_statement() -> None:
    with pytest.raises(tc.CompileError) as caught:

        @tc.kernel(workers=4)
        def value(x: f32[8], y: tc.out[f32[8]]):
            for i in OWN:
                y[i] = breakpoint()

    assert caught.value.location.text.strip() == "y[i] = breakpoint()"


def test_a_helper_may_have_one() -> None:
    @tc.function
    def twice(a):
        breakpoint()
        return a * 2

    @tc.kernel(workers=4)
    def helped(x: f32[8], y: tc.out[f32[8]]):
        for i in OWN:
            y[i] = twice(x[i])

    assert sum(isinstance(node, ir.Breakpoint) for node in walk(helped.ir.body)) == 1
