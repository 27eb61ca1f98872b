"""Calls: a kernel and a target make something that runs, and what has been made is kept.

A program runs where its kernels do: by one call where the target takes whole programs, else one after another.

A call runs where its arrays lie: on a CUDA device if they are on one, else on the CPU, in compiled code; a kernel
of `tc.cuda` then in the simulator. TASKC_TARGET names another target: `sim` proves every kernel, and runs it with
all of its checks; `cuda` copies NumPy's arrays to the first device, and the outputs back.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from taskc.arrays.arguments import Bound, Signature
from taskc.arrays.dlpack import is_on_cuda
from taskc.backend.code_text import code_text
from taskc.backend.packing import packed
from taskc.ir import nodes as ir
from taskc.ir.depth import deep
from taskc.ir.nodes import Kernel
from taskc.ir.program import Program, kernels_of
from taskc.ir.reentry import Turn, door, for_another_thread, may_wait
from taskc.ir.rewrite import walk
from taskc.lang.definition import Definition, KernelDefinition
from taskc.lang.program import ProgramDefinition
from taskc.programs.launches import as_it_lies, launches, on_host
from taskc.runtime.machine import machine
from taskc.runtime.settings import cache_folder, target_name
from taskc.runtime.targets import (
    Runner,
    check_target,
    compiler_version,
    default_target,
    find_target,
)
from taskc.runtime.user_passes import UserPass, on_change, over_program, registered

if TYPE_CHECKING:
    from taskc.backend.cuda.compiled import Compiled

logger = logging.getLogger(__name__)


def call(
    definition: Definition,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    target: str | None = None,
) -> Any:
    """Runs a kernel or a program on arguments, compiled before for such ones if need be.

    args      what isn't `tc.out`, in the order of the parameters: scalars, and arrays of NumPy or
              of anything that exports DLPack or has `__cuda_array_interface__`, all in the CPU's
              memory or all on one device. `tc.inout` ones are modified.
    keywords  the same by name; outputs too, which are then written in place. `out=` is the output,
              or a tuple of all
    target    where it runs, if not where calls do

    Returns the outputs, one or a tuple, new arrays where none were given: on a device they are
    `taskc.device.Array`s. All of it is checked before anything runs; the array of a parameter with
    a layout (`.laid`) is the logical one, and the target packs it, or one that is packed already.
    """
    # In a context of its own: a finalizer's call may interrupt the setting of a variable of this one.
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
    """Runs a program's kernels one by one."""
    program, kernels = scheduled(definition)
    with packed(program.parameters, bound.values) as values:
        steps = launches(program, values, on_host, as_it_lies)
        calls = [(kernels[id(step.kernel)], step.bound) for step in steps.all]
        runners = dict(zip(map(id, steps.all), _compiled(calls, target), strict=True))
        for step in steps:
            runners[id(step)].run(step.bound)


