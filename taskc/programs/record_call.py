"""One call in a program that is being traced: whether it fits, and what it becomes.

Every mistake in a call is found here, at its line: types, shapes, layouts, memory that hasn't been written. Shapes
have to fit for all sizes: this is decided on linear forms of the program's dimensions, and what can't be decided is an
error. Whether an extent is negative, or a size too large for a scalar of fewer bits, is checked when the program is
called.

Parts of a program's tensors along any axes: `x[:, 1:-1]`, `x[::2]`, `b[1:-1]` of an extent that may be short.

They are no memory of their own. In a computation `part[i, j]` reads `x[i, 1 + j]`; a kernel gets a temporary. A
computation into a part becomes one of the whole that leaves the rest as it was:

    tc.compute((n, m - 2), lambda i, j: f(i, j), out=y[:, 1:-1])
->
    tc.compute((n, m), lambda i, j: f(i, j - 1) if 1 <= j < m - 1 else y[i, j], out=y)

Where a part ends before it begins it has no elements, as NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping as Dictionary, Sequence
from contextvars import Context
from dataclasses import replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from taskc.arrays.dlpack import host_array, is_array
from taskc.arrays.packed import Packed, memory_key, pack, shared
from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import add, floor_divide, index, modulo, multiply, subtract
from taskc.ir.extents import OneUnknown
from taskc.ir.mapping import Mapping, repeat
from taskc.ir.nodes import Binary, Expression, Kernel, Variable
from taskc.ir.rewrite import substitute
from taskc.ir.signature import Binding, Parameter, Size, named_type, outputs_of
from taskc.ir.types import TensorType, i64
from taskc.lang.definition import Definition
from taskc.lang.sizes import FloatOfSizes, OfSizes
from taskc.lang.source import assigned_names, call_site
from taskc.lang.values import TensorPart, describe
from taskc.programs.inlining import Inlining
from taskc.programs.ir import (
    Call,
    Callee as Called,
    Computation,
    Invocation,
    Program,
    Step,
    map_calls,
    variables_in,
)
from taskc.programs.tracing import (
    ComputedScalar,
    Handle,
    PartHandle,
    ScalarHandle,
    TensorHandle,
    Trace,
)


def part_of(part: PartHandle, tensor: ir.Tensor) -> TensorPart:
    """The part as computations index it, relative to their parameter for the whole."""
    trace = part.trace
    starts = tuple([index(trace.expression(axis.start)) for axis in part.axes])
    shape = tuple([trace.extent(trace.expression(n)) for n in part.shape])
    return TensorPart(tensor, starts, tuple([axis.step for axis in part.axes]), shape)


def into_part(
    computation: Computation, arguments: list[Handle], part: PartHandle
) -> tuple[Computation, list[Handle]]:
    """The computation of the whole that writes only a part, and its arguments."""
    trace, whole, output = part.trace, part.whole.tensor, computation.output
    shape = part_of(part, whole).shape
    fits = len(shape) == len(output.shape) and all(map(trace.are_equal, shape, output.shape))
    if not fits or output.dtype is not whole.dtype:
        wanted, found = (
            named_type(t.dtype, n) for t, n in ((whole, shape), (output, output.shape))
        )
        raise CompileError(
            f"{computation.name}(): output 'out' must be {wanted}, not {found}", computation.loc
        )
    if whole.role == "out":
        raise CompileError(
            f"a part of the output '{whole.name}' is written here, and the rest of it would have to be there before",
            computation.loc,
            f"declare it tc.inout[{named_type(whole.dtype, whole.shape)}], or compute all of it",
        )
    known = [
        own
        for own, it in zip(computation.parameters, arguments, strict=False)
        if isinstance(it, TensorHandle) and it.tensor is whole
    ]
    own = known[0] if known else ir.Tensor("old", whole.dtype, whole.shape, ir.GLOBAL, whole.layout)
    assert isinstance(own, ir.Tensor)
    names = iter(computation.variables)
    moved: dict[Variable, Expression] = {}
    places: list[Variable] = []
    conditions: list[Expression] = []
    for axis, extent in zip(part.axes, whole.shape, strict=True):
        old = next(names) if axis.step else Variable("at")
        place = Variable(old.name)
        places.append(place)
        start = index(trace.expression(axis.start))
        beyond = subtract(place, start)
        if not axis.step:
            conditions.append(Binary("==", place, start))
            continue
        moved[old] = floor_divide(beyond, axis.step)
        end = add(start, multiply(index(trace.expression(axis.count)), axis.step))
        if not trace.are_equal(start, 0):
            conditions.append(Binary(">=", place, start))
        if axis.step > 1:
            conditions.append(Binary("==", modulo(beyond, axis.step), ir.constant(0)))
        if not trace.is_natural(trace.form(subtract(end, index(extent)))):
            conditions.append(Binary("<", place, end))
    value = substitute(computation.value, moved)
    if conditions:
        inside = reduce(lambda a, b: Binary("and", a, b), conditions)
        value = ir.Select(
            inside, value, ir.Read(own, tuple(places), loc=computation.loc), loc=computation.loc
        )
        if not known:
            arguments = [*arguments, part.whole]
    inputs = (
        computation.parameters[:-1]
        if known or not conditions
        else (*computation.parameters[:-1], own)
    )
    output = replace(output, shape=whole.shape, layout=whole.layout)
    changed = replace(
        computation,
        parameters=(*inputs, output),
        dimensions=dimensions_of(trace, value, (*inputs, output)),
        variables=tuple(places),
        value=value,
    )
    return changed, arguments


def copy_of(
    source: TensorHandle | PartHandle, name: str, site: Location, layout: Mapping | None = None
) -> Computation:
    """The computation of a tensor's or a part's own elements."""
    trace = source.trace
    whole = (source.whole if isinstance(source, PartHandle) else source).tensor
    own = ir.Tensor("x", whole.dtype, whole.shape, ir.GLOBAL, whole.layout)
    shape = trace.extents(source.shape, site)
    variables = tuple([Variable("ijklmnop"[k % 8]) for k in range(len(shape))])
    indices: tuple[Expression, ...] = variables
    if isinstance(source, PartHandle):
        indices = part_of(source, own).indices(variables)
    value = ir.Read(own, indices, loc=site)
    output = ir.Tensor("out", whole.dtype, shape, ir.GLOBAL, layout, role="out")
    dimensions = dimensions_of(trace, value, (own, output))
    return Computation(name, (own, output), dimensions, variables, value, loc=site)


def dimensions_of(
    trace: Trace, value: Expression, parameters: tuple[ir.Tensor | Variable, ...]
) -> tuple[Variable, ...]:
    """The sizes named by an expression and by its tensors' extents."""
    extents = [n for own in parameters if isinstance(own, ir.Tensor) for n in own.shape]
    used = {*variables_in(value, *extents)}
    return tuple([size for size in trace.variables.values() if size in used])


