"""Calls: compile a kernel or a program for a target, cache the runner, and run it.

A program runs on the target of its kernels: whole if the target takes programs, otherwise kernel by kernel.

A call runs where its arrays are: on a CUDA device if they are on one, otherwise on the CPU, in compiled code; a kernel
of `tc.cuda` then runs in the simulator. TASKC_TARGET names another target: `sim` proves every kernel, and runs it with
all checks; `cuda` copies NumPy's arrays to the first device, and outputs back.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from taskc.arrays.arguments import Bound, Signature
from taskc.arrays.dlpack import is_on_cuda
from taskc.arrays.packed import packed
from taskc.backend.cache import code_text
from taskc.dataclass import dataclass
from taskc.ir import nodes as ir
from taskc.ir.code_size import deep
from taskc.ir.nodes import Kernel
from taskc.ir.reentry import Turn, door, for_another_thread, may_wait
from taskc.ir.rewrite import all_below, walk
from taskc.ir.spans import span
from taskc.lang.definition import Definition, KernelDefinition
from taskc.programs.definition import ProgramDefinition
from taskc.programs.ir import Program, kernels_of
from taskc.programs.specialize import as_it_lies, launches, on_host
from taskc.programs.tracing import refuse_handles
from taskc.progress import counted, line, report
from taskc.runtime.machine import machine
from taskc.runtime.settings import cache_folder, target_name
from taskc.runtime.targets import (
    Runner,
    check_target,
    compiler_version,
    compiling_threads,
    default_target,
    find_target,
)
from taskc.runtime.user_passes import UserPass, on_change, over_program, registered

if TYPE_CHECKING:
    from taskc.backend.cuda.compiled import CompiledCubin

logger = logging.getLogger(__name__)

_Value = TypeVar("_Value")


def call(
    definition: Definition,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    target: str | None = None,
) -> Any:
    """Run a kernel or a program on arguments, compiling it first if need be.

    args      arguments for all parameters but `tc.out`, in order: scalars, and arrays of NumPy or
              of anything that exports DLPack or has `__cuda_array_interface__`, all in the CPU's
              memory or all on one device. `tc.inout` arrays are modified
    keywords  the same by name; outputs too, which are then written in place. `out=` is the output,
              or a tuple of all
    target    the target to run on, if not the default one

    Returns the outputs, one or a tuple; outputs that weren't given are new arrays, on a device
    `taskc.device.Array`s. Everything is checked before anything runs. The array of a parameter with
    a layout (`.laid`) is the logical one, which the target packs, or one that is packed already.
    """
    refuse_handles((*args, *keywords.values()))
    # In a context of its own: a finalizer may call a kernel while this one sets a context variable.
    return copy_context().run(_call, definition, args, keywords, target)


def _call(
    definition: Definition, args: tuple[Any, ...], keywords: dict[str, Any], target: str | None
) -> Any:
    arrays = _on_cuda(args, keywords)
    wanted = target or (target_name("cuda") if arrays else None)
    place = find_target(wanted).place(arrays) if wanted and arrays else None
    alignment = _alignment(definition, wanted)
    bound = signature(definition).bind(args, keywords, alignment, place)
    runner: Runner | None = None
    passes = registered()
    with door(), place or nullcontext():
        if isinstance(definition, ProgramDefinition):
            runner = _whole_program(definition, wanted, bound)
            if runner is not None:
                runner.run(bound)
            else:
                _run_launches(definition, bound, wanted)
        elif isinstance(definition, KernelDefinition):
            (runner,) = _compiled([(definition, bound)], wanted)
            runner.run(bound)
        if target is None and runner is not None:
            _shorten(definition, runner, passes)
    logger.debug("%s: a checked call", definition.ir.name)
    return bound.returned


def _run_launches(definition: ProgramDefinition, bound: Bound, target: str | None) -> None:
    """Run a program's kernels one by one."""
    program, kernels = scheduled(definition)
    with packed(program.parameters, bound.values) as values:
        steps = launches(program, values, on_host, as_it_lies)
        calls = [(kernels[id(step.kernel)], step.bound) for step in steps.all]
        runners = dict(zip(map(id, steps.all), _compiled(calls, target), strict=True))
        for step in steps:
            runners[id(step)].run(step.bound)


