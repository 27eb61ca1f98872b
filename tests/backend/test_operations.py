"""What is declared of operations; and that each has its code wherever programs of its machine run."""

from __future__ import annotations

import numpy as np
import pytest

from taskc.backend.cpu.emit import Emitter
from taskc.backend.cpu.math import math_function
from taskc.backend.cuda.prelude import library
from taskc.backend.cuda.statements import StatementWriter
from taskc.backend.operations import printed
from taskc.backend.sim.report import FindingList
from taskc.backend.sim.run import Simulation
from taskc.ir import nodes as ir
from taskc.ir.operations import OPERATIONS, TURNS, Operation, read, written
from taskc.ir.types import f32, u64
from taskc.mutation.changes import is_wait

ROWS = tuple(OPERATIONS.values())


def kernel(target: str) -> ir.Kernel:
    """Its warps run by themselves in the simulator, for the mbarrier."""
    arrivals = ir.Tensor("arrivals", u64, (1,), ir.BARRIER)
    return ir.Kernel("k", (), (), 128, ir.Allocate(arrivals), stage="lean", target=target)


def named(machines: tuple[str, ...]) -> set[str]:
    return {row.name for row in ROWS if row.machine in machines}


def lacking(has: set[str], wanted: set[str], file: str) -> None:
    assert not wanted - has, f"{file} has nothing for {sorted(wanted - has)}"
    assert not has - wanted, f"{file} has what ir/operations.py lacks: {sorted(has - wanted)}"


def test_the_simulator_has_all() -> None:
    simulation = Simulation(kernel("sm_90a"), (), FindingList(1), lambda line: None, 0)
    names = {kind for kind in simulation.statements.makers if isinstance(kind, str)}
    lacking(names, {row.name for row in ROWS}, "taskc/backend/sim")


def test_cuda_has_those_of_gpus() -> None:
    has = set(StatementWriter(kernel("sm_90a")).operations.makers)
    called = {row.name for row in ROWS if row.name.replace(".", "_") in library()}
    wanted = named(("gpu", "any")) - set(TURNS)  # barriers, once rings are lowered
    lacking(has | called, wanted, "taskc/backend/cuda/operations.py, with its prelude,")


def test_processors_have_theirs() -> None:
    emitter = Emitter(kernel("avx2"), 8, "x", math_function)
    lacking(
        set(emitter.operations.makers),
        named(("processor", "any")),
        "taskc/backend/cpu/operations.py",
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_places_are_read_or_written_or_are_mbarriers(row: Operation) -> None:
    kinds = row.kinds(len(row.operands))
    places = {number for number, kind in enumerate(kinds) if kind in ("place", "remote")}
    assert {*row.reads, *row.writes} <= places
    mbarriers = places - {*row.reads, *row.writes}
    expected = {0} if row.name.startswith("mbarrier.") else {2} if "tma.load" in row.name else set()
    assert mbarriers == expected, "taskc/ir/operations.py"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_effects_come_from_the_declaration(row: Operation) -> None:
    tensors = [ir.Tensor(f"t{i}", f32, (4,), ir.SHARED) for i in range(len(row.operands))]
    operands = tuple(
        ir.Address(tensor, (ir.constant(0),)) if kind in ("place", "remote") else ir.constant(1)
        for tensor, kind in zip(tensors, row.kinds(len(tensors)), strict=True)
    )
    node = ir.Do(row.name, operands)
    assert [*read(node)] == [tensors[i] for i in row.reads]
    assert [*written(node)] == [tensors[i] for i in row.writes]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_its_meaning_orders_mutants_lose(row: Operation) -> None:
    says = any(
        word in row.meaning
        for word in (
            "rders",
            "Waits until",
            "Closes",
            "arrival",
            "Barrier",
            "barrier of the cluster",
        )
    )
    moves = bool(row.reads or row.writes)
    assert is_wait(ir.Do(row.name, ())) == (says and not moves), "taskc/ir/operations.py"


def test_braces_are_braces() -> None:
    assert printed("{} of {{}}: {x}, }", [1, np.float32(0.5)]) == "1 of {0.5}: {x}, }"
    assert printed("{x}", []) == "{x}"
