"""The time, traffic and operations of a program's calls, against the least time on the machine.

Times are measured in compiled code, call by call in the order of the program and on its own arena, as medians of
rounds; the rest is counted from the kernels' IR, at the sizes of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from taskc.arrays.arguments import Bound
from taskc.backend.cpu.program import LoadedProgram, timed
from taskc.dataclass import dataclass
from taskc.errors import CompileError, Location
from taskc.format import bytes_text, factor_text, share_text, time_text
from taskc.ir.nodes import Kernel, Tensor, Variable
from taskc.kernels.machine_facts import PROCESSOR, products_per_second
from taskc.lang.definition import Definition, KernelDefinition
from taskc.programs.arena import blocks_of
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Branch, Call, Program, While, calls_of, kernels_of, steps_of
from taskc.programs.plan import deciding
from taskc.programs.planning import Arranged, arrange, bytes_of
from taskc.programs.specialize import Sized, SizedCall
from taskc.programs.traffic import Traffic, traffic
from taskc.runtime.driver import scheduled, signature, whole_program
from taskc.runtime.machine import Machine, machine
from taskc.runtime.targets import finish_compiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of some calls in all.

    seconds     the measured time
    predicted   the machine's least time: for the bytes, or for the operations if that is longer
    bytes       of their arguments, each needed part once: the least that has to be moved
    moved       the bytes that are loaded and stored, in memory or in a cache
    operations  a fused multiply-add counts as two
    """

    seconds: float = 0.0
    predicted: float = 0.0
    bytes: int = 0
    moved: int = 0
    operations: int = 0

    @property
    def share(self) -> float:
        """The share of the roofline: 1 is as fast as the machine can be."""
        return self.predicted / self.seconds if self.seconds > 0 else 0.0

    @staticmethod
    def sum(parts: Iterable[Work]) -> Work:
        every = list(parts)
        return Work(
            seconds=sum(part.seconds for part in every),
            predicted=sum(part.predicted for part in every),
            bytes=sum(part.bytes for part in every),
            moved=sum(part.moved for part in every),
            operations=sum(part.operations for part in every),
        )


@dataclass(frozen=True, slots=True)
class ProfiledCall:
    """A call in a program's text, with the work of all its executions in loops.

    origins  the lines of a program or the nodes of a model that it computes
    """

    kernel: str
    origins: tuple[str, ...]
    times: int
    work: Work


@dataclass(frozen=True, slots=True)
class Room:
    """A block of the arena, used by one temporary after another.

    start, end  of its lifetime, in seconds from the program's first call
    """

    tensors: tuple[str, ...]
    offset: int
    bytes: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a program, in bytes.

    weights      constants
    activations  the arena of temporaries
    alive        the most bytes of the arena alive at once: no arena is smaller
    workspace    kernels' private memory, on all threads
    inputs, outputs  the caller's arrays; a modified one counts as both
    """

    weights: int
    activations: int
    alive: int
    workspace: int
    inputs: int
    outputs: int
    rooms: tuple[Room, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a program.

    seconds   of the whole program in one call
    sequence  the calls in execution order: the index in `calls`, and the seconds of each
    """

    name: str
    threads: int
    rounds: int
    seconds: float
    calls: tuple[ProfiledCall, ...]
    sequence: tuple[tuple[int, float], ...]
    memory: Memory

    @property
    def total(self) -> Work:
        return Work.sum(call.work for call in self.calls)

    def by_kernel(self) -> list[tuple[str, list[ProfiledCall]]]:
        """The calls of each kernel, the kernel with the longest time first."""
        groups: dict[str, list[ProfiledCall]] = {}
        for call in self.calls:
            groups.setdefault(call.kernel, []).append(call)
        return sorted(groups.items(), key=lambda item: -sum(call.work.seconds for call in item[1]))


# The columns of a table of work, each with the function of some work and all calls' seconds that gives its cell.
COLUMNS: dict[str, tuple[Callable[[Work, float], float | None], Callable[[float], str]]] = {
    "time": (lambda work, total: work.seconds, time_text),
    "share": (lambda work, total: work.seconds / total if total else 0.0, share_text),
    "predicted": (lambda work, total: work.predicted, time_text),
    "roofline": (lambda work, total: work.share, share_text),
    "bytes": (lambda work, total: work.bytes, bytes_text),
    "moved": (
        lambda work, total: work.moved / work.bytes if work.bytes else None,
        lambda ratio: factor_text(ratio, 1.0),
    ),
}


