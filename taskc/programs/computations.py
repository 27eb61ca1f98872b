"""`tc.compute`: an index expression over the tensors of a program that is being traced.

Its function is parsed as the language's expressions are, never run. What it closes over is constant, but for the
program's tensors and scalars, which become the computation's parameters.

A network has the same computation in many layers. The functions of taskc's own operators are constant, so that one with
the same code, which closes over equal constants and tensors of the same types, has the same computation.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import Any

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.code_size import deep
from taskc.ir.mapping import Mapping
from taskc.ir.rewrite import substitute, walk
from taskc.ir.types import DType
from taskc.lang.context import Context, FunctionFrame, Scope
from taskc.lang.conversions import scalar
from taskc.lang.expressions import convert_to
from taskc.lang.functions import FunctionDefinition
from taskc.lang.operators import binary
from taskc.lang.parser import EVALUATORS, EXECUTORS
from taskc.lang.sizes import OfSizes
from taskc.lang.source import call_site
from taskc.lang.values import Value, counted, describe
from taskc.programs.ir import Computation, variables_in
from taskc.programs.record_call import dimensions_of, noted_computation, part_of
from taskc.programs.rounding import widens
from taskc.programs.tracing import (
    ComputedScalar,
    Handle,
    PartHandle,
    ScalarHandle,
    TensorHandle,
    Trace,
)

_WHAT = "a computation"
_OUTPUT = "out"


class Captured:
    """The values that a computation captures from the program around it, each with its parameter."""

    def __init__(self, trace: Trace, context: Context) -> None:
        self.trace = trace
        self.context = context
        self.parameters: dict[ir.Tensor | ir.Variable, ir.Tensor | ir.Variable] = {}

    def value(self, value: Value) -> Value:
        """A value from around the function, with parameters in place of handles."""
        if type(value) in (tuple, list):
            return type(value)(map(self.value, value))
        if isinstance(value, OfSizes):
            self.trace.expression(value)  # which the program has to know
        if not isinstance(value, Handle):
            return value
        if value.trace is not self.trace:
            raise CompileError(
                f"'{value.name}' belongs to program '{value.trace.name}', and this computation is in"
                f" '{self.trace.name}'",
                call_site(),
                "pass it as a parameter",
            )
        if isinstance(value, ComputedScalar):
            return self._computed(value)
        if isinstance(value, PartHandle):
            return part_of(value, self.value(value.whole))
        assert isinstance(value, ScalarHandle | TensorHandle)
        outer = value.variable if isinstance(value, ScalarHandle) else value.tensor
        if outer not in self.parameters:
            taken = {_OUTPUT, *[parameter.name for parameter in self.parameters.values()]}
            name = outer.name
            while name in taken:
                name += "_"
            parameter: ir.Tensor | ir.Variable = ir.Variable(name, outer.dtype)
            if isinstance(outer, ir.Tensor):
                parameter = ir.Tensor(name, outer.dtype, outer.shape, ir.GLOBAL, outer.layout)
            self.parameters[outer] = parameter
        return self.parameters[outer]

    def _computed(self, value: ComputedScalar) -> Value:
        sides = [self.context.symbolic(side) for side in value.sides]
        if isinstance(value.kind, DType):
            number: Any = value.site
            return convert_to(self.context, value.kind, sides[0], number, number)
        if len(sides) == 1:
            return ir.Unary("-", scalar(self.context, sides[0], value.site), loc=value.site)
        places: Any = (value.site, value.site)
        return binary(self.context, value.kind, (sides[0], sides[1]), places, value.site)


def traced_computation(
    trace: Trace,
    shape: Sequence[int | ir.Expression],
    function: Callable[..., Any],
    name: str,
    site: Location,
    out: Any = None,
) -> Handle:
    """Record a computation that writes `out` or a temporary."""
    layout = out.tensor.layout if isinstance(out, TensorHandle) else None
    computation, arguments = computation_of(trace, shape, function, name, site, layout)
    return noted_computation(trace, computation, arguments, out, site)


def computation_of(
    trace: Trace,
    shape: Sequence[int | ir.Expression],
    function: Callable[..., Any],
    name: str,
    site: Location,
    layout: Mapping | None = None,
) -> tuple[Computation, list[Handle]]:
    """The computation that a function describes for each element, and its arguments."""
    definition = function if isinstance(function, FunctionDefinition) else None
    if definition is None:
        if not isinstance(function, FunctionType):
            raise CompileError(
                f"tc.compute takes a lambda or a @tc.function, and this is {describe(function)}",
                site,
            )
        definition = FunctionDefinition(function)
    form = _Form(trace)
    try:
        key = name, tuple(shape), layout, form.of(definition)
    except _NoFormError:
        return _new_computation(trace, shape, definition, name, site, layout)
    known = _known.get(key)
    if known is None:
        computation, arguments = _new_computation(trace, shape, definition, name, site, layout)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = computation, tuple(map(form.place, arguments))
        return computation, arguments
    handles = [*form.handles.values()]
    return known[0], [handles[place] for place in known[1]]


# Computations, each with its arguments as places among the tensors that its function closes over.
_known: dict[Hashable, tuple[Computation, tuple[int, ...]]] = {}
_MOST_KNOWN = 1 << 12


class _NoFormError(Exception):
    pass


class _Form:
    """A key for functions of taskc's that describe the same computation, but for the tensors that they read.

    handles  the tensors and scalars that the function closes over
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.handles: dict[ir.Tensor | ir.Variable, Handle] = {}

    def of(self, value: object) -> Hashable:
        match value:
            case None | bool() | int() | str() | DType() | Mapping():
                return type(value), value
            case float():
                return value.hex()
            case tuple() | list():
                return type(value), *map(self.of, value)
            case TensorHandle(tensor=tensor) if value.trace is self.trace:
                self.handles.setdefault(tensor, value)
                return self.place(value), tensor.dtype, tensor.shape, tensor.layout
            case FunctionDefinition():
                return self.of(value.function)
            case FunctionType() if _is_own(value):
                return id(value.__code__), *[
                    self.of(cell.cell_contents) for cell in value.__closure__ or ()
                ]
        raise _NoFormError

    def place(self, handle: Handle) -> int:
        assert isinstance(handle, TensorHandle)
        return [*self.handles].index(handle.tensor)


