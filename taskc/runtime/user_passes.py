"""Passes over programs that users register: they run on every program that is compiled from then on.

    traced    Program -> Program    as a program was traced: calls of kernels and computations
    fused     Program -> Program    after fusion; the remaining computations have no schedule yet
    kernel    Kernel -> Kernel      each kernel of the program that runs, at stage parsed
    planned   Program, Plan -> None each plan of it, on processors: read-only

A pass's result is validated exactly as a hand-written program is: its calls are checked as in tracing, and new kernels
and computations are verified and proved. So a pass can be slow, or pointless, or compute something else, but it can't
read unwritten memory, or access an array out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar, get_args

from taskc.dataclass import dataclass
from taskc.errors import NOWHERE, CompileError, InternalError
from taskc.ir.nodes import Kernel
from taskc.ir.verify import verify
from taskc.lang.sizes import dim
from taskc.programs.ir import Callee, Program, callees_of, calls_of, map_kernels
from taskc.programs.plan import Plan
from taskc.runtime.machine import machine

Point = Literal["traced", "fused", "kernel", "planned"]
_Changeable = TypeVar("_Changeable", Kernel, Program)


@dataclass(frozen=True, slots=True, eq=False)
class UserPass:
    """A registered pass, active until `remove()` or the end of a `with`."""

    function: Callable[..., Any]
    at: Point

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def remove(self) -> None:
        with suppress(ValueError):
            _registered.remove(self)
        for tell in _listeners:
            tell()

    def __enter__(self) -> UserPass:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<the pass {self.name!r} at {self.at!r}>"


_registered: list[UserPass] = []
_listeners: list[Callable[[], None]] = []


def register_pass(function: Callable[..., Any], *, at: Point) -> UserPass:
    """Register a pass, which runs on every program compiled from now on, after the passes registered before.

        with tc.register_pass(doubled_by_adding, at="traced"):
            program(x)

    at  the point at which the pass runs: "traced", "fused", "kernel" or "planned"; see docs/extending.md
    """
    if at not in get_args(Point):
        points = ", ".join(map(repr, get_args(Point)))
        raise CompileError(f"there are no passes at {at!r}", hint=f"there is {points}")
    if not callable(function):
        raise CompileError(f"a pass is a function, and this is {type(function).__name__}")
    user_pass = UserPass(function, at)
    _registered.append(user_pass)
    for tell in _listeners:
        tell()
    return user_pass


def registered() -> tuple[UserPass, ...]:
    """The registered passes: compiled programs depend on them."""
    return tuple(_registered)


def on_change(tell: Callable[[], None]) -> None:
    """Call a function whenever the registered passes change."""
    _listeners.append(tell)


# --- running them ----------------------------------------------------------------------------


def over_program(passes: tuple[UserPass, ...], at: Point, program: Program) -> Program:
    """The program after all passes of a point that work on programs, or on their kernels."""
    for user_pass in passes:
        if user_pass.at == at:
            change = _kernels_changed if at == "kernel" else _changed
            changed = change(user_pass, program)
            if changed is not program:
                _check(user_pass, program, changed)
            program = changed
    return program


def over_plan(passes: tuple[UserPass, ...], program: Program, plan: Plan) -> Plan:
    """The plan, once all passes have seen it."""
    for one in passes:
        if one.at == "planned" and one.function(program, plan) is not None:
            raise _error(one, "returns something, and a plan is for looking at")
    return plan


def _changed(user_pass: UserPass, before: _Changeable) -> _Changeable:
    """The result of a pass over a program or a kernel."""
    kind = type(before)
    after = user_pass.function(before)
    if not isinstance(after, kind):
        said = f"returns no {kind.__name__.lower()}, but a {type(after).__name__}"
        raise _error(user_pass, said)
    if (after.parameters, after.dimensions) != (before.parameters, before.dimensions):
        raise _error(user_pass, f"changes what '{before.name}' takes or makes")
    return after


def _kernels_changed(user_pass: UserPass, program: Program) -> Program:
    after = map_kernels(program, lambda kernel: _changed(user_pass, kernel))
    pairs = zip(calls_of(after.calls), calls_of(program.calls), strict=True)
    return program if all(new.callee is old.callee for new, old in pairs) else after


def _check(one: UserPass, before: Program, made: Program) -> None:
    """Check a pass's program as tracing does, and its new kernels as an author's kernels are."""
    from taskc.programs.trace_program import retrace  # slow: the tracer

    known = {id(callee) for callee in callees_of(before).values()}
    with _blaming(one):
        for name, callee in callees_of(made).items():
            if id(callee) not in known:
                problem = _problem(callee)
                if problem is not None:
                    raise _error(one, f"made '{name}', which is wrong: {problem.message}", problem)
        retrace(made, {dim(old.name, multiple=old.multiple): old for old in made.dimensions})


def _problem(callee: Callee) -> CompileError | None:
    # Slow: all proofs, which bundles don't need.
    from taskc.passes.prove import problem
    from taskc.programs.schedule import boxes

    if isinstance(callee, Kernel):
        verify(callee)
        return problem(callee)
    verify(boxes(callee, machine(), all_held=True))
    return None


@contextmanager
def _blaming(one: UserPass) -> Iterator[None]:
    """Report errors raised here as errors of the pass."""
    try:
        yield
    except InternalError as error:
        raise _error(one, f"made what is no program: {error.message}") from error
    except CompileError as error:
        if error.message.startswith("the pass "):
            raise
        raise _error(one, f"made a program that is wrong: {error.message}", error) from error


def _error(one: UserPass, said: str, reason: CompileError | None = None) -> CompileError:
    place = NOWHERE if reason is None else reason.location
    hint = None if reason is None else reason.hint
    return CompileError(f"the pass '{one.name}' {said}", place, hint)