def profile(definition: Definition, arguments: Sequence[Any], rounds: int = 20) -> Profile:
    """Run a program or a kernel `rounds` times on the processor, on a call's arguments."""
    if isinstance(definition, KernelDefinition):
        definition = _program_of(definition)
    assert isinstance(definition, ProgramDefinition)
    bound = signature(definition).bind(arguments, {})
    program, _ = scheduled(definition)
    if any(isinstance(step, Branch | While) for step in steps_of(program.calls)):
        raise CompileError(
            f"'{definition.name}' decides at run time which calls are made: they can't be timed one by one",
            program.loc,
        )
    samples, whole, workspace = _measured(definition, bound, rounds)
    values = dict(zip(program.parameters, bound.values, strict=True))
    sizes: dict[Any, Any] = {**values, **bound.dimensions}
    deciders = {item: sizes[item] for item in deciding(program)}
    arranged = arrange(program, blocks_of(program), deciders)
    executed = [call for _, call in arranged.calls]
    seconds = _seconds(executed, samples)
    calls = _calls(program, arranged.known, executed, seconds)
    numbers = {id(call): number for number, (call, _) in enumerate(calls)}
    sequence = [
        (numbers[id(call.call)], time) for call, time in zip(executed, seconds, strict=True)
    ]
    return Profile(
        definition.name,
        machine().threads,
        rounds,
        whole,
        tuple([call for _, call in calls]),
        tuple(sequence),
        _memory(program, arranged, seconds, workspace * machine().threads),
    )


def _seconds(calls: Sequence[SizedCall], samples: np.ndarray) -> list[float]:
    """The time of each call; all turns of a loop count equally, since one may be too short for the clock."""
    turns: dict[int, list[int]] = {}
    for place, made in enumerate(calls):
        turns.setdefault(id(made.call), []).append(place)
    seconds = [0.0] * len(calls)
    for places in turns.values():
        together = max(0.0, float(np.median(samples[:, places].sum(axis=1))))
        for place in places:
            seconds[place] = together / len(places)
    return seconds


def _measured(
    definition: ProgramDefinition, bound: Bound, rounds: int
) -> tuple[np.ndarray, float, int]:
    """The seconds of each call, a row for each round; those of the whole; and the bytes of a thread's scratch."""
    runner = whole_program(definition, "cpu")
    if runner is None:  # it calls nothing
        return np.zeros((rounds, 0)), 0.0, 0
    assert isinstance(runner.code, LoadedProgram)
    runner.run(bound)  # errors show here
    finish_compiling()
    samples, whole = timed(runner.code, bound.values, bound.dimensions, rounds)
    workspace = max((kernel.compiled.scratch for kernel in runner.code.kernels), default=0)
    return samples, max(0.0, float(np.median(whole))), workspace


def _program_of(definition: KernelDefinition) -> ProgramDefinition:
    """A program with one call of a kernel."""
    kernel = definition.ir
    if kernel.stage != "parsed":
        raise CompileError(f"'{kernel.name}' is for a GPU: what runs here is profiled", kernel.loc)
    call = Call(kernel, kernel.parameters, apart=True, loc=kernel.loc)
    return ProgramDefinition.of(
        Program(kernel.name, kernel.parameters, kernel.dimensions, (), (call,), loc=kernel.loc)
    )


# --- work of calls ---------------------------------------------------------------------------


def _calls(
    program: Program, known: Sized, calls: Sequence[SizedCall], seconds: Sequence[float]
) -> list[tuple[Call, ProfiledCall]]:
    """The calls of the program's text, each with its work in all."""
    names = {id(kernel): name for name, kernel in kernels_of(program).items()}
    counted = _Counted(program, known)
    work: dict[int, list[Work]] = {}
    for made, time in zip(calls, seconds, strict=True):
        work.setdefault(id(made.call), []).append(counted.work(made, time))
    profiled = []
    for call in calls_of(program.calls):
        parts = work.get(id(call), [])
        name = names[id(call.callee)]
        profiled.append(
            (call, ProfiledCall(name, origins_text(call.origins), len(parts), Work.sum(parts)))
        )
    return profiled


def origins_text(places: Sequence[Location]) -> tuple[str, ...]:
    """Lines of the program, or the nodes of a model if there are any: lines are then taskc's own."""
    nodes = [place.text for place in places if not place.line and place.text]
    lines = [f"{Path(place.file).name}:{place.line}" for place in places if place.line]
    return tuple(dict.fromkeys(nodes or lines))


