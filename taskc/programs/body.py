"""The functions of `tc` for the body of a program, which is traced: memory, computations, loops and branches.

Each body of a branch or a while is traced once. Memory that both bodies of a branch write counts as written after it;
memory that only one of them or a while writes does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from taskc.arrays.dlpack import host_array
from taskc.arrays.packed import empty as allocated
from taskc.errors import CompileError, Location
from taskc.ir.nodes import Expression, Tensor, Variable
from taskc.ir.signature import outputs_of
from taskc.ir.types import TensorType, from_numpy, i64
from taskc.lang.names import on_numbers
from taskc.lang.source import assigned_names, call_site, way_out
from taskc.lang.values import describe
from taskc.programs.ir import Branch, Step, While, condition_problem, writes_of
from taskc.programs.tracing import (
    ComputedScalar,
    Handle,
    ScalarHandle,
    TensorHandle,
    Trace,
    current_trace,
    tensor_type,
)
from taskc.programs.written import Written


@on_numbers
def empty(kind: type[Any] | TensorType) -> Any:
    """In a program a temporary, `tc.empty(f32[m, n])`; elsewhere memory that kernels write in place."""
    return _empty(kind)


def _empty(kind: object) -> Handle | np.ndarray[Any, Any]:
    trace = current_trace()
    if trace is not None:
        return trace.empty(kind)
    site = call_site()
    described = tensor_type(kind, site)
    for extent in described.shape:
        if not isinstance(extent, int):
            raise CompileError(
                f"tc.empty makes memory of a size that is known, and {extent} isn't known here",
                site,
                "in the body of a @tc.program it makes a temporary, of sizes that a call tells",
            )
    return allocated(described)


def compute(
    shape: Any, function: Callable[..., Any], *, name: str | None = None, out: Any = None
) -> Any:
    """In a program, a tensor whose elements are given by a function of their indices.

        y = tc.compute((m, n), lambda i, j: tc.gelu(x[i, j] + bias[j]))

    function  a lambda or a @tc.function of one expression, or of one with named parts. It is parsed, never run; the
              program's tensors and sizes, and Python's constants, may be named in it. Its type is the result's
    out       an output or a temporary to write instead of a new one
    """
    from taskc.programs.computations import traced_computation  # with all that knows the language

    trace, site = _trace("tc.compute")
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    named = name or str(getattr(function, "__name__", "compute"))
    called = "compute" if named == "<lambda>" else named
    try:
        return traced_computation(trace, trace.extents(extents, site), function, called, site, out)
    except CompileError as error:
        raise error.with_traceback(None) from error.__cause__


def steps(count: Any) -> Iterator[Any]:
    """In a program, a loop: `for t in tc.steps(n):` runs its body, traced once, for each number t from 0 to n - 1.

    The number is a size: it may select a part of a tensor, `x[t]`, be a scalar's value, and appear in computations.
    The body may read what was written before the loop, earlier in the body, or by previous steps.

    count  a size; or a scalar of the program, and then the number is a tensor without dimensions, `t[()]`
    """
    trace, site = _trace("tc.steps")
    if isinstance(count, ScalarHandle) and not count.dtype.is_integer:
        raise CompileError(f"steps are counted by an integer, and this is {count.described}", site)
    if isinstance(count, (ScalarHandle, ComputedScalar)):
        return _counted(count)
    (times,) = trace.extents((count,), site)
    named = re.search(r"for\s+([^\W\d]\w*)\s+in\s*$", site.text[: max(site.column - 1, 0)])
    return _loop(trace, Variable(named[1] if named else "step", i64), times, site)


def _counted(count: Any) -> Iterator[Any]:
    """A loop of as many steps as a scalar says when the program is called."""
    number: Any = compute((), lambda: 0)
    goes_on = compute((), lambda: number[()] < count.to(i64))
    for _ in steps_while(goes_on):
        yield number
        compute((), lambda: number[()] + 1, out=number)
        compute((), lambda: number[()] < count.to(i64), out=goes_on)


def _loop(
    trace: Trace, variable: Variable, count: int | Expression, site: Location
) -> Iterator[Any]:
    yield trace.begin_loop(variable, count, site)
    trace.end_loop()


def constant(array: Any) -> Any:
    """In a program, an array that is known now. It isn't copied: nobody may change it later."""
    trace, site = _trace("tc.constant")
    array = host_array(array, site)
    try:
        dtype = from_numpy(array.dtype)
    except ValueError:
        raise CompileError(
            f"there is no element type for an array of {array.dtype}", site
        ) from None
    # A scalar stays one: NumPy makes an array of one axis of what has none.
    whole = array if array.ndim == 0 else np.ascontiguousarray(array)
    (name,) = assigned_names(site, ("constant",))
    return trace.constant(whole, TensorType(dtype, array.shape), name, site)


# --- branches ---


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
