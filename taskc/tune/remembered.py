"""Kernels are remembered by what was asked for: making one of a template takes 2 to 100 ms.

    @remembered
    def build(problem, plan, machine): ...

The same problem, plan and machine give the same kernel again, as long as nothing was tuned since; the latest ones are
kept. Made anew is what may have become another one under the same name: a problem with a function of a user, which may
close over anything, and programs, whose calls come from the lines that they were made at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar, cast

from taskc.ir.mapping import Mapping
from taskc.ir.types import DType
from taskc.lang.definition import Definition, KernelDefinition
from taskc.lang.intrinsics import Intrinsic
from taskc.lang.sizes import tracing
from taskc.runtime.machine import Machine
from taskc.tune.choose import is_recording, state

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