Callee: TypeAlias = "Called | Program"
Pack: TypeAlias = Callable[[Any, str], Any]
Value: TypeAlias = "ir.Tensor | ir.Expression"


def traced_call(
    trace: Trace,
    called: Callee,
    tuples: Dictionary[str, tuple[str, ...]],
    args: Sequence[Any],
    keywords: dict[str, Any],
    site: Location | None = None,
    definition: Definition | None = None,
) -> Any:
    """Record a call with handles, at the running code or at a site; returns handles, too.

    definition  of the callee, if it has one: it packs arrays, and knows the problem
    """
    call = _TracedCall(trace, called, site or call_site(), definition and definition.pack)
    given = call.bind(called.parameters, args, keywords, tuples)
    handles = [given[output.name] for output in outputs_of(called.parameters)]
    call.check_memory()
    steps = call.steps()
    if definition is not None and (isinstance(called, Kernel) or definition.is_differentiable):
        arguments = tuple([call.values[item.name] for item in called.parameters])
        whole = Invocation(definition, arguments)
        steps = map_calls(steps, lambda one: replace(one, invocation=whole))
    trace.calls += steps
    for _, value in call.arguments("out"):
        trace.written.add(trace.memory_of(value), trace.span(value, call.site))
    call.write_parts()
    return None if not handles else handles[0] if len(handles) == 1 else tuple(handles)


def noted_computation(
    trace: Trace, computation: Computation, arguments: list[Handle], out: Any, site: Location
) -> Handle:
    """Record a computation, which writes `out` or a temporary.

    A computation that reads the memory it writes reads the old elements: it writes a temporary, which is copied.
    """
    whole = out
    if isinstance(out, PartHandle):
        computation, arguments = into_part(computation, arguments, out)
        whole = out.whole
    if isinstance(whole, TensorHandle) and whole.tensor.role != "out":
        memory = trace.memory_of(whole.tensor)
        tensors = [it.tensor for it in arguments if isinstance(it, TensorHandle)]
        if any(trace.memory_of(tensor) is memory for tensor in tensors):
            temporary = traced_call(trace, computation, {}, arguments, {}, site)
            computation = copy_of(temporary, computation.name, site, computation.output.layout)
            arguments = [temporary]
    keywords = {} if whole is None else {"out": whole}
    returned: Handle = traced_call(trace, computation, {}, arguments, keywords, site)
    return out if isinstance(out, PartHandle) else returned