def _on_cuda(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
    """The arguments that lie on a CUDA device."""
    found = []
    for value in (*args, *keywords.values()):
        several = value if isinstance(value, (tuple, list)) else (value,)
        found += [one for one in several if is_on_cuda(one)]
    return found


def _shorten(definition: Definition, runner: Runner, passes: tuple[UserPass, ...]) -> None:
    """Install the runner's direct call; arguments that it does not accept go on to the previous one.

    passes  of users, that the runner was made with: it isn't installed if they have changed
    """
    entry = _entry(definition)
    with _direct.taken() as is_alone:
        if is_alone and runner not in entry.shortened and passes == registered():
            entry.shortened.append(runner)
            previous = definition.direct
            definition.direct = runner.direct(previous or definition.call) or previous


def _alignment(definition: Definition, target: str | None) -> int:
    """What all kernels of a definition ask of where arguments start."""
    homes = {_COMPUTATIONS, *(_entry(kernel).target for kernel in definition.kernels)}
    names = {target} if target else set(map(target_name, homes))
    return max(find_target(name).alignment for name in names)


_COMPUTATIONS = "cpu"  # where they run if nobody says


def _compiled(calls: list[tuple[KernelDefinition, Bound]], target: str | None) -> list[Runner]:
    """What runs each of some calls: all of it is compiled before any runs."""
    runners = []
    for definition, bound in calls:
        chosen = target or target_name(_entry(definition).target)
        facts = find_target(chosen).facts(bound)
        runners.append(compile(definition, chosen, facts))
    return runners


def compile(
    definition: KernelDefinition, target: str | None = None, facts: Hashable = ()
) -> Runner:
    """What runs a kernel on a target: made at the first request, by one thread, then kept.

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

    return entry.once((target, facts)).runner(make)


def _tell_of_breakpoints(kernel: Kernel, target: str) -> None:
    """Breakpoints would be passed over in silence, where a target or the place of arrays is named."""
    for node in walk(kernel.body):
        if isinstance(node, ir.Breakpoint):
            text = "%s: breakpoint() is left out on the target %s; TASKC_TARGET=sim stops there"
            logger.warning(text, node.loc, target)
            return


_NO_CALL = Bound((), {}, None)


def whole_program(definition: ProgramDefinition, target: str | None = None) -> Runner | None:
    """What runs a program by one call, where all of its kernels run on a target that can: made once, then kept."""
    with door():
        return _whole_program(definition, target, _NO_CALL)


def _whole_program(
    definition: ProgramDefinition, target: str | None, bound: Bound
) -> Runner | None:
    """bound  a call's arguments, for such as which it is made"""
    target = target or target_name("") or None
    machine_name = None if target is None else find_target(target).machine(bound.values)
    program, found = scheduled(definition, machine_name)
    kernels = [*found.values()]
    names = {target or _entry(kernel).target for kernel in kernels}
    if len(names) != 1:
        return None
    (name,) = names
    backend = find_target(name)
    make = backend.program
    if make is None:
        return None
    entry, facts = _entry(definition), backend.facts(bound)
    return entry.once((name, facts, registered())).runner(
        lambda: make(program, _compile_all(kernels, name, facts))
    )


def _compile_all(kernels: list[KernelDefinition], target: str, facts: Hashable) -> list[Runner]:
    """Compiles kernels on all cores, equal ones once: while one is in LLVM, Python may be at another."""
    texts = [code_text(kernel.ir) for kernel in kernels]
    first: dict[str, KernelDefinition] = {}
    for text, kernel in zip(texts, kernels, strict=True):
        first.setdefault(text, kernel)

    def compiled(kernel: KernelDefinition) -> Runner:
        return compile(kernel, target, facts)

    if may_wait():
        with ThreadPoolExecutor(machine().threads) as executor:
            runners = [*executor.map(for_another_thread(compiled), first.values())]
    else:
        runners = [*map(compiled, first.values())]
    made = dict(zip(first, runners, strict=True))
    return [made[text] for text in texts]


def scheduled(
    definition: ProgramDefinition, machine_name: str | None = None
) -> tuple[Program, dict[int, KernelDefinition]]:
    """A program as it runs, fused and of kernels alone, and their definitions by the identity of their IR.

    machine_name  what it is fused and scheduled for, if not the processor at hand, which "cpu" names, too
    """
    machine_name = None if machine_name == "cpu" else machine_name
    made, passes = _entry(definition).scheduled, registered()
    key = machine_name, passes
    if key not in made:
        from taskc.programs.pipeline import lower_program  # all passes: a bundle needs none

        check_target(machine_name, definition.ir.loc)
        others = partial(over_program, passes)
        program = lower_program(definition.ir, machine(machine_name), others)
        known = {id(kernel.ir): kernel for kernel in definition.kernels}
        kernels = {
            id(kernel): known.get(id(kernel)) or KernelDefinition.of(kernel)
            for kernel in kernels_of(program).values()
        }
        return made.setdefault(key, (program, kernels))
    return made[key]


def signature(definition: Definition) -> Signature:
    return _entry(definition).signature


def compile_ahead(definition: Definition, target: str) -> tuple[Compiled, ...]:
    """Compiles all kernels of a definition for a GPU ("sm_90a") that need not be here.

    What the assembler says of each is in its `resources`. The code goes into the cache folder, where calls find it,
    also on another machine to which the folder was taken.
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
class _Once:
    """One compilation: the first thread to ask makes it, the others wait. A failure isn't kept."""

    turn: Turn = field(default_factory=Turn)
    made: list[Runner] = field(default_factory=list)  # the first one is everyone's

    def runner(self, make: Callable[[], Runner]) -> Runner:
        if not self.made:
            with self.turn.taken():  # or not: then it is made twice
                if not self.made:
                    self.made.append(make())
        return self.made[0]


@dataclass(slots=True)
class _Entry:
    """What is kept for a definition.

    target     where a kernel's calls run if nobody says
    shortened  whose own way to be called is in use
    scheduled  of a program, by the machine that it is for, and by users' passes
    """

    signature: Signature
    target: str
    shortened: list[Runner] = field(default_factory=list)
    compiled: dict[Hashable, _Once] = field(default_factory=dict)
    scheduled: dict[Hashable, tuple[Program, dict[int, KernelDefinition]]] = field(
        default_factory=dict
    )

    def once(self, key: Hashable) -> _Once:
        return self.compiled.get(key) or self.compiled.setdefault(key, _Once())


_entries: weakref.WeakKeyDictionary[Definition, _Entry] = weakref.WeakKeyDictionary()
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
    """A program's keys end with the passes that it went through."""
    for key in [key for key in kept if not there.issuperset(key[-1])]:
        kept.pop(key, None)


on_change(_forget_programs)


def _entry(definition: Definition) -> _Entry:
    entry = _entries.get(definition)
    if entry is None:
        kernel = definition.ir
        target = default_target(kernel) if isinstance(kernel, Kernel) else ""
        made = _Entry(Signature(kernel, definition.tuples), target)
        entry = _entries.setdefault(definition, made)
    return entry
