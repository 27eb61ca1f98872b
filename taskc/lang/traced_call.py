"""One call in a program that is being traced: whether it fits, and what it becomes.

All that can be wrong with a call is found here, at its line: types, shapes, layouts, what has been
written and what has not. Shapes have to fit for all sizes: whether they do is decided on linear forms
of the program's dimensions, and what can't be decided is an error. Only that an extent isn't negative,
and that a size fits a scalar of fewer bits, is left to the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from taskc.errors import CompileError, Location
from taskc.ir import nodes as ir
from taskc.ir.build import index, subtract
from taskc.ir.extents import shifted_dimension
from taskc.ir.mapping import repeat
from taskc.ir.printer_expressions import extent_text
from taskc.ir.program import Call, Callee as Called, Computation, Program
from taskc.ir.rewrite import replace_tensors, substitute, walk
from taskc.ir.rounding import as_storage
from taskc.ir.signature import (
    MatchError,
    Parameter,
    inputs_of,
    is_output,
    match,
    misfit,
    named_type,
    outputs_of,
)
from taskc.ir.types import TensorType, i64
from taskc.lang.sizes import Size
from taskc.lang.source import assigned_names, call_site
from taskc.lang.tracing import Handle, ScalarHandle, TensorHandle, Trace
from taskc.lang.values import describe
from taskc.packed import Packed

Callee: TypeAlias = "Called | Program"
Pack: TypeAlias = Callable[[Any, str], Any]
Value: TypeAlias = "ir.Tensor | ir.Expression"


def traced_call(
    trace: Trace,
    called: Callee,
    tuples: Mapping[str, tuple[str, ...]],
    args: Sequence[Any],
    keywords: dict[str, Any],
    site: Location | None = None,
    pack: Pack | None = None,
) -> Any:
    """Notes a call with handles, of the running code or at a site; what it returns are handles, too.

    pack  makes of an array, given a parameter's name, what that takes
    """
    call = _TracedCall(trace, called, tuples, site or call_site(), pack)
    handles = call.bind(args, keywords)
    call.check_memory()
    trace.calls += call.made()
    for output in call.written:
        trace.written.setdefault(output, call.site)
    return None if not handles else handles[0] if len(handles) == 1 else tuple(handles)


class _TracedCall:
    """One call of a kernel or a program, as far as it has been looked at."""

    def __init__(
        self,
        trace: Trace,
        called: Callee,
        tuples: Mapping[str, tuple[str, ...]],
        site: Location,
        pack: Pack | None,
    ) -> None:
        self.trace = trace
        self.called = called
        self.tuples = tuples
        self.site = site
        self.pack = pack
        self.values: dict[str, Value] = {}
        # A computation has the program's own dimensions.
        own = called.dimensions if isinstance(called, Computation) else ()
        self.sizes: dict[ir.Variable, int | ir.Expression] = {size: size for size in own}
        self.inferred_from: dict[ir.Variable, str] = {}
        self.computed: list[tuple[ir.Tensor, ir.Expression, int | ir.Expression, ir.Tensor]] = []

    def error(
        self,
        parameter: Parameter,
        problem: str,
        hint: str | None = None,
        note: tuple[str, Location] | None = None,
    ) -> CompileError:
        kind = "output" if is_output(parameter) else "argument"
        return CompileError(
            f"{self.called.name}(): {kind} '{parameter.name}' {problem}",
            self.site,
            hint,
            (note,) if note else (),
        )

    # Which argument is which parameter's.

    def bind(self, args: Sequence[Any], keywords: dict[str, Any]) -> list[Handle]:
        """Takes the arguments and returns the outputs."""
        parameters = self.called.parameters
        try:
            given = match(f"{self.called.name}()", parameters, args, keywords, self.tuples)
        except MatchError as error:
            raise CompileError(str(error), self.site) from None
        outputs = outputs_of(parameters)
        for parameter in (*inputs_of(parameters), *outputs):
            if parameter.name not in given:
                continue
            argument = given[parameter.name]
            if isinstance(argument, Handle):
                self._check_owner(argument)
            if isinstance(parameter, ir.Variable):
                self.values[parameter.name] = self._scalar(parameter, argument)
            else:
                self.values[parameter.name] = self._tensor(parameter, argument)
        self._check_computed(outputs)
        names = assigned_names(self.site, tuple([output.name for output in outputs]))
        for output, name in zip(outputs, names, strict=True):
            if output.name not in given:
                given[output.name] = self._allocated(output, name)
        return [given[output.name] for output in outputs]

    def _scalar(self, parameter: ir.Variable, value: Any) -> ir.Expression:
        dtype = parameter.dtype
        if isinstance(value, ScalarHandle):
            if value.dtype is not dtype:
                raise self.error(parameter, f"must be a number of type {dtype}, not {value.dtype}")
            return value.variable
        if isinstance(value, Size):
            if not dtype.is_integer:
                raise self.error(
                    parameter, f"must be a number of type {dtype}, and a size is an integer"
                )
            expression = self.trace.expression(value)
            return expression if dtype is i64 else ir.Cast(expression, dtype)
        if isinstance(value, TensorHandle):
            raise self.error(parameter, f"must be a number of type {dtype}, not {value.described}")
        number = value.item() if isinstance(value, np.generic) else value
        problem = misfit(number, dtype)
        if problem is not None:
            raise self.error(parameter, problem)
        stored = as_storage(float(number) if dtype.is_float else number, dtype)
        return ir.Constant(float(stored) if dtype.is_float else stored.item(), dtype)

    def _tensor(self, parameter: ir.Tensor, value: Any) -> ir.Tensor:
        expected = _expected(parameter)
        if isinstance(value, np.ndarray) and parameter.role == "in":
            value = self._constant(parameter, value)
        if not isinstance(value, TensorHandle):
            hint = "its parts are passed one by one: *name" if isinstance(value, tuple) else None
            what = "an array" if hasattr(value, "__dlpack__") else describe(value)
            raise self.error(parameter, f"{expected}, a tensor of the program, not {what}", hint)
        array = self.trace.constants.get(value.tensor)
        if array is not None and value.tensor.layout is None and parameter.layout is not None:
            value = self._constant(parameter, array)
        tensor: ir.Tensor = value.tensor
        if tensor.dtype is not parameter.dtype or len(tensor.shape) != len(
            parameter.argument_shape
        ):
            raise self.error(parameter, f"{expected}, not {_typed(tensor)}")
        for wanted, extent in zip(parameter.argument_shape, tensor.shape, strict=True):
            self._extent(parameter, wanted, extent, tensor)
        self._check_layout(parameter, tensor)
        return tensor

    def _constant(self, parameter: ir.Tensor, array: np.ndarray[Any, Any]) -> Handle:
        """An array as a constant of the program: as it is, or packed where the parameter has a layout."""
        trace, dtype = self.trace, parameter.dtype
        if array.dtype != dtype.numpy:
            raise self.error(parameter, f"{_expected(parameter)}, not an array of {array.dtype}")
        if parameter.layout is None:
            kind = TensorType(dtype, array.shape)
            return trace.constant(np.ascontiguousarray(array), kind, self.site)
        if not isinstance(array, Packed):
            assert self.pack is not None  # a callee without a definition has no such parameter
            key = id(array), parameter.layout, parameter.argument_shape
            known = trace.packed.get(key)
            if known is not None:
                return known[1]
            try:
                made = self.pack(array, parameter.name)
            except TypeError as error:
                raise self.error(parameter, f"can't be packed: {error}") from None
            found = trace.constant(made, made.type, self.site)
            trace.packed[key] = array, found
            return found
        return trace.constant(array, array.type, self.site)

    def _check_owner(self, handle: Handle) -> None:
        if handle.trace is not self.trace:
            raise CompileError(
                f"'{handle.name}' belongs to program '{handle.trace.name}', and this call is in"
                f" '{self.trace.name}'",
                self.site,
                "pass it as a parameter",
            )

    def _extent(
        self,
        parameter: ir.Tensor,
        wanted: int | ir.Expression,
        extent: int | ir.Expression,
        tensor: ir.Tensor,
    ) -> None:
        trace = self.trace
        expected = _expected(parameter)
        if isinstance(wanted, int):
            if not trace.are_equal(wanted, extent):
                raise self.error(parameter, f"{expected}, not {_typed(tensor)}")
            return
        if not isinstance(wanted, ir.Variable):
            self.computed.append((parameter, wanted, extent, tensor))
            return
        if not trace.divides(wanted.multiple, extent):
            reason = f"{expected} with {wanted} a multiple of {wanted.multiple}"
            hint = None
            if isinstance(extent, ir.Variable):
                hint = f'declare it so: tc.dim("{extent}", multiple={wanted.multiple})'
            raise self.error(parameter, f"{reason}, not {_typed(tensor)}", hint)
        known = self.sizes.setdefault(wanted, extent)
        source = self.inferred_from.setdefault(wanted, parameter.name)
        where = "" if source == parameter.name else f" (from '{source}')"
        self._check_equal(parameter, wanted, known, extent, tensor, where)

    def _check_equal(
        self,
        parameter: ir.Tensor,
        wanted: ir.Expression,
        known: int | ir.Expression,
        extent: int | ir.Expression,
        tensor: ir.Tensor,
        where: str = "",
    ) -> None:
        """`wanted`, an extent of the parameter, is known to be what the argument has."""
        difference = self.trace.linear_difference(known, extent)
        if difference.is_constant and difference.constant == 0:
            return
        hint = None
        if not difference.is_constant:
            hint = "they have to be equal for all sizes; the same tc.dim in both would say so"
        reason = f"{_expected(parameter)} with {extent_text(wanted)} = {extent_text(known)}{where}"
        raise self.error(parameter, f"{reason}, not {_typed(tensor)}", hint)

    def _check_computed(self, outputs: Sequence[ir.Tensor]) -> None:
        """Checks extents that are computed as at a call with arrays: what outputs need may follow from `n + 2`."""
        needed = {
            n for output in outputs for n in output.argument_shape if isinstance(n, ir.Variable)
        }
        for parameter, wanted, extent, tensor in self.computed:
            known = shifted_dimension(wanted)
            if known is not None and known.dimension in needed:
                rest = self.trace.extent(subtract(extent, known.more))
                self._extent(parameter, known.dimension, rest, tensor)
        for parameter, wanted, extent, tensor in self.computed:
            self._check_equal(parameter, wanted, self._known(parameter, wanted), extent, tensor)

    def _known(self, parameter: ir.Tensor, extent: ir.Expression) -> int | ir.Expression:
        """A computed extent, in the sizes of the caller."""
        for node in walk(extent):
            if isinstance(node, ir.Variable) and node not in self.sizes:
                written = extent_text(extent)
                problem = f"has the extent {written}, and no argument has the extent {node}"
                if extent is node:
                    problem = f"has the extent {node}, which no argument tells; pass it as out="
                raise self.error(parameter, problem)
        return self._size(extent, {variable: index(n) for variable, n in self.sizes.items()})

    def _check_layout(self, parameter: ir.Tensor, tensor: ir.Tensor) -> None:
        if not _same_layout(parameter, tensor):
            raise self.error(
                parameter,
                f"must lie {_laid(parameter)}, and '{tensor.name}' lies {_laid(tensor)}",
                "a kernel can pack it: from one layout to the other",
            )

    def _allocated(self, output: ir.Tensor, name: str) -> Handle:
        """A temporary for an output that wasn't given."""
        shape: list[int | ir.Expression] = []
        for extent in output.argument_shape:
            size = extent if isinstance(extent, int) else self._known(output, extent)
            if isinstance(size, int) and size < 0:
                raise self.error(output, f"would have the extent {extent_text(extent)} = {size}")
            shape.append(size)
        tensor = ir.Tensor(
            name, output.dtype, tuple(shape), ir.GLOBAL, output.layout, loc=self.site
        )
        self.values[output.name] = tensor
        return self.trace.temporary(tensor)

    # What it reads and writes.

    def arguments(self, *roles: str) -> list[tuple[ir.Tensor, ir.Tensor]]:
        """The tensor parameters of some roles, with the memory that they are given."""
        found = []
        for parameter in self.called.parameters:
            if isinstance(parameter, ir.Tensor) and parameter.role in roles:
                value = self.values[parameter.name]
                assert isinstance(value, ir.Tensor)
                found.append((parameter, self.trace.memory_of(value)))
        return found

    @property
    def written(self) -> list[ir.Tensor]:
        return [tensor for _, tensor in self.arguments("out", "inout")]

    def check_memory(self) -> None:
        """Checks that what is read has been written, and that what is written may be."""
        trace = self.trace
        given = {item for item in trace.parameters if isinstance(item, ir.Tensor)}
        for parameter, tensor in self.arguments("in", "inout"):
            if tensor in trace.written or (tensor in given and tensor.role != "out"):
                continue
            what = f"the output '{tensor.name}'" if tensor in given else f"'{tensor.name}'"
            hint = "it starts uninitialized: let a kernel fill it first, as its tc.out"
            note = ("it is made here", tensor.loc)
            raise self.error(
                parameter, f"is read, and no call has written {what} before", hint, note
            )
        for parameter, tensor in self.arguments("out", "inout"):
            if tensor in trace.constants:
                raise self.error(parameter, f"is written, and '{tensor.name}' is constant")
            value = self.values[parameter.name]
            assert isinstance(value, ir.Tensor)
            if trace.is_part(value) and tensor not in trace.written:
                raise self.error(
                    parameter,
                    f"is a part of '{tensor.name}', and no call has written all of it before",
                )
            if tensor in given and tensor.role == "in":
                raise self.error(
                    parameter,
                    f"is written, and '{tensor.name}' is an input of program '{trace.name}'",
                    f"declare it tc.inout[{_typed(tensor)}], or write to tc.empty({_typed(tensor)})",
                    ("it is declared here", tensor.loc),
                )
        for parameter, tensor in self.arguments("out"):
            if tensor in given and tensor.role == "out" and tensor in trace.written:
                raise self.error(
                    parameter,
                    f"is written, and the output '{tensor.name}' has been written before",
                    f"use a temporary for the first result, or declare '{tensor.name}' tc.inout",
                    ("it was written here", trace.written[tensor]),
                )
        self._check_overlap()

    def _check_overlap(self) -> None:
        everything = self.arguments("in", "out", "inout")
        for number, (first, tensor) in enumerate(everything):
            for second, other in everything[number + 1 :]:
                written, overlapping = (first, second) if first.role != "in" else (second, first)
                if tensor is other and written.role != "in":
                    raise self.error(
                        written,
                        f"is written, and '{tensor.name}' is also given for '{overlapping.name}'",
                    )

    # What it becomes.

    def made(self) -> list[Call]:
        """The call; of a program, its calls on the arguments of this one."""
        if isinstance(self.called, Program):
            return self._inlined(self.called)
        arguments = [self.values[item.name] for item in self.called.parameters]
        return [Call(self.called, tuple(arguments), loc=self.site)]

    def _inlined(self, program: Program) -> list[Call]:
        scalars: dict[ir.Variable, ir.Expression] = {
            variable: index(size) for variable, size in self.sizes.items()
        }
        tensors: dict[ir.Tensor, ir.Tensor] = {}
        for parameter in program.parameters:
            value = self.values[parameter.name]
            if isinstance(parameter, ir.Tensor):
                assert isinstance(value, ir.Tensor)
                tensors[parameter] = value
            else:
                assert not isinstance(value, ir.Tensor)
                scalars[parameter] = value
        for constant, array in program.constants:
            tensors[constant] = constant
            self.trace.constants[constant] = array
            self.trace.written.setdefault(constant, self.site)
        for temporary in program.temporaries:
            extents = [self._size(extent, scalars) for extent in temporary.shape]
            lowest = min([extent for extent in extents if isinstance(extent, int)], default=0)
            if lowest < 0:
                problem = f"the temporary '{temporary.name}' would have the extent {lowest}"
                raise CompileError(f"{program.name}(): {problem}", self.site)
            tensors[temporary] = replace(temporary, shape=tuple(extents))
            self.trace.temporaries.append(tensors[temporary])
        for view in program.views:
            seen = tuple([self._size(extent, scalars) for extent in view.tensor.shape])
            tensors[view.tensor] = replace(view.tensor, shape=seen)
            offset = self._size(view.offset, scalars)
            self.trace.view(tensors[view.tensor], tensors[view.of], offset)
        computed: dict[int, Called] = {}
        calls = []
        for call in program.calls:
            arguments: list[Value] = []
            for parameter, argument in zip(call.callee.parameters, call.arguments, strict=True):
                if isinstance(argument, ir.Tensor):
                    arguments.append(tensors[argument])
                else:
                    what = f"{program.name}(): argument '{parameter.name}' of {call.callee.name}()"
                    arguments.append(self._number(what, argument, scalars))
            callee = call.callee
            if isinstance(callee, Computation) and callee.dimensions:
                made = computed.get(id(callee)) or self._inlined_computation(callee, scalars)
                callee = computed[id(callee)] = made
            calls.append(Call(callee, tuple(arguments), loc=call.loc))
        return calls

    def _inlined_computation(
        self, computation: Computation, scalars: dict[ir.Variable, ir.Expression]
    ) -> Computation:
        """A computation with the sizes of this program."""
        tensors = {
            tensor: replace(
                tensor, shape=tuple([self._size(extent, scalars) for extent in tensor.shape])
            )
            for tensor in computation.parameters
            if isinstance(tensor, ir.Tensor)
        }
        own = {size: scalars[size] for size in computation.dimensions}
        value = substitute(replace_tensors(computation.value, tensors), own)
        parameters = [
            tensors[item] if isinstance(item, ir.Tensor) else item
            for item in computation.parameters
        ]
        known = {node for size in own.values() for node in walk(size)}
        return replace(
            computation,
            parameters=tuple(parameters),
            dimensions=tuple([own for own in self.trace.variables.values() if own in known]),
            value=value,
        )

    def _size(
        self, extent: int | ir.Expression, scalars: dict[ir.Variable, ir.Expression]
    ) -> int | ir.Expression:
        return self.trace.extent(substitute(index(extent), scalars))

    def _number(
        self, what: str, argument: ir.Expression, scalars: dict[ir.Variable, ir.Expression]
    ) -> ir.Expression:
        """A scalar that is passed on; a size may have become a number."""
        argument = substitute(argument, scalars)
        if not isinstance(argument, (ir.Cast, ir.Binary)):
            return argument
        size = argument.operand if isinstance(argument, ir.Cast) else argument
        number = self.trace.extent(size)
        if not isinstance(number, int):
            return argument
        problem = misfit(number, argument.dtype)
        if problem is not None:
            raise CompileError(f"{what} {problem}", self.site)
        return ir.Constant(number, argument.dtype)


def _expected(parameter: ir.Tensor) -> str:
    return f"must be {named_type(parameter.dtype, parameter.argument_shape)}"


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