class _TracedCall(Binding):
    """One call of a kernel or a program: sizes are expressions of the caller's dimensions."""

    is_decided = False

    def __init__(
        self,
        trace: Trace,
        called: Callee,
        site: Location,
        pack: Pack | None,
    ) -> None:
        # A computation has the program's own dimensions.
        own = called.dimensions if isinstance(called, Computation) else ()
        super().__init__(f"{called.name}()", {size: size for size in own})
        self.trace = trace
        self.called = called
        self.site = site
        self.pack = pack
        self.parts: list[tuple[Handle, PartHandle]] = []  # what a call writes in place of parts

    def error(self, text: str, hint: str | None = None, *notes: Any) -> CompileError:
        return CompileError(text, self.site, hint, notes)

    def mismatch(
        self, parameter: ir.Tensor, argument: Any, reason: str = "", hint: str | None = None
    ) -> Exception:
        expected = f"{_expected(parameter)}{reason and ' '}{reason}"
        hint = hint or (None if reason else _pack_hint(parameter))
        return self.fail(parameter, f"{expected}, not {_typed(argument)}", hint)

    # Which argument is which parameter's.

    def fitting(self, parameter: Parameter, argument: Any) -> Value:
        if isinstance(argument, Handle):
            self.trace.check_owner(argument, self.site)
        if isinstance(parameter, ir.Variable):
            return self._scalar(parameter, argument)
        if isinstance(argument, PartHandle):
            argument = self._in_memory(argument, parameter.role)
        return self._tensor(parameter, argument)

    def _scalar(self, parameter: ir.Variable, value: Any) -> ir.Expression:
        dtype = parameter.dtype
        if isinstance(value, ScalarHandle):
            if value.dtype is not dtype:
                raise self.fail(parameter, f"must be a number of type {dtype}, not {value.dtype}")
            return value.variable
        if isinstance(value, OfSizes):
            if isinstance(value, FloatOfSizes) or not dtype.is_integer:
                is_float = isinstance(value, FloatOfSizes)
                what = f"{value} is a float of the call" if is_float else "a size is an integer"
                hint = "a program passes on sizes as integers; what is computed of them belongs in the kernel"
                raise self.fail(parameter, f"must be a number of type {dtype}, and {what}", hint)
            expression = self.trace.expression(value)
            return expression if dtype is i64 else ir.Cast(expression, dtype)
        if isinstance(value, (TensorHandle, ComputedScalar)):
            hint = "a program passes on its scalars as they are; what is computed of them belongs in the kernel"
            raise self.fail(
                parameter,
                f"must be a number of type {dtype}, not {value.described}",
                None if isinstance(value, TensorHandle) else hint,
            )
        stored = self.number(parameter, value)
        return ir.Constant(float(stored) if dtype.is_float else stored.item(), dtype)

    def _tensor(self, parameter: ir.Tensor, value: Any) -> ir.Tensor:
        if parameter.role == "in" and is_array(value):
            value = self._constant(parameter, host_array(value, self.site))
        if not isinstance(value, TensorHandle):
            hint = "its parts are passed one by one: *name" if isinstance(value, tuple) else None
            what = "an array" if hasattr(value, "__dlpack__") else describe(value)
            expected = f"{_expected(parameter)}, a tensor of the program"
            raise self.fail(parameter, f"{expected}, not {what}", hint)
        array = self.trace.constants.get(value.tensor)
        if array is not None and value.tensor.layout is None and parameter.layout is not None:
            value = self._constant(parameter, array)
        tensor: ir.Tensor = value.tensor
        self.trace.check_is_there(tensor, self.site)
        if tensor.dtype is not parameter.dtype or len(tensor.shape) != len(
            parameter.argument_shape
        ):
            raise self.mismatch(parameter, tensor)
        self.fit(parameter, tensor.shape, tensor)
        self._check_layout(parameter, tensor)
        return tensor

    def _in_memory(self, part: PartHandle, role: str) -> Handle:
        """A temporary in place of a part; of one that is written its elements go back after the call."""
        copied = copy_of(part, "copy", self.site)
        temporary: Handle
        if role == "out":
            tensor = replace(copied.output, name=part.name, role="in", loc=self.site)
            temporary = self.trace.temporary(tensor)
        else:
            temporary = noted_computation(self.trace, copied, [part.whole], None, self.site)
        if role != "in":
            self.parts.append((temporary, part))
        return temporary

    def write_parts(self) -> None:
        for temporary, part in self.parts:
            assert isinstance(temporary, TensorHandle)
            copied = copy_of(temporary, "copy", self.site)
            noted_computation(self.trace, copied, [temporary], part, self.site)

    def _constant(self, parameter: ir.Tensor, array: np.ndarray[Any, Any]) -> Handle:
        """An array as a constant of the program: as it is, or packed where the parameter has a layout."""
        dtype = parameter.dtype
        is_fit = array.dtype == dtype.numpy
        if parameter.layout is not None:  # its packing kernel may take narrower integers
            is_fit = dtype.holds(array.dtype)
        if not is_fit and not dtype.is_sub_byte:
            raise self.fail(parameter, f"{_expected(parameter)}, not an array of {array.dtype}")
        if parameter.layout is None and not dtype.is_sub_byte:
            kind = TensorType(dtype, array.shape)
            whole = np.ascontiguousarray(array)
            return self.trace.constant(whole, kind, parameter.name, self.site)
        if isinstance(array, Packed):
            return self.trace.constant(array, array.type, parameter.name, self.site)
        key = memory_key(array), dtype, parameter.layout, parameter.argument_shape
        known = self.trace.packed.get(key)
        if known is not None:
            return known[1]
        try:
            packed = shared(self._packed(parameter, array))
        except TypeError as error:
            raise self.fail(parameter, f"can't be packed: {error}") from None
        handle = self.trace.constant(packed, packed.type, parameter.name, self.site)
        self.trace.packed[key] = array, handle
        return handle

    def _packed(self, parameter: ir.Tensor, array: np.ndarray[Any, Any]) -> Packed:
        """The elements where the parameter's layout has them, or in bytes, now and not in the program."""
        if parameter.dtype.is_sub_byte:
            return pack(
                array, TensorType(parameter.dtype, parameter.argument_shape, parameter.layout)
            )
        assert self.pack is not None  # a callee without a definition has no such parameter
        packed: Packed = Context().run(self.pack, array, parameter.name)
        return packed

    # Sizes.

    def difference(self, left: Size, right: Size) -> int | None:
        form = self.trace.linear_difference(left, right)
        return form.constant if form.is_constant else None

    def divides(self, divisor: int, size: Size) -> bool:
        return self.trace.divides(divisor, size)

    def solve(self, size: Size, unknown: OneUnknown) -> Size | None:
        left = subtract(size, unknown.rest)
        if unknown.factor < 0 or not self.trace.divides(unknown.factor, left):
            return None
        return self.trace.extent(floor_divide(left, index(unknown.factor)))

    def value(self, extent: ir.Expression) -> Size:
        sizes = {variable: index(n) for variable, n in self.sizes.items()}
        return self.trace.extent(substitute(extent, sizes))

    def _check_layout(self, parameter: ir.Tensor, tensor: ir.Tensor) -> None:
        if not _same_layout(parameter, tensor):
            raise self.fail(
                parameter,
                f"must lie {_laid(parameter)}, and '{tensor.name}' lies {_laid(tensor)}",
                "a kernel can pack it: from one layout to the other",
            )

    def allocated(self, outputs: Sequence[ir.Tensor]) -> dict[str, Handle]:
        """Temporaries, named as the code at the call names its results."""
        everything = outputs_of(self.called.parameters)
        names = assigned_names(self.site, tuple([output.name for output in everything]))
        named = dict(zip(everything, names, strict=True))
        new: dict[str, Handle] = {}
        for output in outputs:
            shape, layout = self.shape_of(output), output.layout
            tensor = ir.Tensor(named[output], output.dtype, shape, ir.GLOBAL, layout, loc=self.site)
            self.values[output.name] = tensor
            new[output.name] = self.trace.temporary(tensor)
        return new

    # What it reads and writes.

    def arguments(self, *roles: str) -> list[tuple[ir.Tensor, ir.Tensor]]:
        """The tensor parameters of some roles, with what they are given."""
        found = []
        for parameter in self.called.parameters:
            if isinstance(parameter, ir.Tensor) and parameter.role in roles:
                value = self.values[parameter.name]
                assert isinstance(value, ir.Tensor)
                found.append((parameter, value))
        return found

    def check_memory(self) -> None:
        """Check that the inputs have been written, and that the outputs may be."""
        for parameter, value in self.arguments("in", "inout"):
            self._check_read(parameter, value)
        for parameter, value in self.arguments("out", "inout"):
            self._check_written(parameter, value)
        self._check_overlap()

    def _check_read(self, parameter: ir.Tensor, value: ir.Tensor) -> None:
        trace, memory = self.trace, self.trace.memory_of(value)
        if trace.is_written(value, self.site):
            return
        what = f"'{memory.name}'" if memory.role != "out" else f"the output '{memory.name}'"
        if trace.written.of(memory):
            problem = (
                f"is read, and calls before have written only parts of {what}, as far as is known"
            )
        elif trace.written.perhaps_of(memory):
            problem = f"is read, and whether calls before have written {what} depends on a flag"
        else:
            problem = f"is read, and no call has written {what} before"
        hint = "it starts uninitialized: let a kernel fill it first, as its tc.out"
        note = ("it is made here", memory.loc)
        error = self.fail(parameter, problem, hint, note)
        trace.written.need(memory, trace.span(value, self.site), error)

    def _check_written(self, parameter: ir.Tensor, value: ir.Tensor) -> None:
        trace, memory = self.trace, self.trace.memory_of(value)
        if memory in trace.constants:
            raise self.fail(parameter, f"is written, and '{memory.name}' is constant")
        if memory not in trace.parameters:
            return
        if memory.role == "in":
            raise self.fail(
                parameter,
                f"is written, and '{memory.name}' is an input of program '{trace.name}'",
                f"declare it tc.inout[{_typed(memory)}], or write to tc.empty({_typed(memory)})",
                ("it is declared here", memory.loc),
            )
        if memory.role == "out" and parameter.role == "out":
            before = trace.written.overlapping(memory, trace.span(value, self.site))
            if before is not None:
                raise self.fail(
                    parameter,
                    f"is written, and the output '{memory.name}' has been written before",
                    f"use a temporary for the first result, or declare '{memory.name}' tc.inout",
                    ("it was written here", before.site),
                )

    def _check_overlap(self) -> None:
        trace, everything = self.trace, self.arguments("in", "out", "inout")
        for number, (first, value) in enumerate(everything):
            for second, other in everything[number + 1 :]:
                memory = trace.memory_of(value)
                if memory is not trace.memory_of(other) or {first.role, second.role} == {"in"}:
                    continue
                one, another = trace.span(value, self.site), trace.span(other, self.site)
                if not trace.written.are_apart(one, another):
                    written, overlapping = (
                        (first, second) if first.role != "in" else (second, first)
                    )
                    raise self.fail(
                        written,
                        f"is written, and '{memory.name}' is also given for '{overlapping.name}'",
                    )

    # What it becomes.

    def steps(self) -> Sequence[Step]:
        """The call; of a program, its steps on the arguments of this one."""
        if not isinstance(self.called, Program):
            arguments = [self.values[item.name] for item in self.called.parameters]
            return (Call(self.called, tuple(arguments), self.trace.apart, loc=self.site),)
        scalars = {variable: index(size) for variable, size in self.sizes.items()}
        tensors: dict[ir.Tensor, ir.Tensor] = {}
        for parameter in self.called.parameters:
            value = self.values[parameter.name]
            if isinstance(parameter, ir.Tensor):
                assert isinstance(value, ir.Tensor)
                tensors[parameter] = value
            else:
                assert not isinstance(value, ir.Tensor)
                scalars[parameter] = value
        return Inlining(self.trace, self.called, tensors, scalars, self.site).inlined()


def _expected(parameter: ir.Tensor) -> str:
    return f"must be {named_type(parameter.dtype, parameter.argument_shape)}"


def _pack_hint(parameter: ir.Tensor) -> str | None:
    if parameter.layout is None:
        return None
    return f"it has a layout: pass a constant, or what kernel.pack({parameter.name}) makes"


def _typed(tensor: ir.Tensor) -> str:
    return named_type(tensor.dtype, tensor.shape)


def _same_layout(parameter: ir.Tensor, tensor: ir.Tensor) -> bool:
    a, b = parameter.layout, tensor.layout
    if a is not None and b is not None:
        return a == b
    laid = a or b
    # Row-major may be said, too.
    extents = [n for n in tensor.shape if isinstance(n, int)]
    return laid is None or (len(extents) == len(tensor.shape) and laid == repeat(*extents))


def _laid(tensor: ir.Tensor) -> str:
    return "row-major" if tensor.layout is None else f"as {tensor.layout}"
