"""Slots and parities of the steps, the set-up of mbarriers, and what they count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskc.ir import nodes as ir
from taskc.ir.rewrite import walk
from taskc.passes.lower_rings import lower_rings
from tests.evaluator import Machine
from tests.passes.kernels import (
    after,
    before_and_after,
    keeps_its_result,
    kernel,
    nodes,
    result,
    through,
)

Golden = Callable[[str, str], None]


def travelling(how: str, *, stages: int = 3, steps: int = 7, workers: int = 64) -> ir.Kernel:
    own = f"spatial(8, 4).repeat(1, 2).replicate({workers // 32})"
    return kernel(
        f"""
        tile acc: f32[8, 8] by {own} = 0.0
        pipeline p in {steps * 8} by 8 stages={stages}{how}:
            constant shared s: f32[8, 8]
            move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
            constant shared t: f32[8, 4]
            move t[i, j] = y[p + i, j] for (i, j) in (8, 4)
            each (i, j) in {own}:
                acc[i, j] = acc[i, j] + s[7 - i, j] * t[i, j % 4]
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        f"x: f32[{steps * 8}, 8], y: f32[{steps * 8}, 4], c: out f32[8, 8]",
        workers=workers,
        target="sm_90a",
    )


def operations(start: ir.Kernel, name: str) -> list[ir.Do]:
    return [do for do in nodes(start, ir.Do) if do.operation == name]


@pytest.mark.parametrize("how", ["transport=tma", "specialize"])
def test_golden(how: str, golden: Golden) -> None:
    start = kernel(
        f"""
        tile acc: f32[8, 8] by spatial(8, 4).repeat(1, 2) = 0.0
        pipeline p in 56 by 8 stages=3 {how}:
            constant shared s: f32[8, 8]
            move s[i, j] = x[p + i, j] for (i, j) in (8, 8)
            each (i, j) in spatial(8, 4).repeat(1, 2):
                acc[i, j] = acc[i, j] + s[7 - i, j]
        move c[i, j] = acc[i, j] for (i, j) in (8, 8)
        """,
        "x: f32[56, 8], c: out f32[8, 8]",
        target="sm_90a",
    )
    start = after(start, "synchronize")
    name = how.partition("=")[2] or how
    golden(f"passes/lower_rings_{name}", before_and_after(start, through(start, lower_rings)))


@pytest.mark.parametrize("how", [" transport=tma", " specialize"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_slots_and_parities_wrap_around(how: str, stages: int) -> None:
    """Step k is the (k // stages)-th phase of slot k % stages: its parity is that number's last bit.
    Who acquires waits for the phase before, so the first turn passes at once."""
    steps = 4 * stages + 1
    made = after(travelling(how, stages=stages, steps=steps), "lower_rings")
    machine = Machine()
    seen = set()
    for loop in (node for node in nodes(made, ir.For) if node.kind == "serial"):
        for do in walk(loop.body):
            if isinstance(do, ir.Do) and do.operation == "mbarrier.wait":
                place, parity = do.operands
                assert isinstance(place, ir.Address)
                is_full = place.tensor.name.endswith("_full")
                seen.add(place.tensor.name)
                assert place.tensor.shape == (stages,)
                for k in range(steps):
                    values = {loop.variable: k}
                    assert machine.value(place.indices[0], values) == k % stages
                    turn = k // stages % 2
                    assert machine.value(parity, values) == (turn if is_full else 1 - turn)
    assert seen == ({"s_t_full", "s_t_empty"} if how == " specialize" else {"s_t_full"})


@pytest.mark.parametrize("workers", [32, 96])
def test_what_mbarriers_count(workers: int) -> None:
    def counts(how: str) -> dict[str, int]:
        made = after(travelling(how, workers=workers), "lower_rings")
        found = {}
        for do in operations(made, "mbarrier.init"):
            place, count = do.operands
            assert isinstance(place, ir.Address)
            assert isinstance(count, ir.Constant)
            found[place.tensor.name] = int(count.value)
        return found

    assert counts(" transport=tma") == {"s_t_full": 1}
    assert counts(" specialize") == {"s_t_full": 1, "s_t_empty": workers}
    assert counts(" transport=registers specialize") == {"s_t_full": 32, "s_t_empty": workers}
    assert counts(" transport=cp.async") == {}
    assert counts(" transport=registers") == {}


@pytest.mark.parametrize("how", [" transport=tma", " specialize"])
def test_expected_bytes_are_those_of_one_step(how: str) -> None:
    made = after(travelling(how), "lower_rings")
    expected = operations(made, "mbarrier.expect")
    assert expected
    for do in expected:
        assert do.operands[1] == ir.Constant(8 * 8 * 4 + 8 * 4 * 4)
    boxes = {tuple(part.value for part in do.operands[3:]) for do in operations(made, "tma.load")}
    assert boxes == {(8, 8), (8, 4)}


def test_one_worker_sets_up_and_issues() -> None:
    made = after(travelling(" specialize"), "lower_rings")
    issuers = {
        node.condition
        for node in nodes(made, ir.If)
        if any(isinstance(n, ir.Do) and n.operation == "tma.load" for n in walk(node.then))
    }
    assert issuers == {ir.Binary("==", made.worker, ir.Constant(64))}, "the producer's first"
    (set_up,) = [
        node
        for node in nodes(made, ir.If)
        if any(isinstance(n, ir.Do) and n.operation == "mbarrier.init" for n in walk(node.then))
    ]
    assert set_up.condition == ir.Binary("==", made.worker, ir.Constant(0))


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_groups_of_asynchronous_copies(stages: int) -> None:
    made = after(travelling(" transport=cp.async", stages=stages), "lower_rings")
    assert [do.operands for do in operations(made, "cp.async.wait")] == [(ir.Constant(stages - 2),)]
    assert len(operations(made, "cp.async.commit")) == 2


def test_registers_need_no_operations() -> None:
    made = after(travelling(" transport=registers"), "lower_rings")
    assert not nodes(made, ir.Do)
    assert not nodes(made, ir.RingStep)


@pytest.mark.each_value
@pytest.mark.parametrize(
    "how",
    [" transport=tma", " specialize", " transport=registers specialize", " transport=cp.async"],
)
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_results_stay(how: str, steps: int) -> None:
    lean = keeps_its_result(travelling(how, steps=steps))
    expected = result(lean)[-1].tobytes()
    for seed in (0, 1):
        assert result(lean, seed=seed)[-1].tobytes() == expected
