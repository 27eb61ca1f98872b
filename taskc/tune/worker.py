"""A process that compiles, checks and times kernels given as text: `python -m taskc.tune.worker`.

It writes `{}` when it is ready, reads requests from its standard input, each a line of JSON, and answers each by a
line. It ends when its input does. A candidate that crashes or hangs takes only this process with it, and `Process`
starts another.

    {"do": "compile", "parcel": …}
    {"do": "check", "parcel": …, "folder": …}
    {"do": "time", "parcels": […], "folder": …, "samples": …}

Each request also has "limit", the seconds after which the system ends the process, even if nobody waits for it any
more.

The stages of compiling a kernel into the cache folder, and their times.

Each stage runs once for each text of the stage before: different kernels that are lowered to the same text are compiled
once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from taskc.backend.cache import Cache
from taskc.backend.cpu.compile import CompiledObject, compile_kernel, refuse
from taskc.backend.cpu.processor import host
from taskc.backend.cpu.target import cache_key
from taskc.dataclass import dataclass
from taskc.errors import CheckError, CompileError, InternalError
from taskc.ir import nodes as ir, parse, parse_program
from taskc.ir.code_size import deep
from taskc.ir.printer import to_text
from taskc.lang.definition import Definition, KernelDefinition, Packs
from taskc.passes.pipeline import lower_steps
from taskc.programs.definition import ProgramDefinition
from taskc.runtime.machine import machine
from taskc.runtime.settings import cache_folder
from taskc.runtime.targets import compiler_version
from taskc.tune.operands import Operands, operands_of, worst_error
from taskc.tune.timing import Probe, Watch, in_turn, interleaved, rotated

# --- Definitions as text, for other processes, which then need none of the user's code to compile and call them


Pack: TypeAlias = "tuple[int, ...] | Parcel"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A definition as data.

    ir     the text of a kernel at the stage at which its author wrote it, or of a program with its kernels
    packs  the source of each packed parameter by name: a shape, or the kernel that packs

    Parcels that run the same are equal: they have no locations, documentation, examples or names of a tuple's parts.
    """

    ir: str
    packs: Mapping[str, Pack] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The parcel in one line, which `Parcel.parse` reads; the same for equal parcels."""
        return json.dumps(_data(self), sort_keys=True)

    @staticmethod
    def parse(text: str) -> Parcel:
        return _parcel(json.loads(text))

    def definition(self) -> KernelDefinition | ProgramDefinition:
        """A definition that runs like the original one."""
        if self.ir.startswith("program "):
            return ProgramDefinition.of(parse_program(self.ir), _packs(self))
        return _kernel(self)

    def __hash__(self) -> int:
        return hash(self.text)


def parcel_of(definition: Definition) -> Parcel:
    packs = {
        name: parcel_of(pack) if isinstance(pack, KernelDefinition) else tuple(map(int, pack))
        for name, pack in definition.packs.items()
    }
    return Parcel(to_text(definition.ir), packs)


def _kernel(parcel: Parcel) -> KernelDefinition:
    return KernelDefinition.of(parse(parcel.ir), _packs(parcel))


def _packs(parcel: Parcel) -> Packs:
    return {
        name: _kernel(pack) if isinstance(pack, Parcel) else pack
        for name, pack in parcel.packs.items()
    }


def _data(parcel: Parcel) -> dict[str, Any]:
    packs = {
        name: _data(pack) if isinstance(pack, Parcel) else list(pack)
        for name, pack in parcel.packs.items()
    }
    return {"ir": parcel.ir, "packs": packs}


def _parcel(data: dict[str, Any]) -> Parcel:
    packs = {
        name: tuple(pack) if isinstance(pack, list) else _parcel(pack)
        for name, pack in data["packs"].items()
    }
    return Parcel(data["ir"], packs)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of compiling kernels, and the kernels that pack for them.

    seconds  of the stages that ran: parse, prove, lower, compile. Others were cache hits
    code     the hash of the machine code: candidates with equal code take the same time
    """

    seconds: Mapping[str, float]
    code: str


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


def compiled(parcel: Parcel) -> Stages:
    """Compile a parcel's kernels into the cache, where calls find them."""
    clock = _Clock()
    with clock.stage("parse"):
        definition = parcel.definition()
    cache = Cache(cache_folder() / "cpu")
    code = hashlib.sha256()
    if not isinstance(definition, KernelDefinition):  # the text has the calls
        code.update(parcel.ir.encode())
    for kernel in definition.kernels:
        code.update(hashlib.sha256(_code(kernel.ir, cache, clock)).digest())
    for pack in definition.packs.values():
        if isinstance(pack, KernelDefinition):
            _code(pack.ir, cache, clock)
    return Stages(dict(clock.seconds), code.hexdigest())


