"""Branches and whiles of a program that is being traced: `tc.branch`, `tc.otherwise` and `tc.steps_while`.

Each body is traced once. Memory that both bodies of a branch write counts as written after it; memory that only one
of them or a while writes does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from taskc.errors import CompileError, Location
from taskc.ir.nodes import Tensor
from taskc.ir.program import Branch, Step, While, condition_problem, writes_of
from taskc.ir.signature import outputs_of
from taskc.lang.source import call_site, way_out
from taskc.lang.tracing import TensorHandle, Trace, current_trace
from taskc.lang.values import describe
from taskc.lang.written import Written


class Branching:
    """A branch while its bodies are traced: `begin`, `end`, and for the other one `begin_otherwise`, `end`.

    then    the writes of the first body, once it is over
    before  the memory written before the branch
    """

    def __init__(self, trace: Trace, condition: Tensor, site: Location) -> None:
        self.trace = trace
        self.step = Branch(condition, (), loc=site)
        self.then: Written | None = None
        self.before = trace.written.state

    def begin(self) -> None:
        self.trace.open(self.step)

    def begin_otherwise(self) -> None:
        self.trace.calls.pop()
        self.trace.written.state = self.before
        self.trace.branching = None
        self.trace.open(self.step)

    def end(self) -> None:
        trace = self.trace
        if trace.opened[-1][0] is not self.step:
            raise trace.unended()
        _, body, written = trace.close()
        if self.then is None:
            self.then, self.before = written, trace.written.state
            self.step = replace(self.step, then=body)
            trace.written.join(written, Written(trace, trace.written))
            trace.branching = self
        else:
            self.step = replace(self.step, otherwise=body)
            trace.written.join(self.then, written)
        trace.calls.append(self.step)


def begin_while(trace: Trace, condition: Tensor, site: Location) -> None:
    """Open the body of a while."""
    trace.open(While(condition, (), loc=site))


def end_while(trace: Trace) -> None:
    step, body, written = trace.close()
    assert isinstance(step, While)
    for output in outputs_of(trace.parameters):
        spans = [*written.spans.get(output, ()), *written.perhaps.get(output, ())]
        if output.role == "out" and spans:
            raise CompileError(
                f"a loop whose number of steps isn't known writes the output '{output.name}'",
                spans[0].site,
                f"use a temporary, or declare '{output.name}' tc.inout",
            )
    if trace.memory_of(step.condition) not in _memory_written(trace, body):
        raise CompileError(
            f"nothing in this loop writes '{step.condition.name}': it would never end",
            step.loc,
            "the last call in the body may say whether there is another step: tc.compute(..., out=flag)",
        )
    trace.written.repeat(written)
    trace.calls.append(replace(step, body=body))


def _memory_written(trace: Trace, steps: tuple[Step, ...]) -> set[Tensor]:
    return {trace.memory_of(given) for step in steps for given in writes_of(step)}


def check_condition(trace: Trace, condition: Tensor, site: Location) -> None:
    """Raise an error for a condition that can't choose among steps, or that isn't surely written."""
    trace.check_is_there(condition, site)
    problem = condition_problem(condition)
    if problem is not None:
        raise CompileError(f"'{condition.name}' {problem}", site)
    if not trace.is_written(condition, site):
        error = CompileError(
            f"'{condition.name}' is read to choose among steps, and isn't surely written before",
            site,
            notes=(("it is made here", condition.loc),),
        )
        trace.written.need(trace.memory_of(condition), trace.span(condition, site), error)


# --- the language ---


class _Body(AbstractContextManager[None]):
    """The body of a `with`, which is traced between two functions."""

    def __init__(
        self, trace: Trace, site: Location, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self.trace, self.site, self.begin, self.end = trace, site, begin, end
        trace.awaited.append(site)

    def __enter__(self) -> None:
        self.trace.awaited.remove(self.site)
        self.begin()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.end()


def branch(flag: object) -> AbstractContextManager[None]:
    """In a program, a choice by a flag: a tensor of one bool, which is read when the branch is reached.

        with tc.branch(flag):
            doubled(x, out=y)
        with tc.otherwise():
            copied(x, out=y)

    Both bodies are traced once, and one of them runs. `tc.otherwise` may be left out. A tensor that is read after the
    branch was written before it, or in both bodies; so an output is written in both, or in neither.
    """
    trace, condition, site = _flag("tc.branch", flag)
    _stay_inside(site)
    branching = Branching(trace, condition, site)
    return _Body(trace, site, branching.begin, branching.end)


def otherwise() -> AbstractContextManager[None]:
    """In a program, the other body of a branch; it directly follows `with tc.branch(flag):`."""
    trace, site = _trace("tc.otherwise")
    branching = trace.branching
    if branching is None or not trace.calls or trace.calls[-1] is not branching.step:
        raise CompileError(
            "tc.otherwise comes right behind the body of a tc.branch, and there is none", site
        )
    _stay_inside(site)
    return _Body(trace, site, branching.begin_otherwise, branching.end)


def steps_while(flag: object) -> Iterator[None]:
    """In a program, a loop while a flag holds: a tensor of one bool, which is read before each step.

        for _ in tc.steps_while(goes_on):
            newton(x, out=following)
            copied(following, out=x)
            differs(x, out=goes_on)

    The body is traced once. It reads tensors written before the loop, or earlier in the body. A tensor that is read
    after the loop was written before it, since there may be no step.
    """
    trace, condition, site = _flag("tc.steps_while", flag)
    trace.awaited.append(site)
    return _steps(trace, condition, site)


def _steps(trace: Trace, condition: Tensor, site: Location) -> Iterator[None]:
    trace.awaited.remove(site)
    begin_while(trace, condition, site)
    yield
    end_while(trace)


def _trace(what: str) -> tuple[Trace, Location]:
    trace, site = current_trace(), call_site()
    if trace is None:
        raise CompileError(f"{what} is for the body of a @tc.program", site)
    return trace, site


def _flag(what: str, flag: object) -> tuple[Trace, Tensor, Location]:
    trace, site = _trace(what)
    if not isinstance(flag, TensorHandle):
        hint = "what is known while a program is traced is for Python's own if and for"
        if not isinstance(flag, bool):
            hint = "a computation may make one: tc.compute((), lambda: ...)"
        raise CompileError(
            f"{what} takes a tensor of one bool, and this is {describe(flag)}", site, hint
        )
    trace.check_owner(flag, site)
    check_condition(trace, flag.tensor, site)
    return trace, flag.tensor, site


def _stay_inside(site: Location) -> None:
    """Raise an error for a jump out of the body of a `with`: readers expect one side to run, and both are traced."""
    place = way_out(site)
    if place is not None:
        raise CompileError(
            "this leaves a body that is traced whether or not its flag holds",
            place,
            "what comes behind belongs into tc.otherwise()",
        )
