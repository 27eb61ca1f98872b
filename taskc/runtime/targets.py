"""Targets of kernels and programs: the simulator, the processor, CUDA devices.

A target makes runners of kernels, and of whole programs if it supports them. Its backend loads at its first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from taskc.arrays.arguments import ALIGNMENT, Bound
from taskc.arrays.device import Device
from taskc.arrays.packed import unpacked
from taskc.backend.cache import Cache
from taskc.backend.limits import current_limits
from taskc.dataclass import dataclass
from taskc.errors import CheckError, CompileError, Finding, Location
from taskc.ir import nodes as ir
from taskc.ir.nodes import Kernel, Variable
from taskc.ir.rewrite import all_below
from taskc.ir.spans import span
from taskc.ir.target import TARGETS
from taskc.programs.arena import Block, blocks_of
from taskc.programs.ir import Program
from taskc.programs.plan import Plan
from taskc.programs.planning import Busy, plan, waits
from taskc.runtime.machine import machine
from taskc.runtime.settings import VERSION, cache_folder, thread_limit, tier
from taskc.runtime.user_passes import over_plan, registered

if TYPE_CHECKING:
    from taskc.backend.cpu.compile import LoadedKernel
    from taskc.backend.cpu.program import LoadedProgram
    from taskc.backend.cuda.launch import DeviceKernel
    from taskc.backend.cuda.program import DeviceProgram

Call: TypeAlias = Callable[..., Any]
# Plans a program for given sizes and threads: its arena's offsets, and which calls wait for which.
Planner: TypeAlias = Callable[[Mapping[Variable, Any], int, Busy], Plan]


@dataclass(frozen=True, slots=True)
class Runner:
    """The result of a compilation.

    run     runs it on checked arguments
    direct  makes the fast path: a function that takes a call's own arguments, checks them, and passes
            those that it doesn't accept to the given function. None if there is no such path
    code    the target's compiled code
    """

    run: Callable[[Bound], None]
    direct: Callable[[Call], Call | None] = lambda otherwise: None
    code: Any = None


class StreamDevice(Device, Protocol):
    """A device as a context: code within it runs in the stream in which the arrays are ready."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """Compiles and runs kernels on one kind of machine.

    compile  makes a runner of a kernel, for some facts
    facts    facts about a call's arguments that a compilation assumes (their device, a size that is a
             multiple of 16): one compilation for each that occurs. Their number is finite
    alignment  the alignment of arguments in bytes
    place      the device of arrays on a device; None where the target doesn't accept such
    program    makes a runner of a whole program, from those of its kernels in the order of their first calls;
               None where the target runs them one by one
    machine    the machine that programs with such arguments are scheduled for; None: the processor at hand
    stops      whether `breakpoint()` stops there
    compiling  a context in which a call waits for a program to be compiled
    help_with  begins each thread that compiles some of so many kernels of a program; the second number is that of
               processes that may be started
    """

    compile: Callable[[Kernel, Hashable], Runner]
    facts: Callable[[Bound], Hashable] = lambda bound: ()
    alignment: int = ALIGNMENT
    place: Callable[[list[Any]], StreamDevice | None] = lambda arrays: None
    program: Callable[[Program, list[Runner]], Runner] | None = None
    machine: Callable[[Sequence[Any]], str | None] = lambda values: None
    stops: bool = False
    compiling: Callable[[], AbstractContextManager[None]] = nullcontext
    help_with: Callable[[int, int], None] = lambda kernels, most: None


def default_target(kernel: Kernel) -> str:
    """A call's target by default: the simulator for a kernel that prints or stops."""
    looks = any(all_below(kernel.body, kind) for kind in (ir.Print, ir.Breakpoint))
    return "sim" if looks or kernel.stage != "parsed" else "cpu"


def check_target(name: str | None, loc: Location) -> None:
    """Check that there is such a target to lower for; None is the one at hand."""
    if name is not None and name not in TARGETS:
        raise CompileError(f"there is no target {name!r}", loc, f"there is {', '.join(TARGETS)}")


_targets: dict[str, Callable[[], Backend]] = {}


def register_target(name: str, make: Callable[[], Backend]) -> None:
    """Register a target; `make` runs at its first use, so that its imports load only then."""
    _targets[name] = make


def find_target(name: str) -> Backend:
    backend = _backends.get(name)
    if backend is None:
        if name not in _targets:
            known = ", ".join(_targets)
            raise CompileError(f"there is no target {name!r}", hint=f"there is {known}")
        with span("import"):
            backend = _backends.setdefault(name, _targets[name]())
    return backend


_backends: dict[str, Backend] = {}


def compiler_version() -> str:
    """A version that changes with the sources of the compiler."""
    from taskc.backend.cache import sources_version

    package = Path(__file__).parents[1]
    parts = [package / name for name in ("ir", "analysis", "passes", "backend")]
    return sources_version(VERSION, cache_folder() / "sources", *parts)


def _planner(program: Program, blocks: list[Block]) -> Planner:
    passes = registered()

    def planned(sizes: Mapping[Variable, Any], threads: int, busy: Busy) -> Plan:
        return over_plan(passes, program, plan(program, blocks, sizes, threads, busy))

    return planned


def _assertion_failed(said: str, loc: Location) -> None:
    text = said or "the assertion does not hold"
    raise CheckError((Finding("assertion", "error", text, loc),))


# --- the simulator ---------------------------------------------------------------------------