def _is_own(function: FunctionType) -> bool:
    """Whether a function is taskc's, with all that it reads in its closure, or constant."""
    return (function.__module__ or "").startswith("taskc.") and not function.__defaults__


def _new_computation(
    trace: Trace,
    shape: Sequence[int | ir.Expression],
    definition: FunctionDefinition,
    name: str,
    site: Location,
    layout: Mapping | None,
) -> tuple[Computation, list[Handle]]:
    context = Context(name, 1, False, "generic", EVALUATORS, EXECUTORS)
    captured = Captured(trace, context)
    context.capture = captured.value
    context.place = None if site.line else site
    context.dimensions = dict(trace.variables)
    context.nonnegative.update(context.dimensions.values())
    with deep(site):
        variables, value = _evaluated(context, definition, len(shape), site)
    read = [node.tensor for node in walk(value) if isinstance(node, ir.Read)]
    named: set[object] = {*variables_in(value), *read}
    used = [own for own in captured.parameters.values() if own in named]
    output = ir.Tensor(_OUTPUT, value.dtype, tuple(shape), ir.GLOBAL, layout, role="out")
    parameters = (*used, output)
    dimensions = dimensions_of(trace, value, parameters)
    unrounded = _is_own(definition.function) and widens(value)
    computation = Computation(name, parameters, dimensions, variables, value, unrounded, loc=site)
    handles = [trace.handle(given) for given, own in captured.parameters.items() if own in used]
    return computation, handles


def _evaluated(
    context: Context, definition: FunctionDefinition, rank: int, site: Location
) -> tuple[tuple[ir.Variable, ...], ir.Expression]:
    """The variables of an element's indices, and its value."""
    source = definition.source
    names, rest = definition.parameters
    if rank != len(names) and (rest is None or rank < len(names)):
        raise CompileError(
            f"the result has {counted(rank, 'dimension')}, and the function"
            f" {counted(len(names), 'parameter')}{' or more' if rest else ''}",
            site,
        )
    named = [*names, *[f"{rest}_{n}" for n in range(rank - len(names))]]
    variables = tuple([ir.Variable(name) for name in named])
    context.nonnegative.update(variables)
    values: dict[str, Value] = dict(zip(names, variables, strict=False))
    if rest is not None:
        values[rest] = variables[len(names) :]
    # The innermost function returns; the program's would be around it.
    context.frames += [
        FunctionFrame(source, {}, []),
        FunctionFrame(source, definition.outside, []),
    ]
    context.in_move = True
    body = source.tree.body[-1]
    context.run(source.body, Scope(values))
    result = scalar(context, context.frame.result, body)
    return variables, _without_names(context, result, body)


def _without_names(context: Context, value: ir.Expression, body: ast.stmt) -> ir.Expression:
    """An expression with the names that its statements define substituted; other statements are an error."""
    named: dict[ir.Variable, ir.Expression] = {}
    for statement in context.block:
        if not isinstance(statement, ir.Let):
            raise context.error(
                f"{_WHAT} is one expression, and this function does more than name parts of it",
                body,
                "what has loops or changes a value is a kernel",
            )
        named[statement.variable] = substitute(statement.value, named)
    return substitute(value, named)