def _code(kernel: ir.Kernel, cache: Cache, clock: _Clock) -> bytes:
    refuse(kernel)
    version = compiler_version()
    key = cache_key(kernel, version)
    cached = cache.get(key)
    if cached is None:
        lean = _lowered(kernel, clock)
        key_of_lean = cache_key(lean, version)
        cached = cache.get(key_of_lean)
        if cached is None:
            with clock.stage("compile"), deep(kernel.loc):
                cached = compile_kernel(lean, host()).to_bytes()
            cache.put(key_of_lean, cached)
        cache.put(key, cached)
    return CompiledObject.from_bytes(cached).code


def _lowered(kernel: ir.Kernel, clock: _Clock) -> ir.Kernel:
    lean = replace(kernel, target=host().target)
    for step in lower_steps(lean):
        clock.seconds["prove" if step.name == "prove" else "lower"] += step.seconds
        lean = step.kernel
    return lean


Answer: TypeAlias = dict[str, Any]

_FIRST = Parcel(
    "kernel first(x: f32[1], y: out f32[1]) workers=1 stage=parsed:\n"
    "    each i in spatial(1):\n"
    "        y[i] = x[i]\n"
)
_MAX_DEFINITIONS = 64  # cached: a candidate that is measured again is likely one of the last


class Worker:
    """Handles requests; tests plant faults by deriving from it."""

    def __init__(self) -> None:
        self.fastest = inf  # the probe's least time

    @cached_property
    def probe(self) -> Probe:
        return Probe(machine().threads)

    def definition(self, parcel: Parcel) -> Definition:
        """The parsed definition; its code is loaded at the first call."""
        return _definition(parcel)

    def compile(self, request: Answer) -> Answer:
        stages = compiled(Parcel.parse(request["parcel"]))
        return {"seconds": stages.seconds, "code": stages.code}

    def check(self, request: Answer) -> Answer:
        folder = Path(request["folder"])
        definition = self.definition(Parcel.parse(request["parcel"]))
        operands = operands_of(definition, folder)
        self.call(definition, operands)
        error, allowed = worst_error(definition, operands, folder)
        if not error <= allowed:
            note = f"an element is off by {error:.1e} of the results' root mean square"
            return failed("wrong", f"{note}, and {allowed:.1e} is allowed")
        return {"error": error}

    def call(self, definition: Definition, operands: Operands) -> None:
        operands.call_of(definition)()

    def time(self, request: Answer) -> Answer:
        folder, samples = Path(request["folder"]), request["samples"]
        calls, copies = [], 0
        for text in request["parcels"]:
            definition = self.definition(Parcel.parse(text))
            operands = operands_of(definition, folder)
            several = rotated(operands)
            calls.append(in_turn(definition, several))
            copies = len(several)
        self.probe()
        watch = Watch()
        rounds = interleaved(calls, self.probe, least=samples)
        calm_rounds = rounds.calm(samples // 2)
        discarded = 1 - len(calm_rounds) / len(rounds.rounds)
        clock = median(round.clock for round in calm_rounds)
        self.fastest = min(self.fastest, clock)
        return {
            "seconds": list(zip(*[round.seconds for round in calm_rounds], strict=True)),
            "times": rounds.times,
            "copies": copies,
            "disturbances": asdict(watch.disturbances(discarded, clock / self.fastest - 1)),
        }


def failed(state: str, note: str) -> Answer:
    return {"state": state, "note": note}


def serve(worker: Worker) -> None:
    """Answer requests until there are no more."""
    # Kernels' output goes to the standard error, so that it isn't taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: dict[str, Callable[[Answer], Answer]] = {
        "compile": worker.compile, "check": worker.check, "time": worker.time,
    }  # fmt: skip
    compiled(_FIRST)  # one-time work doesn't count in a candidate's stages
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        _end_after(request["limit"])
        answer = _answered(requests[request["do"]], request)
        _end_after(0)
        print(json.dumps(answer), file=answers, flush=True)


def _answered(answer: Callable[[Answer], Answer], request: Answer) -> Answer:
    try:
        return answer(request)
    except CheckError as error:
        return failed("wrong", _first_line(error))
    except (CompileError, InternalError, MemoryError) as error:
        return failed("refused", _first_line(error))
    except Exception as error:  # nothing that a candidate does ends the run
        return failed("refused", f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _end_after(seconds: float) -> None:
    """Make the system end this process after some seconds, whatever it does; 0 cancels."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


@lru_cache(_MAX_DEFINITIONS)
def _definition(parcel: Parcel) -> Definition:
    return parcel.definition()


if __name__ == "__main__":
    serve(Worker())