def _simulator() -> Backend:
    from taskc.backend import sim
    from taskc.backend.sim.breakpoints import open_debugger
    from taskc.passes.prove import prove

    def compile(kernel: Kernel, facts: Hashable) -> Runner:
        # A kernel of tc.cuda begins at a later stage, where the proofs don't apply.
        proved = prove(kernel) if kernel.stage == "parsed" else kernel

        def run(bound: Bound) -> None:
            with unpacked(kernel.parameters, bound.values) as values:
                report = sim.run(
                    proved,
                    values,
                    dimensions=bound.dimensions,
                    on_print=_print,
                    on_stop=open_debugger,
                )
                errors = tuple([f for f in report.findings if f.severity == "error"])
                if errors:
                    raise CheckError(errors)

        return Runner(run)

    return Backend(compile, stops=True)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


register_target("sim", _simulator)


# --- the processor ---------------------------------------------------------------------------


def kernel_cache() -> Cache:
    """The cache of kernels that are compiled for the processor."""
    return _cache_of(cache_folder() / "cpu")


_cache_of = cache(Cache)


def finish_compiling() -> None:
    """Wait until everything that is compiled for the processor has its full code.

    A kernel's first code is quick to make and slower to run; full code replaces it in the background.
    """
    from taskc.backend.cpu.target import finish

    finish()


def _processor() -> Backend:
    from taskc.backend.cpu import processes, target as cpu
    from taskc.backend.cpu.pool import make_ahead

    version = compiler_version()
    cpu.keep_code(kernel_cache(), version)
    cpu.limit_threads(thread_limit())
    processes.begin_with(_compiler)

    def compile(kernel: Kernel, facts: Hashable) -> Runner:
        make_ahead()
        with span("import"):
            from taskc.passes.pipeline import lower  # slow: all passes, which bundles don't need

        loaded = cpu.load(kernel, lower, kernel_cache(), version, tier())
        return _on_processor(loaded, lambda number: loaded.compiled.asserts[number - 1])

    def program(program: Program, runners: list[Runner]) -> Runner:
        return loaded_program(program, [runner.code for runner in runners], blocks_of(program))

    return Backend(
        compile,
        alignment=1,
        program=program,
        compiling=cpu.compiling,
        help_with=processes.help_with,
    )


def _compiler() -> tuple[str, str]:
    """The version of the compiler, and the processor that it compiles for, once all of it is imported."""
    from taskc.backend.cpu.processor import host

    import_module("taskc.passes.pipeline")
    return compiler_version(), host().fingerprint


def expect_kernels(count: int) -> None:
    """Prepare for the compilation of at least so many kernels: make the thread pool, and start processes for many."""
    from taskc.backend.cpu import processes
    from taskc.backend.cpu.pool import make_ahead

    find_target("cpu")
    make_ahead()
    if count >= processes.LEAST:
        processes.start(compiling_threads() - 1)


def compiling_threads() -> int:
    """The number of threads and processes that compile at a time."""
    most = machine().threads
    return min(most, current_limits().threads or most)


register_target("cpu", _processor)


def loaded_program(program: Program, kernels: list[LoadedKernel], blocks: list[Block]) -> Runner:
    """The runner of a program on the processor.

    kernels  in the order of their first calls
    blocks   the memory of its temporaries
    """
    from taskc.backend.cpu.program import LoadedProgram

    def assertion(number: int) -> tuple[str, Location]:
        return kernels[number >> 32].compiled.asserts[(number & 0xFFFFFFFF) - 1]

    return _on_processor(LoadedProgram(program, kernels, _planner(program, blocks)), assertion)


def _on_processor(
    loaded: LoadedKernel | LoadedProgram, assertion: Callable[[int], tuple[str, Location]]
) -> Runner:
    """The runner of compiled code; `assertion` maps the number that a run returns to the failed assertion."""
    from taskc.backend.cpu.target import admit

    def failed(number: int) -> None:
        _assertion_failed(*assertion(number))

    def run(bound: Bound) -> None:
        admit(bound.foreign)
        number = loaded.run(bound.values, bound.dimensions)
        if number:
            failed(number)

    return Runner(run, lambda otherwise: loaded.entry(otherwise, failed), loaded)


# --- CUDA devices ----------------------------------------------------------------------------


def _cuda() -> Backend:
    from taskc.backend.cache import Cache
    from taskc.backend.cuda import target as cuda
    from taskc.passes.pipeline import lower

    version = compiler_version()
    kept = Cache(cache_folder() / "cuda")

    def compile(kernel: Kernel, device: Hashable) -> Runner:
        assert isinstance(device, int)

        def failed(number: int) -> None:
            _assertion_failed(*loaded.compiled.asserts[number - 1])

        loaded = cuda.load(kernel, lower, kept, version, device, failed)
        return on_device(loaded)

    def program(program: Program, runners: list[Runner]) -> Runner:
        kernels = [runner.code for runner in runners]
        planned = _planner(program, blocks_of(program))
        return on_device(cuda.DeviceProgram(program, kernels, planned, partial(waits, program)))

    def on_device(loaded: DeviceKernel | DeviceProgram) -> Runner:
        def run(bound: Bound) -> None:
            cuda.run(loaded, bound.values, bound.dimensions)

        return Runner(run, lambda otherwise: cuda.direct(loaded, otherwise), loaded)

    def device(bound: Bound) -> int:
        return cuda.device_of(bound.values)

    return Backend(
        compile, device, place=cuda.DeviceStream, program=program, machine=cuda.machine_of
    )


register_target("cuda", _cuda)