class _Counted:
    """Counts the work of calls at their sizes; calls of one kernel at the same sizes do the same work."""

    def __init__(self, program: Program, known: Sized) -> None:
        self.known = known
        self.constants = {tensor for tensor, _ in program.constants}
        self.machine = machine()
        given = [item for item in program.parameters if isinstance(item, Tensor)]
        every = (*given, *program.temporaries, *self.constants)
        self.footprint = sum(bytes_of(tensor, known) for tensor in every)
        self._traffic: dict[object, Traffic] = {}

    def work(self, made: SizedCall, seconds: float) -> Work:
        kernel = made.call.callee
        assert isinstance(kernel, Kernel)
        counted = self.traffic(kernel, made.dimensions)
        constant, other, written = 0, 0, 0
        for item, tensor in zip(kernel.parameters, made.arguments, strict=True):
            if not isinstance(item, Tensor):
                continue
            nbytes = bytes_of(tensor, self.known)
            if item.role != "in":
                written += nbytes
                other += nbytes * (2 if item.role == "inout" else 1)
                continue
            # Less than the whole may be read, such as some rows of a table.
            read = min(nbytes, ceil(counted.loaded.get(item, 0.0) * item.dtype.bits / 8))
            if self.known.views.get(tensor, tensor) in self.constants:
                constant += read
            else:
                other += read
        products = sum(counted.products.values())
        return Work(
            seconds=seconds,
            predicted=max(self._moving(constant, other), _computing(counted, self.machine)),
            bytes=constant + other,
            moved=ceil(counted.bytes) + written,
            operations=ceil(sum(counted.operations.values()) + 2 * products),
        )

    def traffic(self, kernel: Kernel, dimensions: Mapping[Variable, int]) -> Traffic:
        key = id(kernel), tuple(dimensions.values())
        if key not in self._traffic:
            self._traffic[key] = traffic(kernel, dimensions)
        return self._traffic[key]

    def _moving(self, constant: int, other: int) -> float:
        """Constants come from the level that holds the whole program's memory; other data from one for the call."""
        return constant / _bandwidth(self.footprint, self.machine) + other / _bandwidth(
            other, self.machine
        )


def _bandwidth(nbytes: int, machine: Machine) -> float:
    """Bytes per second for data of this size."""
    return PROCESSOR.rate(nbytes, machine) * PROCESSOR.cycles_per_second * machine.threads


def _computing(counted: Traffic, machine: Machine) -> float:
    fused = PROCESSOR.fused_per_cycle * PROCESSOR.cycles_per_second * machine.threads
    vectors = sum(
        count * dtype.nbytes / machine.vector_bytes for dtype, count in counted.operations.items()
    )
    products = sum(
        count / products_per_second(types, machine) for types, count in counted.products.items()
    )
    return vectors / (2 * fused) + products


# --- memory ----------------------------------------------------------------------------------


def _memory(
    program: Program, arranged: Arranged, seconds: Sequence[float], workspace: int
) -> Memory:
    known, laid = arranged.known, arranged.arena
    starts, ends = _clock(arranged, seconds)
    rooms = [
        Room(
            tuple([tensor.name for tensor in block.tensors]),
            offset,
            amount,
            starts[first],
            ends[last],
        )
        for block, offset, amount, (first, last) in zip(
            blocks_of(program), laid.offsets, laid.amounts, laid.spans, strict=True
        )
        if first <= last
    ]
    given = [item for item in program.parameters if isinstance(item, Tensor)]
    return Memory(
        weights=sum(memory.nbytes for _, memory in program.constants),
        activations=laid.size,
        alive=laid.alive,
        workspace=workspace,
        inputs=sum(bytes_of(item, known) for item in given if item.role != "out"),
        outputs=sum(bytes_of(item, known) for item in given if item.role != "in"),
        rooms=tuple(rooms),
    )


def _clock(arranged: Arranged, seconds: Sequence[float]) -> tuple[list[float], list[float]]:
    """The begin and end of each group, if calls run one by one."""
    taken = [0.0] * len(arranged.groups)
    for (time, _), passed in zip(arranged.calls, seconds, strict=True):
        taken[time] += passed
    ends = [*accumulate(taken)]
    return [0.0, *ends[:-1]], ends
