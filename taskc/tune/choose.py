"""The choice of a plan, for all operators.

The plan is the one that tuning chose for the problem on this machine; otherwise the one chosen for a similar problem,
if it is legal and its cost is nearly the least; otherwise the one of least cost. Choosing never measures.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from math import inf, log2
from typing import Any, TypeVar, cast

from taskc.ir.mapping import Mapping
from taskc.ir.types import DType
from taskc.lang.definition import Definition, KernelDefinition
from taskc.lang.names import Intrinsic
from taskc.lang.sizes import tracing
from taskc.runtime.machine import Machine
from taskc.runtime.settings import VERSION
from taskc.runtime.targets import compiler_version
from taskc.tune.database import database
from taskc.tune.rows import FUNCTION, TextError, parts
from taskc.tune.space import AnyPlan, Operator, Problem, Space

# --- The key of a measurement: the machine, and the version of the compiler


def fingerprint(machine: Machine) -> str:
    """The name of a machine in the database, the key of plans."""
    return f"{machine.name}, {machine.threads} threads, {machine.fast_memory >> 10} KiB"


def processor(machine: Machine) -> str:
    """The name without the number of threads, the key of facts."""
    return f"{machine.name}, {machine.fast_memory >> 10} KiB"


@cache
def version() -> str:
    """The version of taskc with a hash of the compiler's sources."""
    return f"{VERSION}+{compiler_version()[:12]}"


# --- A cache of kernels by problem, plan and machine: making one takes 2 to 100 ms --------------
#     @remembered
#     def build(problem, plan, machine): ...
#
# The same problem, plan and machine give the same kernel, unless something was tuned since; the most recent are kept.
# Two things aren't cached: problems with a user's function, which may close over anything, and programs, whose calls
# are located where they were made.


_MAX_KERNELS = 256

_kernels: dict[Hashable, KernelDefinition] = {}  # most recent last

Build = TypeVar("Build", bound=Callable[..., Definition])


def remembered(build: Build) -> Build:
    """Cache the kernels that `build` makes of a problem, by a plan, or by the chosen one if it is None."""

    @wraps(build)
    def found(problem: Any, plan: Any, machine: Machine) -> Definition:
        if not _is_constant(problem):
            return build(problem, plan, machine)
        # The texts distinguish 0.0 and -0.0, and 1 and True, which are equal.
        key = build, problem, repr(problem), plan, machine, None if plan else state()
        cached = _kernels.pop(key, None)
        if cached is not None:
            return _kernels.setdefault(key, cached)
        built = build(problem, plan, machine)
        return _keep(key, built) if isinstance(built, KernelDefinition) else built

    return cast("Build", found)


def _keep(key: Hashable, made: KernelDefinition) -> KernelDefinition:
    """Cache a kernel; if another thread was first, its kernel is returned."""
    made = _kernels.setdefault(key, made)
    for old in [*_kernels][:-_MAX_KERNELS]:
        _kernels.pop(old, None)
    return made


def _is_constant(problem: Any) -> bool:
    """Whether the kernel depends on the problem's fields alone, and choices aren't being recorded."""
    if tracing.get() is not None or is_recording():
        return False
    values = [getattr(problem, name) for name in problem.__dataclass_fields__]
    return not any(
        callable(value) and not isinstance(value, Intrinsic | DType | Mapping) for value in values
    )


_NEAR = 0.6  # doublings, summed over all extents
_OPTION = 0.2  # the distance of an additional operand
_NEARLY = 1.1  # times the least cost


def choose(operator: Operator[Problem, AnyPlan], problem: Problem, machine: Machine) -> AnyPlan:
    """The plan for a problem on a machine."""
    space = Space(operator, problem, machine)
    asked = _asked.get()
    if asked is not None:
        asked.setdefault((operator.name, space.problem_text), space)
    return _measured(space) or space.default


_Spaces = dict[tuple[str, str], Space[Any, Any]]
_asked: ContextVar[_Spaces | None] = ContextVar("asked", default=None)


@contextmanager
def recorded() -> Iterator[_Spaces]:
    """A context that records the spaces from which plans are chosen, each once, to tune all parts of a program."""
    spaces: _Spaces = {}
    token = _asked.set(spaces)
    try:
        yield spaces
    finally:
        _asked.reset(token)


def is_recording() -> bool:
    """Whether choices are being recorded."""
    return _asked.get() is not None


def state() -> object:
    """A value that changes whenever other plans may be chosen because something was tuned."""
    return database().state()


def _measured(space: Space[Problem, AnyPlan]) -> AnyPlan | None:
    """The plan that tuning chose for this problem, or for a similar one."""
    chosen = database().chosen(space.operator.name, fingerprint(space.machine))
    if not chosen:
        return None
    exact = chosen.get(space.problem_text)
    if exact is not None:
        return _legal(space, exact)
    distances = {text: distance(space.problem_text, text, _NEAR) for text in chosen}
    nearest = min(distances, key=distances.__getitem__)
    plan = _legal(space, chosen[nearest]) if distances[nearest] <= _NEAR else None
    if plan is None or space.predicted(plan) > _NEARLY * space.predicted(space.default):
        return None
    return plan


def _legal(space: Space[Any, AnyPlan], text: str) -> AnyPlan | None:
    """The plan of a text, or None if it isn't this problem's; texts of other versions may not be."""
    try:
        plan = space.operator.plan(text)
    except TextError:
        return None
    # In Python 8.0 equals 8, but the plans differ: return the space's own plan, if it has this very text.
    same = next((same for same in space.plans if same == plan), None)
    return same if same is not None and space.text(same) == text else None


def distance(one: str, other: str, most: float = inf) -> float:
    """The distance of two problems in doublings of extents; infinite where types or orders differ, or above `most`."""
    if one == other:
        return 0.0
    a, b = parts(one), parts(other)
    total = 0.0
    for name in a.keys() | b.keys():
        total += _apart(a.get(name), b.get(name))
        if total > most:
            return inf
    return total


def _apart(one: Any, other: Any) -> float:
    if _is_option(one) and _is_option(other):
        return 0.0 if one == other else _OPTION
    if type(one) is not type(other):  # 48.0 is no extent
        return inf
    if one == other:
        return 0.0
    if isinstance(one, int | float):
        return abs(log2(one + 1) - log2(other + 1)) if min(one, other) >= 0 else inf
    return inf


def _is_option(value: Any) -> bool:
    """Whether a field is an optional feature of a problem. A default isn't in its text, and is None here."""
    is_function = isinstance(value, str) and value.startswith(FUNCTION)
    return is_function or value is None or isinstance(value, bool)
