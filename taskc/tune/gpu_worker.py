"""A worker for GPUs: it compiles for a GPU that need not be present, and checks on it or in the simulator.

python -m taskc.tune.gpu_worker sm_90a simulator
python -m taskc.tune.gpu_worker sm_90a device
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from taskc import device
from taskc.backend.cuda.compiled import CompiledCubin
from taskc.errors import CheckError
from taskc.format import bytes_text
from taskc.ir.nodes import Tensor
from taskc.lang.definition import Definition
from taskc.runtime.checking import examine
from taskc.runtime.driver import compile_ahead
from taskc.tune.operands import Operands, operands_of, values_of
from taskc.tune.timing import Disturbances
from taskc.tune.worker import Answer, Parcel, Worker, failed, serve
from taskc.tune.workers import Workers

_FILLED = 2  # the size of all copies of operands, over the L2's
_MOST_COPIES = 64
_MOST_TIMES = 200
_LEAST_SECONDS = 1e-3  # of a sample


class SimulatedWorker(Worker):
    """A worker without a GPU: it can't measure time."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    def compile(self, request: Answer) -> Answer:
        start = time.perf_counter()
        compiled = compile_ahead(self.definition(Parcel.parse(request["parcel"])), self.target)
        if spills := [reason for kernel in compiled for reason in _spills(kernel)]:
            return failed("refused", "; ".join(spills))
        digest = hashlib.sha256(
            b"".join([hashlib.sha256(kernel.cubin).digest() for kernel in compiled])
        )
        return {
            "seconds": {"compile": time.perf_counter() - start},
            "code": digest.hexdigest(),
            "note": "; ".join(map(_needs, compiled)),
        }

    def call(self, definition: Definition, operands: Operands) -> None:
        """Run it as written and lowered: both must agree, without races or accesses out of bounds."""
        given = list(operands.inputs)
        examined = examine(definition, given, stages=("lean",), target=self.target)
        errors = tuple([finding for finding in examined.findings if finding.severity == "error"])
        if errors:
            raise CheckError(errors)
        places = values_of(definition, operands)
        for (parameter, memory), result in zip(places, examined.results, strict=True):
            if isinstance(parameter, Tensor) and parameter.role != "in":
                np.copyto(memory, result)


class DeviceWorker(SimulatedWorker):
    """A worker with the first GPU: kernels are checked there, and timed by its events."""

    def call(self, definition: Definition, operands: Operands) -> None:
        placed = _on_device(operands)
        placed.call_of(definition)()
        results: Iterable[Any] = placed.outputs
        for memory, result in zip(operands.outputs, results, strict=True):
            np.copyto(memory, result.numpy())

    def time(self, request: Answer) -> Answer:
        """Interleaved samples of all candidates."""
        folder, copies = Path(request["folder"]), 1
        samplers = []
        for text in request["parcels"]:
            definition = self.definition(Parcel.parse(text))
            operands = operands_of(definition, folder)
            copies = _copies(operands)
            calls = [_on_device(operands).call_of(definition) for _ in range(copies)]
            samplers.append(_sampler(calls))
        rounds = [[sample() for sample in samplers] for _ in range(request["samples"])]
        return {
            "seconds": list(zip(*rounds, strict=True)),
            "times": [1] * len(samplers),
            "copies": copies,
            "disturbances": asdict(Disturbances()),
        }


# --- resources -------------------------------------------------------------------------------


def _spills(made: CompiledCubin) -> Iterator[str]:
    """A note of spilled registers: such a kernel isn't worth measuring."""
    spilled = made.resources.spill_stores + made.resources.spill_loads
    if spilled:
        yield f"{made.name} spills {spilled} bytes of registers"


def _needs(made: CompiledCubin) -> str:
    needs = made.resources
    shared = bytes_text(needs.shared + made.shared, "KiB", ".0f")
    said = f"{made.threads} threads, {needs.registers} registers, {shared} of shared memory"
    return "; ".join((said, *needs.remarks))


# --- operands --------------------------------------------------------------------------------


def _on_device(operands: Operands) -> Operands:
    def placed(value: Any) -> Any:
        return device.array(value) if isinstance(value, np.ndarray) else value

    return Operands(tuple(map(placed, operands.inputs)), tuple(map(placed, operands.outputs)))


def _copies(operands: Operands) -> int:
    """The number of copies with which none is in the L2 when its turn comes."""
    wanted = ceil(_FILLED * device.context().cache_bytes / max(1, operands.nbytes))
    return min(_MOST_COPIES, max(1, wanted))


# --- times -----------------------------------------------------------------------------------


def _sampler(calls: list[Callable[[], object]]) -> Callable[[], float]:
    """A function that samples a call's seconds: the mean of enough calls, as one graph, for the device's clock."""

    def run_all(times: int) -> None:
        for _ in range(times):
            for call in calls:
                call()

    run_all(1)  # loads the code
    once = _seconds(partial(run_all, 1))
    times = min(_MOST_TIMES, max(1, ceil(_LEAST_SECONDS / max(1e-7, once))))
    graph = device.Graph(partial(run_all, times))
    graph.replay()
    return lambda: _seconds(graph.replay) / (times * len(calls))


def _seconds(run: Callable[[], object]) -> float:
    """The seconds that the device takes, by its events."""
    stream = device.current_stream()
    start = stream.record()
    run()
    end = stream.record()
    end.synchronize()
    milliseconds: float = end.since(start)
    return milliseconds * 1e-3


WORKERS = {"simulator": SimulatedWorker, "device": DeviceWorker}


def workers_for(target: str, runs_on: str = "device") -> Workers:
    """Workers for a GPU that run kernels on the "device", or in the "simulator"."""
    return Workers(command=(sys.executable, "-m", "taskc.tune.gpu_worker", target, runs_on))


if __name__ == "__main__":
    serve(WORKERS[sys.argv[2]](sys.argv[1]))