def _on_cuda(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """The arguments that are on a CUDA device."""
    arrays = []
    for value in (*args, *keywords.values()):
        several = value if isinstance(value, (tuple, list)) else (value,)
        arrays += [item for item in several if is_on_cuda(item)]
    return arrays


def _shorten(definition: Definition, runner: Runner, passes: tuple[UserPass, ...]) -> None:
    """Install the runner's direct call; arguments that it does not accept go on to the previous one.

    passes  the user passes that the runner was made with: it isn't installed if they have changed
    """
    entry = _entry(definition)
    with _direct.taken() as is_alone:
        if is_alone and runner not in entry.shortened and passes == registered():
            entry.shortened.append(runner)
            previous = definition.direct
            definition.direct = runner.direct(previous or definition.call) or previous


def _alignment(definition: Definition, target: str | None) -> int:
    """The alignment of arguments that all kernels of a definition need."""
    homes = {_COMPUTATIONS, *(_entry(kernel).target for kernel in definition.kernels)}
    names = {target} if target else set(map(target_name, homes))
    return max(find_target(name).alignment for name in names)


_COMPUTATIONS = "cpu"  # the default target of computations


def _compiled(calls: list[tuple[KernelDefinition, Bound]], target: str | None) -> list[Runner]:
    """The runner of each of some calls: all are compiled before any runs."""
    runners = []
    for definition, bound in calls:
        chosen = target or target_name(_entry(definition).target)
        facts = find_target(chosen).facts(bound)
        runners.append(compile(definition, chosen, facts))
    return runners


def compile(
    definition: KernelDefinition, target: str | None = None, facts: Hashable = ()
) -> Runner:
    """The runner of a kernel on a target: compiled once, by the first thread that asks, and cached.

    Programs that call the kernel share it.
    """
    entry = _entry(definition)
    target = target or entry.target

    def make() -> Runner:
        backend = find_target(target)
        with deep(definition.ir.loc):
            if not backend.stops:
                _tell_of_breakpoints(definition.ir, target)
            return backend.compile(definition.ir, facts)

    return entry.once((target, facts)).get(make)


def _tell_of_breakpoints(kernel: Kernel, target: str) -> None:
    """Warn about breakpoints on a target that doesn't stop at them."""
    for node in all_below(kernel.body, ir.Breakpoint)[:1]:
        text = "%s: breakpoint() is left out on the target %s; TASKC_TARGET=sim stops there"
        logger.warning(text, node.loc, target)


_NO_CALL = Bound((), {}, None)


def whole_program(definition: ProgramDefinition, target: str | None = None) -> Runner | None:
    """The runner of a whole program, if the target of all its kernels takes programs: compiled once, and cached."""
    with door():
        return _whole_program(definition, target, _NO_CALL)


def _whole_program(
    definition: ProgramDefinition, target: str | None, bound: Bound
) -> Runner | None:
    """bound  a call's arguments; the runner is made for arguments like these"""
    target = target or target_name("") or None
    machine_name = None if target is None else find_target(target).machine(bound.values)
    program, definitions = scheduled(definition, machine_name)
    kernels = [*definitions.values()]
    names = {target or _entry(kernel).target for kernel in kernels}
    if len(names) != 1:
        return None
    (name,) = names
    backend = find_target(name)
    make = backend.program
    if make is None:
        return None
    entry, facts = _entry(definition), backend.facts(bound)

    def compiled() -> Runner:
        with backend.compiling():
            return make(program, _compile_all(kernels, name, facts))

    return entry.once((name, facts, registered())).get(compiled)


@line()
def _compile_all(kernels: list[KernelDefinition], target: str, facts: Hashable) -> list[Runner]:
    """Compile kernels on all cores, equal ones once, and the longest first, so that none is waited for."""
    signatures = [kernel.signature for kernel in kernels]
    counts = Counter(signatures)
    # Printing a kernel's code takes longer, and few have the signature of another one.
    texts = [
        code_text(kernel.ir) if counts[signature] > 1 else signature
        for kernel, signature in zip(kernels, signatures, strict=True)
    ]
    distinct: dict[str, KernelDefinition] = {}
    for text, kernel in zip(texts, kernels, strict=True):
        distinct.setdefault(text, kernel)

    def compiled(text: str) -> Runner:
        return compile(distinct[text], target, facts)

    sizes = {text: sum(1 for _ in walk(kernel.ir.body)) for text, kernel in distinct.items()}
    order = sorted(distinct, key=sizes.__getitem__, reverse=True)
    names = [distinct[text].ir.name for text in order]
    threads = compiling_threads()
    if threads > 1 and may_wait():
        begin = partial(find_target(target).help_with, len(distinct), threads - 1)
        # Two for each other process, whose next kernel is sent while it compiles one.
        executor = ThreadPoolExecutor(2 * threads - 1, initializer=begin)
        try:
            compiling = executor.map(for_another_thread(compiled), order)
            runners = [*counted("compiling kernel", names, compiling)]
        finally:  # after an error nobody waits for the kernels that are being compiled
            executor.shutdown(wait=False, cancel_futures=True)
    else:
        runners = [*map(compiled, order)]
    by_text = dict(zip(order, runners, strict=True))
    return [by_text[text] for text in texts]


def scheduled(
    definition: ProgramDefinition, machine_name: str | None = None
) -> tuple[Program, dict[int, KernelDefinition]]:
    """The program as it runs, fused and of kernels alone, with their definitions by the identity of their IR.

    machine_name  the machine to schedule for; None and "cpu" are the processor at hand
    """
    machine_name = None if machine_name == "cpu" else machine_name
    cached, passes = _entry(definition).scheduled, registered()
    key = machine_name, passes
    if key not in cached:
        with span("import"):  # slow: all passes, which bundles don't need
            from taskc.programs.pipeline import lower_program

        report(f"fusing {definition.ir.name}")
        check_target(machine_name, definition.ir.loc)
        others = partial(over_program, passes)
        program = lower_program(definition.ir, machine(machine_name), others)
        known = {id(kernel.ir): kernel for kernel in definition.kernels}
        kernels = {
            id(kernel): known.get(id(kernel)) or KernelDefinition.of(kernel)
            for kernel in kernels_of(program).values()
        }
        return cached.setdefault(key, (program, kernels))
    return cached[key]


def signature(definition: Definition) -> Signature:
    return _entry(definition).signature


def compile_ahead(definition: Definition, target: str) -> tuple[CompiledCubin, ...]:
    """Compile all kernels of a definition for a GPU ("sm_90a") that need not be present.

    The assembler's report of each is in its `resources`. The code goes into the cache folder, where calls find it, also
    after the folder was copied to another machine.
    """
    from taskc.backend.cache import Cache
    from taskc.backend.cuda.compile import compiled
    from taskc.passes.pipeline import lower

    version, kept = compiler_version(), Cache(cache_folder() / "cuda")
    kernels = definition.kernels
    if isinstance(definition, ProgramDefinition):
        kernels = tuple(scheduled(definition, target)[1].values())
    return tuple(
        [compiled(replace(kernel.ir, target=target), lower, kept, version) for kernel in kernels]
    )


# --- the cache -------------------------------------------------------------------------------


@dataclass(slots=True)
class Once(Generic[_Value]):
    """A value that takes long: the first thread to ask makes it, the others wait. A failure isn't cached."""

    values: list[_Value] = field(default_factory=list)  # all callers use the first one
    turn: Turn = field(default_factory=Turn)

    def get(self, make: Callable[[], _Value]) -> _Value:
        if not self.values:
            with self.turn.taken():  # a turn that isn't available only means making it twice
                if not self.values:
                    self.values.append(make())
        return self.values[0]


@dataclass(slots=True)
class _Cached:
    """Everything cached for a definition.

    target     the default target of a kernel's calls
    shortened  runners whose direct calls are installed
    scheduled  scheduled programs by machine and user passes
    """

    signature: Signature
    target: str
    shortened: list[Runner] = field(default_factory=list)
    compiled: dict[Hashable, Once[Runner]] = field(default_factory=dict)
    scheduled: dict[Hashable, tuple[Program, dict[int, KernelDefinition]]] = field(
        default_factory=dict
    )

    def once(self, key: Hashable) -> Once[Runner]:
        return self.compiled.get(key) or self.compiled.setdefault(key, Once())


_entries: weakref.WeakKeyDictionary[Definition, _Cached] = weakref.WeakKeyDictionary()
_direct = Turn()  # the direct calls of all definitions change by one thread at a time


def _forget_programs() -> None:
    """The set of user passes changed: drop direct calls, and what was compiled with passes that are gone."""
    there = {*registered()}
    with _direct.taken():
        for reference in _entries.keyrefs():
            definition = reference()
            entry = None if definition is None else _entries.get(definition)
            if isinstance(definition, ProgramDefinition) and entry is not None:
                definition.direct = None
                entry.shortened.clear()
                _drop_others(entry.scheduled, there)
                _drop_others(entry.compiled, there)


def _drop_others(kept: dict[Any, Any], there: set[UserPass]) -> None:
    """Drop entries made with passes that are gone: a program's keys end with its passes."""
    for key in [key for key in kept if not there.issuperset(key[-1])]:
        kept.pop(key, None)


on_change(_forget_programs)


def _entry(definition: Definition) -> _Cached:
    entry = _entries.get(definition)
    if entry is None:
        kernel = definition.ir
        target = default_target(kernel) if isinstance(kernel, Kernel) else ""
        new = _Cached(Signature(kernel, definition.tuples), target)
        entry = _entries.setdefault(definition, new)
    return entry
