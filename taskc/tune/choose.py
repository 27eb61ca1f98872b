"""How a plan is chosen, for all operators.

It is the one that tuning chose for the problem on this machine; else the one that it chose for a problem nearby, where
that is legal and its cost is nearly the least; else the one of least cost. Choosing never measures.
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
from taskc.lang.intrinsics import Intrinsic
from taskc.lang.sizes import tracing
from taskc.runtime.machine import Machine
from taskc.runtime.settings import VERSION
from taskc.runtime.targets import compiler_version
from taskc.tune.database import database
from taskc.tune.space import AnyPlan, Operator, Problem, Space
from taskc.tune.texts import FUNCTION, TextError, parts

# --- What a measurement is valid for: the machine it was made on, and the version of what compiles


def fingerprint(machine: Machine) -> str:
    """The name of a machine in the database, by which plans are kept."""
    return f"{machine.name}, {machine.threads} threads, {machine.fast_memory >> 10} KiB"


def processor(machine: Machine) -> str:
    """The same however many threads there are: facts are kept by it."""
    return f"{machine.name}, {machine.fast_memory >> 10} KiB"


@cache
def version() -> str:
    """taskc's, and of all that compiles: another where one of its files is."""
    return f"{VERSION}+{compiler_version()[:12]}"


# --- Kernels are remembered by what was asked for: making one of a template takes 2 to 100 ms ---
#     @remembered
#     def build(problem, plan, machine): ...
#
# The same problem, plan and machine give the same kernel again, if nothing was tuned since; the latest are kept. Two
# things are made anew each time: problems with a user's function, which may close over anything, and programs, whose
# calls come from the lines that they were made at.


_MOST = 256

_kept: dict[Hashable, KernelDefinition] = {}  # the latest ones are last

Build = TypeVar("Build", bound=Callable[..., Definition])


def remembered(build: Build) -> Build:
    """What makes the kernel of a problem by a plan, or by the one that is chosen where that is None."""

    @wraps(build)
    def found(problem: Any, plan: Any, machine: Machine) -> Definition:
        if not _is_constant(problem):
            return build(problem, plan, machine)
        # 0.0 and -0.0 are equal, and so are 1 and True, but for their texts.
        key = build, problem, repr(problem), plan, machine, None if plan else state()
        known = _kept.pop(key, None)
        if known is not None:
            return _kept.setdefault(key, known)
        made = build(problem, plan, machine)
        return _keep(key, made) if isinstance(made, KernelDefinition) else made

    return cast("Build", found)


def _keep(key: Hashable, made: KernelDefinition) -> KernelDefinition:
    """Whoever comes second takes what the first has put there."""
    made = _kept.setdefault(key, made)
    for old in [*_kept][:-_MOST]:
        _kept.pop(old, None)
    return made


def _is_constant(problem: Any) -> bool:
    """Nothing but its own fields decides what is made of it, and nobody wants to know of what is chosen."""
    if tracing.get() is not None or is_recording():
        return False
    values = [getattr(problem, name) for name in problem.__dataclass_fields__]
    return not any(
        callable(value) and not isinstance(value, Intrinsic | DType | Mapping) for value in values
    )


_NEAR = 0.6  # of doublings, in all extents together
_OPTION = 0.2  # as much as an operand more or less is worth
_NEARLY = 1.1  # of the least cost


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
    """What plans are chosen from, each once: to tune all that a program is made of."""
    spaces: _Spaces = {}
    token = _asked.set(spaces)
    try:
        yield spaces
    finally:
        _asked.reset(token)


def is_recording() -> bool:
    """Whether somebody wants to know of what is chosen."""
    return _asked.get() is not None


def state() -> object:
    """Another one whenever other plans may be chosen: something was tuned."""
    return database().state()


def _measured(space: Space[Problem, AnyPlan]) -> AnyPlan | None:
    """The plan that tuning chose for this problem, or for one nearby."""
    chosen = database().chosen(space.operator.name, fingerprint(space.machine))
    if not chosen:
        return None
    exact = chosen.get(space.problem_text)
    if exact is not None:
        return _legal(space, exact)
    distances = {text: distance(space.problem_text, text) for text in chosen}
    nearest = min(distances, key=distances.__getitem__)
    plan = _legal(space, chosen[nearest]) if distances[nearest] <= _NEAR else None
    if plan is None or space.predicted(plan) > _NEARLY * space.predicted(space.default):
        return None
    return plan


def _legal(space: Space[Any, AnyPlan], text: str) -> AnyPlan | None:
    """The plan of a text: of another version it may be none, or not this problem's."""
    try:
        plan = space.operator.plan(text)
    except TextError:
        return None
    # 8.0 is 8 for Python, but not the same plan: what is returned is the space's own, which has this very text.
    own = next((own for own in space.plans if own == plan), None)
    return own if own is not None and space.text(own) == text else None


def distance(one: str, other: str) -> float:
    """How far apart two problems are: by doublings of their extents, and infinitely where types or orders differ."""
    if one == other:
        return 0.0
    a, b = parts(one), parts(other)
    return sum(_apart(a.get(name), b.get(name)) for name in a.keys() | b.keys())


def _apart(one: Any, other: Any) -> float:
    if _is_option(one) and _is_option(other):
        return 0.0 if one == other else _OPTION
    if type(one) is not type(other):  # an extent of 48.0 is none of 48
        return inf
    if one == other:
        return 0.0
    if isinstance(one, int | float):
        return abs(log2(one + 1) - log2(other + 1)) if min(one, other) >= 0 else inf
    return inf


def _is_option(value: Any) -> bool:
    """What a problem has or hasn't. A default isn't in its text, and is None here."""
    is_function = isinstance(value, str) and value.startswith(FUNCTION)
    return is_function or value is None or isinstance(value, bool)
